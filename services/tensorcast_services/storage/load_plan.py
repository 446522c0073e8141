"""How an artifact's segments are read from its source files again, in the words of the native floor (tc/fill.hpp).

Pure. File images come byte for byte from offset 0; tensors that lay misaligned there are copied aside again.
"""

from __future__ import annotations

import struct

import msgspec

from tensorcast_bus.manifest import Manifest

INLINE, FILE, SEGMENT = 1, 3, 4
_PIECE = struct.Struct("<IIQQQII")
_ROW = struct.Struct("<IIQQ")


class LoadPlan(msgspec.Struct, frozen=True):
    """What LocalServer.load wants, but for its files."""

    segment_bytes: list[int]
    pieces: bytes
    rows: bytes
    inline: bytes


def plan_load(manifest: Manifest) -> LoadPlan:
    """File images byte for byte from offset 0; asides copied again from their originals, gaps filled with zeros."""
    pieces: list[bytes] = []
    gap_max = 0
    file_index = 0
    for number, row in enumerate(manifest.segments):
        if row.file is not None:
            if row.nbytes:
                pieces.append(_PIECE.pack(number, FILE, 0, row.nbytes, 0, file_index, 0))
            file_index += 1
            continue
        copies = {t.offset: t for t in manifest.tensors if t.segment == number and t.nbytes}
        end = 0
        for offset, tensor in sorted(copies.items()):
            assert tensor.copied_from is not None, "only artifacts that files alone can give back are loaded"
            if offset > end:
                pieces.append(_PIECE.pack(number, INLINE, end, offset - end, 0, 0, 0))
                gap_max = max(gap_max, offset - end)
            source, source_offset = tensor.copied_from
            pieces.append(_PIECE.pack(number, SEGMENT, offset, tensor.nbytes, source_offset, source, 0))
            end = offset + tensor.nbytes
        if row.nbytes > end:
            pieces.append(_PIECE.pack(number, INLINE, end, row.nbytes - end, 0, 0, 0))
            gap_max = max(gap_max, row.nbytes - end)
    return LoadPlan([row.nbytes for row in manifest.segments], b"".join(pieces), pack_rows(manifest), bytes(gap_max))


def pack_rows(manifest: Manifest) -> bytes:
    """Where each tensor lies, in the manifest's order: digests come back in the same one."""
    return b"".join(_ROW.pack(t.segment, 0, t.offset, t.nbytes) for t in manifest.tensors)


def same_pieces(one: bytes, other: bytes) -> bool:
    """Whether two plans read the same bytes to the same places, in whatever order. False for a broken one."""
    if len(one) % _PIECE.size or len(other) % _PIECE.size:
        return False
    return _sorted(one) == _sorted(other)


def _sorted(pieces: bytes) -> list[tuple[int, ...]]:
    return sorted(piece for piece in _PIECE.iter_unpack(pieces) if piece[3])
