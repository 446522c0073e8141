"""Segments from Python: borrowed, copied, written out, answered without being published, exchanged under readers."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import pytest

from tensorcast_native import Attachment, Client, FillDone, LocalStatus, Pool, PoolFull, box_pieces, tensor_digest
from tests.native.local_storage import MIB, Storage, eventually, pattern, whole_row

DEADLINE_MS = 20_000
INLINE, FILE, POOL = 1, 3, 5


def sealed(pool: Pool, content: bytes) -> int:
    segment = pool.reserve(len(content))
    pool.write(segment, 0, content)
    pool.seal(segment)
    return segment


def fragmented(pool: Pool) -> None:
    """Nothing longer than a block stays free."""
    taken: list[int] = []
    while pool.stats()["free_bytes"] > 0:
        taken.append(pool.reserve(2 * MIB))
    for segment in taken[::2]:
        pool.drop(segment)


def load(storage: Storage, token: int, nbytes: int, pieces: bytes, sources: list[int], inline: bytes = b"") -> FillDone:
    storage.server.load(
        token,
        segment_bytes=[nbytes],
        pieces=pieces,
        rows=whole_row(nbytes),
        files=[],
        inline=inline,
        sources=sources,
        deadline_ms=DEADLINE_MS,
    )

    def found() -> list[FillDone]:
        return [e for e in list(storage.log) if isinstance(e, FillDone) and e.id == token]

    assert eventually(lambda: len(found()) == 1)
    return found()[0]


def test_a_held_segment_outlives_its_first_user() -> None:
    pool = Pool(capacity_bytes=16 * MIB, prefault_ahead_bytes=0, memory_reserve_bytes=0)
    segment = sealed(pool, b"borrowed")
    pool.hold(segment)
    pool.drop(segment)
    assert pool.read(segment, 0, 8) == b"borrowed"
    pool.drop(segment)
    with pytest.raises(KeyError):
        pool.hold(segment)
    with pytest.raises(ValueError, match="reserved"):
        pool.hold(pool.reserve(1))


@pytest.mark.parametrize("nbytes", [1, 4096, 200_000, 9 * MIB + 7])
def test_what_is_written_out_is_what_is_read(tmp_path: Path, nbytes: int) -> None:
    pool = Pool(capacity_bytes=40 * MIB, extent_bytes_max=4 * MIB, prefault_ahead_bytes=0, memory_reserve_bytes=0)
    fragmented(pool)
    content = pattern(nbytes, 1)
    segment = sealed(pool, content)
    with (tmp_path / "f").open("wb") as file:
        for offset in range(0, nbytes, 3 * MIB + 1):
            pool.write_to(segment, file.fileno(), offset, min(3 * MIB + 1, nbytes - offset))
        with pytest.raises(ValueError, match="outside a segment"):
            pool.write_to(segment, file.fileno(), 1, nbytes)
    assert (tmp_path / "f").read_bytes() == content == pool.read(segment, 0, nbytes)


def test_a_full_disk_is_an_error_of_the_system(tmp_path: Path) -> None:
    pool = Pool(capacity_bytes=16 * MIB, prefault_ahead_bytes=0, memory_reserve_bytes=0)
    segment = sealed(pool, b"x" * MIB)
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError, match="writing out segment") as caught:
        pool.write_to(segment, full.fileno(), 0, MIB)
    assert caught.value.errno == 28
    with pytest.raises(ValueError, match="not sealed"):
        pool.write_to(pool.reserve(1), 1, 0, 1)


def test_pieces_of_the_pool_bring_the_very_bytes_across_runs_and_slots(storage: Storage) -> None:
    fragmented(storage.pool)
    large, small = pattern(7 * MIB + 3, 1), pattern(70_001, 2)
    sources = [sealed(storage.pool, large), sealed(storage.pool, small)]
    wanted = large[MIB - 1 : 6 * MIB] + b"between" + small[1:]
    pieces = struct.pack("<IIQQQII", 0, POOL, 0, 5 * MIB + 1, MIB - 1, 0, 0)
    pieces += struct.pack("<IIQQQII", 0, INLINE, 5 * MIB + 1, 7, 0, 0, 0)
    pieces += struct.pack("<IIQQQII", 0, POOL, 5 * MIB + 8, 70_000, 1, 1, 0)
    done = load(storage, 1, len(wanted), pieces, sources, b"between")
    assert (done.status, done.detail, done.bytes_moved) == ("ok", "", len(wanted))
    assert storage.pool.read(done.segments[0], 0, len(wanted)) == wanted
    assert done.digests == tensor_digest(wanted)


def test_a_box_of_a_segment_is_copied_as_its_rows(storage: Storage) -> None:
    matrix = pattern(300 * 64, 3)
    source = sealed(storage.pool, matrix)
    pieces = box_pieces(
        segment=0,
        kind=POOL,
        src_index=0,
        src=10 * 64 + 8,
        dst=0,
        run_bytes=16,
        counts=[100],
        strides=[64],
        pieces_max=100,
    )
    assert len(pieces) == 100 * 40
    done = load(storage, 1, 1600, pieces, [source])
    assert storage.pool.read(done.segments[0], 0, 1600) == b"".join(
        matrix[row * 64 + 8 : row * 64 + 24] for row in range(10, 110)
    )
    with pytest.raises(ValueError, match="more than 99 runs"):
        box_pieces(
            segment=0, kind=FILE, src_index=0, src=0, dst=0, run_bytes=1, counts=[100], strides=[2], pieces_max=99
        )


def test_a_source_that_is_not_sealed_is_refused_and_one_out_of_bounds_is_a_bad_plan(storage: Storage) -> None:
    source = sealed(storage.pool, b"x" * 100)
    with pytest.raises(ValueError, match="must be a sealed segment"):
        load(storage, 1, 1, struct.pack("<IIQQQII", 0, POOL, 0, 1, 0, 0, 0), [source, storage.pool.reserve(1)])
    done = load(storage, 2, 1, struct.pack("<IIQQQII", 0, POOL, 0, 1, 100, 0, 0), [source])
    assert done.status == "bad_plan"
    with pytest.raises(PoolFull):
        load(storage, 3, 1 << 40, b"", [source])
    storage.pool.drop(source)
    assert storage.pool.stats()["used_bytes"] == 0


def test_an_attach_with_a_wish_is_answered_with_segments_of_its_own(storage: Storage, client: Client) -> None:
    storage.holding = {"attach"}
    got: list[object] = []
    asking = threading.Thread(target=lambda: got.append(client.attach("v", deadline_ms=DEADLINE_MS, body=b"wish")))
    asking.start()
    assert eventually(lambda: len(storage.held) == 1)
    request = storage.held[0]
    assert (request.body, request.manifest_only) == (b"wish", False)
    content = pattern(2 * MIB, 5)
    manifest, rows = storage.segment(b"of a view"), storage.segment(content)
    with pytest.raises(ValueError, match="must be sealed"):
        storage.server.attach_segments(request.id, manifest, [storage.pool.reserve(1)])
    storage.server.attach_segments(request.id, manifest, [rows])
    with pytest.raises(KeyError):
        storage.server.attach_segments(request.id, manifest, [rows])
    storage.pool.drop(manifest)
    storage.pool.drop(rows)
    asking.join()
    (attached,) = got
    assert isinstance(attached, Attachment)
    assert attached.manifest == b"of a view"
    view = attached.view(1, 0, len(content))
    storage.refill(0xEE)
    assert bytes(view) == content
    del view
    assert attached.release() == 0
    assert eventually(lambda: storage.pool.stats()["used_bytes"] == 0)


@pytest.mark.parametrize("status", [LocalStatus.MOVED, LocalStatus.MANIFEST])
def test_an_attach_is_answered_with_the_storages_words(storage: Storage, client: Client, status: int) -> None:
    storage.holding = {"attach"}
    got: list[object] = []
    asking = threading.Thread(
        target=lambda: got.append(client.attach("b", deadline_ms=DEADLINE_MS, manifest_only=True))
    )
    asking.start()
    assert eventually(lambda: len(storage.held) == 1)
    assert storage.held[0].manifest_only is True
    storage.server.reply(storage.held[0].id, status, b"words")
    asking.join()
    assert got == [(status, b"words")]


def test_an_artifact_moves_under_a_reader_who_keeps_the_old(storage: Storage, client: Client) -> None:
    old, new = pattern(3 * MIB, 6), pattern(2 * MIB, 7)
    storage.publish("a", old)
    before = client.attach("a", deadline_ms=DEADLINE_MS)
    assert isinstance(before, Attachment)
    view = before.view(1, 0, len(old))
    manifest, rows = storage.segment(b"moved"), storage.segment(new)
    storage.server.republish("a", manifest, [rows])
    with pytest.raises(ValueError, match="not published"):
        storage.server.republish("b", manifest, [rows])
    storage.pool.drop(manifest)
    storage.pool.drop(rows)
    storage.refill(0xEE)
    after = client.attach("a", deadline_ms=DEADLINE_MS, body=b"no word of it is needed")
    assert isinstance(after, Attachment)
    assert (bytes(view), after.manifest) == (old, b"moved")
    assert bytes(after.view(1, 0, len(new))) == new
    del view
    before.release()
    after.release()
    assert storage.server.withdraw("a")
    assert eventually(lambda: storage.pool.stats()["segments"] == 0)
