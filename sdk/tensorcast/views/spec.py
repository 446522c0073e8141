"""What a caller says of a view, checked as far as the words alone go: no manifest, no I/O.

A Step is one call of view(); a view of a view is a chain of steps over one base. Slices keep their dimension, have
step 1 and may be given for fewer dimensions than the tensor has: the missing ones are full.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from numbers import Integral
from types import EllipsisType

import msgspec

from tensorcast.checkpoint.header import METADATA
from tensorcast.drafts.intake import NAME_BYTES_MAX
from tensorcast.ids import text
from tensorcast_bus.errors import Invalid, NotFound, SliceMismatch

_A_NAME = "the name of a tensor"


class Cut(msgspec.Struct, frozen=True):
    """Of one dimension, from `start` to before `stop`, as Python counts; None is the end of the dimension."""

    start: int | None
    stop: int | None

    def __str__(self) -> str:
        return f"{'' if self.start is None else self.start}:{'' if self.stop is None else self.stop}"


class Step(msgspec.Struct, frozen=True):
    """One view() call: `cuts` by name, in the order of the result; or `lone` cuts of the only tensor there is; or,
    with neither, every tensor as it is. `rename` is applied to what that leaves."""

    cuts: dict[str, tuple[Cut, ...]] | None
    lone: tuple[Cut, ...] | None
    rename: dict[str, str]


def said(select: object, rename: object) -> Step:
    """Raises SliceMismatch for what is no slice of step 1; NotFound for a rename of what a named selection leaves out;
    Invalid for other malformed selections and renames."""
    cuts: dict[str, tuple[Cut, ...]] | None = None
    lone: tuple[Cut, ...] | None = None
    if isinstance(select, tuple | slice):
        lone = _cuts("the only tensor", select)
    elif isinstance(select, Mapping):
        cuts = {text(name, _A_NAME): _cuts(f"tensor {name!r}", given) for name, given in select.items()}
    elif select is not None:
        cuts = dict.fromkeys(_names(select), ())
    names = _renames(rename)
    if cuts is not None:
        check_renames(cuts, names, "the selection")
    return Step(cuts, lone, names)


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence on a name that is not there."""
    return f"nearest: {', '.join(difflib.get_close_matches(name, list(known), n=3) or ['none is near'])}"


def check_renames(names: Iterable[str], rename: Mapping[str, str], where: str) -> None:
    """Raises NotFound for a name that is not among `names`, Invalid where two tensors would get one name."""
    known = set(names)
    for old in rename:
        if old not in known:
            raise NotFound(f"rename: {where} has no tensor {old!r} among its {len(known)}; {nearest(old, known)}")
    kept = known - rename.keys()
    for old, new in rename.items():
        if new in kept:
            raise Invalid(
                f"rename: {old!r} would become {new!r}, and {where} has a tensor of that name already; rename that one "
                "too, or leave it out of the selection"
            )


def _names(select: object) -> list[str]:
    if isinstance(select, str) or not isinstance(select, Iterable):
        raise Invalid(
            f"a view's selection is {str(select)[:80]!r} of type {type(select).__name__}; give a list of names, a dict "
            "from names to tuples of slices, or for a lone tensor a tuple of slices"
        )
    names = [text(name, _A_NAME) for name in select]
    twice = next((n for n in names if names.count(n) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise Invalid(f"a view's selection names tensor {twice!r} more than once; name it once")
    return names


def _cuts(whose: str, given: object) -> tuple[Cut, ...]:
    if not isinstance(given, tuple | slice):
        raise SliceMismatch(
            f"view: {whose} is given {_shown(given)}; give a tuple of slices, as in (slice(0, 4), slice(None)), "
            "or () for all of it"
        )
    items: tuple[object, ...] = given if isinstance(given, tuple) else (given,)
    return tuple(_cut(f"{whose}, dimension {at}", item) for at, item in enumerate(items))


def _cut(where: str, item: object) -> Cut:
    if not isinstance(item, slice):
        raise SliceMismatch(f"view: {where} is given {_shown(item)}; {_instead(item)}")
    if item.step is not None and (isinstance(item.step, bool) or item.step != 1):
        raise SliceMismatch(f"view: {where} is given {item!r}; the step of a view is 1: take strides from its tensor")
    return Cut(_bound(where, item, item.start), _bound(where, item, item.stop))


def _bound(where: str, item: slice, bound: object) -> int | None:
    if bound is None:
        return None
    # A bool is an Integral, and never meant as one here.
    if isinstance(bound, bool) or not isinstance(bound, Integral):
        raise SliceMismatch(f"view: {where} is given {item!r}; its bounds are whole numbers or None")
    return int(bound)


def _instead(item: object) -> str:
    if isinstance(item, bool):
        return "a mask is no slice: give slice(start, stop)"
    if isinstance(item, Integral):
        return f"a view keeps every dimension: give slice({item}, {int(item) + 1 or None})"
    if isinstance(item, EllipsisType):
        return "give slice(None) for each full dimension; those left out at the end are full"
    if item is None:
        return "a view adds no dimension: give slice(None) for a full one"
    if isinstance(item, str):
        return "names are chosen by a list, as in ['a', 'b']; a tuple holds slices of a lone tensor"
    return "give slice(start, stop)"


def _shown(item: object) -> str:
    return f"{str(item)[:80]} of type {type(item).__name__}"


def _renames(rename: object) -> dict[str, str]:
    if rename is None:
        return {}
    if not isinstance(rename, Mapping):
        raise Invalid(f"rename is {_shown(rename)}; give a dict from old names to new ones")
    names = {text(old, _A_NAME): _new_name(new) for old, new in rename.items()}
    taken: dict[str, str] = {}
    for old, new in names.items():
        if (other := taken.setdefault(new, old)) != old:
            raise Invalid(f"rename: {other!r} and {old!r} would both become {new!r}; give each a name of its own")
    return names


def _new_name(given: object) -> str:
    name = text(given, _A_NAME)
    if name == METADATA:
        raise Invalid(f"rename: {METADATA!r} cannot name a tensor: the file format keeps that name for itself")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise Invalid(f"rename: {name[:80]!r} is not valid Unicode (a lone surrogate)") from None
    if size > NAME_BYTES_MAX:
        raise Invalid(f"rename: {name[:80]!r}... has {size} bytes; the limit name_bytes_max is {NAME_BYTES_MAX}")
    return name
