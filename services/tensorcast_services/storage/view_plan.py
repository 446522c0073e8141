"""From boxes and a manifest to a plan that reads them and nothing else, in the words of the native floor.

Pure; runs on a thread for tables. Where the bytes of a segment are is a list of spans (a file, a segment of the pool,
the pieces that a registration named), so that one rule serves all of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

import msgspec

from tensorcast_bus.dtypes import alignment
from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, TensorRow
from tensorcast_native import box_pieces
from tensorcast_services.storage.boxes import Cut
from tensorcast_services.storage.images import Stretch, image_head
from tensorcast_services.storage.load_plan import LoadPlan, pack_rows
from tensorcast_services.storage.pieces import INLINE, SEGMENT, pack_piece, unpack_pieces

VIEW_PIECES_MAX = 2_000_000
DENSE_ALIGNMENT = 64


class CannotCut(Exception):
    """The boxes have too many runs, or lie where only the whole can be read: the whole is the answer."""


class Span(msgspec.Struct, frozen=True):
    """`nbytes` of a segment from `dst` on lie at `src` in source number `src_index` of `kind`."""

    dst: int
    nbytes: int
    kind: int
    src: int
    src_index: int


Spans = Mapping[int, Sequence[Span]]  # by segment of the manifest; each list by rising dst


def kept_spans(pieces: bytes) -> Spans:
    """Of the pieces that a registration named."""
    found: dict[int, list[Span]] = {}
    for segment, kind, dst, nbytes, src, src_index, _ in unpack_pieces(pieces):
        if nbytes:
            found.setdefault(segment, []).append(Span(dst, nbytes, kind, src, src_index))
    for spans in found.values():
        spans.sort(key=lambda span: span.dst)
    return found


def dense_view(base: Manifest, cuts: Sequence[Cut], spans: Spans) -> tuple[Manifest, LoadPlan]:
    """The manifest of a view for one reader, and how its one segment is read: each box at a multiple of 64, in order.
    Rows have the digest of the tensor where the box is all of it. CannotCut."""
    at, offsets = 0, list[int]()
    for cut in cuts:
        offsets.append(at if cut.nbytes else 0)
        at += -(-cut.nbytes // DENSE_ALIGNMENT) * DENSE_ALIGNMENT
    end = max((offset + cut.nbytes for offset, cut in zip(offsets, cuts, strict=True)), default=0)
    rows = _rows(cuts, offsets, known=True)
    manifest = Manifest(MANIFEST_VERSION, base.art_id, (SegmentRow(end),), rows, base.metadata, view=True)
    pieces = _pieces(cuts, offsets, spans, filled=0)
    return manifest, LoadPlan([end], pieces, pack_rows(manifest), bytes(DENSE_ALIGNMENT))


def view_image(cuts: Sequence[Cut], spans: Spans) -> tuple[list[TensorRow], LoadPlan]:
    """One segment, a safetensors image, of boxes that become an artifact of their own: its rows (no digests) and how it
    is read. CannotCut."""
    order = sorted(cuts, key=lambda cut: (-alignment(cut.row.dtype), cut.name))
    head = image_head(Stretch(cut.name, cut.row.dtype, cut.shape, cut.nbytes) for cut in order)
    at, offsets = len(head), list[int]()
    for cut in order:
        offsets.append(at if cut.nbytes else 0)
        at += cut.nbytes
    rows = _rows(order, offsets, known=False)
    pieces = pack_piece(0, INLINE, 0, len(head), 0, 0) + _pieces(order, offsets, spans, filled=len(head))
    image = Manifest(MANIFEST_VERSION, "", (SegmentRow(at),), rows)
    return list(rows), LoadPlan([at], pieces, pack_rows(image), head)


def _rows(cuts: Sequence[Cut], offsets: Sequence[int], *, known: bool) -> tuple[TensorRow, ...]:
    return tuple(
        TensorRow(
            cut.name, cut.row.dtype, cut.shape, 0, offset, cut.nbytes, cut.row.digest if known and cut.whole else b""
        )
        for cut, offset in zip(cuts, offsets, strict=True)
    )


def _pieces(cuts: Sequence[Cut], offsets: Sequence[int], spans: Spans, *, filled: int) -> bytes:
    """Gaps are filled with the zeros of the plan's inline bytes; `filled` bytes are there already."""
    left = VIEW_PIECES_MAX
    pieces: list[bytes] = []
    end = filled
    for cut, offset in zip(cuts, offsets, strict=True):
        if not cut.nbytes:
            continue
        if cut.runs > left:
            raise CannotCut(f"its boxes have more than {VIEW_PIECES_MAX} runs")
        left -= cut.runs
        if offset > end:
            pieces.append(pack_piece(0, INLINE, end, offset - end, 0, 0))
        pieces.append(_read(cut, offset, spans))
        end = offset + cut.nbytes
    return b"".join(pieces)


def _read(cut: Cut, dst: int, spans: Spans) -> bytes:
    # Copies aside may not be where their manifest has them, but their originals are.
    segment, offset = cut.row.copied_from or (cut.row.segment, cut.row.offset)
    mine = spans.get(segment, ())
    first, last = offset + cut.begin, offset + cut.end
    begin = max(0, bisect_right(mine, first, key=lambda span: span.dst) - 1)
    mine = mine[begin : bisect_left(mine, last, key=lambda span: span.dst)]
    if len(mine) == 1 and mine[0].dst <= first and last <= mine[0].dst + mine[0].nbytes:
        _check_kind(mine[0])
        return _boxed(cut, dst, mine[0], src=mine[0].src + first - mine[0].dst)
    within = Span(0, last, INLINE, 0, 0)
    runs = unpack_pieces(_boxed(cut, dst, within, src=first))
    return b"".join(_through(mine, at, src, nbytes) for _, _, at, nbytes, src, *_ in runs)


def _boxed(cut: Cut, dst: int, span: Span, *, src: int) -> bytes:
    return box_pieces(
        segment=0,
        kind=span.kind,
        src_index=span.src_index,
        src=src,
        dst=dst,
        run_bytes=cut.run_bytes,
        counts=cut.counts,
        strides=cut.strides,
        pieces_max=VIEW_PIECES_MAX,
    )


def _check_kind(span: Span) -> None:
    if span.kind in (INLINE, SEGMENT):
        raise CannotCut("its bytes came inside a message, or are copies of another segment of the same load")


def _through(spans: Sequence[Span], dst: int, src: int, nbytes: int) -> bytes:
    """One run of a segment from `src` on, wherever its parts lie."""
    pieces: list[bytes] = []
    for span in spans:
        begin, end = max(src, span.dst), min(src + nbytes, span.dst + span.nbytes)
        if begin >= end:
            continue
        _check_kind(span)
        pieces.append(
            pack_piece(0, span.kind, dst + begin - src, end - begin, span.src + begin - span.dst, span.src_index)
        )
    if not pieces:
        raise CannotCut("nothing named brings its bytes")
    return b"".join(pieces)
