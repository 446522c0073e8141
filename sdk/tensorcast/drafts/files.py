"""A draft from checkpoint files: each file is a segment of its own, byte for byte, read in place.

A tensor whose offset in the file is not a multiple of its item size is copied into an aside segment (one a file, each
tensor at a multiple of 64), since a reader maps the file's bytes as they are. Zero-size tensors lie at offset 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tensorcast.checkpoint.header import Entry, FileHeader
from tensorcast.checkpoint.opened import OpenedFile, changed
from tensorcast.checkpoint.source import Checkpoint, open_checkpoint
from tensorcast.deadline import Deadline
from tensorcast.drafts.draft import FILE, INLINE, SEGMENT, Draft, FileHandle, Piece, pack_rows
from tensorcast_bus.dtypes import alignment
from tensorcast_bus.errors import BadCheckpoint
from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, TensorRow
from tensorcast_native import digest_file

ASIDE_ALIGNMENT = 64
_DIGEST_BYTES = 16


class _Aside(msgspec.Struct):
    """Tensors of file `segment` that lie misaligned there, and where they go."""

    segment: int
    pieces: list[Piece]
    rows: list[TensorRow]
    nbytes: int = 0

    def take(self, entry: Entry, number: int) -> None:
        start = -(-self.nbytes // ASIDE_ALIGNMENT) * ASIDE_ALIGNMENT
        if start > self.nbytes:
            self.pieces.append(Piece(number, INLINE, self.nbytes, start - self.nbytes, 0))
        nbytes = entry.end - entry.begin
        self.pieces.append(Piece(number, SEGMENT, start, nbytes, entry.begin, self.segment))
        self.rows.append(
            TensorRow(
                entry.name, entry.dtype, entry.shape, number, start, nbytes, copied_from=(self.segment, entry.begin)
            )
        )
        self.nbytes = start + nbytes


def draft_from_path(path: str, art_id: str, *, deadline: Deadline) -> Draft:
    """Raises BadCheckpoint and Timeout. The draft owns the open files; leaving it closes them."""
    checkpoint = open_checkpoint(path, deadline)
    try:
        deadline.left_ms("describing the tensors")
        return _draft(checkpoint, art_id)
    except BaseException:
        checkpoint.close()
        raise


def handle(opened: OpenedFile) -> FileHandle:
    source = opened.source
    return opened.fd, source.device, source.inode, source.size, source.mtime_ns


def _draft(checkpoint: Checkpoint, art_id: str) -> Draft:
    segments = [SegmentRow(h.source.size, file=h.source) for h in checkpoint.headers]
    pieces = [Piece(n, FILE, 0, s.nbytes, 0, n) for n, s in enumerate(segments)]
    rows: list[TensorRow] = []
    for number, header in enumerate(checkpoint.headers):
        aside = _Aside(number, [], [])
        rows += _rows(header, number, aside, len(segments))
        if aside.rows:
            rows += aside.rows
            pieces += aside.pieces
            segments.append(SegmentRow(aside.nbytes, aside=True))
    manifest = Manifest(MANIFEST_VERSION, art_id, tuple(segments), tuple(rows), checkpoint.metadata)
    return Draft(
        manifest,
        pieces=pieces,
        digester=lambda deadline: _digests(checkpoint, rows, deadline),
        inline=bytes(ASIDE_ALIGNMENT),
        files=tuple(handle(o) for o in checkpoint.opened),
        close=checkpoint.close,
    )


def _rows(header: FileHeader, number: int, aside: _Aside, aside_number: int) -> list[TensorRow]:
    rows: list[TensorRow] = []
    for entry in header.entries:
        nbytes = entry.end - entry.begin
        if nbytes and entry.begin % alignment(entry.dtype):
            aside.take(entry, aside_number)
        else:
            rows.append(TensorRow(entry.name, entry.dtype, entry.shape, number, entry.begin if nbytes else 0, nbytes))
    return rows


def _digests(checkpoint: Checkpoint, rows: Sequence[TensorRow], deadline: Deadline) -> list[bytes]:
    found: dict[str, bytes] = {}
    in_file: list[list[tuple[TensorRow, int]]] = [[] for _ in checkpoint.opened]
    for row in rows:
        number, at = row.copied_from or (row.segment, row.offset)
        in_file[number].append((row, at))
    for opened, mine in zip(checkpoint.opened, in_file, strict=True):
        phase = f"digesting {opened.shown}"
        done = digest_file(
            handle(opened),
            pack_rows((0, at, r.nbytes) for r, at in mine),
            deadline_ms=deadline.left_ms(phase),
        )
        if done.status == "deadline":
            raise deadline.timeout(phase)
        if done.status in ("source_changed", "source_short"):
            raise changed(opened.shown)
        if done.status != "ok":
            raise BadCheckpoint(
                f"{opened.shown} cannot be digested: {done.status}: {done.detail}; check the disk and put it again",
                path=opened.shown,
            )
        digests = done.digests
        for place, (row, _) in enumerate(mine):
            found[row.name] = digests[place * _DIGEST_BYTES : (place + 1) * _DIGEST_BYTES]
    return [found[r.name] for r in rows]
