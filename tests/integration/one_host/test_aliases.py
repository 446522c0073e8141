"""Aliases on a real cluster: compare-and-swap, one namespace with ids, and waiting for a move across processes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import tensorcast as tc
from tensorcast.errors import AlreadyExists, Conflict, Invalid, NotFound, Timeout, Unavailable
from tests.support.cluster import Cluster, running_cluster
from tests.support.slack import SLACK_S

RACERS = 8


@pytest.fixture
def versions(rt: tc.Runtime, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Three artifacts of this test alone; removed at its end, with the aliases beside them."""
    name = f"al/{request.node.name[:80].replace('[', '/').rstrip(']')}"
    ids = [f"{name}@{n}" for n in range(3)]
    for n, art_id in enumerate(ids):
        rt.put({"w": torch.full((1000,), n)}, art_id)
    yield ids
    for record in rt.list_aliases("al/"):
        rt.delete_alias(record.name)
    for artifact in rt.list_artifacts(name):
        rt.delete(artifact.art_id)


def test_an_alias_is_set_found_listed_and_deleted(rt: tc.Runtime, versions: list[str]) -> None:
    made = rt.set_alias("al/latest", versions[0], expect=None)
    assert (made.name, made.art_id) == ("al/latest", versions[0])
    assert abs(made.set_ms / 1000 - time.time()) < 60
    assert rt.alias("al/latest") == made
    other = rt.set_alias("al/stable", versions[1])
    assert rt.list_aliases("al/") == [made, other] and rt.list_aliases("al/s") == [other]
    assert other.revision > made.revision
    rt.delete_alias("al/latest")
    with pytest.raises(NotFound, match="al/latest"):
        rt.alias("al/latest")
    with pytest.raises(NotFound, match="al/latest"):
        rt.delete_alias("al/latest")
    assert rt.artifact(versions[0]).tensor_meta()


def test_what_is_expected_is_compared_and_a_conflict_tells_how_it_is(rt: tc.Runtime, versions: list[str]) -> None:
    made = rt.set_alias("al/latest", versions[0])
    for expect in (None, versions[1], tc.AliasRecord("al/latest", versions[0], made.revision - 1, 0)):
        for call in (
            lambda expect=expect: rt.set_alias("al/latest", versions[1], expect=expect),
            lambda expect=expect: rt.delete_alias("al/latest", expect=expect),
        ):
            with pytest.raises(Conflict, match="al/latest") as caught:
                call()
            context = caught.value.context
            assert (context["art_id"], context["revision"]) == (versions[0], made.revision)
    assert rt.alias("al/latest") == made
    assert rt.set_alias("al/latest", versions[1], expect=versions[0]).art_id == versions[1]
    with pytest.raises(Conflict, match="does not exist"):
        rt.set_alias("al/other", versions[1], expect=versions[0])
    rt.delete_alias("al/latest", expect=versions[1])
    assert rt.list_aliases("al/") == []


def test_moved_away_and_back_is_another_setting(rt: tc.Runtime, versions: list[str]) -> None:
    first = rt.set_alias("al/latest", versions[0])
    rt.set_alias("al/latest", versions[1])
    back = rt.set_alias("al/latest", versions[0])
    assert back.art_id == first.art_id and back.revision > first.revision
    with pytest.raises(Conflict):
        rt.set_alias("al/latest", versions[2], expect=first)
    assert rt.set_alias("al/latest", versions[2], expect=back).art_id == versions[2]
    rt.delete_alias("al/latest")
    again = rt.set_alias("al/latest", versions[0], expect=None)
    with pytest.raises(Conflict):
        rt.delete_alias("al/latest", expect=first)
    rt.delete_alias("al/latest", expect=again)


