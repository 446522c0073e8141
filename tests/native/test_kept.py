"""Registrations from Python: what a storage keeps of a put, reads later, and hears of its owner's end."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensorcast_native import Client, FillDone, LocalServer, LocalStatus, Request, Ticket, tensor_digest
from tests.native.local_actor import Actor
from tests.native.local_storage import MIB, Storage, eventually, memory_piece, pattern, whole_row

DEADLINE_MS = 20_000
NBYTES = 3 * MIB + 5


class Keeping(Storage):
    """Keeps every put and answers at once; a streamed one is taken as well."""

    def __init__(self, path: str) -> None:
        self.kept: list[int] = []
        super().__init__(path)

    def answer(self, request: Request, *, rows: bytes | None = None) -> None:
        if request.kind != "put":
            super().answer(request, rows=rows)
            return
        source = self.server.keep(request.id)
        if request.source == "socket":
            super().answer(request, rows=rows)
        else:
            self.server.reply(request.id, LocalStatus.OK, b"kept")
        self.kept.append(source)

    def done(self, token: int) -> FillDone:
        def found() -> list[FillDone]:
            return [e for e in list(self.log) if isinstance(e, FillDone) and e.id == token]

        assert eventually(lambda: len(found()) == 1)
        return found()[0]

    def deaths(self) -> list[int]:
        return [e.id for e in list(self.log) if isinstance(e, Request) and e.kind == "died"]


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Keeping]:
    started = Keeping(str(tmp_path / "s"))
    yield started
    started.close()


@pytest.fixture
def owner(keeping: Keeping) -> Iterator[Callable[[], Actor]]:
    """Makes processes that have registered `NBYTES` of their memory `m` under the ticket `t`."""
    made: list[Actor] = []

    def make() -> Actor:
        one = Actor()
        made.append(one)
        one.do(f"client = Client({keeping.path!r}, deadline_ms=20000); t = Ticket()")
        one.do(f"m = ctypes.create_string_buffer(pattern({NBYTES}, 1), {NBYTES})")
        order = f"pieces=memory_piece(ctypes.addressof(m), {NBYTES}), rows=b'', ticket=t, deadline_ms=20000"
        assert one.do(f"out = client.put('r', draft=b'', segment_bytes=[{NBYTES}], {order})") == (0, b"kept")
        return one

    yield make
    for one in made:
        if one.process.poll() is None:
            one.kill()


def put_file(keeping: Keeping, path: Path, content: bytes) -> None:
    """Registers a new file by a client that is gone afterwards."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    client = Client(keeping.path, deadline_ms=DEADLINE_MS)
    with path.open("rb") as file:
        seen = os.fstat(file.fileno())
        answer = client.put(
            "f",
            draft=b"",
            segment_bytes=[len(content)],
            pieces=struct.pack("<IIQQQII", 0, 3, 0, len(content), 0, 0, 0),
            rows=b"",
            files=[(file.fileno(), seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)],
            ticket=None,
            deadline_ms=DEADLINE_MS,
        )
    assert answer == (LocalStatus.OK, b"kept")
    client.close()


def load(server: LocalServer, token: int, source: int) -> None:
    server.load_kept(token, source, rows=whole_row(NBYTES), deadline_ms=DEADLINE_MS)


def test_registered_memory_is_read_later_and_is_what_its_owner_has(
    keeping: Keeping, owner: Callable[[], Actor]
) -> None:
    owner()
    load(keeping.server, 1, keeping.kept[0])
    done = keeping.done(1)
    assert (done.status, done.bytes_moved) == ("ok", NBYTES)
    assert keeping.pool.read(done.segments[0], 0, NBYTES) == pattern(NBYTES, 1)
    assert done.digests == tensor_digest(pattern(NBYTES, 1))
    keeping.pool.drop(done.segments[0])


def test_memory_that_was_changed_since_has_other_digests(keeping: Keeping, owner: Callable[[], Actor]) -> None:
    one = owner()
    one.do("m[7] = bytes([m.raw[7] ^ 1])")
    load(keeping.server, 1, keeping.kept[0])
    done = keeping.done(1)
    assert done.status == "ok" and done.digests != tensor_digest(pattern(NBYTES, 1))
    keeping.pool.drop(done.segments[0])


@pytest.mark.parametrize("end", ["t.end()", "t.end(); t.end()", "del t; gc.collect()"])
def test_memory_whose_ticket_has_ended_is_gone(keeping: Keeping, owner: Callable[[], Actor], end: str) -> None:
    owner().do(end)
    load(keeping.server, 1, keeping.kept[0])
    done = keeping.done(1)
    assert done.status == "gone" and done.segments == []
    assert keeping.pool.stats()["segments"] == 0


def test_a_forked_childs_end_of_the_ticket_is_not_the_owners(keeping: Keeping, owner: Callable[[], Actor]) -> None:
    one = owner()
    child = one.fork()
    child.do("t.end(); m[0] = b'c'")
    child.end()
    load(keeping.server, 1, keeping.kept[0])
    done = keeping.done(1)
    assert done.status == "ok" and done.digests == tensor_digest(pattern(NBYTES, 1))
    keeping.pool.drop(done.segments[0])


def test_a_killed_owner_is_told_once_and_its_memory_is_gone(keeping: Keeping, owner: Callable[[], Actor]) -> None:
    first, second = owner(), owner()
    first.kill()
    assert eventually(lambda: keeping.deaths() == [keeping.kept[0]])
    load(keeping.server, 1, keeping.kept[0])
    assert keeping.done(1).status == "gone"
    keeping.server.let_go(keeping.kept[0])
    second.kill()
    assert eventually(lambda: keeping.deaths() == keeping.kept)


