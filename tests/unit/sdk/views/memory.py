"""An attachment over plain memory of this process: one segment that holds what a test laid into it."""

from __future__ import annotations

from math import prod
from typing import cast

import numpy
import torch

from tensorcast.views.part import FIRST_SEGMENT
from tensorcast_bus.dtypes import DTYPE_BITS
from tensorcast_bus.manifest import TensorRow
from tensorcast_native import Attachment

_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class Memory:
    """Counts what it handed out; refuses what the native one refuses: places outside, misaligned ones."""

    def __init__(self) -> None:
        self.bytes = torch.zeros(0, dtype=torch.uint8)
        self.rows: dict[str, TensorRow] = {}

    def lay(self, name: str, dtype: str, shape: tuple[int, ...]) -> TensorRow:
        """A tensor of bytes that are all over the place, aligned to 16."""
        nbytes = DTYPE_BITS[dtype] * prod(shape) // 8
        at = self.bytes.numel()
        seed = torch.Generator().manual_seed(at + 1)
        fresh = torch.randint(0, 256, (-(-nbytes // 16) * 16,), dtype=torch.uint8, generator=seed)
        if dtype == "BOOL":
            fresh %= 2
        self.bytes = torch.cat([self.bytes, fresh])
        self.rows[name] = TensorRow(name, dtype, shape, 0, at, nbytes)
        return self.rows[name]

    def content(self, row: TensorRow) -> bytes:
        return bytes(self.bytes[row.offset : row.offset + row.nbytes].tolist())

    def cut(self, row: TensorRow, starts: tuple[int, ...], lengths: tuple[int, ...]) -> bytes:
        """The bytes of a box, bit by bit, by numpy's own slicing."""
        bits = DTYPE_BITS[row.dtype]
        every = numpy.unpackbits(numpy.frombuffer(self.content(row), numpy.uint8), bitorder="little")
        box = tuple(slice(a, a + n) for a, n in zip(starts, lengths, strict=True))
        return numpy.packbits(every.reshape(*row.shape, bits)[box].ravel(), bitorder="little").tobytes()

    def overwrite(self, row: TensorRow, blob: bytes) -> None:
        assert len(blob) == row.nbytes
        self.bytes[row.offset : row.offset + row.nbytes] = torch.tensor(list(blob), dtype=torch.uint8)

    @property
    def attachment(self) -> Attachment:
        return cast(Attachment, self)

    def dlpack(self, segment: int, offset: int, shape: tuple[int, ...], code: int, bits: int) -> object:
        nbytes = prod(shape) * bits // 8
        if segment != FIRST_SEGMENT or offset + nbytes > self.bytes.numel() or offset % (bits // 8):
            raise ValueError((segment, offset, shape, bits))
        word = {"bool": "bool", "bfloat": "bfloat16"}.get(_CODES[code], f"{_CODES[code]}{bits}")
        made = self.bytes[offset : offset + nbytes].view(getattr(torch, word)).view(shape)
        return cast(object, torch.utils.dlpack.to_dlpack(made))

    def view(self, segment: int, offset: int, nbytes: int) -> memoryview:
        assert segment == FIRST_SEGMENT
        return memoryview(self.bytes.numpy().data)[offset : offset + nbytes]
