"""A chain of views is one box of the base: what numpy's own slicing of the base gives, for every type."""

from __future__ import annotations

from math import prod

import msgspec
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorcast.errors import Invalid, NotFound, SliceMismatch
from tensorcast.views.part import Part, boxes_of, distinct_bytes, whole_parts
from tensorcast.views.resolve import one_of, resolve
from tensorcast.views.spec import Step, said
from tensorcast_bus.dtypes import DTYPE_BITS, alignment, tensor_bytes
from tensorcast_bus.manifest import TensorRow
from tensorcast_bus.notes import Box

Slices = tuple[slice, ...]


def row(name: str, dtype: str, shape: tuple[int, ...], *, offset: int = 0) -> TensorRow:
    bits = DTYPE_BITS[dtype] * prod(shape)
    return TensorRow(name, dtype, shape, 0, offset, -(-bits // 8), name.encode().ljust(16))


def outside(item: slice, size: int) -> bool:
    """Whether Python would clamp: said from the words of the rule, not from its code."""
    bounds = [b for b in (item.start, item.stop) if b is not None]
    start, stop, _ = item.indices(size)
    return any(not -size <= b <= size for b in bounds) or start > stop


@st.composite
def cuts_of(draw: st.DrawFn, shape: tuple[int, ...]) -> Slices:
    """Mostly slices that fit the shape; now and then one that does not, or one too many."""
    made = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        start = draw(st.integers(0, size))
        stop = draw(st.integers(start, size))
        exact = (
            draw(st.sampled_from([start, start - size] if start < size else [start])),
            draw(st.sampled_from([stop, stop - size] if stop < size else [stop, None])),
        )
        any_bound = st.none() | st.integers(-7, 7)
        first, last = draw(st.just(exact) | st.just(exact) | st.tuples(any_bound, any_bound))
        made.append(slice(first, last, draw(st.sampled_from([None, 1]))))
    if draw(st.integers(0, 30)) == 0:
        made += [slice(None)] * (len(shape) + 1 - len(made))
    return tuple(made)


@settings(max_examples=600, deadline=None)
@given(st.data(), st.lists(st.integers(0, 5), max_size=4).map(tuple), st.sampled_from(sorted(DTYPE_BITS)))
def test_a_chain_of_views_shows_what_numpy_shows(data: st.DataObject, shape: tuple[int, ...], dtype: str) -> None:
    base = numpy.arange(prod(shape)).reshape(shape)
    shown = base
    steps: list[Step] = []
    for _ in range(data.draw(st.integers(1, 4))):
        cuts = data.draw(cuts_of(shown.shape))
        steps.append(said(data.draw(st.sampled_from([cuts, {"w": cuts}])), None))
        fits = len(cuts) <= shown.ndim and not any(outside(c, n) for c, n in zip(cuts, shown.shape, strict=False))
        if not fits:
            with pytest.raises(SliceMismatch, match="'w'"):
                resolve([row("w", dtype, shape)], steps, "x")
            return
        shown = shown[cuts]
    try:
        (part,) = resolve([row("w", dtype, shape)], steps, "x")
    except SliceMismatch as refused:
        assert DTYPE_BITS[dtype] % 8 and "whole bytes" in refused.text
        return
    assert (part.name, part.dtype, part.shape) == ("w", dtype, shown.shape)
    box = tuple(slice(a, a + n) for a, n in zip(part.starts, part.shape, strict=True))
    assert numpy.array_equal(base[box], shown)
    if not part.whole or DTYPE_BITS[dtype] % 8 == 0:
        assert part.nbytes == tensor_bytes(dtype, shown.shape)


ROWS = (row("a", "F32", (6, 4)), row("b", "BF16", (8,), offset=96), row("s", "F32", (), offset=112))


@pytest.mark.parametrize(
    ("cuts", "dimension", "bounds"),
    [
        ((slice(0, 7),), 0, "0:7"),
        ((slice(None), slice(5, None)), 1, "5:"),
        ((slice(-7, None),), 0, "-7:"),
        ((slice(None), slice(None, -5)), 1, ":-5"),
        ((slice(4, 2),), 0, "4:2"),
        ((slice(-1, 1),), 0, "-1:1"),
        ((slice(0, 1 << 70),), 0, f"0:{1 << 70}"),
    ],
)
def test_a_bound_outside_names_tensor_dimension_bounds_and_size(cuts: Slices, dimension: int, bounds: str) -> None:
    with pytest.raises(SliceMismatch) as caught:
        resolve(ROWS, [said({"a": cuts}, None)], "model@1")
    size = ROWS[0].shape[dimension]
    for word in ("'model@1'", "'a'", f"dimension {dimension} of size {size}", bounds):
        assert word in caught.value.text
    context = caught.value.context
    assert (context["tensor"], context["dimension"], context["size"]) == ("a", dimension, size)


def test_more_slices_than_dimensions_are_refused() -> None:
    with pytest.raises(SliceMismatch, match=r"'b' has 1 dimensions \[8\], and 2 slices"):
        resolve(ROWS, [said({"b": (slice(None), slice(None))}, None)], "x")
    with pytest.raises(SliceMismatch, match="'s' has 0 dimensions"):
        resolve(ROWS, [said({"s": (slice(None),)}, None)], "x")


def test_a_view_of_a_view_counts_inside_the_first_one() -> None:
    first, second = said({"a": (slice(2, 5),)}, {"a": "x"}), said({"x": (slice(1, None), slice(-1, None))}, {"x": "y"})
    assert resolve(ROWS, [first, second], "x") == (Part("y", ROWS[0], (3, 3), (2, 1)),)
    with pytest.raises(SliceMismatch, match="'x', dimension 0 of size 3"):
        resolve(ROWS, [first, said({"x": (slice(0, 4),)}, None)], "x")
    with pytest.raises(NotFound, match="no tensor 'a'"):
        resolve(ROWS, [first, said(["a"], None)], "x")


def test_the_order_of_the_selection_is_the_order_of_the_view() -> None:
    assert [p.name for p in resolve(ROWS, [said(["s", "a"], None)], "x")] == ["s", "a"]
    assert [p.name for p in resolve(ROWS, [said(None, {"a": "z"})], "x")] == ["z", "b", "s"]
    assert resolve(ROWS, [said([], None)], "x") == ()


def test_scalars_pass_through() -> None:
    (part,) = resolve(ROWS, [said({"s": ()}, None)], "x")
    assert part.whole and part.shape == () and part.nbytes == 4
    assert resolve([ROWS[2]], [said((), None)], "x")[0].whole


def test_an_unknown_name_is_not_found_and_the_nearest_is_told() -> None:
    rows = [row("layers.10.weight", "F32", (2,)), row("layers.1.bias", "F32", (2,))]
    with pytest.raises(NotFound, match=r"'layers.10.wieght' among its 2; nearest: layers.10.weight"):
        resolve(rows, [said(["layers.10.wieght"], None)], "x")
    with pytest.raises(NotFound, match=r"rename: .*nearest: layers.1.bias"):
        resolve(rows, [said(None, {"layers.1.bais": "x"})], "x")


def test_a_lone_selection_needs_a_lone_tensor() -> None:
    with pytest.raises(Invalid, match=r"lone tensor.*3 \(a, b, s\)"):
        resolve(ROWS, [said((slice(0, 1),), None)], "x")
    assert resolve(ROWS, [said(["b"], None), said((slice(0, 1),), None)], "x")[0].shape == (1,)


def test_a_new_name_that_is_taken_is_refused_unless_its_holder_gives_it_up() -> None:
    with pytest.raises(Invalid, match="'a' would become 'b'"):
        resolve(ROWS, [said(None, {"a": "b"})], "x")
    swapped = resolve(ROWS, [said(None, {"a": "b", "b": "a"})], "x")
    assert [(p.name, p.row.name) for p in swapped] == [("b", "a"), ("a", "b"), ("s", "s")]
    assert resolve(ROWS, [said({"a": ()}, {"a": "b"})], "x")[0].name == "b"


def test_the_rule_of_packed_types_is_told() -> None:
    rows = [row("q", "F4", (4, 6)), row("r", "F6_E2M3", (4, 4))]
    assert resolve(rows, [said({"q": (slice(1, 3), slice(2, 4))}, None)], "x")[0].nbytes == 2
    assert resolve(rows, [said({"q": (slice(0, 4), slice(3, 3))}, None)], "x")[0].nbytes == 0
    for name, bad in (
        ("q", (slice(None), slice(1, 3))),
        ("q", (slice(0, 1), slice(0, 3))),
        ("r", (slice(0, 1), slice(0, 2))),
    ):
        with pytest.raises(SliceMismatch, match=f"'{name}'.*begin and end at whole bytes in every run"):
            resolve(rows, [said({name: bad}, None)], "x")


def test_whole_rows_of_packed_tensors_may_be_taken_where_they_are_whole_bytes() -> None:
    # Rows of 3 F4 elements are 12 bits: two of them are 3 bytes, one ends inside a byte.
    odd = [row("q", "F4", (4, 3))]
    assert resolve(odd, [said((slice(2, 4),), None)], "x")[0].nbytes == 3
    with pytest.raises(SliceMismatch, match="whole bytes"):
        resolve(odd, [said((slice(0, 1),), None)], "x")
    with pytest.raises(SliceMismatch, match="whole bytes"):
        resolve(odd, [said((slice(1, 3),), None)], "x")


def test_boxes_laid_out_in_their_order_are_aligned() -> None:
    rows = [row(f"{dtype}.{n}", dtype, (3, 4)) for dtype in DTYPE_BITS if DTYPE_BITS[dtype] != 6 for n in range(2)]
    steps = [said({r.name: (slice(1, 2), slice(0, 2)) for r in reversed(rows)}, None)]
    parts = {p.name: p for p in resolve(rows, steps, "x")}
    at = 0
    for box in boxes_of(parts.values()):
        assert at % alignment(parts[box.name].dtype) == 0
        at += parts[box.name].nbytes
    assert {b.name for b in boxes_of(parts.values())} == {r.name for r in rows}
    assert boxes_of(resolve(ROWS, [said({"b": (slice(2, 4),)}, {"b": "x"})], "x")) == (Box("x", "b", (2,), (2,)),)


def test_tied_names_count_once_where_they_are_cut_alike() -> None:
    tied = (row("a", "F32", (6, 4)), row("b", "F32", (6, 4)))
    cut = {"a": (slice(0, 1),), "b": (slice(0, 1),)}
    assert distinct_bytes(resolve(tied, [said(cut, None)], "x")) == 16
    assert distinct_bytes(resolve(tied, [said({**cut, "b": (slice(1, 2),)}, None)], "x")) == 32
    assert distinct_bytes(whole_parts(tied)) == 96


def test_one_of_many_is_asked_for_by_name() -> None:
    parts = {p.name: p for p in whole_parts(ROWS)}
    assert one_of(parts, "b", "artifact 'x'").row is ROWS[1]
    with pytest.raises(Invalid, match=r"artifact 'x' has 3 tensors \(a, b, s\)"):
        one_of(parts, None, "artifact 'x'")
    assert one_of({"a": parts["a"]}, None, "artifact 'x'").name == "a"
    assert msgspec.structs.replace(parts["a"], name="z").tie == parts["a"].tie