def test_an_owner_that_hangs_up_and_lives_is_not_dead(keeping: Keeping, owner: Callable[[], Actor]) -> None:
    one = owner()
    one.do("client.close()")
    assert eventually(lambda: keeping.server.sessions() == [])
    load(keeping.server, 1, keeping.kept[0])
    done = keeping.done(1)
    assert done.status == "ok" and keeping.deaths() == []
    keeping.pool.drop(done.segments[0])


def test_after_let_go_nothing_is_known_or_told(keeping: Keeping, owner: Callable[[], Actor]) -> None:
    gone, witness = owner(), owner()
    keeping.server.let_go(keeping.kept[0])
    with pytest.raises(KeyError):
        load(keeping.server, 1, keeping.kept[0])
    gone.kill()
    witness.kill()
    assert eventually(lambda: keeping.deaths() == [keeping.kept[1]])


def test_a_part_of_what_was_registered_is_read_by_a_plan_of_the_storages(
    keeping: Keeping, owner: Callable[[], Actor]
) -> None:
    one = owner()
    address = int(str(one.do("out = ctypes.addressof(m)")))
    pieces = memory_piece(address + 100, 50) + struct.pack("<IIQQQII", 0, 1, 50, 4, 0, 0, 0)
    keeping.server.load_kept(
        1,
        keeping.kept[0],
        rows=whole_row(54),
        segment_bytes=[54],
        pieces=pieces,
        inline=b"tail",
        deadline_ms=DEADLINE_MS,
    )
    done = keeping.done(1)
    assert keeping.pool.read(done.segments[0], 0, 54) == pattern(NBYTES, 1)[100:150] + b"tail"
    keeping.pool.drop(done.segments[0])
    for beyond in (memory_piece(address - 1, 2), memory_piece(address + NBYTES, 1)):
        with pytest.raises(ValueError, match="outside the memory that was registered"):
            keeping.server.load_kept(
                2, keeping.kept[0], rows=b"", segment_bytes=[2], pieces=beyond, deadline_ms=DEADLINE_MS
            )
    with pytest.raises(ValueError, match="both"):
        keeping.server.load_kept(2, keeping.kept[0], rows=b"", segment_bytes=[2], deadline_ms=DEADLINE_MS)


def test_a_registered_file_outlives_the_put_that_brought_it_and_its_change_shows(
    keeping: Keeping, tmp_path: Path
) -> None:
    content = pattern(MIB, 3)
    path = tmp_path / "f"
    put_file(keeping, path, content)
    keeping.server.load_kept(1, keeping.kept[0], rows=whole_row(MIB), deadline_ms=DEADLINE_MS)
    done = keeping.done(1)
    assert done.digests == tensor_digest(content)
    keeping.pool.drop(done.segments[0])
    path.rename(tmp_path / "g")
    (tmp_path / "f").write_bytes(b"another file at the old path")
    keeping.server.load_kept(2, keeping.kept[0], rows=whole_row(MIB), deadline_ms=DEADLINE_MS)
    assert keeping.done(2).digests == tensor_digest(content)
    keeping.pool.drop(keeping.done(2).segments[0])
    (tmp_path / "g").write_bytes(b"other")
    keeping.server.load_kept(3, keeping.kept[0], rows=b"", deadline_ms=DEADLINE_MS)
    assert keeping.done(3).status == "source_changed"


def test_a_registered_file_is_read_after_its_path_was_unlinked(keeping: Keeping, tmp_path: Path) -> None:
    content = pattern(MIB, 4)
    put_file(keeping, tmp_path / "f", content)
    (tmp_path / "f").unlink()
    keeping.server.load_kept(1, keeping.kept[0], rows=whole_row(MIB), deadline_ms=DEADLINE_MS)
    assert keeping.done(1).digests == tensor_digest(content)
    keeping.pool.drop(keeping.done(1).segments[0])


def test_registrations_leave_no_descriptor_behind(keeping: Keeping, tmp_path: Path) -> None:
    def kept_open() -> int:
        return len(os.listdir("/proc/self/fd"))

    def load_and_let_go(token: int, source: int) -> None:
        keeping.server.load_kept(token, source, rows=b"", deadline_ms=DEADLINE_MS)
        keeping.server.let_go(source)
        for segment in keeping.done(token).segments:
            keeping.pool.drop(segment)

    put_file(keeping, tmp_path / "first", b"x")
    load_and_let_go(100, keeping.kept[0])  # the pool opens its extent for it
    assert eventually(lambda: keeping.server.sessions() == [])
    before = kept_open()
    for n in range(8):
        put_file(keeping, tmp_path / "f", pattern(100, n))
    assert eventually(lambda: keeping.server.sessions() == [])
    assert kept_open() > before
    for token, source in enumerate(keeping.kept[1:]):
        load_and_let_go(token, source)
    assert eventually(lambda: kept_open() == before)


def test_a_streamed_put_keeps_its_process_alone(keeping: Keeping) -> None:
    client = Client(keeping.path, deadline_ms=DEADLINE_MS, vm_read=False)
    memory = ctypes.create_string_buffer(b"streamed", 8)
    status, _ = client.put(
        "s",
        draft=b"",
        segment_bytes=[8],
        pieces=memory_piece(ctypes.addressof(memory), 8),
        rows=b"",
        ticket=Ticket(),
        deadline_ms=DEADLINE_MS,
    )
    assert status == LocalStatus.OK
    with pytest.raises(ValueError, match="taken at once"):
        load(keeping.server, 1, keeping.kept[0])
    client.close()


def test_what_is_not_waiting_cannot_be_kept(keeping: Keeping) -> None:
    with pytest.raises(KeyError):
        keeping.server.keep(2**33)
    keeping.server.let_go(12345)
