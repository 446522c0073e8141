"""The cluster folder: who may use it, and what a dead run leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorcast_bus.cluster import CLUSTER_FILE
from tensorcast_services.supervisor import orphans
from tensorcast_services.supervisor.folder import prepare_folder, take_lock, write_private
from tensorcast_services.supervisor.orphans import PIDS_FILE, clean_after_dead_run, record_of, write_records
from tensorcast_services.supervisor.settings import check_tables, with_assignments
from tensorcast_services.tables import Refusal

SLEEPER = [sys.executable, "-c", "import sys; sys.stdin.read()"]


def test_a_new_folder_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "cluster"
    prepare_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    prepare_folder(folder)


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    with pytest.raises(Refusal, match="mode 0770: others may write"):
        prepare_folder(tmp_path)


def test_a_file_or_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refusal):
        prepare_folder(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(Refusal, match="no directory"):
        prepare_folder(tmp_path / "link")


def test_a_lock_is_held_by_one_and_names_its_holder(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tensorcast_services.supervisor.folder import take_lock\n"
        "fd = take_lock(Path(sys.argv[1]), 'x')\n"
        "print(os.getpid(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        with pytest.raises(Refusal, match=rf"pid {pid}.*tensorcast --cluster x down"):
            take_lock(tmp_path, "x")
        holder.communicate(timeout=30)
    os.close(take_lock(tmp_path, "x"))


def test_what_a_dead_run_left_is_removed_and_its_children_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "ORPHAN_END_MS_MAX", 100)
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as orphan:
        write_records(tmp_path, [record_of("storage-a", orphan.pid)])
        for name in (CLUSTER_FILE, "storage-a.sock", "global_store.duckdb"):
            (tmp_path / name).write_text("")
        (line,) = clean_after_dead_run(tmp_path)
        assert f"storage-a (pid {orphan.pid}) of a dead supervisor did not end by itself" in line
        assert orphan.wait(timeout=30) == -9
    assert [p.name for p in tmp_path.iterdir()] == ["global_store.duckdb"]


def test_a_stranger_who_got_the_pid_of_a_dead_child_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as stranger:
        record = record_of("storage-a", stranger.pid)
        write_records(tmp_path, [type(record)("storage-a", record.pid, record.start_ticks - 1, record.boot)])
        assert clean_after_dead_run(tmp_path) == []
        write_records(tmp_path, [type(record)("storage-a", record.pid, record.start_ticks, "another boot")])
        assert clean_after_dead_run(tmp_path) == []
        assert stranger.poll() is None
        stranger.communicate(timeout=30)


def test_a_torn_record_of_pids_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / PIDS_FILE).write_bytes(b'[{"process": "sto')
    assert clean_after_dead_run(tmp_path) == []


def test_a_private_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_private(path, b"old")
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_assignments_are_checked_before_they_are_written() -> None:
    assert with_assignments("", ["storage.host_bytes_max=8GiB"]) == '[storage]\nhost_bytes_max = "8GiB"\n'
    with pytest.raises(Refusal, match="no process 'storge'; did you mean 'storage'"):
        with_assignments("", ["storge.host_bytes_max=8GiB"])
    with pytest.raises(Refusal, match=r"PROCESS\.SETTING=VALUE"):
        with_assignments("", ["host_bytes_max=8GiB"])
    check_tables({"storage-a": {}, "gateway-12": {}, "bus": {}}, "here")
    with pytest.raises(Refusal, match="here: there is no process 'gatway'"):
        check_tables({"gatway": {}}, "here")
