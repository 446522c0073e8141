"""B10: whatever a file's offsets are, every tensor handed out lies at a multiple of its item size; values are exact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import tensorcast as tc
from tests.cases.every_way import facts
from tests.unit.sdk.checkpoint_files import image, write

SMALL = {
    "a": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "b": torch.tensor([1.5, -2.0, 3.0, 4.0, 5.25]),
    "c": torch.tensor([1, 2, 3, 4, 5, 6, 7], dtype=torch.bfloat16),
    "d": torch.tensor([-1, 1 << 40]),
    "e": torch.tensor([1 + 2j, -3j], dtype=torch.complex64),
}
# Over 256 KiB in all, so that readers map the segment instead of copying it.
LARGE = SMALL | {"f": torch.arange(100_001, dtype=torch.int32), "g": torch.arange(70_001, dtype=torch.int64)}
NAMES = {
    torch.uint8: "U8",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.complex64: "C64",
}


def file_of(path: Path, tensors: Mapping[str, torch.Tensor], *, shift: int) -> tuple[Path, int]:
    """The path, and how many bytes of tensors lie misaligned in it."""
    entries = {n: (NAMES[t.dtype], list(t.shape), t.view(torch.uint8).numpy().tobytes()) for n, t in tensors.items()}
    blob = image(entries, metadata={"pad": "x" * shift}, header_multiple=1)
    at = 8 + int.from_bytes(blob[:8], "little")
    misaligned = 0
    for tensor in tensors.values():
        misaligned += tensor.nbytes if at % tensor.itemsize else 0
        at += tensor.nbytes
    return write(path, blob), misaligned


@pytest.mark.parametrize("shift", range(8))
@pytest.mark.parametrize("size", ["small", "large"])
def test_b10_a_file_of_any_header_length_gives_aligned_tensors(
    rt: tc.Runtime, tmp_path: Path, size: str, shift: int
) -> None:
    wanted = SMALL if size == "small" else LARGE
    path, misaligned = file_of(tmp_path / "x.safetensors", wanted, shift=shift)
    stored = rt.put(path, f"b10/{size}/{shift}")
    found = stored.tensor_dict()
    assert [n for n, t in found.items() if t.data_ptr() % t.itemsize] == []
    assert facts(found) == facts(wanted)
    assert stored.stats is not None
    assert stored.stats.bytes_copied == misaligned
    assert stored.stats.bytes_total == sum(t.nbytes for t in wanted.values())
    for name, tensor in tc.load_file(path).items():
        assert tensor.data_ptr() % tensor.itemsize == 0 and torch.equal(tensor, wanted[name])


def test_b10_a_state_dict_is_laid_out_so_that_nothing_has_to_be_copied(rt: tc.Runtime) -> None:
    for number, wanted in enumerate((SMALL, LARGE)):
        stored = rt.put(wanted, f"b10/memory/{number}")
        assert stored.stats is not None and stored.stats.bytes_copied == 0
        found = stored.tensor_dict()
        assert [n for n, t in found.items() if t.data_ptr() % t.itemsize] == []
        assert facts(found) == facts(wanted)
