"""Every wait ends: storages that are stopped, answers that come too late, memory that its owner took back."""

from __future__ import annotations

import ctypes
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorcast_native import Attachment, Client, WaitedTooLong
from tests.native.local_actor import Actor
from tests.native.local_storage import MIB, eventually, memory_piece
from tests.support.slack import SLACK_S
from tests.support.stopping import stop

DEADLINE_MS = 20_000
SHORT_MS = 200


class StoragePeer:
    """A storage in a process of its own, which can be stopped."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.actor = Actor()
        self.do(f"s = Storage({path!r}); s.publish('a', b'a' * {4 * MIB}); out = 1")

    def do(self, line: str) -> object:
        return self.actor.do(line)

    def stop(self) -> None:
        stop(self.actor.pid)

    def go_on(self) -> None:
        self.actor.signal(signal.SIGCONT)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[StoragePeer]:
    made = StoragePeer(str(tmp_path / "s"))
    yield made
    made.go_on()
    made.actor.kill()


def test_calls_and_attaches_of_a_stopped_storage_end_at_their_deadline(peer: StoragePeer) -> None:
    client = Client(peer.path, deadline_ms=DEADLINE_MS)
    peer.stop()
    began = time.monotonic()
    with pytest.raises(WaitedTooLong) as call:
        client.call(b"x", deadline_ms=SHORT_MS)
    with pytest.raises(WaitedTooLong):
        client.attach("a", deadline_ms=SHORT_MS)
    with pytest.raises(WaitedTooLong) as sending:
        client.call(bytes(20 * MIB), deadline_ms=SHORT_MS)
    with pytest.raises(WaitedTooLong):
        Client(peer.path, deadline_ms=SHORT_MS)
    assert time.monotonic() - began < 4 * SHORT_MS / 1000 + SLACK_S
    assert (call.value.args, sending.value.args) == (("answer",), ("send",))
    peer.go_on()
    # Late answers were undone: nothing is pinned, and the link is in step.
    assert client.call(b"y", deadline_ms=DEADLINE_MS) == (0, b"y")
    assert eventually(lambda: peer.do("out = s.pins(), len(s.server.sessions())") == (0, 1))
    assert isinstance(client.attach("a", deadline_ms=DEADLINE_MS), Attachment)


def test_a_put_given_up_while_the_storage_was_stopped_is_never_committed(peer: StoragePeer) -> None:
    client = Client(peer.path, deadline_ms=DEADLINE_MS)
    memory = ctypes.create_string_buffer(b"right" * 1000, 5000)
    peer.stop()
    with pytest.raises(WaitedTooLong):
        client.put(
            "p",
            draft=b"",
            segment_bytes=[5000],
            pieces=memory_piece(ctypes.addressof(memory), 5000),
            rows=b"",
            deadline_ms=SHORT_MS,
        )
    ctypes.memset(memory, ord("!"), 5000)
    peer.go_on()
    assert client.call(b"", deadline_ms=DEADLINE_MS) == (0, b"")
    assert client.attach("p", deadline_ms=DEADLINE_MS) == (1, b"no p")


def test_freeing_tensors_of_a_stopped_storage_does_not_wait_and_unpins_later(peer: StoragePeer) -> None:
    client = Client(peer.path, deadline_ms=DEADLINE_MS)
    got = client.attach("a", deadline_ms=DEADLINE_MS)
    assert isinstance(got, Attachment)
    peer.stop()
    began = time.monotonic()
    assert got.release() == 0
    assert time.monotonic() - began < SLACK_S
    peer.go_on()
    assert eventually(lambda: peer.do("out = s.pins()") == 0)


def test_a_killed_storage_is_noticed_and_its_maps_stay_readable(peer: StoragePeer) -> None:
    client = Client(peer.path, deadline_ms=DEADLINE_MS)
    got = client.attach("a", deadline_ms=DEADLINE_MS)
    assert isinstance(got, Attachment)
    peer.actor.kill()
    peer.actor = Actor()
    assert eventually(lambda: not client.alive)
    assert bytes(got.view(1, 0, 4 * MIB)) == b"a" * (4 * MIB)
    assert got.release() == 0