def test_an_alias_and_an_artifact_never_have_one_name(rt: tc.Runtime, versions: list[str]) -> None:
    with pytest.raises(Conflict, match="artifact's id"):
        rt.set_alias(versions[0], versions[1])
    rt.set_alias("al/name", versions[0])
    for call in (
        lambda: rt.put({"w": torch.ones(3)}, "al/name"),
        lambda: rt.put({"w": torch.full((1000,), 0)}, "al/name"),
        lambda: rt.register({"w": torch.ones(3)}, "al/name"),
    ):
        with pytest.raises(AlreadyExists, match="al/name"):
            call()
    assert rt.alias("al/name").art_id == versions[0]
    with pytest.raises(NotFound, match=r"al/name.*is an alias"):
        rt.delete("al/name")
    assert rt.artifact(versions[0]).tensor_meta()


def test_an_alias_points_at_an_artifact_that_is_there(rt: tc.Runtime, versions: list[str]) -> None:
    with pytest.raises(NotFound, match="al/never"):
        rt.set_alias("al/latest", "al/never")
    rt.set_alias("al/latest", versions[0])
    with pytest.raises(NotFound, match="alias"):
        rt.set_alias("al/other", "al/latest")
    rt.delete(versions[0])
    with pytest.raises(NotFound, match=f"alias 'al/latest' points at {versions[0]!r}"):
        rt.artifact("al/latest").tensor()
    assert rt.alias("al/latest").art_id == versions[0]
    rt.set_alias("al/latest", versions[1])
    assert torch.equal(rt.artifact("al/latest").tensor(), torch.full((1000,), 1))


def test_a_handle_stands_for_what_the_alias_was_at_its_first_use(rt: tc.Runtime, versions: list[str]) -> None:
    rt.set_alias("al/latest", versions[0])
    handle, late = rt.artifact("al/latest"), rt.artifact("al/latest")
    assert handle.art_id == "al/latest"
    assert torch.equal(handle.tensor(), torch.full((1000,), 0))
    assert handle.art_id == versions[0]
    rt.set_alias("al/latest", versions[1])
    assert torch.equal(handle.tensor(), torch.full((1000,), 0))
    assert torch.equal(late.tensor(), torch.full((1000,), 1)) and late.art_id == versions[1]
    assert rt.artifact("al/latest").tensor_meta()["w"].shape == (1000,)


def test_a_base_may_be_named_by_an_alias(rt: tc.Runtime, versions: list[str]) -> None:
    big = {"same": torch.arange(1 << 19), "w": torch.zeros(1 << 19)}
    rt.put(big, "al/base-by-alias@1")
    rt.set_alias("al/latest", "al/base-by-alias@1")
    try:
        made = rt.put(big | {"w": torch.ones(1 << 19)}, "al/elsewhere", base="al/latest")
        assert made.stats is not None and made.stats.bytes_moved < 3 << 20
        assert torch.equal(made.tensor("same"), big["same"]) and float(made.tensor("w")[0]) == 1
    finally:
        rt.delete("al/base-by-alias@1")
        rt.delete("al/elsewhere")


RACER = """
import sys, tensorcast as tc
name, mine, was = sys.argv[1:]
with tc.connect() as rt:
    rt.alias(name)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        print(rt.set_alias(name, mine, expect=was).art_id)
    except tc.errors.Conflict as lost:
        print("lost to", lost.context["art_id"])
"""


