"""B02: zero-size tensors first, in the middle, last, or alone: every name is delivered, and nothing waits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tensorcast as tc
from tests.cases.every_way import facts
from tests.unit.sdk.checkpoint_files import image, write

DEADLINE_MS = 10_000
FULL = torch.arange(100, dtype=torch.int32)
EMPTY = torch.zeros(0, 5, dtype=torch.int32)
ORDERS = {
    "first": {"a": EMPTY, "b": FULL, "c": FULL + 1},
    "middle": {"a": FULL, "b": EMPTY, "c": FULL + 1},
    "last": {"a": FULL, "b": FULL + 1, "c": EMPTY},
    "only": {"a": EMPTY, "b": torch.zeros(3, 0, dtype=torch.int32)},
    "none at all": {},
}


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_b02_a_file_with_zero_size_tensors_is_delivered_whole(rt: tc.Runtime, tmp_path: Path, order: str) -> None:
    wanted = ORDERS[order]
    entries = {n: ("I32", list(t.shape), t.numpy().tobytes()) for n, t in wanted.items()}
    path = write(tmp_path / "x.safetensors", image(entries))
    stored = rt.put(path, f"b02/file/{order.replace(' ', '-')}", deadline_ms=DEADLINE_MS)
    assert facts(stored.tensor_dict(deadline_ms=DEADLINE_MS)) == facts(wanted)
    assert set(stored.tensor_meta(deadline_ms=DEADLINE_MS)) == set(wanted)
    assert facts(tc.load_file(path)) == facts(wanted)


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_b02_a_state_dict_with_zero_size_tensors_is_delivered_whole(rt: tc.Runtime, tmp_path: Path, order: str) -> None:
    wanted = ORDERS[order]
    stored = rt.put(wanted, f"b02/memory/{order.replace(' ', '-')}", deadline_ms=DEADLINE_MS)
    assert facts(stored.tensor_dict(deadline_ms=DEADLINE_MS)) == facts(wanted)
    stored.save(tmp_path / "x.safetensors", deadline_ms=DEADLINE_MS)
    assert facts(tc.load_file(tmp_path / "x.safetensors")) == facts(wanted)
