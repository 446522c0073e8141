"""Slices over a map as torch tensors, and as the bytes of a file: the same bytes, for every type there is."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
import torch

from tensorcast import tensors
from tensorcast.deadline import DEADLINE_MS_MAX, Deadline
from tensorcast.errors import FormatMismatch
from tensorcast.save import check_savable, save_file
from tensorcast.tensors import tensors_of, torch_form
from tensorcast.views import gather
from tensorcast.views.gather import dense_steps, flat_bytes, runs_in
from tensorcast.views.part import Part, whole_parts
from tensorcast.views.resolve import resolve
from tensorcast.views.spec import said
from tensorcast_bus.dtypes import DTYPE_BITS, FILE_DTYPES
from tests.unit.sdk.views.memory import Memory

UNHURRIED = Deadline(DEADLINE_MS_MAX, "test")
CPU = torch.device("cpu")
SHAPE = (4, 3, 8)
# Bounds that are whole bytes for every type: multiples of 4 in the last dimension.
CUTS = [(slice(1, 3),), (slice(None), slice(1, 2)), (slice(1, 4), slice(0, 2), slice(4, 8)), (slice(3, 3),), ()]


def made(memory: Memory, *parts: Part) -> dict[str, torch.Tensor]:
    return tensors_of(memory.attachment, parts, device=CPU, deadline=UNHURRIED)


def cut(memory: Memory, name: str, cuts: tuple[slice, ...]) -> Part:
    return resolve(memory.rows.values(), [said({name: cuts}, None)], "x")[0]


def wanted_bytes(memory: Memory, part: Part) -> bytes:
    return memory.cut(part.row, part.starts, part.shape)


def shown_bytes(tensor: torch.Tensor) -> bytes:
    dense = tensors.as_bytes(tensor).contiguous().reshape(-1)
    return bytes(dense.view(torch.uint8).tolist()) if tensor.numel() else b""


@pytest.mark.parametrize("lacking", [False, True], ids=["", "in a torch that lacks the type"])
@pytest.mark.parametrize("dtype", sorted(DTYPE_BITS))
def test_a_slice_is_the_same_bytes_in_the_form_that_a_dense_read_has(
    dtype: str, lacking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacking:
        monkeypatch.setattr(tensors, "TORCH_NAMES", {k: v for k, v in tensors.TORCH_NAMES.items() if k != dtype})
    memory = Memory()
    memory.lay("before", "I64", (3,))
    memory.lay("w", dtype, SHAPE)
    for cuts in CUTS:
        part = cut(memory, "w", cuts)
        tensor = made(memory, part)["w"]
        assert (tensor.dtype, tuple(tensor.shape)) == torch_form(dtype, part.shape)
        assert shown_bytes(tensor) == wanted_bytes(memory, part), cuts


def test_flat_forms_are_gathered_whatever_their_rows_measure() -> None:
    memory = Memory()
    memory.lay("q", "F4", (4, 3))
    memory.lay("r", "F4", (2, 5, 1, 4))
    memory.lay("s", "F6_E3M2", (3, 4, 4))
    for name, cuts in (
        ("q", (slice(2, 4),)),
        ("q", (slice(0, 2),)),
        ("r", (slice(None), slice(2, 4), slice(None), slice(2, 4))),
        ("s", (slice(1, 3), slice(1, 3), slice(0, 4))),
    ):
        part = cut(memory, name, cuts)
        tensor = made(memory, part)[name]
        assert shown_bytes(tensor) == wanted_bytes(memory, part)
        assert (tensor.dtype, tuple(tensor.shape)) == torch_form(part.dtype, part.shape)


def test_a_slice_copies_nothing_and_shares_memory_with_its_tied_names() -> None:
    memory = Memory()
    row = memory.lay("a", "F32", SHAPE)
    box = ((1, 0, 0), (2, 3, 8))
    found = made(memory, Part("a", row, *box), Part("b", row, *box), *whole_parts([row]))
    assert found["b"].data_ptr() == memory.bytes.data_ptr() + row.offset + 4 * 24
    assert found["b"].stride() == (24, 8, 1)
    again = made(memory, Part("x", row, *box), Part("y", row, *box))
    again["x"].zero_()
    assert not again["y"].any() and again["x"] is not again["y"]


def test_empty_slices_keep_their_shape() -> None:
    memory = Memory()
    memory.lay("a", "BF16", SHAPE)
    tensor = made(memory, cut(memory, "a", (slice(2, 2), slice(1, 3))))["a"]
    assert tensor.shape == (0, 2, 8) and tensor.dtype == torch.bfloat16
    nothing = tensors_of(None, [cut(memory, "a", (slice(None), slice(0, 0)))], device=CPU, deadline=UNHURRIED)
    assert nothing["a"].shape == (4, 0, 8)


@pytest.mark.parametrize("step", [1, 5, 32, 1 << 20])
def test_dense_steps_of_any_size_are_the_same_bytes(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "STEP_BYTES_MAX", step)
    memory = Memory()
    row = memory.lay("a", "I16", (5, 4, 6))
    for starts in product((0, 1), (0, 2), (0, 3)):
        part = Part("a", row, starts, (3, 2, 3))
        pieces = list(dense_steps(runs_in(flat_bytes(memory.attachment, row), part)))
        assert b"".join(pieces) == wanted_bytes(memory, part)
        assert all(len(piece) <= max(step, 6) for piece in pieces)


def test_a_file_of_slices_is_dense(tmp_path: Path) -> None:
    memory = Memory()
    parts = []
    for dtype in sorted(FILE_DTYPES):
        memory.lay(dtype, dtype, SHAPE)
        parts += [cut(memory, dtype, cuts) for cuts in CUTS[2:3]]
    check_savable(parts, "x")
    path = tmp_path / "x.safetensors"
    save_file(memory.attachment, parts, str(path), metadata={"format": "pt"})
    blob = path.read_bytes()
    start = 8 + int.from_bytes(blob[:8], "little")
    table = json.loads(blob[8:start])
    assert table.pop("__metadata__") == {"format": "pt"}
    assert len(table) == len(parts) and len(blob) - start == sum(p.nbytes for p in parts)
    for part in parts:
        entry = table[part.name]
        begin, end = entry["data_offsets"]
        assert (entry["dtype"], tuple(entry["shape"])) == (part.dtype, part.shape)
        assert blob[start + begin : start + end] == wanted_bytes(memory, part)


def test_tied_names_are_refused_by_a_file_only_where_they_show_the_same() -> None:
    memory = Memory()
    row = memory.lay("a", "F32", SHAPE)
    one, same, other = (Part(n, row, (at, 0, 0), (1, 3, 8)) for n, at in (("a", 0), ("b", 0), ("c", 1)))
    with pytest.raises(FormatMismatch, match="'a' and 'b' are tied"):
        check_savable([one, same], "x")
    check_savable([one, other], "x")
    with pytest.raises(FormatMismatch, match="tied"):
        check_savable([*whole_parts([row]), Part("z", row, (0, 0, 0), SHAPE)], "x")
