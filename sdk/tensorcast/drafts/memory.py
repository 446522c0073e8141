"""A draft from tensors in this process's memory.

The segment is a safetensors image: 8 bytes of header length, JSON padded with spaces until the data starts at a
multiple of 64, then the tensors by falling item size and name, without a gap, so that each lies at a multiple of its
item size. What the format cannot say is kept in the manifest: tied names, and C128 (in the image it is U8, with dtype
and shape in the metadata). Zero-size tensors have no bytes and lie at offset 0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tensorcast.checkpoint.header import METADATA
from tensorcast.deadline import Deadline
from tensorcast.drafts.draft import INLINE, MEMORY, Draft, Piece, memory_at
from tensorcast.drafts.intake import Block, blocks_of
from tensorcast_bus.dtypes import FILE_DTYPES, alignment
from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, TensorRow
from tensorcast_native import tensor_digest

HEADER_ALIGNMENT = 64
DTYPES_KEY = "tensorcast.dtypes"

Described = tuple[str, str, tuple[int, ...], int]


def draft_from_tensors(x: object, art_id: str, *, deadline: Deadline) -> Draft:
    """`x`: a tensor, array, (nested) dict of them, or module. Raises BadCheckpoint and Timeout."""
    blocks = blocks_of(x, deadline)
    blocks.sort(key=lambda b: (-alignment(b.dtype), b.name))
    stored = _one_for_each_tie(blocks)
    deadline.left_ms("describing the tensors")
    header = image_header([(b.name, b.dtype, b.shape, b.nbytes) for b in stored])
    pieces = [Piece(0, INLINE, 0, len(header), 0)]
    at, places = len(header), dict[object, int]()
    for block in stored:
        if block.nbytes:
            pieces.append(Piece(0, MEMORY, at, block.nbytes, block.address))
            places[block.tie] = at
            at += block.nbytes
    rows = [
        TensorRow(b.name, b.dtype, b.shape, 0, places[b.tie] if b.nbytes else 0, b.nbytes)
        for b in sorted(blocks, key=lambda b: (places.get(b.tie, 0) if b.nbytes else 0, b.name))
    ]
    deadline.left_ms("describing the tensors")
    manifest = Manifest(MANIFEST_VERSION, art_id, (SegmentRow(at),), tuple(rows))
    by_name = {b.name: b for b in blocks}
    return Draft(
        manifest,
        pieces=pieces,
        digester=lambda deadline: _digests([by_name[r.name] for r in rows], deadline),
        inline=header,
        bytes_copied=sum(b.copied for b in blocks),
        keep=blocks,
    )


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


def _digests(blocks: Sequence[Block], deadline: Deadline) -> list[bytes]:
    known: dict[object, bytes] = {}
    found: list[bytes] = []
    for block in blocks:
        deadline.left_ms("digesting the caller's tensors")
        if block.nbytes == 0:
            found.append(tensor_digest(b""))
            continue
        if block.tie not in known:
            known[block.tie] = tensor_digest(memory_at(block.address, block.nbytes))
        found.append(known[block.tie])
    return found
