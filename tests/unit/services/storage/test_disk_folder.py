"""The disk folder: what is there after a write, a failure, a crash and a deletion, with real files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tensorcast_bus.errors import BadCheckpoint, CapacityExceeded, NoReplica
from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, TensorRow, encode_manifest
from tensorcast_services.storage.disk_folder import DiskFolder, Part, WriteCancelled
from tensorcast_services.storage.sidecars import Summary
from tensorcast_services.storage.sources import SourceTrouble, close_all

KEYS = {"a": "aa" * 16, "b": "bb" * 16, "c": "cc" * 16}
CONTENT = {key: key.encode() * 64 for key in KEYS.values()}
BYTES = 64 * 32


class House:
    def __init__(self, folder: Path, *, bytes_max: int = 1 << 20) -> None:
        self.skipped: list[str] = []
        self.folder = DiskFolder(folder, bytes_max=bytes_max)
        self.fails: dict[str, int] = {}
        self.poured: list[str] = []

    def scan(self) -> list[str]:
        return [summary.art_id for summary in self.folder.scan(self.skipped.append)]

    def pour(self, part: Part, fd: int, offset: int, nbytes: int) -> None:
        if part.key in self.fails:
            raise OSError(self.fails[part.key], os.strerror(self.fails[part.key]))
        self.poured.append(part.key)
        os.pwrite(fd, CONTENT[part.key][offset : offset + nbytes], offset)

    def write(self, art_id: str, *keys: str, cancelled: bool = False) -> None:
        parts = [Part(key, BYTES, number) for number, key in enumerate(keys)]
        rows = tuple(TensorRow(f"t{n}", "U8", (BYTES,), n, 0, BYTES, b"d" * 16) for n in range(len(keys)))
        manifest = Manifest(MANIFEST_VERSION, art_id, tuple(SegmentRow(BYTES, key=key) for key in keys), rows)
        summary = Summary(art_id, "ab" * 16, BYTES * len(keys), len(keys), (), tuple((key, BYTES) for key in keys))
        self.folder.write(summary, encode_manifest(manifest), parts, pour=self.pour, cancelled=lambda: cancelled)

    def names(self) -> set[str]:
        return {path.name for path in self.folder.folder.iterdir()}

    def data(self) -> set[str]:
        return {name for name in self.names() if name.endswith(".safetensors")}


def of(*keys: str) -> set[str]:
    return {f"{key}.safetensors" for key in keys}


def test_what_was_written_is_there_byte_for_byte_and_private(tmp_path: Path) -> None:
    house = House(tmp_path / "disk")
    house.write("x", KEYS["a"], KEYS["b"])
    for key in (KEYS["a"], KEYS["b"]):
        path = house.folder.path(key)
        assert path.read_bytes() == CONTENT[key] and path.stat().st_mode & 0o777 == 0o600
    assert house.folder.folder.stat().st_mode & 0o777 == 0o700
    assert house.folder.bytes == 2 * BYTES and len(house.names()) == 3
    files = house.folder.open_all("x", [(KEYS["b"], BYTES)])
    assert os.read(files[0][0], BYTES) == CONTENT[KEYS["b"]]
    close_all([fd for fd, *_ in files])


def test_a_segment_that_two_artifacts_share_is_written_once_and_goes_with_the_last(tmp_path: Path) -> None:
    house = House(tmp_path / "disk")
    house.write("x", KEYS["a"], KEYS["b"])
    house.write("y", KEYS["c"], KEYS["b"])
    assert house.poured.count(KEYS["b"]) == 1 and house.folder.bytes == 3 * BYTES
    house.folder.remove("x")
    assert house.data() == of(KEYS["b"], KEYS["c"]) and house.folder.bytes == 2 * BYTES
    house.folder.remove("y")
    house.folder.remove("y")
    assert not house.names() and house.folder.bytes == 0


def test_a_new_start_finds_what_is_whole_and_sweeps_what_nobody_names(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    house = House(folder)
    house.write("x", KEYS["a"])
    (folder / f"{KEYS['b']}.safetensors").write_bytes(CONTENT[KEYS["b"]])  # synced, and its sidecar never was
    (folder / f"{KEYS['c']}.part").write_bytes(b"half")
    (folder / "model-00001.safetensors").write_bytes(b"somebody else's")
    (folder / "notes.part").write_bytes(b"somebody else's")
    again = House(folder)
    assert again.scan() == ["x"] and not again.skipped
    assert again.data() == of(KEYS["a"]) | {"model-00001.safetensors"} and "notes.part" in again.names()
    assert f"{KEYS['c']}.part" not in again.names() and again.folder.bytes == BYTES
    again.folder.remove("x")
    assert again.data() == {"model-00001.safetensors"}


@pytest.mark.parametrize("damage", ["missing", "short", "long"])
def test_an_artifact_with_a_damaged_file_is_none_after_a_start_and_the_log_names_the_file(
    tmp_path: Path, damage: str
) -> None:
    house = House(tmp_path / "disk")
    house.write("x", KEYS["a"], KEYS["b"])
    house.write("y", KEYS["b"])
    path = house.folder.path(KEYS["a"])
    match damage:
        case "missing":
            path.unlink()
        case "short":
            os.truncate(path, BYTES - 1)
        case _:
            os.truncate(path, BYTES + 1)
    again = House(tmp_path / "disk")
    assert again.scan() == ["y"] and str(path) in again.skipped[0] and "'x'" in again.skipped[0]
    assert again.data() == of(KEYS["b"])


def test_data_that_a_torn_sidecar_may_name_is_not_swept_away(tmp_path: Path) -> None:
    house = House(tmp_path / "disk")
    house.write("x", KEYS["a"])
    sidecar = house.folder.sidecars.path("x")
    sidecar.write_bytes(sidecar.read_bytes()[:-1])
    again = House(tmp_path / "disk")
    assert again.scan() == [] and len(again.skipped) == 1
    assert again.data() == of(KEYS["a"]) and again.folder.bytes == BYTES


def test_a_damaged_file_is_not_opened_and_the_error_names_it(tmp_path: Path) -> None:
    house = House(tmp_path / "disk")
    house.write("x", KEYS["a"], KEYS["b"])
    path = house.folder.path(KEYS["b"])
    wanted = [(KEYS["a"], BYTES), (KEYS["b"], BYTES)]
    before = len(os.listdir("/proc/self/fd"))
    os.truncate(path, 5)
    with pytest.raises(SourceTrouble) as short:
        house.folder.open_all("x", wanted)
    assert short.value.lost and isinstance(short.value.error, BadCheckpoint) and str(path) in short.value.error.text
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(SourceTrouble) as link:
        house.folder.open_all("x", wanted)
    assert link.value.lost and isinstance(link.value.error, NoReplica) and str(path) in link.value.error.text
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_over_the_limit_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    house = House(tmp_path / "disk", bytes_max=2 * BYTES)
    house.write("x", KEYS["a"])
    with pytest.raises(CapacityExceeded, match=r"storage\.disk_bytes_max") as full:
        house.write("y", KEYS["b"], KEYS["c"])
    assert full.value.context["free_bytes"] == BYTES and house.data() == of(KEYS["a"])
    house.write("z", KEYS["a"], KEYS["b"])  # what it shares costs nothing
    assert house.folder.bytes == 2 * BYTES


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, CapacityExceeded), (errno.EIO, OSError)])
def test_a_write_that_fails_leaves_nothing_new(tmp_path: Path, code: int, kind: type[Exception]) -> None:
    house = House(tmp_path / "disk")
    house.write("x", KEYS["a"])
    house.fails[KEYS["c"]] = code
    with pytest.raises(kind):
        house.write("y", KEYS["b"], KEYS["c"])
    assert house.data() == of(KEYS["a"]) and len(house.names()) == 2 and house.folder.bytes == BYTES
    house.fails.clear()
    house.write("y", KEYS["b"], KEYS["c"])
    assert sorted(House(tmp_path / "disk").scan()) == ["x", "y"]


def test_a_cancelled_write_leaves_nothing(tmp_path: Path) -> None:
    house = House(tmp_path / "disk")
    with pytest.raises(WriteCancelled):
        house.write("x", KEYS["a"], cancelled=True)
    assert not house.names() and house.folder.bytes == 0


def test_an_artifact_that_is_written_again_from_other_segments_lets_the_old_ones_go(tmp_path: Path) -> None:
    house = House(tmp_path / "disk")
    house.write("x", KEYS["a"], KEYS["b"])
    house.write("x", KEYS["c"], KEYS["b"])
    assert house.data() == of(KEYS["b"], KEYS["c"]) and house.folder.bytes == 2 * BYTES


@pytest.mark.parametrize("damage", ["flip", "missing", "short"])
def test_a_damaged_file_that_others_share_is_written_anew_with_the_next_artifact(tmp_path: Path, damage: str) -> None:
    house = House(tmp_path / "disk")
    house.write("x", KEYS["a"], KEYS["b"])
    house.write("y", KEYS["a"])
    path = house.folder.path(KEYS["a"])
    match damage:
        case "flip":
            path.write_bytes(bytes(BYTES))
            house.folder.distrust(KEYS["a"])
        case "missing":
            path.unlink()
        case _:
            os.truncate(path, 3)
    house.folder.remove("x")
    house.write("z", KEYS["a"], KEYS["c"])
    assert path.read_bytes() == CONTENT[KEYS["a"]] and house.folder.bytes == 2 * BYTES
    assert sorted(House(tmp_path / "disk").scan()) == ["y", "z"]
