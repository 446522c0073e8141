"""The catalog in virtual time: ids, replicas, reports, drops, deletes, restarts."""

from __future__ import annotations

import pytest

from tensorcast_bus.codec import encode_body
from tensorcast_bus.errors import AlreadyExists, Conflict, Invalid, NotFound, StaleFence
from tensorcast_bus.ids import ART_ID_BYTES_MAX
from tensorcast_bus.limits import MESSAGE_BYTES_MAX
from tensorcast_bus.messages import (
    ArtifactPage,
    Committed,
    Delete,
    DeletedRow,
    ListArtifacts,
    Reported,
    Resolve,
    Resolved,
)
from tests.unit.services.global_store.cases import Desk, commit, drop, report


def living(desk: Desk, art_id: str = "m@1") -> list[str]:
    return [f"{r.process}:{r.tier}" for r in desk.ask(Resolve(art_id), Resolved).replicas if r.living]


def test_the_first_commit_of_an_id_wins_and_other_content_is_refused_with_both_digests() -> None:
    desk = Desk()
    assert desk.ask(commit(), Committed) == Committed("stored", 1)
    with pytest.raises(AlreadyExists) as refused:
        desk.ask(commit(digest="bb", process="storage-b"), Committed)
    assert (refused.value.context["stored"], refused.value.context["given"]) == ("aa", "bb")
    assert living(desk) == ["storage-a:host"]
    assert desk.told() == [("committed", "m@1")]


def test_equal_content_is_present_on_the_same_node_and_a_new_replica_elsewhere() -> None:
    desk = Desk()
    desk.ask(commit(), Committed)
    assert desk.ask(commit(), Committed).outcome == "already_present"
    assert desk.ask(commit(process="storage-b"), Committed).outcome == "stored"
    assert living(desk) == ["storage-a:host", "storage-b:host"]
    assert desk.told() == [("committed", "m@1"), ("replica", "m@1")]


def test_content_without_a_living_replica_is_stored_again_and_never_called_present() -> None:
    desk = Desk()
    desk.ask(commit(), Committed)
    desk.beat("storage-a", 2)
    assert living(desk) == []
    assert desk.ask(commit(incarnation=2), Committed).outcome == "stored"
    assert living(desk) == ["storage-a:host"]


def test_who_had_the_bytes_and_since_when_they_are_gone_is_told() -> None:
    desk = Desk()
    desk.ask(commit(), Committed)
    desk.pass_time(2_000, beating=[("storage-a", 1)])
    last_heard_ms = desk.now_ms - 500
    desk.pass_time(8_000)
    (replica,) = desk.ask(Resolve("m@1"), Resolved).replicas
    assert (replica.process, replica.node, replica.living) == ("storage-a", "a", False)
    assert replica.since_ms == last_heard_ms
    desk.restart()
    desk.pass_time(8_000)
    (replica,) = desk.ask(Resolve("m@1"), Resolved).replicas
    assert (replica.process, replica.living) == ("storage-a", False)


def test_a_replaced_incarnation_can_neither_commit_nor_report_nor_drop() -> None:
    desk = Desk()
    desk.ask(commit(incarnation=2), Committed)
    for late in (commit("n"), report(), drop()):
        with pytest.raises(StaleFence, match="storage-a with incarnation 1"):
            desk.ask(late, Committed)
    assert living(desk) == ["storage-a:host"]


def test_a_full_report_replaces_all_earlier_claims_of_the_process() -> None:
    desk = Desk()
    desk.ask(commit("kept", tiers=("host", "file")), Committed)
    desk.ask(commit("gone"), Committed)
    desk.ask(commit("kept", process="storage-b"), Committed)
    answer = desk.ask(report(("kept", "aa", "file"), incarnation=2), Reported)
    assert answer.refused == ()
    assert living(desk, "kept") == ["storage-a:file", "storage-b:host"]
    assert living(desk, "gone") == []


def test_a_report_in_parts_forgets_only_after_its_last_one_and_keeps_what_was_committed_between() -> None:
    desk = Desk()
    for art_id in ("one", "two", "gone"):
        desk.ask(commit(art_id), Committed)
    desk.ask(report(("one", "aa", "host"), last=False), Reported)
    assert living(desk, "gone") == ["storage-a:host"]
    desk.ask(commit("between"), Committed)
    desk.ask(report(("two", "aa", "host"), first=False), Reported)
    assert [living(desk, i) for i in ("one", "two", "between")] == [["storage-a:host"]] * 3
    assert living(desk, "gone") == []


def test_the_end_of_a_report_whose_start_a_restart_forgot_forgets_nothing() -> None:
    desk = Desk()
    for art_id in ("one", "two"):
        desk.ask(commit(art_id), Committed)
    desk.ask(report(("one", "aa", "host"), last=False), Reported)
    desk.restart()
    desk.ask(report(("two", "aa", "host"), first=False), Reported)
    assert living(desk, "one") == ["storage-a:host"]


