"""What a caller may put, taken apart: tensors, arrays, nested dicts and modules become flat, contiguous blocks.

Torch and numpy are only looked for, never imported: who gives a tensor has imported torch already. A block is exactly
the bytes that the value shows (a view, not its base). Values over the same memory with the same shape, strides and
dtype are tied: they share a block key, and are stored once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec

from tensorcast.checkpoint.header import METADATA, RANK_MAX, TENSORS_MAX
from tensorcast.deadline import Deadline
from tensorcast.drafts.dense import dense_array, dense_tensor
from tensorcast.tensors import TORCH_NAMES, as_bytes
from tensorcast_bus.errors import BadCheckpoint

if TYPE_CHECKING:
    import numpy
    import torch

LONE_NAME = "tensor"
NESTING_MAX = 64
NAME_BYTES_MAX = 4096
_PHASE = "taking apart what was given"
_NUMPY_NAMES: Mapping[str, str] = {
    "bool": "BOOL",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "int64": "I64",
    "uint64": "U64",
    "float64": "F64",
    "complex64": "C64",
    "complex128": "C128",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}


class Block(msgspec.Struct, frozen=True):
    """One named tensor's bytes at `address`; `tie` is equal for tied ones; `copied` bytes were made contiguous;
    `keep` owns the memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    address: int
    nbytes: int
    tie: object
    copied: int
    keep: object


def blocks_of(x: object, deadline: Deadline) -> list[Block]:
    """Raises BadCheckpoint naming the tensor that cannot be stored, and why; Timeout between and inside copies."""
    named: dict[str, tuple[object, str]] = {}
    for path, value in _flat(x):
        deadline.left_ms(_PHASE)
        name = ".".join(path)
        shown = " / ".join(repr(p) for p in path)
        if name in named:
            raise BadCheckpoint(
                f"two tensors would get the name {name!r}: {named[name][1]} and {shown}; rename one", tensor=name
            )
        _check_name(name)
        named[name] = (value, shown)
    if len(named) > TENSORS_MAX:
        raise BadCheckpoint(f"{len(named)} tensors in one put; the limit tensors_max is {TENSORS_MAX}")
    made: dict[object, Block] = {}
    return [_block(name, value, made, deadline) for name, (value, _) in named.items()]


def _flat(x: object) -> Iterator[tuple[tuple[str, ...], object]]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.nn.Module):
        x = x.state_dict()
    if isinstance(x, Mapping):
        yield from _walk(x, ())
    else:
        yield (LONE_NAME,), x


