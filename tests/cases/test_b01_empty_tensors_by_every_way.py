"""B01: a file with empty tensors gives the same names, shapes, dtypes and bytes by every way in and out."""

from __future__ import annotations

from pathlib import Path

import torch

import tensorcast as tc
from tests.cases.every_way import facts, facts_in_another_process, ways_in
from tests.support.cluster import Cluster
from tests.unit.sdk.checkpoint_files import image, write

WANTED = {
    "f0": torch.zeros(0),
    "f203": torch.zeros(2, 0, 3),
    "f4": torch.tensor([1.0, -2.0, 3.5, 0.25]),
    "h0": torch.zeros(0, dtype=torch.bfloat16),
    "h203": torch.zeros(2, 0, 3, dtype=torch.bfloat16),
    "h4": torch.tensor([1.0, -2.0, 3.5, 0.25], dtype=torch.bfloat16),
}


def checkpoint(folder: Path) -> Path:
    names = {torch.float32: "F32", torch.bfloat16: "BF16"}
    entries = {
        n: (names[t.dtype], list(t.shape), t.view(torch.uint8).numpy().tobytes() if t.numel() else b"")
        for n, t in WANTED.items()
    }
    return write(folder / "model.safetensors", image(entries))


def test_b01_empty_tensors_come_back_the_same_by_every_way(rt: tc.Runtime, cluster: Cluster, tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    for number, (way, take) in enumerate(ways_in(path)):
        art_id = f"b01/{number}"
        got = take(rt, art_id)
        found = got.tensor_dict() if isinstance(got, tc.Artifact) else got
        assert isinstance(found, dict)
        assert facts(found) == facts(WANTED), way
    assert facts_in_another_process(cluster, "b01/0") == facts(WANTED)


def test_b01_empty_tensors_of_a_state_dict_come_back_the_same(rt: tc.Runtime, cluster: Cluster, tmp_path: Path) -> None:
    stored = rt.put(WANTED, "b01/memory")
    assert facts(stored.tensor_dict()) == facts(WANTED)
    assert facts_in_another_process(cluster, "b01/memory") == facts(WANTED)
    assert {n: (m.dtype, m.shape, m.nbytes) for n, m in stored.tensor_meta().items() if not m.nbytes} == {
        "f0": ("F32", (0,), 0),
        "f203": ("F32", (2, 0, 3), 0),
        "h0": ("BF16", (0,), 0),
        "h203": ("BF16", (2, 0, 3), 0),
    }
    saved = tmp_path / "saved.safetensors"
    stored.save(saved)
    assert facts(tc.load_file(saved)) == facts(WANTED)


def test_b01_empty_tensors_can_be_asked_for_one_by_one_and_copied_into(rt: tc.Runtime) -> None:
    stored = rt.put(WANTED, "b01/one-by-one")
    assert facts({n: stored.tensor(n) for n in WANTED}) == facts(WANTED)
    targets = {n: torch.full_like(t, 9) for n, t in WANTED.items()}
    stored.copy_into(targets)
    assert facts(targets) == facts(WANTED)
