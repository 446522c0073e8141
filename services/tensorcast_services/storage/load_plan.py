"""How an artifact's segments are read back, in the words of the native floor (tc/fill.hpp).

Pure. Images (of a source file, or a segment on our own disk) come byte for byte from offset 0; tensors that lay
misaligned in one are copied aside again. Segments that are borrowed from the pool are not read: the others are numbered
without them.
"""

from __future__ import annotations

import struct
from collections.abc import Collection

import msgspec

from tensorcast_bus.manifest import Manifest, SegmentRow
from tensorcast_services.storage.pieces import FILE, INLINE, PIECE_BYTES, POOL, SEGMENT, pack_piece, unpack_pieces

_ROW = struct.Struct("<IIQQ")


class LoadPlan(msgspec.Struct, frozen=True):
    """What LocalServer.load wants, but for its files. `images` are the manifest's segments that come from files, in the
    order in which pieces number the files; `sources` those that are copied from, in the order of the load's sources."""

    segment_bytes: list[int]
    pieces: bytes
    rows: bytes
    inline: bytes
    images: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()


def plan_load(manifest: Manifest, *, borrowed: Collection[int] = ()) -> LoadPlan:
    """`borrowed` are the manifest's segments that are in the pool already."""
    asides = remade(manifest)
    brought = [number for number in range(len(manifest.segments)) if number not in borrowed]
    images = tuple(number for number in brought if number not in asides)
    place = {number: at for at, number in enumerate(brought)}
    file_of = {number: at for at, number in enumerate(images)}
    sources: dict[int, int] = {}
    pieces: list[bytes] = []
    gap_max = 0
    for number in brought:
        row = manifest.segments[number]
        if number not in asides:
            if row.nbytes:
                pieces.append(pack_piece(place[number], FILE, 0, row.nbytes, 0, file_of[number]))
            continue
        made, gap = _copies(manifest, number, place, sources)
        pieces += made
        gap_max = max(gap_max, gap)
    mine = tuple(tensor for tensor in manifest.tensors if tensor.segment not in borrowed)
    rows = b"".join(_ROW.pack(place[t.segment], 0, t.offset, t.nbytes) for t in mine)
    sizes = [manifest.segments[number].nbytes for number in brought]
    return LoadPlan(sizes, b"".join(pieces), rows, bytes(gap_max), images, tuple(sources))


def remade(manifest: Manifest) -> frozenset[int]:
    """Segments of aligned copies whose originals give every tensor back: they are never written out."""
    lone = {t.segment for t in manifest.tensors if t.nbytes and t.copied_from is None}
    return frozenset(n for n, row in enumerate(manifest.segments) if row.aside and n not in lone)


def rows_filled(manifest: Manifest, *, borrowed: Collection[int]) -> Manifest:
    """With the rows alone that a load with these `borrowed` segments digests."""
    if not borrowed:
        return manifest
    return msgspec.structs.replace(manifest, tensors=tuple(t for t in manifest.tensors if t.segment not in borrowed))


def pack_rows(manifest: Manifest) -> bytes:
    """Where each tensor lies, in the manifest's order: digests come back in the same one."""
    return b"".join(_ROW.pack(t.segment, 0, t.offset, t.nbytes) for t in manifest.tensors)


def same_pieces(one: bytes, other: bytes) -> bool:
    """Whether two plans read the same bytes to the same places, in whatever order. False for a broken one."""
    if len(one) % PIECE_BYTES or len(other) % PIECE_BYTES:
        return False
    return _sorted(one) == _sorted(other)


def _copies(manifest: Manifest, number: int, place: dict[int, int], sources: dict[int, int]) -> tuple[list[bytes], int]:
    """The pieces of one segment of copies, gaps filled with zeros, and its longest gap. An original that is in the pool
    already becomes one of `sources`."""
    row: SegmentRow = manifest.segments[number]
    copies = {t.offset: t for t in manifest.tensors if t.segment == number and t.nbytes}
    pieces: list[bytes] = []
    end = gap_max = 0
    for offset, tensor in sorted(copies.items()):
        assert tensor.copied_from is not None
        if offset > end:
            pieces.append(pack_piece(place[number], INLINE, end, offset - end, 0, 0))
            gap_max = max(gap_max, offset - end)
        source, at = tensor.copied_from
        kind, index = (SEGMENT, place[source]) if source in place else (POOL, sources.setdefault(source, len(sources)))
        pieces.append(pack_piece(place[number], kind, offset, tensor.nbytes, at, index))
        end = offset + tensor.nbytes
    if row.nbytes > end:
        pieces.append(pack_piece(place[number], INLINE, end, row.nbytes - end, 0, 0))
        gap_max = max(gap_max, row.nbytes - end)
    return pieces, gap_max


def _sorted(pieces: bytes) -> list[tuple[int, ...]]:
    return sorted(piece for piece in unpack_pieces(pieces) if piece[3])
