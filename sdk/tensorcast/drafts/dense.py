"""Contiguous copies of strided tensors and arrays, made in steps that look at the deadline.

Torch and numpy come in as arguments: this room serves whichever the caller has imported.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, TypeVar

from tensorcast.deadline import Deadline

if TYPE_CHECKING:
    import numpy
    from torch import Tensor

    Array = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.generic]]

STEP_BYTES_MAX = 64 << 20
_PHASE = "making the caller's tensors contiguous"


class _Block(Protocol):
    """What tensors and arrays share."""

    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...


B = TypeVar("B", bound=_Block)


def dense_tensor(tensor: Tensor, *, torch: ModuleType, deadline: Deadline) -> Tensor:
    """The tensor itself where its memory, on the host, is what it shows; else a contiguous copy there."""
    # A conjugate or negative view holds other bytes than it shows, contiguous or not.
    plain = tensor.device.type == "cpu" and not tensor.is_conj() and not tensor.is_neg()
    if plain and tensor.is_contiguous():
        return tensor
    made: Tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    with torch.no_grad():
        _copy(made, tensor, _copy_tensor, lambda block, place: block[place], deadline)
    return made


def dense_array(array: Array, *, numpy: ModuleType, deadline: Deadline) -> Array:
    """The array itself where it is contiguous, aligned and little-endian; else such a copy."""
    little = array.dtype.newbyteorder("<")
    if array.flags.c_contiguous and array.flags.aligned and array.dtype == little:
        return array
    made: Array = numpy.empty(array.shape, dtype=little)
    _copy(made, array, numpy.copyto, lambda block, place: block[place], deadline)
    return made


def _copy_tensor(target: Tensor, source: Tensor) -> None:
    if target.dim() == 2 and source.stride(0) == 1 and source.stride(1) > source.shape[0]:
        # Some rows of a transposed matrix: torch is several times quicker with all rows of a small one.
        source = source.t().contiguous().t()
    target.copy_(source)


def _copy(
    target: B,
    source: B,
    copy: Callable[[B, B], object],
    part: Callable[[B, slice | int], B],
    deadline: Deadline,
) -> None:
    """Along the first dimension, as many rows at once as a step may have; rows beyond a step are split themselves."""
    deadline.left_ms(_PHASE)
    if target.nbytes <= STEP_BYTES_MAX:
        copy(target, source)
        return
    rows = len(target)
    at_once = STEP_BYTES_MAX * rows // target.nbytes
    if at_once == 0:
        for row in range(rows):
            _copy(part(target, row), part(source, row), copy, part, deadline)
        return
    for first in range(0, rows, at_once):
        deadline.left_ms(_PHASE)
        rows_now = slice(first, first + at_once)
        copy(part(target, rows_now), part(source, rows_now))
