"""What is said of a view is checked as far as words alone go, and no further."""

from __future__ import annotations

import numpy
import pytest

from tensorcast.errors import Invalid, NotFound, SliceMismatch
from tensorcast.views.spec import Cut, said

FULL = Cut(None, None)


@pytest.mark.parametrize(
    ("select", "cuts", "lone"),
    [
        (None, None, None),
        ([], {}, None),
        (["b", "a"], {"b": (), "a": ()}, None),
        ({"a": (slice(1, 2), slice(None)), "b": ()}, {"a": (Cut(1, 2), FULL), "b": ()}, None),
        ({"a": slice(-3, None, 1)}, {"a": (Cut(-3, None),)}, None),
        ((slice(None, 4),), None, (Cut(None, 4),)),
        (slice(2, 4), None, (Cut(2, 4),)),
        ((), None, ()),
        ((slice(numpy.int64(1), numpy.uint8(2)),), None, (Cut(1, 2),)),
    ],
)
def test_a_selection_is_names_or_slices_by_name_or_slices_alone(select: object, cuts: object, lone: object) -> None:
    step = said(select, None)
    assert (step.cuts, step.lone, step.rename) == (cuts, lone, {})
    if step.cuts is not None:
        assert list(step.cuts) == list(select)  # type: ignore[call-overload]


def test_later_changes_of_what_was_given_do_not_reach_the_view() -> None:
    select, rename = {"a": (slice(0, 1),)}, {"a": "b"}
    step = said(select, rename)
    select.clear()
    rename["a"] = "c"
    assert step.cuts == {"a": (Cut(0, 1),)} and step.rename == {"a": "b"}


@pytest.mark.parametrize(
    ("item", "hint"),
    [
        (3, r"slice\(3, 4\)"),
        (-1, r"slice\(-1, None\)"),
        (True, "mask"),
        (numpy.bool_(True), "slice"),
        (..., r"slice\(None\)"),
        (None, "no dimension"),
        ("a", r"\['a', 'b'\]"),
        ([0, 1], r"slice\(start, stop\)"),
        (slice(0, 4, 2), "step"),
        (slice(4, 0, -1), "step"),
        (slice(0, 4, True), "step"),
        (slice(0, 4, 0), "step"),
        (slice(0.0, 4), "whole numbers"),
        (slice(False, 4), "whole numbers"),
        (slice("a", "b"), "whole numbers"),
    ],
)
def test_what_is_no_slice_is_refused_with_what_to_write_instead(item: object, hint: str) -> None:
    with pytest.raises(SliceMismatch, match=rf"'w', dimension 1.*{hint}"):
        said({"w": (slice(None), item)}, None)
    with pytest.raises(SliceMismatch, match=f"only tensor, dimension 0.*{hint}"):
        said((item,), None)


@pytest.mark.parametrize("given", [3, None, ..., [slice(0, 1)], "a", True])
def test_a_tensor_in_a_dict_is_given_a_tuple_of_slices(given: object) -> None:
    with pytest.raises(SliceMismatch, match=r"'w'.*tuple of slices"):
        said({"w": given}, None)


@pytest.mark.parametrize("select", ["abc", b"ab", 3, 1.5, ["a", 1], {1: ()}, [None]])
def test_other_selections_are_invalid(select: object) -> None:
    with pytest.raises(Invalid):
        said(select, None)


def test_a_name_chosen_twice_is_refused() -> None:
    with pytest.raises(Invalid, match="'a' more than once"):
        said(["a", "b", "a"], None)


def test_names_may_be_exchanged() -> None:
    assert said(["a", "b"], {"a": "b", "b": "a"}).rename == {"a": "b", "b": "a"}
    assert said(None, {"a": "a"}).rename == {"a": "a"}


@pytest.mark.parametrize(
    ("select", "rename", "error", "hint"),
    [
        (None, {"a": "c", "b": "c"}, Invalid, "both become 'c'"),
        (["a", "b"], {"a": "b"}, Invalid, "already"),
        (["weight"], {"wieght": "b"}, NotFound, "nearest: weight"),
        (None, ["a", "b"], Invalid, "a dict"),
        (None, "ab", Invalid, "a dict"),
        (None, {"a": 1}, Invalid, "string"),
        (None, {1: "a"}, Invalid, "string"),
        (None, {"a": "__metadata__"}, Invalid, "__metadata__"),
        (None, {"a": "\ud800"}, Invalid, "surrogate"),
        (None, {"a": "x" * 5000}, Invalid, "name_bytes_max"),
    ],
)
def test_renames_that_cannot_be_are_refused_at_once(
    select: object, rename: object, error: type[Exception], hint: str
) -> None:
    with pytest.raises(error, match=hint):
        said(select, rename)


def test_what_needs_shapes_or_names_of_the_base_is_left_to_the_first_read() -> None:
    said(["no such tensor"], None)
    said({"w": (slice(0, 1 << 70),) * 40}, None)
    said(None, {"no such tensor": "x"})
