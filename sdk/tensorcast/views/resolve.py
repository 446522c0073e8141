"""What a chain of view steps means over a manifest: for each tensor of the view its base row and one box of that.

Pure. Bounds count as in Python, but nothing is clamped: a bound outside its dimension is an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from tensorcast.views.packed import PACKED_RULE, runs_of
from tensorcast.views.part import Part, whole_parts
from tensorcast.views.spec import Cut, Step, check_renames, nearest
from tensorcast_bus.dtypes import DTYPE_BITS
from tensorcast_bus.errors import Invalid, NotFound, SliceMismatch
from tensorcast_bus.manifest import TensorRow

_NAMES_SHOWN = 10


def resolve(rows: Iterable[TensorRow], steps: Iterable[Step], art_id: str) -> tuple[Part, ...]:
    """The view's tensors, in its order. Raises NotFound (the nearest names), SliceMismatch (tensor, dimension, bounds,
    size), Invalid (a lone selection of several tensors, names that collide)."""
    parts = {part.name: part for part in whole_parts(rows)}
    for step in steps:
        parts = _step(parts, step, art_id)
    for part in parts.values():
        _check_packed(part, art_id)
    return tuple(parts.values())


def one_of(parts: Mapping[str, Part], name: str | None, what: str) -> Part:
    """The part of that name, or without a name the only one. Raises NotFound; Invalid where there is not just one."""
    if name is None:
        if len(parts) == 1:
            return next(iter(parts.values()))
        shown = ", ".join(list(parts)[:_NAMES_SHOWN])
        raise Invalid(f"{what} has {len(parts)} tensors ({shown}); name the one you want")
    if name not in parts:
        raise NotFound(
            f"{what} has no tensor {name!r} among its {len(parts)}; {nearest(name, parts)}",
            tensor=name,
        )
    return parts[name]


def _step(parts: dict[str, Part], step: Step, art_id: str) -> dict[str, Part]:
    what = f"artifact {art_id!r}"
    if step.lone is not None:
        if len(parts) != 1:
            shown = ", ".join(list(parts)[:_NAMES_SHOWN])
            raise Invalid(
                f"a tuple of slices is for a lone tensor, and {what} has {len(parts)} ({shown}); give a dict from "
                "names to tuples of slices",
                art_id=art_id,
            )
        chosen = [_cut(part, step.lone, art_id) for part in parts.values()]
    elif step.cuts is not None:
        chosen = [_cut(one_of(parts, name, what), cuts, art_id) for name, cuts in step.cuts.items()]
    else:
        chosen = list(parts.values())
    check_renames([part.name for part in chosen], step.rename, what)
    named = [msgspec.structs.replace(part, name=step.rename.get(part.name, part.name)) for part in chosen]
    return {part.name: part for part in named}


def _cut(part: Part, cuts: tuple[Cut, ...], art_id: str) -> Part:
    if len(cuts) > len(part.shape):
        raise SliceMismatch(
            f"view of {art_id!r}: tensor {part.name!r} has {len(part.shape)} dimensions {list(part.shape)}, and "
            f"{len(cuts)} slices are given; give one for each dimension at most",
            art_id=art_id,
            tensor=part.name,
        )
    starts, lengths = list(part.starts), list(part.shape)
    for at, cut in enumerate(cuts):
        start, stop = _bounds(part, at, cut, art_id)
        starts[at] += start
        lengths[at] = stop - start
    return Part(part.name, part.row, tuple(starts), tuple(lengths))


def _bounds(part: Part, at: int, cut: Cut, art_id: str) -> tuple[int, int]:
    size = part.shape[at]
    start = 0 if cut.start is None else cut.start + size if cut.start < 0 else cut.start
    stop = size if cut.stop is None else cut.stop + size if cut.stop < 0 else cut.stop
    if 0 <= start <= stop <= size:
        return start, stop
    why = "it ends before it begins" if 0 <= stop < start <= size else f"the size of that dimension is {size}"
    raise SliceMismatch(
        f"view of {art_id!r}: tensor {part.name!r}, dimension {at} of size {size}: {cut} does not fit: {why}; bounds "
        f"are -{size} to {size} and nothing is clamped",
        art_id=art_id,
        tensor=part.name,
        dimension=at,
        size=size,
        bounds=str(cut),
    )


def _check_packed(part: Part, art_id: str) -> None:
    if part.whole or runs_of(part.row.shape, part.starts, part.shape, bits=DTYPE_BITS[part.dtype]) is not None:
        return
    bits = DTYPE_BITS[part.dtype]
    box = ", ".join(f"{start}:{start + length}" for start, length in zip(part.starts, part.shape, strict=True))
    raise SliceMismatch(
        f"view of {art_id!r}: tensor {part.name!r} ({part.row.name!r} of the base) is {part.dtype} "
        f"{list(part.row.shape)} of {bits} bits an element, and [{box}] cuts through a byte: {PACKED_RULE}; choose "
        f"bounds at multiples of {2 if bits == 4 else 4} elements",
        art_id=art_id,
        tensor=part.name,
    )
