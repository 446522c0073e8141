"""Sidecars, source files and the plan of a load: what is trusted after a crash, and what is not."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from tensorcast_bus.errors import BadCheckpoint, NoReplica
from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, SourceFile, TensorRow, encode_manifest
from tensorcast_services.storage import sources
from tensorcast_services.storage.core.events import Identity
from tensorcast_services.storage.load_plan import plan_load
from tensorcast_services.storage.sidecars import Sidecars, Summary, TornSidecar


def manifest_of(art_id: str) -> Manifest:
    row = TensorRow("t", "U8", (4,), 0, 0, 4, b"d" * 16)
    return Manifest(MANIFEST_VERSION, art_id, (SegmentRow(4, SourceFile("/p", 1, 2, 4, 5)),), (row,))


def summary_of(art_id: str) -> Summary:
    return Summary(art_id, "ab" * 16, 4, 1, (("/p", 1, 2, 4, 5),))


def written(folder: Path, *art_ids: str) -> Sidecars:
    found = Sidecars(folder)
    for art_id in art_ids:
        found.write(summary_of(art_id), encode_manifest(manifest_of(art_id)))
    return found


class OldSummary(msgspec.Struct, frozen=True, array_like=True):
    """As it was before storages had disks of their own."""

    art_id: str
    digest: str
    nbytes: int
    tensors: int
    files: tuple[Identity, ...]


def test_sidecars_from_before_there_was_a_disk_tier_are_read(tmp_path: Path) -> None:
    sidecars = Sidecars(tmp_path)
    old = OldSummary("x", "ab" * 16, 4, 1, summary_of("x").files)
    sidecars.write(old, encode_manifest(manifest_of("x")))  # type: ignore[arg-type]
    assert sidecars.read("x")[0] == summary_of("x") == next(sidecars.scan(lambda _: None))
    assert summary_of("x").disk == ()


def test_what_was_written_is_read_and_found_by_a_scan(tmp_path: Path) -> None:
    sidecars = written(tmp_path / "s", "x", "größe@1")
    summary, blob, manifest = sidecars.read("x")
    assert (summary, manifest) == (summary_of("x"), manifest_of("x")) and blob == encode_manifest(manifest)
    skipped: list[str] = []
    assert {s.art_id for s in sidecars.scan(skipped.append)} == {"x", "größe@1"} and not skipped
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
    assert sidecars.path("x").stat().st_mode & 0o777 == 0o600


def test_every_cut_and_every_flipped_byte_is_seen(tmp_path: Path) -> None:
    sidecars = written(tmp_path, "x")
    path = sidecars.path("x")
    whole = path.read_bytes()
    damaged = [whole[:n] for n in range(len(whole))]
    damaged += [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
    for blob in (*damaged, whole + b"x"):
        path.write_bytes(blob)
        with pytest.raises(TornSidecar):
            sidecars.read("x")


def test_a_scan_skips_torn_and_foreign_files_and_clears_interrupted_writes(tmp_path: Path) -> None:
    sidecars = written(tmp_path, "x", "y")
    os.replace(sidecars.path("y"), sidecars.path("z"))
    sidecars.path("w").write_bytes(b"TCSIDE01 and then nothing")
    (tmp_path / f"{0:032x}.part").write_bytes(b"...")
    (tmp_path / "notes.txt").write_text("not ours")
    skipped: list[str] = []
    assert [s.art_id for s in sidecars.scan(skipped.append)] == ["x"]
    assert len(skipped) == 2 and not (tmp_path / f"{0:032x}.part").exists() and (tmp_path / "notes.txt").exists()


def test_a_write_replaces_and_a_removal_may_be_repeated(tmp_path: Path) -> None:
    sidecars = written(tmp_path, "x", "x")
    sidecars.remove("x")
    sidecars.remove("x")
    assert not list(tmp_path.iterdir())


def identity_of(path: Path) -> Identity:
    s = path.stat()
    return (str(path), s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns)


def test_a_file_is_unchanged_only_with_the_same_identity(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"1234")
    seen = identity_of(path)
    assert sources.look([seen]) == sources.Look()
    fds = sources.open_all("x", [seen, seen])
    assert len(fds) == 2 and not os.get_inheritable(fds[0])
    sources.close_all(fds)
    os.utime(path, ns=(0, 1))
    assert "mtime_ns" in sources.look([seen]).changed and sources.look([seen]).sure
    with pytest.raises(sources.SourceTrouble) as trouble:
        sources.open_all("x", [seen])
    assert trouble.value.lost and isinstance(trouble.value.error, BadCheckpoint)


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"1234")
    seen = identity_of(path)
    path.rename(tmp_path / "g")
    path.symlink_to(tmp_path / "g")
    assert sources.look([seen]).changed
    with pytest.raises(sources.SourceTrouble):
        sources.open_all("x", [seen])


def test_a_vanished_file_is_lost_for_good(tmp_path: Path) -> None:
    seen = (str(tmp_path / "gone"), 1, 2, 3, 4)
    assert sources.look([seen]).sure
    with pytest.raises(sources.SourceTrouble) as trouble:
        sources.open_all("x", [seen])
    assert trouble.value.lost and isinstance(trouble.value.error, NoReplica)


def test_a_plan_reads_files_whole_and_copies_aside_with_the_gaps_filled() -> None:
    file = SourceFile("/p", 1, 2, 100, 5)
    rows = (
        TensorRow("a", "U8", (10,), 0, 0, 10, b"d" * 16),
        TensorRow("b", "F32", (2,), 1, 0, 8, b"d" * 16, (0, 33)),
        TensorRow("c", "F32", (2,), 1, 64, 8, b"d" * 16, (0, 51)),
        TensorRow("tied", "F32", (2,), 1, 64, 8, b"d" * 16, (0, 51)),
    )
    segments = (SegmentRow(100, file), SegmentRow(80, aside=True), SegmentRow(0, SourceFile("/q", 1, 3, 0, 5)))
    plan = plan_load(Manifest(MANIFEST_VERSION, "x", segments, rows))
    assert plan.segment_bytes == [100, 80, 0] and len(plan.inline) == 56
    covered = 0
    for number, kind, dst, nbytes, src, index in _pieces(plan.pieces):
        if number == 0:
            assert (kind, dst, nbytes, src, index) == (3, 0, 100, 0, 0)
        else:
            assert dst == covered and kind in (1, 4)
            if kind == 4:
                assert (dst, src, index) in ((0, 33, 0), (64, 51, 0))
            covered += nbytes
    assert covered == 80
    assert len(plan.rows) == 24 * 4


def _pieces(packed: bytes) -> list[tuple[int, int, int, int, int, int]]:
    def number(at: int, size: int) -> int:
        return int.from_bytes(packed[at : at + size], "little")

    return [
        (number(i, 4), number(i + 4, 4), number(i + 8, 8), number(i + 16, 8), number(i + 24, 8), number(i + 32, 4))
        for i in range(0, len(packed), 40)
    ]
