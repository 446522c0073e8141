"""The bytes of a part inside an attachment, as torch sees them: where they lie, and in steps of dense bytes.

Serves what is written out, and the types that torch holds as flat bytes, which cannot be cut as tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tensorcast.views.packed import runs_of
from tensorcast.views.part import FIRST_SEGMENT, Part
from tensorcast_bus.dtypes import DTYPE_BITS
from tensorcast_bus.errors import FormatMismatch
from tensorcast_bus.manifest import TensorRow

if TYPE_CHECKING:
    import torch

    from tensorcast_native import Attachment

STEP_BYTES_MAX = 64 << 20
_DLPACK_UINT = 1


def flat_bytes(attachment: Attachment, row: TensorRow) -> torch.Tensor:
    """All bytes of a row, as uint8 over the attachment's memory."""
    import torch

    capsule = attachment.dlpack(row.segment + FIRST_SEGMENT, row.offset, (row.nbytes,), _DLPACK_UINT, 8)
    made: torch.Tensor = torch.utils.dlpack.from_dlpack(capsule)
    return made


def runs_in(flat: torch.Tensor, part: Part) -> torch.Tensor:
    """The part's bytes as uint8 of shape (*counts, run_bytes), over `flat`, the uint8 bytes of its whole row. For a
    part with elements; raises FormatMismatch where its runs are not whole bytes."""
    runs = runs_of(part.row.shape, part.starts, part.shape, bits=DTYPE_BITS[part.dtype])
    if runs is None:
        raise FormatMismatch(f"tensor {part.name!r} ({part.dtype}) cuts through a byte", tensor=part.name)
    return flat.as_strided((*runs.counts, runs.run_bytes), (*runs.strides, 1), flat.storage_offset() + runs.begin)


def dense_steps(runs: torch.Tensor) -> Iterator[memoryview]:
    """The bytes in their order, in pieces of at most STEP_BYTES_MAX; a single run is not copied."""
    if runs.dim() == 1:
        yield runs.numpy().data
        return
    at_once = STEP_BYTES_MAX * len(runs) // runs.numel()
    if at_once == 0:
        for row in runs:
            yield from dense_steps(row)
        return
    for first in range(0, len(runs), at_once):
        yield runs[first : first + at_once].contiguous().view(-1).numpy().data