def _walk(tree: Mapping[object, object], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    if len(above) >= NESTING_MAX:
        raise BadCheckpoint(f"the dict is nested deeper than {NESTING_MAX} levels at {'.'.join(above)[:200]!r}")
    for key, value in tree.items():
        if not isinstance(key, str):
            raise BadCheckpoint(
                f"key {key!r} under {'.'.join(above)!r} is of type {type(key).__name__}; names of tensors are strings"
            )
        if isinstance(value, Mapping):
            yield from _walk(value, (*above, key))
        else:
            yield (*above, key), value


def _check_name(name: str) -> None:
    if name == METADATA:
        raise BadCheckpoint(f"{METADATA!r} cannot name a tensor: the file format keeps that name for itself; rename it")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise BadCheckpoint(f"tensor name {name[:80]!r} is not valid Unicode (a lone surrogate); rename it") from None
    if size > NAME_BYTES_MAX:
        raise BadCheckpoint(
            f"tensor name {name[:80]!r}... has {size} bytes; the limit name_bytes_max is {NAME_BYTES_MAX}"
        )


def _block(name: str, value: object, made: dict[object, Block], deadline: Deadline) -> Block:
    deadline.left_ms(_PHASE)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(name, value, made, deadline)
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return _from_numpy(name, value, made, deadline)
    raise BadCheckpoint(
        f"{name!r} is of type {type(value).__name__}, which is no tensor; give torch tensors or numpy arrays "
        "(wrap plain numbers in torch.tensor(), leave out what is no tensor)",
        tensor=name,
    )


def _from_torch(name: str, tensor: torch.Tensor, made: dict[object, Block], deadline: Deadline) -> Block:
    torch = sys.modules["torch"]
    dtype = _torch_name(name, tensor, torch)
    plain = as_bytes(tensor.detach())
    shape = tuple(plain.shape)
    if dtype == "F4":
        if not shape:
            raise BadCheckpoint(
                f"tensor {name!r} is a 0-d pair of F4 values, which no shape describes; give it a dimension"
            )
        shape = (*shape[:-1], shape[-1] * 2)
    marks = (plain.is_conj(), plain.is_neg())
    tie = (str(plain.device), _address(name, plain), tuple(plain.shape), plain.stride(), dtype, marks)
    if plain.numel() and (known := made.get(tie)) is not None:
        return msgspec.structs.replace(known, name=name, copied=0)
    dense = dense_tensor(plain, torch=torch, deadline=deadline)
    nbytes = dense.numel() * dense.itemsize
    copied = 0 if dense is plain else nbytes
    block = Block(name, dtype, shape, dense.data_ptr(), nbytes, tie, copied, (tensor, dense))
    made[tie] = block
    return block


def _address(name: str, tensor: torch.Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:
        raise BadCheckpoint(
            f"tensor {name!r} has no memory of its own: it stands for many values inside a function transform "
            "(torch.vmap, torch.func.grad, torch.compile); put what the transformed function returns",
            tensor=name,
        ) from None


def _torch_name(name: str, tensor: torch.Tensor, torch: ModuleType) -> str:
    problem = ""
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        problem = "is not initialised yet; run the module once first"
    elif type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        problem = f"is a {type(tensor).__name__}, a wrapper whose bytes are not its own; put the plain tensors in it"
    elif tensor.is_quantized:
        problem = "is quantized; put .int_repr() with its scales and zero points as tensors of their own"
    elif tensor.is_nested:
        problem = "is nested; put its parts"
    elif tensor.layout is not torch.strided:
        problem = f"has layout {tensor.layout}; put its parts, or .to_dense()"
    elif tensor.device.type == "meta":
        problem = "is on the meta device and has no bytes; materialise it first"
    if problem:
        raise BadCheckpoint(f"tensor {name!r} {problem}", tensor=name)
    for word, torch_name in TORCH_NAMES.items():
        if tensor.dtype is getattr(torch, torch_name, None):
            return word
    raise BadCheckpoint(
        f"tensor {name!r} is of dtype {tensor.dtype}, which has no name here; view it as another", tensor=name
    )


def _from_numpy(
    name: str,
    value: numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.generic]],
    made: dict[object, Block],
    deadline: Deadline,
) -> Block:
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.ma.MaskedArray):
        raise BadCheckpoint(f"{name!r} is a masked array; put .filled() or data and mask apart", tensor=name)
    dtype = _NUMPY_NAMES.get(value.dtype.name)
    if dtype is None:
        raise BadCheckpoint(
            f"array {name!r} is of dtype {value.dtype}, which has no name here; known are {' '.join(_NUMPY_NAMES)}",
            tensor=name,
        )
    array = numpy.asarray(value)
    if array.ndim > RANK_MAX:
        raise BadCheckpoint(f"array {name!r} has {array.ndim} dimensions; the limit is {RANK_MAX}", tensor=name)
    tie = ("cpu", array.ctypes.data, array.shape, array.strides, dtype, array.dtype.byteorder)
    if array.size and (known := made.get(tie)) is not None:
        return msgspec.structs.replace(known, name=name, copied=0)
    dense = dense_array(array, numpy=numpy, deadline=deadline)
    copied = 0 if dense is array else dense.nbytes
    block = Block(name, dtype, tuple(array.shape), dense.ctypes.data, dense.nbytes, tie, copied, (value, array, dense))
    made[tie] = block
    return block
