"""Whose death frees what: forks, kills, hang-ups. Wrong bytes would be the worst thing, so every byte is compared."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensorcast_native import Client
from tests.native.local_actor import Actor
from tests.native.local_storage import MIB, Storage, eventually, pattern
from tests.support.stopping import stop

CONNECT = "client = Client({path!r}, deadline_ms=20000)"
ATTACH = "a = client.attach('a', deadline_ms=20000); v = a.view(1, 0, {nbytes})"
RIGHT = "out = bytes(v) == pattern({nbytes}, 1)"
NBYTES = 20 * MIB + 100  # large enough to be populated in the background


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    started = Storage(str(tmp_path / "s"), capacity_bytes=80 * MIB)
    started.publish("a", pattern(NBYTES, 1))
    yield started
    started.close()


@pytest.fixture
def actor(storage: Storage) -> Iterator[Callable[[], Actor]]:
    """Makes processes that hold a view of artifact `a`."""
    made: list[Actor] = []

    def make() -> Actor:
        one = Actor()
        made.append(one)
        one.do(CONNECT.format(path=storage.path))
        one.do(ATTACH.format(nbytes=NBYTES))
        assert one.do(RIGHT.format(nbytes=NBYTES)) is True
        return one

    yield make
    for one in made:
        if one.process.poll() is None:
            one.kill()


def forget_and_refill(storage: Storage) -> None:
    """The artifact goes, and everything that is free is written over."""
    storage.server.withdraw("a")
    storage.refill(0xEE)


def test_a_forked_child_reads_right_bytes_after_its_parent_was_killed(
    storage: Storage, actor: Callable[[], Actor]
) -> None:
    parent = actor()
    child = parent.fork()
    parent.kill()
    assert eventually(lambda: not storage.server.sessions()[0][3])
    forget_and_refill(storage)
    assert child.do(RIGHT.format(nbytes=NBYTES)) is True
    assert storage.pins() == 1
    child.end()
    assert eventually(lambda: storage.server.sessions() == [])
    assert storage.pool.stats()["pins"] == 0


CLOSE_PIPES = (
    "[os.close(int(fd)) for fd in os.listdir('/proc/self/fd') if int(fd) > 2"
    " and os.path.lexists(f'/proc/self/fd/{fd}') and os.readlink(f'/proc/self/fd/{fd}').startswith('pipe:')]"
)
DROP_PAGES = (
    "import ctypes; libc = ctypes.CDLL(None); "
    "lines = [l for l in open('/proc/self/maps') if 'tensorcast-lifeline' in l]; "
    "spans = [[int(x, 16) for x in l.split()[0].split('-')] for l in lines]; "
    "out = [libc.munmap(ctypes.c_void_p(a), ctypes.c_size_t(b - a)) for a, b in spans]"
)


def test_a_process_that_closes_descriptors_it_does_not_know_keeps_what_it_maps(
    storage: Storage, actor: Callable[[], Actor]
) -> None:
    """Daemons do. The pipe is gone then, and the page says that the maps are not."""
    one = actor()
    child = one.fork()
    one.kill()
    child.do(CLOSE_PIPES)
    forget_and_refill(storage)
    # Its pipe's end has been seen once a later client's call is answered: the server works in order.
    witness = Client(storage.path, deadline_ms=20_000)
    assert witness.call(b"", deadline_ms=20_000) == (0, b"")
    forget_and_refill(storage)
    assert child.do(RIGHT.format(nbytes=NBYTES)) is True
    assert storage.pins() == 1
    witness.close()
    child.end()
    assert eventually(lambda: storage.server.sessions() == [])
    assert storage.pool.stats()["pins"] == 0


def test_without_its_lifeline_the_child_sees_other_bytes(storage: Storage, actor: Callable[[], Actor]) -> None:
    """The negative control of the tests above: pipe and page are what protects, and the comparison can fail."""
    parent = actor()
    child = parent.fork()
    parent.kill()
    child.do(DROP_PAGES)
    child.do(CLOSE_PIPES)
    assert eventually(lambda: storage.server.sessions() == [])
    forget_and_refill(storage)
    assert child.do(RIGHT.format(nbytes=NBYTES)) is False
    assert child.do("out = bytes(memoryview(v)[:4])") == b"\xee" * 4
    child.end()


def test_a_parent_that_drops_its_tensors_leaves_the_childs_alone(storage: Storage, actor: Callable[[], Actor]) -> None:
    parent = actor()
    child = parent.fork()
    assert parent.do("del v; out = a.release()") == 0
    assert parent.do("out = client.call(b'', deadline_ms=20000)") == (0, b"")
    assert storage.pins() == 1
    forget_and_refill(storage)
    assert child.do(RIGHT.format(nbytes=NBYTES)) is True
    assert child.do("del v; out = a.release()") == 0
    assert eventually(lambda: storage.pins() == 0)
    assert parent.do("out = client.alive") is True
    child.end()


def test_a_child_that_drops_first_leaves_the_parents_maps_alone(storage: Storage, actor: Callable[[], Actor]) -> None:
    parent = actor()
    child = parent.fork()
    assert child.do("del v; out = a.release()") == 0
    child.end()
    assert parent.do("out = client.call(b'', deadline_ms=20000)") == (0, b"")
    forget_and_refill(storage)
    assert parent.do(RIGHT.format(nbytes=NBYTES)) is True
    assert parent.do("del v; out = a.release()") == 0
    assert eventually(lambda: storage.pins() == 0)


def test_a_grandchild_keeps_what_all_before_it_let_go(storage: Storage, actor: Callable[[], Actor]) -> None:
    parent = actor()
    child = parent.fork()
    grandchild = child.fork()
    parent.kill()
    child.kill()
    forget_and_refill(storage)
    assert grandchild.do(RIGHT.format(nbytes=NBYTES)) is True
    assert storage.pins() == 1
    grandchild.kill()
    assert eventually(lambda: storage.server.sessions() == [])


def test_what_a_parent_attaches_after_a_fork_is_freed_without_the_child(
    storage: Storage, actor: Callable[[], Actor]
) -> None:
    parent = actor()
    child = parent.fork()
    storage.publish("b", pattern(4 * MIB, 2))
    parent.do("b = client.attach('b', deadline_ms=20000); out = None")
    assert storage.pins() == 2
    assert parent.do("out = b.release()") == 0
    assert eventually(lambda: storage.pins() == 1)
    parent.do("b = client.attach('b', deadline_ms=20000); out = None")
    parent.kill()
    assert eventually(lambda: storage.pins() == 1)
    child.end()
    assert eventually(lambda: storage.pins() == 0)


def test_a_child_makes_its_own_client_and_puts_its_own_memory(storage: Storage, actor: Callable[[], Actor]) -> None:
    parent = actor()
    parent.do("m = ctypes.create_string_buffer(b'p' * MIB, MIB); out = None")
    child = parent.fork()
    assert child.do("out = client.alive, client.pid == os.getppid()") == (False, True)
    refusal = child.do("client.call(b'', deadline_ms=1000)")
    assert isinstance(refusal, tuple)
    kind, text = refusal
    assert kind == "PeerGone" and "a forked child makes its own" in text
    assert child.do("client.close(); del client") is None
    child.do("m[0] = b'c'")
    child.do(CONNECT.format(path=storage.path))
    order = (
        "out = client.put('c', draft=b'', segment_bytes=[MIB], pieces=memory_piece(ctypes.addressof(m), MIB),"
        " rows=b'', deadline_ms=20000)"
    )
    assert child.do(order) == (0, b"vm_read ")
    assert parent.do("c = client.attach('c', deadline_ms=20000); out = bytes(c.view(1, 0, 3))") == b"cpp"
    child.end()


def test_a_killed_client_returns_everything(storage: Storage, actor: Callable[[], Actor]) -> None:
    one = actor()
    assert storage.pins() == 1
    one.kill()
    assert eventually(lambda: storage.server.sessions() == [])
    assert storage.pool.stats()["pins"] == 0


def test_a_client_killed_while_its_put_is_filled_leaves_nothing(storage: Storage, actor: Callable[[], Actor]) -> None:
    free_bytes = storage.pool.stats()["free_bytes"]
    storage.holding = {"put"}
    one = actor()
    one.do("m = ctypes.create_string_buffer(16 * MIB); out = None")
    one.start(
        "client.put('p', draft=b'', segment_bytes=[16 * MIB], pieces=memory_piece(ctypes.addressof(m), 16 * MIB),"
        " rows=b'', deadline_ms=20000)"
    )
    assert eventually(lambda: len(storage.held) == 1)
    stop(one.pid)
    storage.answer(storage.held[0])
    one.kill()
    assert eventually(lambda: storage.server.sessions() == [])
    assert eventually(lambda: "ok" in storage.kinds() or "gone" in storage.kinds())
    storage.server.withdraw("p")
    assert eventually(lambda: storage.pool.stats()["free_bytes"] >= free_bytes - 2 * MIB)


def test_a_client_that_hangs_up_but_still_maps_is_quarantined(storage: Storage, actor: Callable[[], Actor]) -> None:
    one = actor()
    one.do("client.close()")
    assert eventually(lambda: [row[2:] for row in storage.server.sessions()] == [(1, False)])
    forget_and_refill(storage)
    assert one.do(RIGHT.format(nbytes=NBYTES)) is True
    assert one.do("del v; out = a.release()") == 0
    assert eventually(lambda: storage.server.sessions() == [])


def test_a_stopped_client_holds_up_nobody(storage: Storage, actor: Callable[[], Actor]) -> None:
    stopped, other = actor(), actor()
    stopped.start("[client.call(bytes(MIB), deadline_ms=60000) for _ in range(200)]; out = 'done'")
    stop(stopped.pid)
    try:
        assert other.do("out = client.call(b'x', deadline_ms=20000)") == (0, b"x")
        assert other.do(ATTACH.format(nbytes=NBYTES)) is None
        storage.publish("b", b"1" * MIB)
    finally:
        stopped.signal(signal.SIGCONT)
    assert stopped.answer() == "done"


def test_a_process_exits_in_any_order_of_things(storage: Storage, actor: Callable[[], Actor]) -> None:
    for last_words in ("", "del client", "client.close()", "del a", "a.release()", "v = a = client = None"):
        one = actor()
        one.do(last_words)
        one.end()
        assert one.process.returncode == 0, last_words
    assert eventually(lambda: storage.server.sessions() == [])