def test_of_many_that_race_for_an_alias_one_wins_and_the_others_hear_who(
    rt: tc.Runtime, cluster: Cluster, versions: list[str]
) -> None:
    rivals = [f"{versions[0]}-{n}" for n in range(RACERS)]
    for rival in rivals:
        rt.put({"w": torch.ones(3)}, rival)
    rt.set_alias("al/raced", versions[0])
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, "al/raced", rival, versions[0]],
            env=cluster.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rival in rivals
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        said = [racer.communicate(timeout=60)[0].strip() for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
    winner = rt.alias("al/raced").art_id
    assert sorted(said) == sorted([winner, *[f"lost to {winner}"] * (RACERS - 1)])


WAITER = """
import sys, json, tensorcast as tc
with tc.connect() as rt:
    seen = rt.alias("al/awaited")
    print("waiting", flush=True)
    for _ in range(3):
        seen = rt.wait_alias("al/awaited", after=seen)
        print(json.dumps([seen.art_id, int(rt.artifact("al/awaited").tensor()[0])]), flush=True)
"""


def test_a_waiting_process_wakes_at_every_move(rt: tc.Runtime, cluster: Cluster, versions: list[str]) -> None:
    rt.set_alias("al/awaited", versions[0])
    waiter = subprocess.Popen(
        [sys.executable, "-c", WAITER], env=cluster.environment, stdout=subprocess.PIPE, text=True
    )
    assert waiter.stdout is not None
    try:
        assert waiter.stdout.readline() == "waiting\n"
        for n in (1, 2, 1):
            rt.set_alias("al/awaited", versions[n])
            assert json.loads(waiter.stdout.readline()) == [versions[n], n]
        assert waiter.wait(30) == 0
    finally:
        waiter.kill()
        waiter.wait()
        waiter.stdout.close()


def test_waiting_ends_at_once_where_it_is_set_already_and_else_by_its_deadline(
    rt: tc.Runtime, versions: list[str]
) -> None:
    with pytest.raises(Timeout, match=r"'al/latest'.*300 ms"):
        rt.wait_alias("al/latest", deadline_ms=300)
    made = rt.set_alias("al/latest", versions[0])
    assert rt.wait_alias("al/latest") == made
    started = time.monotonic()
    with pytest.raises(Timeout):
        rt.wait_alias("al/latest", after=made, deadline_ms=300)
    assert time.monotonic() - started < 0.3 + SLACK_S
    moved = rt.set_alias("al/latest", versions[0])
    assert rt.wait_alias("al/latest", after=made) == moved


async def test_the_async_face_waits_without_holding_its_loop(
    rt: tc.Runtime, cluster: Cluster, versions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(cluster.runtime_folder))
    async with await tc.aconnect(name=cluster.name) as other:
        made = await other.set_alias("al/async", versions[0], expect=None)
        assert await other.alias("al/async") == made and await other.list_aliases("al/async") == [made]
        waiting = asyncio.create_task(other.wait_alias("al/async", after=made))
        moved = await other.set_alias("al/async", versions[1], expect=made)
        assert await waiting == moved
        handle = other.artifact("al/async")
        assert torch.equal(await handle.tensor(), torch.full((1000,), 1)) and handle.art_id == versions[1]
        await other.delete_alias("al/async", expect=moved)
        with pytest.raises(NotFound):
            await other.alias("al/async")


def test_names_that_cannot_be_are_refused(rt: tc.Runtime, versions: list[str]) -> None:
    with pytest.raises(Invalid, match="has spaces"):
        rt.set_alias("has spaces", versions[0])
    with pytest.raises(Invalid, match="expect is 5"):
        rt.set_alias("al/latest", versions[0], expect=5)  # type: ignore[arg-type]


def test_waiting_outlives_restarts_and_aliases_survive_them(tmp_path: Path) -> None:
    with running_cluster(tmp_path, name="aliases") as own, own.connect() as rt:
        for n in range(2):
            rt.put({"w": torch.full((10,), n)}, f"v@{n}", durable=True)
        first = rt.set_alias("latest", "v@0")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: rt.wait_alias("latest", after=first, deadline_ms=60_000))
            for process in ("gateway-0", "global_store", "nats"):
                own.wait_restarted(process, own.kill(process, sig=signal.SIGKILL))
                assert not waiting.done()
            moved = rt.set_alias("latest", "v@1", expect=first, deadline_ms=60_000)
            assert waiting.result(30) == moved
        assert rt.alias("latest") == moved
        assert int(rt.artifact("latest").tensor()[0]) == 1


def test_waiting_on_a_closed_runtime_ends(cluster: Cluster) -> None:
    rt = cluster.connect()
    rt.list_aliases()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: rt.wait_alias("al/nobody-sets-this"))
        rt.close()
        with pytest.raises(Unavailable):
            waiting.result(30 + SLACK_S)
