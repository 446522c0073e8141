"""Bad input gets a clear error and loses nothing: capacity, zero tensors, ids, changing files, two puts at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file as peer_load_file
from safetensors.torch import save_file

import tensorcast as tc
from tests.support.cluster import Cluster, running_cluster
from tests.support.slack import SLACK_S

MIB = 1 << 20


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(
        tmp_path_factory.mktemp("rt"),
        name="tiny",
        settings={"storage.host_bytes_max": "64MiB", "storage.prefault_ahead_bytes": "0"},
    ) as started:
        yield started


def values_of(tensor: torch.Tensor) -> set[int]:
    return {value for value, count in enumerate(torch.bincount(tensor, minlength=256).tolist()) if count}


def used_bytes(cluster: Cluster) -> int:
    pool = cluster.storage_stats().pool
    return pool["used_bytes"] + pool["reserved_bytes"]


def test_a_put_beyond_capacity_says_what_is_free_and_keeps_what_was_there(tiny: Cluster) -> None:
    with tiny.connect() as rt:
        before = used_bytes(tiny)
        rt.put({"kept": torch.arange(MIB)}, "kept@1")
        with pytest.raises(tc.errors.CapacityExceeded) as refused:
            rt.put({"big": torch.zeros(100 * MIB, dtype=torch.uint8)}, "big@1")
        assert {"free_bytes", "longest_run_bytes"} <= refused.value.context.keys()
        assert torch.equal(rt.artifact("kept@1").tensor_dict()["kept"], torch.arange(MIB))
        with pytest.raises(tc.errors.NotFound):
            rt.artifact("big@1").tensor_meta()
        rt.delete("kept@1")
        assert used_bytes(tiny) == before


def test_what_was_put_from_files_makes_room_and_comes_back(tiny: Cluster, tmp_path: Path) -> None:
    truth = {}
    with tiny.connect() as rt:
        for number in range(6):
            truth[number] = {"w": torch.full((20 * MIB,), number, dtype=torch.uint8)}
            save_file(truth[number], tmp_path / f"{number}.safetensors")
            rt.put(tmp_path / f"{number}.safetensors", f"file@{number}")
        for number in range(6):
            assert torch.equal(rt.artifact(f"file@{number}").tensor_dict()["w"], truth[number]["w"])
        for number in range(6):
            rt.delete(f"file@{number}")


def test_what_is_mapped_is_never_evicted_and_what_is_not_goes_to_disk_first(tiny: Cluster) -> None:
    with tiny.connect() as rt:
        rt.put({"w": torch.ones(40 * MIB, dtype=torch.uint8)}, "memory@1")
        held = rt.artifact("memory@1").tensor_dict()
        with pytest.raises(tc.errors.CapacityExceeded):
            rt.put({"w": torch.zeros(40 * MIB, dtype=torch.uint8)}, "memory@2")
        assert int(held["w"].sum(dtype=torch.int64)) == 40 * MIB
        del held
        rt.put({"w": torch.zeros(40 * MIB, dtype=torch.uint8)}, "memory@2")
        assert int(rt.artifact("memory@1").tensor_dict()["w"].sum(dtype=torch.int64)) == 40 * MIB
        for art_id in ("memory@1", "memory@2"):
            rt.delete(art_id)


def test_zero_tensors_and_empty_tensors_are_artifacts_like_any_other(rt: tc.Runtime) -> None:
    rt.put({}, "zero@1")
    assert rt.artifact("zero@1").tensor_dict() == {}
    assert rt.artifact("zero@1").tensor_meta() == {}
    rt.put({"e": torch.empty(3, 0, 2, dtype=torch.bfloat16), "s": torch.tensor(5)}, "zero@2")
    back = rt.artifact("zero@2").tensor_dict()
    assert back["e"].shape == (3, 0, 2) and back["e"].dtype == torch.bfloat16
    assert back["s"].shape == () and int(back["s"]) == 5
    rt.delete("zero@1")
    rt.delete("zero@2")


@pytest.mark.parametrize(
    "art_id",
    ["", "a b", "a*", "a>", "a@", "@1", "a@1@2", "/a", "a/", "-a", "a\n", "x" * 513, "e\u0301", "\ud800", "a\x00b"],
)
def test_an_id_that_is_not_allowed_is_refused_before_anything_moves(rt: tc.Runtime, art_id: str) -> None:
    with pytest.raises(tc.errors.Invalid):
        rt.put({"a": torch.zeros(1)}, art_id)
    with pytest.raises(tc.errors.Invalid):
        rt.artifact(art_id).tensor_meta()


@pytest.mark.parametrize("art_id", ["a", "модель/слой@1", "重み@最新", "org/name.v1_x-y:z+1=2@3", "é"])
def test_an_id_in_any_script_is_taken(rt: tc.Runtime, art_id: str) -> None:
    rt.put({"a": torch.arange(3)}, art_id)
    assert torch.equal(rt.artifact(art_id).tensor_dict()["a"], torch.arange(3))
    assert any(row.art_id == art_id for row in rt.list_artifacts(art_id[:1]))
    rt.delete(art_id)


def test_a_file_that_changed_after_it_was_put_is_an_error_when_it_is_read_again(tiny: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with tiny.connect() as rt:
        save_file({"w": torch.zeros(20 * MIB, dtype=torch.uint8)}, file)
        rt.put(file, "changed@1")
        save_file({"w": torch.ones(20 * MIB, dtype=torch.uint8)}, file)
        # What is resident is still right; once evicted, the changed file must not stand in for it.
        assert int(rt.artifact("changed@1").tensor_dict()["w"].sum(dtype=torch.int64)) == 0
        for number in range(3):
            save_file({"w": torch.full((20 * MIB,), 7 + number, dtype=torch.uint8)}, tmp_path / f"{number}.safetensors")
            rt.put(tmp_path / f"{number}.safetensors", f"pressure@{number}")
        try:
            seen = int(rt.artifact("changed@1").tensor_dict()["w"].sum(dtype=torch.int64))
            assert seen == 0
        except tc.errors.TensorCastError as error:
            assert isinstance(error, tc.errors.BadCheckpoint | tc.errors.NoReplica), error
            assert "changed" in str(error)
        for art_id in ("changed@1", "pressure@0", "pressure@1", "pressure@2"):
            rt.delete(art_id)


def test_a_file_that_changes_or_shrinks_while_it_is_read_is_never_stored_wrong(rt: tc.Runtime, tmp_path: Path) -> None:
    """Rewrites a file while it is put, again and again: a put either fails or has bytes of one whole version."""
    file = tmp_path / "racing.safetensors"
    versions = [{"w": torch.full((24 * MIB,), fill, dtype=torch.uint8)} for fill in (1, 2)]
    save_file(versions[0], file)
    stop = threading.Event()

    def rewrite() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            with file.open("r+b") as opened:
                opened.seek(file.stat().st_size - 24 * MIB)
                opened.write(bytes([1 + turn % 2]) * (24 * MIB))
                if turn % 3 == 0:
                    opened.truncate(8 * MIB)
            save_file(versions[turn % 2], tmp_path / "fresh")
            os.replace(tmp_path / "fresh", file)

    writer = threading.Thread(target=rewrite)
    writer.start()
    outcomes = {"stored": 0, "refused": 0}
    try:
        ends = time.monotonic() + 6
        while time.monotonic() < ends:
            art_id = f"racing@{sum(outcomes.values())}"
            try:
                rt.put(file, art_id)
            except tc.errors.BadCheckpoint:
                outcomes["refused"] += 1
                continue
            values = values_of(rt.artifact(art_id).tensor_dict()["w"])
            assert len(values) == 1 and values <= {1, 2}, f"{art_id} mixes {values}"
            outcomes["stored"] += 1
            rt.delete(art_id)
    finally:
        stop.set()
        writer.join(30)
    assert outcomes["refused"] > 0, f"the race was never met: {outcomes}"


def test_two_puts_of_one_id_at_once_agree_on_one_content(cluster: Cluster) -> None:
    """Four processes put one id at the same moment, two contents: one wins, equal ones are told so, others refused."""
    code = """
