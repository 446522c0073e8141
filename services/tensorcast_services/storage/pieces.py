"""Pieces of a fill, packed as the native floor reads them: what comes from where (tc/fill.hpp)."""

from __future__ import annotations

import struct

INLINE, MEMORY, FILE, SEGMENT, POOL = 1, 2, 3, 4, 5
_PIECE = struct.Struct("<IIQQQII")
PIECE_BYTES = _PIECE.size


def pack_piece(segment: int, kind: int, dst: int, nbytes: int, src: int, src_index: int) -> bytes:
    """`nbytes` to `dst` in segment number `segment`, from `src` in source number `src_index` of `kind`."""
    return _PIECE.pack(segment, kind, dst, nbytes, src, src_index, 0)


def unpack_pieces(pieces: bytes) -> list[tuple[int, ...]]:
    """(segment, kind, dst, nbytes, src, src_index, 0) each."""
    return list(_PIECE.iter_unpack(pieces))
