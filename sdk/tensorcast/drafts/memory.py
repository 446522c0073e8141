"""A draft from tensors in this process's memory.

The segment is a safetensors image: 8 bytes of header length, JSON padded with spaces until the data starts at a
multiple of 64, then the tensors by falling item size and name, without a gap, so that each lies at a multiple of its
item size. What the format cannot say is kept in the manifest: tied names, and C128 (in the image it is U8, with dtype
and shape in the metadata). Zero-size tensors have no bytes and lie at offset 0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from tensorcast.checkpoint.header import METADATA
from tensorcast.deadline import Deadline
from tensorcast.drafts.digests import digests_of
from tensorcast.drafts.draft import INLINE, MEMORY, Draft, Piece
from tensorcast.drafts.intake import Block, blocks_of
from tensorcast_bus.dtypes import FILE_DTYPES, alignment
from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, TensorRow

HEADER_ALIGNMENT = 64
DTYPES_KEY = "tensorcast.dtypes"

Described = tuple[str, str, tuple[int, ...], int]


class Image(msgspec.Struct, frozen=True):
    """A segment to be: its plan and size, and where each tie with bytes lies in it."""

    header: bytes
    pieces: list[Piece]
    places: dict[object, int]
    nbytes: int


def draft_from_tensors(x: object, art_id: str, *, deadline: Deadline) -> Draft:
    """`x`: a tensor, array, (nested) dict of them, or module. Raises BadCheckpoint and Timeout."""
    blocks = blocks_of(x, deadline)
    deadline.left_ms("describing the tensors")
    image = image_of(blocks)
    places = image.places
    rows = [
        TensorRow(b.name, b.dtype, b.shape, 0, places[b.tie] if b.nbytes else 0, b.nbytes)
        for b in sorted(blocks, key=lambda b: (places.get(b.tie, 0) if b.nbytes else 0, b.name))
    ]
    deadline.left_ms("describing the tensors")
    manifest = Manifest(MANIFEST_VERSION, art_id, (SegmentRow(image.nbytes),), tuple(rows))
    by_name = {b.name: b for b in blocks}
    return Draft(
        manifest,
        pieces=image.pieces,
        digester=lambda deadline: digests_of([by_name[r.name] for r in rows], deadline),
        inline=image.header,
        bytes_copied=sum(b.copied for b in blocks),
        blocks=blocks,
    )


def image_of(blocks: Sequence[Block]) -> Image:
    """Segment 0 with these tensors, tied ones once."""
    stored = _one_for_each_tie(sorted(blocks, key=lambda b: (-alignment(b.dtype), b.name)))
    header = image_header([(b.name, b.dtype, b.shape, b.nbytes) for b in stored])
    pieces = [Piece(0, INLINE, 0, len(header), 0)]
    at, places = len(header), dict[object, int]()
    for block in stored:
        if block.nbytes:
            pieces.append(Piece(0, MEMORY, at, block.nbytes, block.address))
            places[block.tie] = at
            at += block.nbytes
    return Image(header, pieces, places, at)


def image_header(tensors: Sequence[Described], *, metadata: dict[str, str] | None = None) -> bytes:
    """Header bytes, length word included, for (name, dtype, shape, nbytes) in the order of their data."""
    table: dict[str, object] = {}
    odd: dict[str, object] = {}
    at = 0
    for name, dtype, shape, nbytes in tensors:
        if dtype not in FILE_DTYPES:
            odd[name] = [dtype, list(shape)]
            dtype, shape = "U8", (nbytes,)
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    notes = dict(metadata or {})
    if odd:
        notes[DTYPES_KEY] = json.dumps(odd, ensure_ascii=False)
    text = json.dumps(
        {METADATA: notes, **table} if notes else table, ensure_ascii=False, separators=(",", ":")
    ).encode()
    padded = text.ljust(-(-(len(text) + 8) // HEADER_ALIGNMENT) * HEADER_ALIGNMENT - 8, b" ")
    return len(padded).to_bytes(8, "little") + padded


def _one_for_each_tie(blocks: Sequence[Block]) -> list[Block]:
    found: dict[object, Block] = {}
    for block in blocks:
        found.setdefault(block.tie if block.nbytes else block.name, block)
    return list(found.values())