import sys, torch, tensorcast as tc
rt = tc.connect()
value = int(sys.argv[1])
print("ready", flush=True); sys.stdin.readline()
try:
    print(rt.put({"w": torch.full((4 << 20,), value, dtype=torch.uint8)}, sys.argv[2]).outcome)
except tc.errors.AlreadyExists as error:
    assert error.context['stored'] != error.context['given']
    print("refused")
"""
    for round_number in range(5):
        art_id = f"race@{round_number}"
        children = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(value), art_id],
                env=cluster.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for value in (1, 1, 2, 2)
        ]
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        words = [child.communicate(timeout=60)[0].strip() for child in children]
        assert all(child.returncode == 0 for child in children)
        assert sorted(words) == ["already_present", "refused", "refused", "stored"], words
        with cluster.connect() as rt:
            winner = 1 if words[0] != "refused" else 2
            assert values_of(rt.artifact(art_id).tensor_dict()["w"]) == {winner}
            rt.delete(art_id)


def test_a_call_ends_by_its_deadline_when_the_storage_is_stopped(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "rt", name="stopped") as cluster, cluster.connect() as rt:
        rt.put({"w": torch.arange(10)}, "before@1")
        pid = cluster.kill("storage-a", sig=signal.SIGSTOP)
        try:
            for call in (
                lambda: rt.artifact("before@1").tensor_dict(deadline_ms=1000),
                lambda: rt.put({"w": torch.arange(10)}, "after@1", deadline_ms=1000),
                lambda: rt.delete("before@1", deadline_ms=1000),
            ):
                started = time.monotonic()
                with pytest.raises(tc.errors.Unavailable):
                    call()
                assert time.monotonic() - started < 1.0 + SLACK_S
        finally:
            os.kill(pid, signal.SIGCONT)


def test_what_was_put_equals_what_safetensors_reads(rt: tc.Runtime, tmp_path: Path) -> None:
    truth = {
        f"t{i}": torch.randn(17, i + 1).to(d) for i, d in enumerate((torch.float16, torch.bfloat16, torch.float64))
    }
    save_file(truth, tmp_path / "in.safetensors")
    rt.put(tmp_path / "in.safetensors", "same@1")
    rt.artifact("same@1").save(tmp_path / "out.safetensors")
    back = peer_load_file(tmp_path / "out.safetensors")
    assert back.keys() == truth.keys() and all(torch.equal(back[k], truth[k]) for k in truth)
    rt.delete("same@1")
