"""Delta versions: what a draft may say of its base, and what its finished manifest is."""

from __future__ import annotations

import struct
from itertools import takewhile

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast_bus.errors import Invalid, LocalProtocolError, TensorCastError
from tensorcast_bus.manifest import (
    MANIFEST_VERSION,
    Manifest,
    SegmentRow,
    SourceFile,
    TensorRow,
    content_digest,
    decode_manifest,
)
from tensorcast_bus.notes import PutDraft
from tensorcast_native import tensor_digest
from tensorcast_services.storage.borrowing import BaseGone, check_borrowed
from tensorcast_services.storage.drafts import Draft, decode_note, read_draft
from tensorcast_services.storage.jobs import PutJob
from tensorcast_services.storage.sealing import finish_put

ONE, TWO = "0a" * 16, "0b" * 16
BASE = Manifest(
    MANIFEST_VERSION,
    "x@1",
    (SegmentRow(32, key=ONE), SegmentRow(16, key=TWO)),
    (
        TensorRow("a", "F32", (4,), 0, 0, 16, b"a" * 16),
        TensorRow("b", "F32", (4,), 0, 16, 16, b"b" * 16),
        TensorRow("c", "U8", (16,), 1, 0, 16, b"c" * 16),
    ),
)
NEW = SegmentRow(16)
BORROWED = SegmentRow(32, key=ONE)
CHANGED = TensorRow("a", "F32", (4,), 0, 0, 16)
KEPT = TensorRow("b", "F32", (4,), 1, 16, 16, b"b" * 16)


def delta(*rows: TensorRow, segments: tuple[SegmentRow, ...] = (NEW, BORROWED)) -> Manifest:
    return Manifest(MANIFEST_VERSION, "x@2", segments, rows)


def read(manifest: Manifest, *, base: str = "x@1", base_digest: str | None = None) -> Draft:
    digest = content_digest(BASE) if base_digest is None else base_digest
    sizes = [segment.nbytes for segment in takewhile(lambda segment: not segment.key, manifest.segments)]
    note = PutDraft(manifest, base=base, base_digest=digest)
    return read_draft(note, art_id="x@2", segment_bytes=sizes, source="vm_read", tensors_max=10)


def test_a_delta_counts_and_digests_only_what_it_brings() -> None:
    draft = read(delta(CHANGED, KEPT))
    assert draft.borrowed == (ONE,) and draft.manifest.segments[1].key == ONE
    assert draft.rows == struct.pack("<IIQQ", 0, 0, 0, 16)
    assert draft.need_bytes == 16 + draft.manifest_bytes


def test_the_finished_manifest_has_the_bases_digests_and_the_new_ones() -> None:
    draft = check_borrowed(read(delta(KEPT, CHANGED)), BASE)
    summary, blob = finish_put(PutJob("x@2", draft, "vm_read"), b"n" * 16)
    assert [row.digest for row in decode_manifest(blob).tensors] == [b"b" * 16, b"n" * 16]
    assert len(blob) == draft.manifest_bytes and summary.digest == content_digest(decode_manifest(blob))
    with pytest.raises(LocalProtocolError, match="1 tensors to digest, and 2 were"):
        finish_put(PutJob("x@2", draft, "vm_read"), b"n" * 32)


def test_what_nobody_compared_with_its_base_is_never_finished() -> None:
    with pytest.raises(AssertionError):
        finish_put(PutJob("x@2", read(delta(CHANGED, KEPT)), "vm_read"), b"n" * 16)


def test_other_names_and_shapes_of_the_same_bytes_are_borrowed() -> None:
    other = msgspec.structs.replace(KEPT, name="renamed", shape=(2, 2))
    tied = msgspec.structs.replace(KEPT, name="tied")
    assert check_borrowed(read(delta(CHANGED, other, tied)), BASE).base_checked


def test_a_draft_that_brings_nothing_is_taken() -> None:
    kept = msgspec.structs.replace(KEPT, segment=0)
    empty = TensorRow("e", "F32", (0,), 0, 0, 0, tensor_digest(b""))
    draft = check_borrowed(read(delta(kept, empty, segments=(BORROWED,))), BASE)
    assert draft.rows == b"" and draft.need_bytes == draft.manifest_bytes
    lie = msgspec.structs.replace(empty, digest=b"x" * 16)
    with pytest.raises(LocalProtocolError, match="'e' of 'x@2' is not as 'x@1' has it"):
        check_borrowed(read(delta(kept, lie, segments=(BORROWED,))), BASE)


