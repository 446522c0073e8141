"""Where the bytes of a box lie in its tensor: equal runs at regular places.

Elements of F4 and F6 are smaller than a byte, so a box of them is bytes only if every run begins and ends at a whole
byte. Pure arithmetic, in bits, without bounds: Python's integers do not overflow.
"""

from __future__ import annotations

import math

import msgspec

PACKED_RULE = (
    "elements of this type are smaller than a byte, and a slice must begin and end at whole bytes in every run of "
    "neighbouring elements"
)


class Runs(msgspec.Struct, frozen=True):
    """Runs of `run_bytes` each. The first one begins `begin` bytes into the tensor; the others follow in `counts` steps
    of `strides` bytes, outermost first. A box without elements has no runs (`run_bytes` 0)."""

    begin: int
    run_bytes: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]


def runs_of(shape: tuple[int, ...], starts: tuple[int, ...], lengths: tuple[int, ...], *, bits: int) -> Runs | None:
    """`shape` and the box in elements of `bits`; the box lies inside. None where a run is not whole bytes."""
    if 0 in lengths:
        return Runs(0, 0, (), ())
    steps = [bits * math.prod(shape[at + 1 :]) for at in range(len(shape))]
    # Inside the innermost dimension that is cut everything is taken, so what lies there is one run.
    cut = max((at for at in range(len(shape)) if lengths[at] != shape[at]), default=0)
    begin = sum(start * step for start, step in zip(starts, steps, strict=True))
    run = lengths[cut] * steps[cut] if shape else bits
    outer = [(lengths[at], steps[at]) for at in range(cut) if lengths[at] > 1]
    if any(n % 8 for n in (begin, run, *(step for _, step in outer))):
        return None
    return Runs(begin // 8, run // 8, tuple(n for n, _ in outer), tuple(step // 8 for _, step in outer))
