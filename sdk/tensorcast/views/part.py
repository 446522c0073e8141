"""A part of an artifact's tensor, which is what every read hands on: a whole artifact is whole parts.

Made by resolve and content; read by tensors, targets and save. Knows nothing of how a view was said.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tensorcast_bus.dtypes import alignment, tensor_bytes
from tensorcast_bus.manifest import TensorRow
from tensorcast_bus.notes import Box

# An attachment's segment 0 is the manifest; those that the manifest numbers from 0 follow it.
FIRST_SEGMENT = 1


class Part(msgspec.Struct, frozen=True):
    """A tensor called `name`: in every dimension of the base's `row` `shape` elements from `starts` on."""

    name: str
    row: TensorRow
    starts: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        return self.row.dtype

    @property
    def whole(self) -> bool:
        return self.shape == self.row.shape

    @property
    def nbytes(self) -> int:
        return self.row.nbytes if self.whole else tensor_bytes(self.dtype, self.shape)

    @property
    def tie(self) -> tuple[object, ...]:
        """Equal for tied tensors: the same bytes, read the same way."""
        row = self.row
        return (row.segment, row.offset, row.nbytes, row.dtype, row.shape, self.starts, self.shape)


def whole_parts(rows: Iterable[TensorRow]) -> tuple[Part, ...]:
    return tuple(Part(row.name, row, (0,) * len(row.shape), row.shape) for row in rows)


def boxes_of(parts: Iterable[Part]) -> tuple[Box, ...]:
    """By falling alignment, then name: laid out one after the other, each then lies at a multiple of its item size."""
    ordered = sorted(parts, key=lambda part: (-alignment(part.dtype), part.name))
    return tuple(Box(part.name, part.row.name, part.starts, part.shape) for part in ordered)


def distinct_bytes(parts: Iterable[Part]) -> int:
    """Tied parts count once."""
    return sum({part.tie: part.nbytes for part in parts}.values())
