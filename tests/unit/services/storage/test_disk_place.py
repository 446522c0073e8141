"""Where a storage may write: one owner a folder, and memory is no disk."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensorcast_services.process import TakenOver
from tensorcast_services.storage import disk_place
from tensorcast_services.storage.disk_place import claim, disk_folder, memory_file_system
from tensorcast_services.storage.places import take_places
from tensorcast_services.storage.settings import StorageSettings
from tensorcast_services.tables import Refusal

HOLD = """
import sys
from pathlib import Path
from tensorcast_services.storage.disk_place import claim
claim(Path(sys.argv[1]), setting="the folder")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_that_another_process_has_is_refused_with_its_pid_and_free_after_its_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_place, "CLAIM_S_MAX", 0.1)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "s")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None and holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(TakenOver, match=rf"pid {holder.pid}.*--node"):
            claim(tmp_path / "s", setting="the folder")
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    os.close(claim(tmp_path / "s", setting="the folder"))


def test_a_folder_where_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s").chmod(0o777)
    with pytest.raises(Refusal, match="chmod 700"):
        claim(tmp_path / "s", setting="storage.disk_path")


@pytest.mark.skipif(memory_file_system(Path("/dev/shm")) == "", reason="/dev/shm is no tmpfs here")
def test_a_folder_in_memory_is_no_disk(capsys: pytest.CaptureFixture[str]) -> None:
    assert memory_file_system(Path("/dev/shm")) == "tmpfs"
    assert disk_folder(Path("/dev/shm"), bytes_max=0) is None
    assert "disk_path" in capsys.readouterr().out


def test_a_disk_has_half_of_what_is_free_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    if memory_file_system(tmp_path):
        pytest.skip(f"{tmp_path} lies in memory")
    there = os.statvfs(tmp_path)
    found = disk_folder(tmp_path, bytes_max=0)
    assert found is not None and 0 < found.bytes_max <= there.f_blocks * there.f_frsize // 2
    said = disk_folder(tmp_path, bytes_max=7)
    assert said is not None and said.bytes_max == 7


def test_both_folders_of_a_storage_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_place, "CLAIM_S_MAX", 0.1)
    places = take_places(tmp_path / "storage-a", settings=StorageSettings(disk_path=str(tmp_path / "disk")))
    with pytest.raises(TakenOver, match=re.escape(str(tmp_path / "storage-a"))):
        take_places(tmp_path / "storage-a", settings=StorageSettings())
    with pytest.raises(TakenOver, match="disk_path"):
        take_places(tmp_path / "storage-b", settings=StorageSettings(disk_path=str(tmp_path / "disk")))
    with pytest.raises(Refusal, match="absolute"):
        take_places(tmp_path / "storage-c", settings=StorageSettings(disk_path="here"))
    for fd in places.locks:
        os.close(fd)
