"""The command line on a real cluster: every command, its output for people and for programs, its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

import tensorcast as tc
from tests.support.cluster import Cluster, running_cluster

WAIT_S_MAX = 30.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"w": torch.arange(1000), "e": torch.empty(0, 2)}, path)
    return path


def as_json(cluster: Cluster, *arguments: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(cluster.cli(*arguments, "--json").stdout)
    return found


def test_a_checkpoint_is_put_shown_fetched_and_removed(cluster: Cluster, file: Path, tmp_path: Path) -> None:
    put = cluster.cli("put", str(file), "cli/x")
    assert put.stdout.startswith("stored cli/x: 7.8 KiB")
    assert as_json(cluster, "put", str(file), "cli/x")["outcome"] == "already_present"
    listed = cluster.cli("ls", "cli/").stdout.splitlines()
    assert listed[0].split() == ["ID", "SIZE", "TENSORS", "AGE", "OWNER", "PLACES"] and listed[1].startswith("cli/x")
    assert cluster.cli("ls", "cli/", "-q").stdout == "cli/x\n"
    described = cluster.cli("describe", "cli/x").stdout
    assert "resident" in described and "I64" in described and "0x2" in described
    assert cluster.cli("get", "cli/x", str(tmp_path / "y.safetensors")).returncode == 0
    assert torch.equal(safetensors.torch.load_file(tmp_path / "y.safetensors")["w"], torch.arange(1000))
    assert cluster.cli("rm", "cli/x").stdout == "deleted cli/x\n"
    assert cluster.cli("ls", "cli/").stdout == "no artifacts that begin with 'cli/'\n"


def test_json_has_everything_by_name(cluster: Cluster, file: Path) -> None:
    put = as_json(cluster, "put", str(file), "cli/json")
    assert put["art_id"] == "cli/json" and isinstance(put["stats"], dict) and put["stats"]["bytes_total"] == 8000
    described = as_json(cluster, "describe", "cli/json")
    assert isinstance(described["artifact"], dict) and described["artifact"]["digest"] == put["digest"]
    assert isinstance(described["tensors"], list)
    assert {t["name"]: t["dtype"] for t in described["tensors"]} == {"w": "I64", "e": "F32"}
    listed = json.loads(cluster.cli("ls", "cli/json", "--json").stdout)
    assert [r["art_id"] for r in listed] == ["cli/json"]
    status = as_json(cluster, "status")
    assert status["well"] is True and "nats_token" not in status
    assert isinstance(status["workers"], list)
    assert {w["role"] for w in status["workers"]} >= {"global_store", "gateway", "storage"}
    assert as_json(cluster, "rm", "cli/json") == {"deleted": "cli/json"}


def test_failures_end_with_code_1_and_say_what_is_wrong(cluster: Cluster, file: Path, tmp_path: Path) -> None:
    for arguments, code in (
        (("rm", "cli/none"), "NotFound"),
        (("describe", "cli/none"), "NotFound"),
        (("get", "cli/none", str(tmp_path / "y")), "NotFound"),
        (("put", str(tmp_path / "none"), "cli/none"), "BadCheckpoint"),
        (("put", str(file), "not an id"), "Invalid"),
        (("logs", "nobody"), "NotFound"),
    ):
        done = cluster.cli(*arguments, check=False)
        assert (done.returncode, done.stdout) == (1, ""), arguments
        assert f"[{code}]" in done.stderr
        told = json.loads(cluster.cli(*arguments, "--json", check=False).stderr)
        assert told["error"]["code"] == code


def test_quiet_commands_say_nothing_when_all_is_well(cluster: Cluster, file: Path, tmp_path: Path) -> None:
    for arguments in (
        ("put", str(file), "cli/quiet"),
        ("get", "cli/quiet", str(tmp_path / "y")),
        ("status",),
        ("rm", "cli/quiet"),
    ):
        done = cluster.cli("-q", *arguments)
        assert (done.stdout, done.stderr) == ("", "")


def test_status_shows_every_process_and_how_full_the_storage_is(cluster: Cluster) -> None:
    shown = cluster.cli("status").stdout
    for said in ("global_store", "gateway-0", "storage-a", "nats", "CAPACITY", "512.0 MiB"):
        assert said in shown


def test_logs_of_one_process_are_lines_of_json(cluster: Cluster) -> None:
    lines = cluster.cli("logs", "storage-a").stdout.splitlines()
    assert any(json.loads(line)["event"] == "ready" for line in lines)
    assert len(cluster.cli("logs", "-n", "1").stdout.splitlines()) >= 4


def test_output_cut_short_by_its_reader_is_no_failure(cluster: Cluster) -> None:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m tensorcast.cli logs -n 1000 | head -1"],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S_MAX,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "") and len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_end_no_command(cluster: Cluster, file: Path, closed: str) -> None:
    for words, code in ((f"put {file} cli/closed", 0), ("ls", 0), ("rm cli/closed", 0), ("rm cli/closed", 1)):
        done = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m tensorcast.cli {words} {closed}"],
            env=cluster.environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S_MAX,
            check=False,
        )
        assert done.returncode == code and "Traceback" not in done.stderr


def test_errors_that_nobody_reads_keep_their_code(cluster: Cluster) -> None:
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"{sys.executable} -m tensorcast.cli rm cli/none 2>&1 >/dev/null | true; exit ${{PIPESTATUS[0]}}",
        ],
        env=cluster.environment,
        stderr=subprocess.PIPE,
        text=True,
        timeout=WAIT_S_MAX,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_ids_beyond_the_output_encoding_are_shown_by_escapes(
    cluster: Cluster, rt: tc.Runtime, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt.put(torch.ones(1), "cli/ü日")
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    done = subprocess.run(
        [sys.executable, "-m", "tensorcast.cli", "ls", "cli/ü", "-q"],
        env=cluster.environment,
        capture_output=True,
        timeout=WAIT_S_MAX,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding).strip() == "cli/ü日".encode(encoding, "backslashreplace").decode(encoding)
    rt.delete("cli/ü日")


def test_get_over_a_pipe_is_refused_and_leaves_it(cluster: Cluster, file: Path, tmp_path: Path) -> None:
    cluster.cli("put", str(file), "cli/pipe")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")  # as /dev/stdout is
    for name in ("pipe", "stdout"):
        done = cluster.cli("get", "cli/pipe", str(tmp_path / name), check=False)
        assert done.returncode == 1 and "is a pipe" in done.stderr and done.stdout == ""
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "stdout").is_symlink()


def test_logs_as_json_are_objects(cluster: Cluster) -> None:
    records = [json.loads(line) for line in cluster.cli("logs", "--json").stdout.splitlines()]
    assert {r["process"] for r in records} >= {"nats", "storage-a", "gateway-0", "supervisor"}
    assert all("line" in r or "event" in r for r in records)


def test_progress_is_shown_when_asked_for(cluster: Cluster, tmp_path: Path, rt: tc.Runtime) -> None:
    big = tmp_path / "big.safetensors"
    safetensors.torch.save_file({"w": torch.zeros(200 << 18)}, big)
    done = cluster.cli("put", str(big), "cli/progress", "--progress")
    assert done.stdout.startswith("stored cli/progress: 200.0 MiB")
    assert all("of 200.0 MiB (" in line for line in done.stderr.splitlines())
    rt.delete("cli/progress")


def test_a_second_up_is_refused_and_the_first_goes_on(cluster: Cluster) -> None:
    done = cluster.cli("up", "--detach", check=False)
    assert done.returncode == 1
    assert str(cluster.state().supervisor_pid) in done.stderr
    assert cluster.cli("status").returncode == 0


def test_up_in_the_foreground_ends_with_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    cluster = Cluster("front", tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-m", "tensorcast.cli", "up", "--set", "storage.host_bytes_max=64MiB"],
        env=cluster.environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stderr is not None
    said = ""
    for line in child.stderr:  # ends with the process, whose end the timeout below bounds
        said += line
        if "ready" in line:
            break
    pids = [p.pid for p in cluster.state().processes]
    child.send_signal(signal.SIGINT)
    child.stderr.read()
    child.stderr.close()
    assert child.wait(WAIT_S_MAX) == 0, said
    assert not (cluster.folder / "cluster.json").exists()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def supervisor_of(cluster: Cluster) -> int | None:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"tensorcast_services.supervisor" in words and str(cluster.folder).encode() in words:
            return int(pid)
    return None


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_up_that_is_interrupted_while_it_waits_leaves_no_cluster(tmp_path: Path, sig: signal.Signals) -> None:
    cluster = Cluster("interrupted", tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-m", "tensorcast.cli", "up", "--detach", "--set", "storage.host_bytes_max=64MiB"],
        env=cluster.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + WAIT_S_MAX
    while supervisor_of(cluster) is None and child.poll() is None and time.monotonic() < until:
        pass  # it shows up long before the cluster is ready
    child.send_signal(signal.SIGSTOP)  # so that however slow we are, it is waiting when the signal comes
    child.send_signal(sig)
    child.send_signal(signal.SIGCONT)
    assert child.wait(WAIT_S_MAX) == 1
    assert supervisor_of(cluster) is None and not (cluster.folder / "cluster.json").exists()


def test_a_relative_runtime_folder_is_one_for_all_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cluster = Cluster("relative", Path("run"))
    assert cluster.cli("up", "--detach", "--set", "storage.host_bytes_max=64MiB").returncode == 0
    try:
        assert (tmp_path / "run/tensorcast/relative/cluster.json").exists()
        assert cluster.cli("status").returncode == 0
    finally:
        assert cluster.cli("down").returncode == 0


def test_up_with_a_setting_that_is_none_says_which(tmp_path: Path) -> None:
    cluster = Cluster("wrong", tmp_path)
    done = cluster.cli("up", "--detach", "--set", "storage.host_byte_max=64MiB", check=False)
    assert done.returncode == 1
    assert "host_byte_max" in done.stderr and "host_bytes_max" in done.stderr
    assert cluster.cli("status", check=False).returncode == 3


def test_two_nodes_are_two_storages(tmp_path: Path, file: Path) -> None:
    cluster = Cluster("two", tmp_path)
    up = ("up", "--detach", "--node", "a", "--node", "b", "--set", "storage.host_bytes_max=64MiB")
    assert cluster.cli(*up).returncode == 0
    try:
        assert "storage-b" in cluster.cli("status").stdout
        assert cluster.cli("put", str(file), "cli/on-b", "--node", "b").returncode == 0
        assert "b:host" in cluster.cli("ls").stdout
        assert cluster.cli("get", "cli/on-b", str(tmp_path / "y"), "--node", "b").returncode == 0
        elsewhere = cluster.cli("get", "cli/on-b", str(tmp_path / "z"), "--node", "a", check=False)
        assert elsewhere.returncode == 1 and "NoReplica" in elsewhere.stderr
        assert cluster.cli("get", "cli/on-b", "z", "--node", "c", check=False).returncode == 1
    finally:
        assert cluster.cli("down").returncode == 0
    assert cluster.cli("down", check=False).returncode == 3


def test_status_of_a_cluster_whose_supervisor_was_killed_is_not_connected(tmp_path: Path) -> None:
    with running_cluster(tmp_path, name="killed") as cluster:
        os.kill(cluster.state().supervisor_pid, signal.SIGKILL)
        done = cluster.cli("status", check=False)
        assert done.returncode in (1, 3)
        assert cluster.cli("up", "--detach", "--set", "storage.host_bytes_max=64MiB").returncode == 0
        assert cluster.cli("status").returncode == 0
