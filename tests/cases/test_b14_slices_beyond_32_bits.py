"""B14: slices across byte and element 2^31 and 2^32 come back right, and cost no more memory than they have bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

import tensorcast as tc
from tests.unit.sdk.checkpoint_files import with_header, write

DEADLINE_MS = 120_000
SIDE = (1 << 16) + 1
TABLE: Mapping[str, tuple[str, list[int]]] = {
    "bytes": ("U8", [(1 << 32) + 64]),
    "halves": ("I16", [(1 << 31) + 64]),
    "square": ("U8", [SIDE, SIDE]),
    "cube": ("I32", [SIDE, 2, 1 << 14]),
}
ITEM_BYTES = {"U8": 1, "I16": 2, "I32": 4}


class Sparse:
    """A file of holes, in which the bytes around chosen places are made of their own number."""

    def __init__(self, path: Path) -> None:
        table: dict[str, dict[str, object]] = {}
        self.begins: dict[str, int] = {}
        at = 0
        for name, (dtype, shape) in TABLE.items():
            nbytes = ITEM_BYTES[dtype] * int(torch.tensor(shape).prod())
            table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
            self.begins[name] = at
            at += nbytes
        self.path = write(path, with_header(json.dumps(table), header_multiple=64))
        self.start = path.stat().st_size
        with path.open("r+b") as file:
            file.truncate(self.start + at)

    def mark(self, name: str, element: int, value: int) -> None:
        size = ITEM_BYTES[TABLE[name][0]]
        with self.path.open("r+b") as file:
            file.seek(self.start + self.begins[name] + element * size)
            file.write(value.to_bytes(size, "little"))


@pytest.fixture
def sparse(tmp_path: Path) -> Iterator[Sparse]:
    made = Sparse(tmp_path / "sparse.safetensors")
    yield made
    made.path.unlink()


def value_at(element: int) -> int:
    return 1 + element * 7 % 101


@pytest.mark.parametrize("border", [1 << 31, 1 << 32])
@pytest.mark.parametrize("name", ["bytes", "halves"])
def test_b14_a_slice_across_a_border_comes_back_right(rt: tc.Runtime, sparse: Sparse, name: str, border: int) -> None:
    """`border` in bytes; both sides of it, and where a wrap-around would land, are told apart."""
    middle = border // ITEM_BYTES[TABLE[name][0]]
    size = TABLE[name][1][0]
    for element in range(middle - 8, min(middle + 8, size)):
        sparse.mark(name, element, value_at(element))
    for element in range(16):
        sparse.mark(name, element, 111)
    with rt.register(sparse.path, "b14/slices"):
        view = rt.artifact("b14/slices").view({name: (slice(middle - 8, middle + 8),)})
        found = view.tensor(deadline_ms=DEADLINE_MS)
        assert found.tolist() == [value_at(element) for element in range(middle - 8, middle + 8)]
        assert view.stats is not None and view.stats.bytes_moved == found.nbytes
        last = rt.artifact("b14/slices").view({name: (slice(-2, None),)}).tensor(deadline_ms=DEADLINE_MS)
        assert last.shape == (2,) and not last.any()


@pytest.mark.parametrize("border", [1 << 31, 1 << 32])
def test_b14_a_block_whose_rows_lie_on_both_sides_of_a_border_comes_back_right(
    rt: tc.Runtime, sparse: Sparse, border: int
) -> None:
    row = border // SIDE
    rows, columns = slice(row - 2, min(row + 3, SIDE)), slice(SIDE - 5, SIDE)
    wanted = torch.zeros(rows.stop - rows.start, 5, dtype=torch.uint8)
    for at in range(rows.start, rows.stop):
        for column in range(columns.start, columns.stop):
            sparse.mark("square", at * SIDE + column, value_at(at * SIDE + column))
            wanted[at - rows.start, column - columns.start] = value_at(at * SIDE + column)
    with rt.register(sparse.path, "b14/block"):
        view = rt.artifact("b14/block").view({"square": (slice(1, None),)}).view({"square": (slice(0, None), columns)})
        narrowed = view.view({"square": (slice(rows.start - 1, rows.stop - 1),)})
        assert torch.equal(narrowed.tensor(deadline_ms=DEADLINE_MS), wanted)
        assert narrowed.stats is not None and narrowed.stats.bytes_moved == wanted.nbytes


def test_b14_a_committed_slice_beyond_4_gib_is_an_artifact(rt: tc.Runtime, sparse: Sparse) -> None:
    element = ((SIDE - 1) * 2 + 1) * (1 << 14) + 9
    assert element * 4 > 1 << 32
    sparse.mark("cube", element, 1 << 30)
    with rt.register(sparse.path, "b14/cube"):
        part = {"cube": (slice(SIDE - 1, None), slice(1, 2), slice(8, 12))}
        made = rt.artifact("b14/cube").view(part, "b14/corner", deadline_ms=DEADLINE_MS)
    assert made.tensor().tolist() == [[[0, 1 << 30, 0, 0]]]
    rt.delete("b14/corner")