@pytest.mark.parametrize(
    "lie",
    [
        msgspec.structs.replace(KEPT, digest=b"x" * 16),
        msgspec.structs.replace(KEPT, offset=0),
        msgspec.structs.replace(KEPT, offset=8),
        msgspec.structs.replace(KEPT, dtype="I32"),
        TensorRow("b", "F32", (2,), 1, 16, 8, b"b" * 16),
        TensorRow("b", "U8", (16,), 1, 0, 16, b"c" * 16),  # the base has it in its other segment
    ],
)
def test_a_row_that_the_base_never_had_is_refused(lie: TensorRow) -> None:
    draft = read(delta(CHANGED, lie))
    with pytest.raises(LocalProtocolError, match="'b' of 'x@2' is not as 'x@1' has it"):
        check_borrowed(draft, BASE)


def test_a_segment_that_lies_there_no_more_is_a_base_that_is_gone() -> None:
    compacted = msgspec.structs.replace(BASE, segments=(SegmentRow(32, key="0c" * 16), BASE.segments[1]))
    with pytest.raises(BaseGone):
        check_borrowed(read(delta(CHANGED, KEPT)), compacted)
    longer = delta(CHANGED, KEPT, segments=(NEW, SegmentRow(64, key=ONE)))
    with pytest.raises(LocalProtocolError, match="borrows 64 bytes of a segment of 32"):
        check_borrowed(read(longer), BASE)


@pytest.mark.parametrize(
    ("manifest", "word"),
    [
        (delta(CHANGED, KEPT, segments=(NEW, SegmentRow(32, key="0A" * 16))), "not 32 hex digits"),
        (delta(CHANGED, KEPT, segments=(NEW, SegmentRow(32, key="../" * 10))), "not 32 hex digits"),
        (delta(CHANGED, KEPT, segments=(NEW, SegmentRow(32, aside=True, key=ONE))), "named by its key alone"),
        (
            delta(CHANGED, KEPT, segments=(NEW, SegmentRow(32, SourceFile("/m", 1, 2, 32, 3), key=ONE))),
            "named by its key alone",
        ),
        (delta(CHANGED, KEPT, segments=(NEW, BORROWED, NEW)), "segment 2 of 'x@2' has the key ''"),
        (delta(CHANGED, KEPT, segments=(NEW, BORROWED, BORROWED)), "as another one has"),
        (delta(CHANGED, KEPT, segments=(NEW, BORROWED, SegmentRow(16, key=TWO))), "none of its tensors lies"),
        (delta(CHANGED, msgspec.structs.replace(KEPT, digest=b"")), "a digest of 0 bytes"),
        (delta(msgspec.structs.replace(CHANGED, digest=b"a" * 16), KEPT), "has a digest already"),
        (delta(CHANGED, KEPT, segments=(NEW, SegmentRow(-1, key=ONE))), "out of bounds"),
        (delta(CHANGED, KEPT, segments=(NEW, SegmentRow(1 << 61, key=ONE))), "out of bounds"),
    ],
)
def test_a_malformed_loan_is_refused_with_what_is_wrong(manifest: Manifest, word: str) -> None:
    with pytest.raises(Invalid, match=word):
        read(manifest)


@pytest.mark.parametrize(("base", "digest"), [("", "0a" * 16), ("x@1", ""), ("x@1", "no"), ("../x", "0a" * 16)])
def test_a_loan_names_its_base_and_the_bases_digest(base: str, digest: str) -> None:
    with pytest.raises(Invalid):
        read(delta(CHANGED, KEPT), base=base, base_digest=digest)


LEAVES = st.one_of(
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.text(max_size=4),
    st.binary(max_size=16),
    st.none(),
    st.booleans(),
    st.just([]),
)


@given(st.data())
def test_a_draft_with_any_one_value_changed_is_refused_or_still_a_draft(data: st.DataObject) -> None:
    tree = msgspec.msgpack.decode(
        msgspec.msgpack.encode(PutDraft(delta(CHANGED, KEPT), base="x@1", base_digest=content_digest(BASE)))
    )
    node = tree
    while True:
        at = data.draw(st.integers(0, len(node) - 1))
        if not isinstance(node[at], list) or not node[at] or data.draw(st.booleans()):
            break
        node = node[at]
    node[at] = data.draw(LEAVES)
    try:
        note = decode_note(msgspec.msgpack.encode(tree), art_id="x@2", draft_bytes_max=1 << 20)
        assert isinstance(note, PutDraft)
        draft = read_draft(note, art_id="x@2", segment_bytes=[16], source="vm_read", tensors_max=10)
        if draft.borrowed:
            check_borrowed(draft, BASE)
    except (TensorCastError, BaseGone):
        return
