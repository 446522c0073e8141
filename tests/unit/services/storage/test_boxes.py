"""Boxes: what they cut is what slicing cuts, and what cannot be cut is refused with the name of the box."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorcast_bus.dtypes import tensor_bytes
from tensorcast_bus.errors import Invalid, NotFound, SliceMismatch, TensorCastError
from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, TensorRow
from tensorcast_bus.notes import Box
from tensorcast_services.storage.boxes import Cut, cut_boxes


def manifest_of(*tensors: tuple[str, str, tuple[int, ...]]) -> Manifest:
    rows, at = [], 0
    for name, dtype, shape in tensors:
        nbytes = tensor_bytes(dtype, shape)
        rows.append(TensorRow(name, dtype, shape, 0, at, nbytes, bytes(16)))
        at += -(-nbytes // 64) * 64
    return Manifest(MANIFEST_VERSION, "m", (SegmentRow(at, key="ab" * 16),), tuple(rows))


def cut(dtype: str, shape: tuple[int, ...], starts: Sequence[int], lengths: Sequence[int]) -> Cut:
    box = Box("v", "t", tuple(starts), tuple(lengths))
    return cut_boxes(manifest_of(("t", dtype, shape)), [box], boxes_max=8)[0]


def gathered(found: Cut, content: bytes) -> bytes:
    """The bytes that its runs name, in order."""
    if not found.nbytes:
        return b""
    starts = [
        found.begin + sum(at * stride for at, stride in zip(place, found.strides, strict=True))
        for place in itertools.product(*(range(count) for count in found.counts))
    ]
    assert len(starts) == found.runs and max(starts) + found.run_bytes == found.end
    return b"".join(content[start : start + found.run_bytes] for start in starts)


@st.composite
def boxed(draw: st.DrawFn) -> tuple[tuple[int, ...], list[int], list[int]]:
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    starts = [draw(st.integers(0, size)) for size in shape]
    return shape, starts, [draw(st.integers(0, size - start)) for size, start in zip(shape, starts, strict=True)]


@given(boxed(), st.sampled_from(["U8", "I16", "I64"]))
@settings(max_examples=300, deadline=None)
def test_what_a_box_cuts_is_what_a_slice_is(case: tuple[tuple[int, ...], list[int], list[int]], dtype: str) -> None:
    shape, starts, lengths = case
    array = numpy.arange(numpy.prod(shape, dtype=int), dtype={"U8": "u1", "I16": "<i2", "I64": "<i8"}[dtype])
    array = array.reshape(shape)
    sliced = array[tuple(slice(s, s + n) for s, n in zip(starts, lengths, strict=True))]
    found = cut(dtype, shape, starts, lengths)
    assert gathered(found, array.tobytes()) == sliced.tobytes() and found.nbytes == sliced.nbytes
    assert found.whole == (found.shape == shape)


def test_a_slice_of_the_first_dimension_is_one_run() -> None:
    assert cut("F32", (8, 5, 3), (2, 0, 0), (4, 5, 3)).runs == 1
    assert cut("F32", (8, 5, 3), (2, 1, 0), (4, 2, 3)).runs == 4


@pytest.mark.parametrize(
    ("starts", "lengths"), [((0, 2), (2, 3)), ((-1, 0), (2, 4)), ((0, 0), (3, 4)), ((0,), (2,)), ((0, 0), (2, -1))]
)
def test_a_box_that_does_not_lie_in_its_tensor_is_refused(starts: tuple[int, ...], lengths: tuple[int, ...]) -> None:
    with pytest.raises(SliceMismatch, match="box 'v' of tensor 't'"):
        cut("F32", (2, 4), starts, lengths)


def test_packed_types_are_cut_at_whole_bytes_only() -> None:
    assert cut("F4", (4, 6), (0, 2), (4, 2)).run_bytes == 1
    assert cut("F6_E2M3", (3, 8), (0, 4), (3, 4)).run_bytes == 3
    for dtype, shape, starts, lengths in [
        ("F4", (4, 6), (0, 1), (4, 2)),
        ("F4", (4, 6), (0, 0), (4, 3)),
        ("F4", (2, 3, 2), (0, 0, 0), (2, 3, 1)),
        ("F4", (2, 5), (0, 0), (2, 2)),  # the second row begins inside a byte
        ("F6_E3M2", (3, 8), (0, 0), (3, 2)),
    ]:
        with pytest.raises(SliceMismatch, match="inside a byte"):
            cut(dtype, shape, starts, lengths)


def test_names_are_known_and_the_views_own_are_unique() -> None:
    manifest = manifest_of(("t", "U8", (4,)))
    bad: list[tuple[list[Box], type[TensorCastError]]] = [
        ([Box("v", "other", (0,), (1,))], NotFound),
        ([Box("v", "t", (0,), (1,)), Box("v", "t", (1,), (1,))], Invalid),
        ([Box(f"v{i}", "t", (0,), (1,)) for i in range(9)], Invalid),
    ]
    for boxes, kind in bad:
        with pytest.raises(kind):
            cut_boxes(manifest, boxes, boxes_max=8)
