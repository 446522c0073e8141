"""Element types by their safetensors name, with their size in bits.

Types that torch does not know still travel as raw bytes under their name. `C32`-like names do not exist in the format;
complex64 is "C64". complex128 is kept by us as "C128"; the file format has no word for it.
"""

from __future__ import annotations

from collections.abc import Mapping

DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "C128": 128,
}

FILE_DTYPES = frozenset(DTYPE_BITS) - {"C128"}


def alignment(dtype: str) -> int:
    """Bytes that a tensor of this type must be aligned to: its item size, at least 1."""
    return max(1, DTYPE_BITS[dtype] // 8)


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Exact size in bytes; ValueError when the bits do not fill whole bytes."""
    bits = DTYPE_BITS[dtype]
    for dim in shape:
        bits *= dim
    if bits % 8:
        raise ValueError(f"{dtype} {list(shape)} is {bits} bits, which is not a whole number of bytes")
    return bits // 8
