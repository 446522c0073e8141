"""The head of a safetensors image, for segments that the storage itself lays out.

Pure. The format: 8 bytes of header length, JSON, and the tensors' bytes one after the other without a gap; the JSON is
padded with spaces so that the bytes begin at a multiple of 64.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec

from tensorcast_bus.dtypes import FILE_DTYPES

HEADER_ALIGNMENT = 64
_METADATA = "__metadata__"


class Stretch(msgspec.Struct, frozen=True):
    """`nbytes` of the image in its order, under a name that need not be unique."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def image_head(stretches: Iterable[Stretch]) -> bytes:
    """What comes before the first stretch, the length word included. A stretch whose type the format has no word for is
    called U8; a name that is taken gets a number."""
    table: dict[str, object] = {}
    at = 0
    for stretch in stretches:
        known = stretch.dtype in FILE_DTYPES
        table[_free_name(stretch.name, table)] = {
            "dtype": stretch.dtype if known else "U8",
            "shape": list(stretch.shape) if known else [stretch.nbytes],
            "data_offsets": [at, at + stretch.nbytes],
        }
        at += stretch.nbytes
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    padded = text.ljust(-(-(len(text) + 8) // HEADER_ALIGNMENT) * HEADER_ALIGNMENT - 8, b" ")
    return len(padded).to_bytes(8, "little") + padded


def _free_name(name: str, taken: dict[str, object]) -> str:
    number, free = 1, name
    while free in taken or free == _METADATA:
        number += 1
        free = f"{name}#{number}"
    return free
