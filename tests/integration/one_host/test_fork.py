"""Attach, fork, and every order of dying: what a process maps is never given to others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support.cluster import Cluster, running_cluster
from tests.support.slack import SLACK_S

MIB = 1 << 20

# The parent attaches and forks; the child waits for a line on the pipe, then checks every byte it inherited.
# With "daemon" the child closes its copy of the lifeline's pipe, as programs do that close what they do not know; with
# "early" it lets the lifeline's page go too: the negative control.
FORKER = """
import ctypes, os, sys, json, torch, tensorcast as tc
torch.set_num_threads(1)  # threads that torch started before a fork are missing in the child
art_id, how = sys.argv[1:3]
say = lambda word: os.write(1, (json.dumps(word) + "\\n").encode())  # one write: both processes share the pipe
rt = tc.connect()
tensors = rt.artifact(art_id).tensor_dict()
truth = {k: int(v.sum(dtype=torch.int64)) for k, v in tensors.items()}
pipes = {int(f) for f in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{f}")
         and os.readlink(f"/proc/self/fd/{f}").startswith("pipe:") and int(f) > 2}
child = os.fork()
if child == 0:
    if how in ("early", "daemon"):
        for fd in pipes:
            os.close(fd)
    if how == "early":
        libc = ctypes.CDLL(None)
        for line in [l for l in open("/proc/self/maps") if "tensorcast-lifeline" in l]:
            begin, end = (int(x, 16) for x in line.split()[0].split("-"))
            libc.munmap(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin))
    say({"child": os.getpid()})
    sys.stdin.readline()
    good = all(int(v.sum(dtype=torch.int64)) == truth[k] for k, v in tensors.items())
    say({"good": good})
    os._exit(0)
if how == "drop":
    del tensors
    say({"dropped": True})
signal_me = os.waitpid(child, 0)
"""


@pytest.fixture
def small(tmp_path: Path) -> object:
    """A cluster whose pool holds little more than one of the test's artifacts."""
    with running_cluster(
        tmp_path / "rt",
        name="small",
        settings={
            "storage.host_bytes_max": "80MiB",
            "storage.extent_bytes_max": "16MiB",
            "storage.prefault_ahead_bytes": "0",
        },
    ) as started:
        yield started


def checkpoint(folder: Path, *, value: int) -> Path:
    file = folder / f"v{value}.safetensors"
    save_file({f"w{i}": torch.full((8 * MIB,), value + i, dtype=torch.uint8) for i in range(4)}, file)
    return file


def start_forker(cluster: Cluster, art_id: str, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FORKER, art_id, how],
        env=cluster.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def evict_and_refill(cluster: Cluster, folder: Path, *, rounds: int = 4) -> int:
    """Puts other files until the pool has turned over; returns how many found room."""
    stored = 0
    with cluster.connect() as runtime:
        for value in range(100, 100 + rounds * 10, 10):
            try:
                runtime.put(checkpoint(folder, value=value), f"refill@{value}", deadline_ms=20_000)
                stored += 1
            except Exception as error:
                assert type(error).__name__ == "CapacityExceeded", error
    return stored


def wait_pins(cluster: Cluster, *, at_most: int) -> None:
    deadline = time.monotonic() + SLACK_S
    while time.monotonic() < deadline:
        pins = cluster.storage_stats().pool["pins"]
        if pins <= at_most:
            return
        time.sleep(0.02)  # polls another process's figure; bounded by the deadline above
    raise AssertionError(f"{pins} pins are left, {at_most} expected")


@pytest.mark.parametrize("how", ["kill", "drop", "daemon"])
def test_a_forked_child_keeps_reading_right_bytes_after_its_parent_went(
    small: Cluster, tmp_path: Path, how: str
) -> None:
    with small.connect() as runtime:
        runtime.put(checkpoint(tmp_path, value=1), "forked@1")
    forker = start_forker(small, "forked@1", how)
    assert forker.stdout is not None and forker.stdin is not None
    lines = [json.loads(forker.stdout.readline()) for _ in range(2 if how == "drop" else 1)]
    assert any("child" in line for line in lines)
    if how != "drop":
        forker.send_signal(signal.SIGKILL)
        forker.wait(10)
    assert evict_and_refill(small, tmp_path) >= 1
    forker.stdin.write("check\n")
    forker.stdin.flush()
    assert json.loads(forker.stdout.readline()) == {"good": True}
    forker.stdin.close()
    forker.stdout.close()
    if how == "drop":
        assert forker.wait(10) == 0


def test_without_its_lifeline_the_child_would_read_other_bytes(small: Cluster, tmp_path: Path) -> None:
    """The negative control: it shows that the test above can fail."""
    with small.connect() as runtime:
        runtime.put(checkpoint(tmp_path, value=1), "forked@1")
    forker = start_forker(small, "forked@1", "early")
    assert forker.stdout is not None and forker.stdin is not None
    assert "child" in json.loads(forker.stdout.readline())
    forker.send_signal(signal.SIGKILL)
    forker.wait(10)
    assert evict_and_refill(small, tmp_path, rounds=6) >= 2
    forker.stdin.write("check\n")
    forker.stdin.flush()
    assert json.loads(forker.stdout.readline()) == {"good": False}
    forker.stdin.close()
    forker.stdout.close()


def test_a_forked_child_can_put_and_attach_by_itself(small: Cluster) -> None:
    code = """
import os, torch, tensorcast as tc
torch.set_num_threads(1)
rt = tc.connect()
rt.put({"p": torch.arange(100_000)}, "parent@1")
held = rt.artifact("parent@1").tensor_dict()
child = os.fork()
if child == 0:
    status = 1
    try:
        rt.put({"c": torch.arange(200_000) * 3}, "child@1")
        mine = rt.artifact("child@1").tensor_dict()
        assert torch.equal(mine["c"], torch.arange(200_000) * 3)
        assert torch.equal(held["p"], torch.arange(100_000))
        status = 0
    finally:
        os._exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(rt.artifact("child@1").tensor_dict()["c"], torch.arange(200_000) * 3)
assert torch.equal(held["p"], torch.arange(100_000))
"""
    small.python(code)


def test_a_killed_reader_gives_everything_back(small: Cluster, tmp_path: Path) -> None:
    with small.connect() as runtime:
        runtime.put(checkpoint(tmp_path, value=1), "killed@1")
    code = """
import sys, tensorcast as tc
held = tc.connect().artifact("killed@1").tensor_dict()
print("holding", flush=True)
sys.stdin.readline()
"""
    reader = subprocess.Popen(
        [sys.executable, "-c", code], env=small.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None and reader.stdin is not None
    assert reader.stdout.readline() == "holding\n"
    os.kill(reader.pid, signal.SIGKILL)
    reader.wait(10)
    wait_pins(small, at_most=0)
    reader.stdin.close()
    reader.stdout.close()
