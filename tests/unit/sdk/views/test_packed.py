"""Runs of a box, against a list of every bit: exhaustive over small shapes, for every size of element there is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy
import pytest

from tensorcast.views.packed import Runs, runs_of
from tensorcast_bus.dtypes import DTYPE_BITS

Box = tuple[tuple[int, ...], tuple[int, ...]]
SHAPES = [
    (),
    (0,),
    (1,),
    (2,),
    (5,),
    (8,),
    (3, 4),
    (4, 3),
    (2, 1),
    (1, 6),
    (2, 3, 2),
    (3, 2, 4),
    (2, 0, 3),
    (2, 2, 1, 4),
]


def boxes(shape: tuple[int, ...]) -> Iterator[Box]:
    spans = [[(a, b - a) for a in range(n + 1) for b in range(a, n + 1)] for n in shape]
    for chosen in product(*spans):
        yield tuple(a for a, _ in chosen), tuple(n for _, n in chosen)


def bits_in(shape: tuple[int, ...], box: Box, bits: int) -> list[list[int]]:
    """The numbers of the bits that the box takes, cut where the next one is not its neighbour."""
    size = int(numpy.prod(shape, dtype=int))
    elements = numpy.arange(size).reshape(shape)[tuple(slice(s, s + n) for s, n in zip(*box, strict=True))]
    taken = [int(e) * bits + b for e in elements.ravel() for b in range(bits)]
    runs: list[list[int]] = []
    for bit in taken:
        if runs and runs[-1][-1] + 1 == bit:
            runs[-1].append(bit)
        else:
            runs.append([bit])
    return runs


def bits_of(runs: Runs) -> list[int]:
    found = []
    for step in product(*(range(n) for n in runs.counts)):
        begin = runs.begin + sum(a * b for a, b in zip(step, runs.strides, strict=True))
        found += list(range(8 * begin, 8 * (begin + runs.run_bytes)))
    return found


@pytest.mark.parametrize("bits", sorted(set(DTYPE_BITS.values())))
def test_runs_take_exactly_the_bits_of_the_box(bits: int) -> None:
    for shape in SHAPES:
        for box in boxes(shape):
            wanted = bits_in(shape, box, bits)
            got = runs_of(shape, *box, bits=bits)
            if got is not None:
                assert bits_of(got) == [bit for run in wanted for bit in run], (shape, box)
            elif bits % 8 == 0:
                pytest.fail(f"whole bytes are refused: {shape} {box}")


@pytest.mark.parametrize("bits", [4, 6])
def test_a_box_is_refused_exactly_when_a_run_cuts_a_byte(bits: int) -> None:
    refused = taken = 0
    for shape in SHAPES:
        if shape and int(numpy.prod(shape)) * bits % 8:
            continue  # no such tensor
        for box in boxes(shape):
            whole = all(run[0] % 8 == 0 and (run[-1] + 1) % 8 == 0 for run in bits_in(shape, box, bits))
            assert (runs_of(shape, *box, bits=bits) is not None) == whole, (shape, box)
            taken += whole
            refused += not whole
    assert taken > 100 and refused > 100


def test_the_fewest_runs_are_taken() -> None:
    assert runs_of((4, 3, 2), (1, 0, 0), (2, 3, 2), bits=16) == Runs(12, 24, (), ())
    assert runs_of((4, 3, 2), (1, 1, 0), (2, 1, 2), bits=16) == Runs(16, 4, (2,), (12,))
    assert runs_of((1, 3, 2), (0, 1, 0), (1, 2, 2), bits=8) == Runs(2, 4, (), ())
    assert runs_of((), (), (), bits=64) == Runs(0, 8, (), ())


def test_offsets_beyond_64_bits_do_not_wrap() -> None:
    got = runs_of((1 << 40, 1 << 40), (1 << 39, 3), (2, 5), bits=64)
    assert got == Runs(((1 << 79) + 3) * 8, 40, (2,), (1 << 43,))
