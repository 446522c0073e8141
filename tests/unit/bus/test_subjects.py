"""Subjects: spelled right, and no name can become a wildcard or another part of the tree."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast_bus.errors import Invalid
from tensorcast_bus.ids import subject_token
from tensorcast_bus.subjects import Subjects, check_concrete, check_pattern, inbox_of, subject_matches

WRONG_TOKENS = ["", "a.b", "a b", "*", ">", "a*", "a>", "ä", "a\n", "a\r\nPUB x 1", "x" * 129, "/a", "$SYS"]


def test_every_kind_of_subject_is_spelled_as_the_protocol_says() -> None:
    assert Subjects.global_store("commit") == "tc.v1.gs.commit"
    assert Subjects.global_store_all() == "tc.v1.gs.*"
    assert Subjects.gateway("py-17", "list") == "tc.v1.gw.py-17.list"
    assert Subjects.gateway_all() == "tc.v1.gw.*.*"
    assert Subjects.process_token("storage-a", 0x1F2E) == "storage-a-1f2e"
    assert Subjects.process("storage-a-1f2e", "delete") == "tc.v1.in.storage-a-1f2e.delete"
    assert Subjects.process_all("storage-a-1f2e") == "tc.v1.in.storage-a-1f2e.*"
    assert Subjects.heartbeat("storage", "storage-a") == "tc.v1.hb.storage.storage-a"
    assert Subjects.heartbeats() == "tc.v1.hb.>"
    assert Subjects.event("artifact", subject_token("llama@1")) == f"tc.v1.ev.artifact.{subject_token('llama@1')}"
    assert Subjects.events("artifact") == "tc.v1.ev.artifact.>"
    assert Subjects.inbox("storage-a", "00ff") == "_INBOX_storage-a.00ff"


@pytest.mark.parametrize("token", WRONG_TOKENS)
def test_a_token_that_could_mean_something_else_is_refused(token: str) -> None:
    builders: list[Callable[[], str]] = [
        lambda: Subjects.global_store(token),
        lambda: Subjects.gateway(token, "list"),
        lambda: Subjects.gateway("py", token),
        lambda: Subjects.process(token, "x"),
        lambda: Subjects.process_all(token),
        lambda: Subjects.heartbeat(token, "p"),
        lambda: Subjects.event("artifact", token),
        lambda: Subjects.events(token),
        lambda: Subjects.inbox(token, "0"),
    ]
    for build in builders:
        with pytest.raises(Invalid):
            build()


@pytest.mark.parametrize("subject", ["", ".", "a.", ".a", "a..b", "tc.v1.gs.*", "tc.>", "a b", "a\r\nb", "a.b\x00"])
def test_nobody_can_be_asked_at_a_pattern(subject: str) -> None:
    with pytest.raises(Invalid):
        check_concrete(subject)


@pytest.mark.parametrize("pattern", ["a", "a.b", "a.*", "*.b", "a.*.c", "a.>", ">", "*"])
def test_a_pattern_may_have_wildcards_as_whole_tokens(pattern: str) -> None:
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize("pattern", ["", "a.", "a..b", "a b", "a.b*", "a.>.b", "a>", "a\r\nSUB > 1", ">.>"])
def test_anything_else_is_no_pattern(pattern: str) -> None:
    with pytest.raises(Invalid):
        check_pattern(pattern)


def test_only_an_inbox_of_its_sender_takes_an_answer() -> None:
    assert inbox_of("storage-a", "_INBOX_storage-a.00ff.1")
    for reply in ("", "tc.v1.gs.delete", "_INBOX_storage-b.00ff.1", "_INBOX_storage-a", "_INBOX_storage-a2.00.1"):
        assert not inbox_of("storage-a", reply)
    assert not inbox_of("storage-a", "_INBOX_storage-a.00ff.*")
    assert not inbox_of("", "_INBOX_storage-a.00ff.1")
    assert not inbox_of("storage-a.00ff", "_INBOX_storage-a.00ff.1")


@pytest.mark.parametrize(
    ("pattern", "subject", "matches"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.b.c", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a.b", True),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
    ],
)
def test_patterns_match_as_a_nats_server_matches_them(pattern: str, subject: str, matches: bool) -> None:
    assert subject_matches(pattern, subject) is matches


@given(st.text(max_size=20))
def test_no_text_at_all_escapes_its_token(text: str) -> None:
    try:
        subject = Subjects.process(text, "delete")
    except Invalid:
        return
    assert subject.split(".") == ["tc", "v1", "in", text, "delete"]
    assert check_concrete(subject) == subject
