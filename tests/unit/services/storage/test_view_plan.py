"""Plans of views, run by a small reader of pieces: the dense segment has the bytes that the boxes name."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest

from tensorcast_bus.manifest import Manifest
from tensorcast_bus.notes import Box
from tensorcast_services.storage import view_plan
from tensorcast_services.storage.boxes import Cut, cut_boxes
from tensorcast_services.storage.load_plan import LoadPlan
from tensorcast_services.storage.pieces import FILE, INLINE, MEMORY, pack_piece, unpack_pieces
from tensorcast_services.storage.view_plan import CannotCut, Span, Spans, dense_view, kept_spans, view_image
from tests.unit.services.storage.test_boxes import gathered, manifest_of

BOXES = [
    Box("rows", "w", (1, 0, 0), (2, 5, 8)),
    Box("columns", "w", (0, 1, 2), (4, 3, 4)),
    Box("all", "b", (0,), (7,)),
    Box("none", "w", (0, 0, 0), (0, 5, 8)),
]


@pytest.fixture
def base() -> tuple[Manifest, bytes]:
    manifest = manifest_of(("w", "I16", (4, 5, 8)), ("b", "U8", (7,)))
    return manifest, random.Random(1).randbytes(manifest.segments[0].nbytes)


def cuts_of(manifest: Manifest, boxes: Sequence[Box] = BOXES) -> list[Cut]:
    return cut_boxes(manifest, boxes, boxes_max=100)


def run(plan: LoadPlan, sources: dict[int, bytes]) -> bytes:
    """`sources` by kind; every byte is written exactly once."""
    out = bytearray(plan.segment_bytes[0])
    written = 0
    for segment, kind, dst, nbytes, src, _, _ in unpack_pieces(plan.pieces):
        assert segment == 0 and dst == written, "pieces come in order, without a gap"
        part = (sources | {INLINE: plan.inline})[kind][src : src + nbytes]
        assert len(part) == nbytes
        out[dst : dst + nbytes] = part
        written += nbytes
    assert written == len(out)
    return bytes(out)


def in_one_file(manifest: Manifest) -> Spans:
    return {0: [Span(0, manifest.segments[0].nbytes, FILE, 0, 0)]}


def expected(cuts: Sequence[Cut], content: bytes) -> list[bytes]:
    return [gathered(cut, content[cut.row.offset : cut.row.offset + cut.row.nbytes]) for cut in cuts]


def test_a_dense_view_has_its_boxes_in_order_at_multiples_of_64(base: tuple[Manifest, bytes]) -> None:
    manifest, content = base
    cuts = cuts_of(manifest)
    view, plan = dense_view(manifest, cuts, in_one_file(manifest))
    image = run(plan, {FILE: content})
    assert view.view and [row.name for row in view.tensors] == [box.name for box in BOXES]
    assert [image[row.offset : row.offset + row.nbytes] for row in view.tensors] == expected(cuts, content)
    assert all(row.offset % 64 == 0 for row in view.tensors)
    digested = {row.name for row in view.tensors if row.digest}
    assert digested == {"all"}, "a part of a tensor has no digest that anybody knows"


def test_pieces_of_a_registration_may_lie_anywhere_in_memory(base: tuple[Manifest, bytes]) -> None:
    manifest, content = base
    memory = bytes(1000) + content[128:] + bytes(100) + content[:128]
    pieces = pack_piece(0, MEMORY, 128, len(content) - 128, 1000, 0)
    pieces += pack_piece(0, MEMORY, 0, 128, 1100 + len(content) - 128, 0)
    cuts = cuts_of(manifest)
    view, plan = dense_view(manifest, cuts, kept_spans(pieces))
    image = run(plan, {MEMORY: memory})
    assert [image[row.offset : row.offset + row.nbytes] for row in view.tensors] == expected(cuts, content)


def test_an_image_of_a_view_is_a_safetensors_file(base: tuple[Manifest, bytes]) -> None:
    manifest, content = base
    cuts = cuts_of(manifest)
    rows, plan = view_image(cuts, in_one_file(manifest))
    image = run(plan, {FILE: content})
    size = int.from_bytes(image[:8], "little")
    head = json.loads(image[8 : 8 + size])
    wanted = dict(zip([cut.name for cut in cuts], expected(cuts, content), strict=True))
    for name, place in head.items():
        begin, end = (8 + size + at for at in place["data_offsets"])
        assert image[begin:end] == wanted[name]
    assert {row.name: image[row.offset : row.offset + row.nbytes] for row in rows} == wanted
    assert not any(row.digest for row in rows)


def test_too_many_runs_and_bytes_that_came_in_a_message_are_not_cut(
    base: tuple[Manifest, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, _ = base
    with pytest.raises(CannotCut):
        dense_view(manifest, cuts_of(manifest), kept_spans(pack_piece(0, INLINE, 0, 1 << 20, 0, 0)))
    with pytest.raises(CannotCut):
        dense_view(manifest, cuts_of(manifest), {})
    monkeypatch.setattr(view_plan, "VIEW_PIECES_MAX", 10)
    with pytest.raises(CannotCut):
        dense_view(manifest, cuts_of(manifest), in_one_file(manifest))