def test_a_report_is_told_what_to_drop() -> None:
    desk = Desk()
    desk.ask(commit("deleted"), Committed)
    desk.ask(commit("other", "aa", process="storage-b"), Committed)
    desk.ask(Delete("deleted"), DeletedRow)
    desk.restart()
    answer = desk.ask(report(("deleted", "aa", "file"), ("other", "bb", "host"), ("mine", "cc", "host")), Reported)
    assert answer.refused == ("deleted", "other")
    assert living(desk, "mine") == ["storage-a:host"]
    with pytest.raises(NotFound):
        desk.ask(Resolve("deleted"), Resolved)


def test_a_report_says_up_to_which_event_it_knows() -> None:
    desk = Desk()
    answer = desk.ask(report(("mine", "cc", "host")), Reported)
    assert (answer.incarnation, answer.sequence) == (desk.incarnation, desk.events[-1].sequence)
    sequences = [e.sequence for e in desk.events]
    assert sequences == list(range(1, len(sequences) + 1))


def test_a_deleted_id_is_gone_at_once_and_free_for_other_content() -> None:
    desk = Desk()
    desk.ask(commit(), Committed)
    assert desk.ask(Delete("m@1"), DeletedRow) == DeletedRow("m@1", 2)
    with pytest.raises(NotFound):
        desk.ask(Resolve("m@1"), Resolved)
    with pytest.raises(NotFound):
        desk.ask(Delete("m@1"), DeletedRow)
    assert desk.ask(commit(digest="bb"), Committed) == Committed("stored", 3)
    assert desk.told() == [("committed", "m@1"), ("deleted", "m@1"), ("committed", "m@1")]


def test_a_repeated_command_takes_effect_once_also_after_a_restart() -> None:
    desk = Desk()
    first = desk.ask(commit(), Committed, idem="p:1:1")
    deleted = desk.ask(Delete("m@1"), DeletedRow, idem="d")
    desk.restart()
    assert desk.ask(commit(), Committed, idem="p:1:1") == first
    assert desk.ask(Delete("m@1"), DeletedRow, idem="d") == deleted
    with pytest.raises(NotFound):
        desk.ask(Resolve("m@1"), Resolved)
    with pytest.raises(Conflict, match="another command"):
        desk.ask(commit("other"), Committed, idem="p:1:1")


def test_idempotency_ids_are_forgotten_after_a_day() -> None:
    desk = Desk()
    desk.ask(commit(), Committed, idem="p:1:1")
    desk.tick(after_ms=25 * 3600 * 1000)
    assert not desk.saved().answers
    assert desk.ask(commit(), Committed, idem="p:1:1").outcome == "already_present"
    assert len(desk.saved().answers) == 1


def test_revisions_go_on_after_a_restart() -> None:
    desk = Desk()
    desk.ask(commit("a"), Committed)
    desk.ask(commit("b"), Committed)
    desk.ask(Delete("b"), DeletedRow)
    desk.restart()
    assert desk.ask(commit("c"), Committed).revision == 4


def test_the_list_is_ordered_and_goes_on_where_it_ended() -> None:
    desk = Desk()
    names = [f"m/{i:03}" for i in range(25)]
    for art_id in [*reversed(names), "a", "z"]:
        desk.ask(commit(art_id), Committed)
    got: list[str] = []
    after = ""
    for _ in range(10):
        page = desk.ask(ListArtifacts("m/", after, 10), ArtifactPage)
        got += [row.art_id for row in page.rows]
        assert page.places[0] == ("a:host",)
        if not page.more:
            break
        after = got[-1]
    assert got == names
    assert [r.art_id for r in desk.ask(ListArtifacts("", "m/999", 5), ArtifactPage).rows] == ["z"]
    assert desk.ask(ListArtifacts("zz"), ArtifactPage) == ArtifactPage((), (), more=False)


def test_a_page_of_the_longest_ids_fits_a_message_and_none_is_lost() -> None:
    desk = Desk()
    names = sorted("é" * (ART_ID_BYTES_MAX // 2 - 4) + f"{i:08}" for i in range(1_200))
    for art_id in names:
        desk.ask(commit(art_id, "ab" * 64), Committed)
    got: list[str] = []
    more = True
    while more:
        page = desk.ask(ListArtifacts("", got[-1] if got else ""), ArtifactPage)
        assert len(encode_body(page)) < MESSAGE_BYTES_MAX - 1024
        assert page.rows
        got += [row.art_id for row in page.rows]
        more = page.more
    assert got == names


@pytest.mark.parametrize(
    "bad",
    [
        commit("no spaces"),
        commit(digest="not hex"),
        commit(digest=""),
        commit(tiers=()),
        commit(tiers=("tape",)),
        commit(process="storage.a"),
        commit(incarnation=0),
        commit(incarnation=1 << 63),
        report(("m", "xx", "host")),
        report(("m", "aa", "tape")),
        report(*[("m", "aa", "host")] * 501),
        drop("*"),
        drop(tier="tape"),
        Delete("a>"),
        Resolve(""),
    ],
)
def test_a_request_out_of_bounds_is_refused_and_changes_nothing(bad: Delete) -> None:
    desk = Desk()
    with pytest.raises(Invalid):
        desk.ask(bad, DeletedRow)
    assert not desk.rows
    assert desk.told() == []
