"""Zero copies, proved by the kernel's own accounting, and privacy of a reader's writes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import tensorcast as tc
from tests.support.cluster import Cluster, smaps_of

MIB = 1 << 20

READER = """
import json, sys, os
import torch, tensorcast as tc
rt = tc.connect()
tensors = rt.artifact(sys.argv[1]).tensor_dict()
total = sum(int(t.view(torch.uint8).sum(dtype=torch.int64)) for t in tensors.values())
sums = {"Anonymous": 0, "Rss": 0, "Pss": 0}
inside = False
for line in open("/proc/self/smaps"):
    key, _, rest = line.partition(":")
    if "-" in key.split(" ")[0] and " " in key:
        inside = "/memfd:" in line
    elif inside and key in sums:
        sums[key] += int(rest.split()[0]) * 1024
print(json.dumps({"total": total, **sums}))
"""


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {f"w{i}": torch.randint(0, 255, (8 * MIB,), dtype=torch.uint8, generator=generator) for i in range(4)}


def test_a_reader_adds_no_private_memory(rt: tc.Runtime, cluster: Cluster, weights: dict[str, torch.Tensor]) -> None:
    rt.put(weights, "shared/weights@1")
    expected = sum(int(t.sum(dtype=torch.int64)) for t in weights.values())
    seen = json.loads(cluster.python(READER, "shared/weights@1").stdout)
    assert seen["total"] == expected
    assert seen["Rss"] >= 32 * MIB, "the reader did not read through a map of the pool"
    assert seen["Anonymous"] < 4 * MIB, f"the reader copied {seen['Anonymous']} bytes"
    rt.delete("shared/weights@1")


def test_the_storage_and_the_reader_share_the_same_pages(rt: tc.Runtime, weights: dict[str, torch.Tensor]) -> None:
    rt.put(weights, "shared/pages@1")
    mine = rt.artifact("shared/pages@1").tensor_dict()
    assert all(torch.equal(mine[name], weights[name]) for name in weights)
    maps = smaps_of(os.getpid(), needle="/memfd:")
    shared = maps["Shared_Clean"] + maps["Shared_Dirty"]
    assert shared >= 32 * MIB, maps
    del mine
    rt.delete("shared/pages@1")


def test_what_a_reader_writes_is_seen_by_nobody_else(
    rt: tc.Runtime, cluster: Cluster, weights: dict[str, torch.Tensor]
) -> None:
    rt.put(weights, "shared/private@1")
    mine = rt.artifact("shared/private@1").tensor_dict()
    mine["w0"].zero_()
    mine["w3"].add_(1)
    with cluster.connect() as other:
        theirs = other.artifact("shared/private@1").tensor_dict()
        assert all(torch.equal(theirs[name], weights[name]) for name in weights)
        again = rt.artifact("shared/private@1")
        expected = sum(int(t.sum(dtype=torch.int64)) for t in weights.values())
        seen = json.loads(cluster.python(READER, again.art_id).stdout)
        assert seen["total"] == expected
    assert int(mine["w0"].sum()) == 0
    rt.delete("shared/private@1")


def test_tensors_outlive_their_artifact_their_runtime_and_the_id(
    cluster: Cluster, weights: dict[str, torch.Tensor]
) -> None:
    with cluster.connect() as runtime:
        runtime.put(weights, "shared/outlive@1")
        tensor = runtime.artifact("shared/outlive@1").tensor_dict()["w2"]
        runtime.delete("shared/outlive@1")
        # New bytes of the same size want the same blocks; a mapped block must not be given to them.
        for round_number in range(3):
            other = {k: torch.full_like(v, round_number) for k, v in weights.items()}
            runtime.put(other, f"shared/refill@{round_number}")
    assert torch.equal(tensor, weights["w2"])
    del tensor
    with cluster.connect() as runtime:
        for round_number in range(3):
            runtime.delete(f"shared/refill@{round_number}")


def test_release_is_refused_while_tensors_live(rt: tc.Runtime, weights: dict[str, torch.Tensor]) -> None:
    rt.put(weights, "shared/release@1")
    artifact = rt.artifact("shared/release@1")
    tensors = artifact.tensor_dict()
    with pytest.raises(tc.errors.StillBorrowed, match="4"):
        artifact.release()
    assert torch.equal(tensors["w1"], weights["w1"])
    del tensors
    artifact.release()
    rt.delete("shared/release@1")


def test_services_never_load_torch(cluster: Cluster) -> None:
    for process in cluster.state().processes:
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert "libtorch" not in maps, f"{process.process} has torch in memory"


def test_a_file_is_attached_without_a_put_by_load_file(cluster: Cluster, tmp_path: Path) -> None:
    truth = {"a": torch.randn(300, 1000), "b": torch.arange(10)}
    file = tmp_path / "model.safetensors"
    save_file(truth, file)
    code = """
import sys, torch, tensorcast
mine = tensorcast.load_file(sys.argv[1])
from safetensors.torch import load_file
truth = load_file(sys.argv[1])
assert mine.keys() == truth.keys() and all(torch.equal(mine[k], truth[k]) for k in truth)
"""
    cluster.python(code, str(file))
    cluster.python(code, str(file))
    with cluster.connect() as runtime:
        rows = [r for r in runtime.list_artifacts() if r.art_id.startswith("file:")]
        assert len(rows) >= 1
