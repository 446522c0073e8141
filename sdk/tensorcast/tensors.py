"""Out of the pool into torch: the one room that imports torch, and only inside functions.

A dtype that this torch has no word for comes as uint8: of the same shape where an element is one byte, else flat. Its
name stays in `tensor_meta()`. F4 has its logical shape in the metadata and half the last dimension in torch, which
counts pairs. A slice is a strided tensor over the map; of a flat form it is gathered, dense. Storages are watched by
weak references: torch keeps the Python object of a storage while C++ holds it, so a dead reference means that the last
tensor and view of it is gone.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tensorcast.deadline import Deadline
from tensorcast.drafts.dense import dense_tensor
from tensorcast.views.gather import runs_in
from tensorcast.views.part import FIRST_SEGMENT, Part
from tensorcast_bus.dtypes import DTYPE_BITS, tensor_bytes
from tensorcast_bus.errors import DeviceUnavailable, FormatMismatch
from tensorcast_bus.manifest import TensorRow

if TYPE_CHECKING:
    import torch

    from tensorcast_native import Attachment

TORCH_NAMES: Mapping[str, str] = {
    "BOOL": "bool",
    "F4": "float4_e2m1fn_x2",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
    "C128": "complex128",
}

# DLPack type codes. Types that not every torch takes over DLPack cross as integers of their size and are viewed.
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_DLPACK: Mapping[str, int] = {
    "BOOL": _BOOL,
    "U8": _UINT,
    "I8": _INT,
    "I16": _INT,
    "I32": _INT,
    "I64": _INT,
    "F16": _FLOAT,
    "F32": _FLOAT,
    "F64": _FLOAT,
    "BF16": _BFLOAT,
    "C64": _COMPLEX,
    "C128": _COMPLEX,
}


def torch_dtype(name: str) -> torch.dtype | None:
    """The torch dtype of a safetensors name; None where this torch has none."""
    import torch

    known = TORCH_NAMES.get(name)
    found = getattr(torch, known, None) if known else None
    return found if isinstance(found, torch.dtype) else None


def check_device(device: str | torch.device) -> torch.device:
    """The device, or DeviceUnavailable: only "cpu" and the CUDA devices of this process hold tensors."""
    import torch

    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        why = str(error).partition("\n")[0]
        raise DeviceUnavailable(f'{device!r} is no device: {why}; give "cpu" or "cuda:N"') from error
    if wanted.type == "cpu":
        return wanted
    if wanted.type != "cuda":
        raise DeviceUnavailable(f'device {str(wanted)!r} is not served; give "cpu" or "cuda:N"', device=str(wanted))
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (wanted.index or 0) >= count:
        raise DeviceUnavailable(
            f'device {str(wanted)!r} is not there: this process sees {count} CUDA devices; read to "cpu"',
            device=str(wanted),
        )
    return wanted


def tensors_of(
    attachment: Attachment | None, parts: Iterable[Part], *, device: torch.device, deadline: Deadline
) -> dict[str, torch.Tensor]:
    """Private, writable tensors over the attachment's bytes; None will do for parts without bytes. Tied parts share
    memory, on every device. Raises Timeout."""
    rows: dict[tuple[object, ...], torch.Tensor] = {}
    made: dict[tuple[object, ...], torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    for part in parts:
        deadline.left_ms("making the tensors")
        tensor = made.get(part.tie)
        if tensor is None:
            tensor = _part(attachment, part, rows, deadline)
            if device.type != "cpu":
                tensor = tensor.to(device)
            made[part.tie] = tensor
        elif part.nbytes:
            tensor = tensor.detach()  # another tensor object over the same memory, as a module's state dict has it
        else:
            tensor = tensor.clone()
        found[part.name] = tensor
    return found


def torch_form(dtype: str, shape: tuple[int, ...]) -> tuple[torch.dtype, tuple[int, ...]]:
    """The dtype and shape that a torch tensor of that safetensors dtype and shape has (the rule is at the top of this
    room)."""
    import torch

    known = torch_dtype(dtype)
    if dtype == "F4" and known is not None and shape and shape[-1] % 2 == 0:
        return known, (*shape[:-1], shape[-1] // 2)
    bits = DTYPE_BITS[dtype]
    if bits % 8 or (known is None and bits > 8):
        return torch.uint8, (tensor_bytes(dtype, shape),)
    return known or torch.uint8, shape


def fill(targets: Mapping[str, torch.Tensor], sources: Mapping[str, torch.Tensor], *, deadline: Deadline) -> None:
    """Copies bytes of equal shape and dtype; targets may be strided and on any device. Autograd does not see it. Raises
    Timeout between two tensors; those before are filled."""
    import torch

    with torch.no_grad():
        for name, target in targets.items():
            deadline.left_ms("filling the targets")
            as_bytes(target.detach()).copy_(as_bytes(sources[name]))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as uint8 where the type is one byte wide and too new for torch's own copies; else the tensor."""
    import torch

    plain = (torch.bool, torch.uint8, torch.int8)
    return tensor.view(torch.uint8) if tensor.itemsize == 1 and tensor.dtype not in plain else tensor


def watch(tensors: Iterable[torch.Tensor]) -> list[weakref.ReferenceType[torch.UntypedStorage]]:
    """One weak reference for each distinct storage with bytes in it."""
    seen: dict[int, weakref.ReferenceType[torch.UntypedStorage]] = {}
    for tensor in tensors:
        if tensor.numel():
            storage = tensor.untyped_storage()
            seen.setdefault(storage.data_ptr(), weakref.ref(storage))
    return list(seen.values())


def _part(
    attachment: Attachment | None, part: Part, rows: dict[tuple[object, ...], torch.Tensor], deadline: Deadline
) -> torch.Tensor:
    import torch

    dtype, shape = torch_form(part.dtype, part.shape)
    if part.nbytes == 0:
        try:
            return torch.empty(shape, dtype=dtype)
        except RuntimeError as error:
            raise FormatMismatch(f"tensor {part.name!r}: torch cannot make shape {list(shape)}: {error}") from error
    assert attachment is not None
    row = part.row
    place = (row.segment, row.offset, row.nbytes, row.dtype, row.shape)
    base = rows.get(place)
    if base is None:
        base = rows[place] = _row(attachment, row)
    if part.whole:
        return base
    if torch_form(row.dtype, row.shape)[0] is torch.uint8 and DTYPE_BITS[row.dtype] != 8:
        dense = dense_tensor(runs_in(base, part), torch=torch, deadline=deadline)
        return dense.view(-1).view(dtype).view(shape)
    for at, size in enumerate(shape):
        if part.shape[at] != row.shape[at]:
            # torch counts F4 in pairs along the last dimension; that a cut is at whole pairs was checked.
            start = part.starts[at] * size // part.shape[at]
            base = base.narrow(at, start, size)
    return base


def _row(attachment: Attachment, row: TensorRow) -> torch.Tensor:
    import torch

    dtype, shape = torch_form(row.dtype, row.shape)
    bits = row.nbytes * 8 // math.prod(shape)
    crossing = _DLPACK.get(row.dtype) if torch_dtype(row.dtype) is not None else None
    if crossing is None:
        crossing = _UINT if bits == 8 else _INT
    capsule = attachment.dlpack(row.segment + FIRST_SEGMENT, row.offset, shape, crossing, bits)
    made: torch.Tensor = torch.utils.dlpack.from_dlpack(capsule)
    return made if made.dtype == dtype else made.view(dtype)
