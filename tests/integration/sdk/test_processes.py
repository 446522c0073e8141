"""Several processes and threads on one cluster: forks, racing loaders, a shared runtime, and quiet ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import safetensors.torch
import torch

import tensorcast as tc
from tests.support.cluster import Cluster
from tests.support.forks import CHILD_FAILED, in_a_forked_child


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """OpenMP's threads do not survive a fork, and a forked child would wait for them for ever."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_forked_child_puts_and_reads_and_keeps_its_parents_tensors(rt: tc.Runtime) -> None:
    wanted = torch.arange(1 << 18)
    stored = rt.put(wanted, "rt/fork/parent")
    mine = stored.tensor()
    rt.list_artifacts("rt/fork/")

    def child() -> None:
        assert torch.equal(mine, wanted)
        assert torch.equal(stored.tensor(), wanted)
        made = rt.put(wanted * 2, "rt/fork/child")
        assert torch.equal(made.tensor(), wanted * 2)
        assert len(rt.list_artifacts("rt/fork/")) == 2
        mine.zero_()

    in_a_forked_child(child)
    assert torch.equal(mine, wanted)
    assert torch.equal(rt.artifact("rt/fork/child").tensor(), wanted * 2)
    assert len(rt.list_artifacts("rt/fork/")) == 2


def test_a_childs_tensors_stay_right_after_its_parent_let_go(rt: tc.Runtime) -> None:
    wanted = torch.arange(1 << 18)
    mine = rt.put(wanted, "rt/fork/kept").tensor()
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = CHILD_FAILED
        try:
            os.read(ready, 1)
            code = 0 if torch.equal(mine, wanted) else CHILD_FAILED
        finally:
            os._exit(code)
    del mine
    rt.delete("rt/fork/kept")
    for number in range(6):
        rt.put(torch.full((64 << 20,), 0xEE, dtype=torch.uint8), f"rt/fork/filler/{number}")
    for number in range(6):
        rt.delete(f"rt/fork/filler/{number}")
    os.write(go, b"!")
    os.close(ready)
    os.close(go)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


WITHOUT_TORCH = """
import sys, numpy, tensorcast as tc
with tc.connect() as rt:
    stored = rt.put({"w": numpy.arange(100_000)[::-1]}, "rt/without-torch")
    assert stored.tensor_meta()["w"].shape == (100_000,)
    stored.save(sys.argv[1])
    assert rt.put(sys.argv[1], "rt/without-torch").outcome == "already_present"
assert "torch" not in sys.modules
"""


def test_arrays_and_files_need_no_torch(rt: tc.Runtime, cluster: Cluster, tmp_path: Path) -> None:
    cluster.python(WITHOUT_TORCH, str(tmp_path / "x.safetensors"))
    assert torch.equal(rt.artifact("rt/without-torch").tensor(), torch.arange(100_000).flip(0))


LOADER = """
import sys, torch, tensorcast as tc
found = tc.load_file(sys.argv[1])
assert torch.equal(found["w"], torch.arange(1 << 20)), "wrong bytes"
"""


def test_processes_that_load_one_file_at_once_share_one_artifact(
    rt: tc.Runtime, cluster: Cluster, tmp_path: Path
) -> None:
    source = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"w": torch.arange(1 << 20)}, source)
    before = {r.art_id for r in rt.list_artifacts("file:")}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: cluster.python(LOADER, str(source)), range(4)))
    assert len({r.art_id for r in rt.list_artifacts("file:")} - before) == 1


def test_threads_that_share_a_runtime_do_not_disturb_each_other(rt: tc.Runtime) -> None:
    def work(number: int) -> None:
        for turn in range(10):
            art_id = f"rt/threads/{number}/{turn}"
            wanted = torch.full((100_000,), number * 100 + turn)
            found = rt.put({"w": wanted}, art_id).tensor("w")
            rt.delete(art_id)
            assert torch.equal(found, wanted)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


AT_EXIT = """
import os, threading, torch, tensorcast as tc
rt = tc.connect()
kept = rt.put(torch.arange(1 << 18), "rt/at-exit").tensor_dict()
lease = rt.register(torch.arange(1 << 18), f"rt/at-exit/{os.getpid()}", ttl_s=1)
waiter = threading.Thread(target=rt.wait_alias, args=("rt/nobody-sets-this",), daemon=True)
waiter.start()
rt.list_artifacts()
def ask():
    while True:
        try:
            rt.artifact("rt/nothing").tensor_meta()
        except tc.errors.TensorCastError:
            pass
for _ in range(4):
    threading.Thread(target=ask, daemon=True).start()
"""


def test_a_process_that_ends_without_closing_ends_quietly(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, threading\nthreading.excepthook = lambda _: None\n" + AT_EXIT)
    # Threads that are inside native calls when the interpreter ends meet its end at any point: several tries.
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-W", "always", "-X", "faulthandler", str(script)],
            env=cluster.environment | {"PYTHONMALLOC": "debug"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
