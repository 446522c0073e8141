"""Drafts of clients: what is taken, and which word each kind of nonsense gets."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast_bus.errors import Invalid, LocalProtocolError, MessageTooLarge, TensorCastError
from tensorcast_bus.manifest import (
    MANIFEST_VERSION,
    Manifest,
    SegmentRow,
    SourceFile,
    TensorRow,
    encode_manifest,
    with_digests,
)
from tensorcast_bus.notes import PutDraft
from tensorcast_services.storage.draft_rows import is_hex
from tensorcast_services.storage.drafts import Draft, check_sources, decode_note, read_draft, room_bytes
from tensorcast_services.storage.load_plan import plan_load

GOOD = TensorRow("t", "F32", (2, 2), 0, 0, 16)
FILE = SourceFile("/data/m.safetensors", 1, 2, 16, 3)


def check(manifest: Manifest, *, source: str = "vm_read", body: bytes | None = None, **of_put: object) -> Draft:
    note = decode_note(
        body if body is not None else msgspec.msgpack.encode(PutDraft(manifest, **of_put)),  # type: ignore[arg-type]
        art_id="x",
        draft_bytes_max=100_000,
    )
    assert isinstance(note, PutDraft)
    sizes = [segment.nbytes for segment in manifest.segments if not segment.key]
    return read_draft(note, art_id="x", segment_bytes=sizes, source=source, tensors_max=3)


def manifest(*rows: TensorRow, segments: tuple[SegmentRow, ...] = (SegmentRow(16),), art_id: str = "x") -> Manifest:
    return Manifest(MANIFEST_VERSION, art_id, segments, rows)


def test_a_good_draft_foretells_the_exact_size_of_its_manifest() -> None:
    m = manifest(GOOD, TensorRow("u", "U8", (3,), 0, 13, 3))
    draft = check(m, durable=True)
    assert draft.durable and draft.borrowed == ()
    assert draft.manifest_bytes == len(encode_manifest(with_digests(draft.manifest, [b"d" * 16, b"e" * 16])))
    assert not draft.from_files and draft.need_bytes == 16 + draft.manifest_bytes


def test_every_segment_that_a_put_brings_gets_a_key_of_its_own() -> None:
    pair = manifest(GOOD, segments=(SegmentRow(16), SegmentRow(8)))
    keys = [row.key for draft in (check(pair), check(pair)) for row in draft.manifest.segments]
    assert len(set(keys)) == 4 and all(is_hex(key) for key in keys)


@pytest.mark.parametrize(
    ("row", "word"),
    [
        (GOOD.__class__("t", "F32", (2, 2), 0, 0, 15), "has 15 bytes"),
        (TensorRow("t", "F33", (2, 2), 0, 0, 16), "has dtype 'F33'"),
        (TensorRow("t", "F32", (-2, -2), 0, 0, 16), "shape out of bounds"),
        (TensorRow("t", "F32", (2**61,), 0, 0, 16), "shape out of bounds"),
        (TensorRow("t", "U8", (1,) * 65, 0, 0, 1), "shape out of bounds"),
        (TensorRow("t", "F4", (3,), 0, 0, 1), "whole bytes"),
        (TensorRow("t", "F32", (2, 2), 1, 0, 16), "segment 1 of 1"),
        (TensorRow("t", "F32", (2, 2), -1, 0, 16), "segment -1 of 1"),
        (TensorRow("t", "U8", (16,), 0, 1, 16), "1 to 17 of 16"),
        (TensorRow("t", "U8", (4,), 0, -4, 4), "lies at -4"),
        (TensorRow("t", "F32", (1,), 0, 2, 4), "no multiple of its item size"),
        (TensorRow("t", "F32", (2, 2), 0, 0, 16, b"d" * 16), "digest already"),
        (TensorRow("t" * 5000, "F32", (2, 2), 0, 0, 16), "name of 5000"),
        (TensorRow("t", "F32", (2, 2), 0, 0, 16, b"", (0, 0)), "copied from another segment"),
    ],
)
def test_a_bad_row_is_named_with_what_is_wrong(row: TensorRow, word: str) -> None:
    with pytest.raises(Invalid, match=word) as refused:
        check(manifest(row))
    assert "'x'" in str(refused.value)


def test_names_are_unique_and_counts_and_sizes_bounded() -> None:
    with pytest.raises(Invalid, match="appears twice"):
        check(manifest(GOOD, GOOD))
    with pytest.raises(Invalid, match="4 tensors; the limit is 3"):
        check(manifest(*(TensorRow(str(i), "U8", (0,), 0, 0, 0) for i in range(4))))
    with pytest.raises(MessageTooLarge, match="draft_bytes_max"):
        check(manifest(GOOD), body=b"x" * 100_001)
    with pytest.raises(Invalid, match="names 'y'"):
        check(manifest(GOOD, art_id="y"))
    with pytest.raises(Invalid, match="calls itself a view"):
        check(msgspec.structs.replace(manifest(GOOD), view=True))
    with pytest.raises(Invalid, match="out of bounds"):
        check(manifest(segments=(SegmentRow(2**61),)))


def test_a_file_segment_has_the_size_of_its_file_and_an_absolute_path() -> None:
    for file, word in (
        (msgspec.structs.replace(FILE, size=17), "has 16 bytes, its file 17"),
        (msgspec.structs.replace(FILE, path="m.bin"), "not an absolute path"),
        (msgspec.structs.replace(FILE, path="/m\0"), "not an absolute path"),
    ):
        with pytest.raises(Invalid, match=word):
            check(manifest(GOOD, segments=(SegmentRow(16, file),)))


def test_only_what_files_alone_can_give_back_counts_as_lying_in_files() -> None:
    aside = (SegmentRow(16, FILE), SegmentRow(8, aside=True))
    copied = TensorRow("u", "F64", (1,), 1, 0, 8, b"", (0, 4))
    assert check(manifest(GOOD, copied, segments=aside), source="file").from_files
    assert not check(manifest(GOOD, copied, segments=aside), source="vm_read").from_files
    stray = TensorRow("u", "F64", (1,), 1, 0, 8)
    assert not check(manifest(GOOD, stray, segments=aside), source="file").from_files
    assert not check(manifest(GOOD, segments=(SegmentRow(16, FILE), SegmentRow(4))), source="file").from_files
    with pytest.raises(Invalid, match="holds no originals"):
        check(manifest(TensorRow("u", "F64", (1,), 1, 0, 8, b"", (1, 0)), segments=aside), source="file")


ASIDE = (SegmentRow(16, FILE), SegmentRow(76, aside=True))
A, B = TensorRow("a", "F32", (3,), 1, 0, 12, b"", (0, 1)), TensorRow("b", "F32", (3,), 1, 64, 12, b"", (0, 3))


def test_rows_to_digest_are_the_manifests_own() -> None:
    draft = check(manifest(A, B, segments=ASIDE), source="file")
    assert draft.rows == struct.pack("<IIQQIIQQ", 1, 0, 0, 12, 1, 0, 64, 12)


def test_a_put_from_files_must_bring_the_files_and_the_plan_of_its_draft() -> None:
    draft = check(manifest(A, B, segments=ASIDE), source="file")
    files, pieces = [(1, 2, 16, 3)], plan_load(draft.manifest).pieces
    check_sources(draft, files=files, pieces=pieces)
    whole, first, gap, second = (pieces[i : i + 40] for i in range(0, len(pieces), 40))
    check_sources(draft, files=files, pieces=gap + second + first + whole)
    for other in ([], [(1, 2, 16, 4)], [(1, 3, 16, 3)], [*files, *files]):
        with pytest.raises(LocalProtocolError, match=r"'x'.* source files"):
            check_sources(draft, files=other, pieces=pieces)
    from_elsewhere = struct.pack("<IIQQQII", 1, 4, 64, 12, 4, 0, 0)
    for plan in (whole + first + gap, whole + first + gap + from_elsewhere, pieces + second, pieces[:-1], b""):
        with pytest.raises(LocalProtocolError, match="reads its source files otherwise"):
            check_sources(draft, files=files, pieces=plan)
    check_sources(check(manifest(GOOD)), files=[], pieces=b"")


def test_a_segment_of_copies_has_gaps_for_alignment_only_and_no_overlaps() -> None:
    tied = msgspec.structs.replace(B, name="tied")
    assert check(manifest(A, B, tied, segments=ASIDE), source="file").from_files
    for rows, nbytes, word in (
        ((B,), 76 + 65, "gap of 65 bytes"),
        ((msgspec.structs.replace(A, offset=68),), 80, "gap of 68 bytes"),
        ((A, msgspec.structs.replace(B, offset=8)), 20, "overlap"),
        ((A, msgspec.structs.replace(B, offset=0)), 12, "overlap"),
        ((), 1 << 40, "gap of"),
    ):
        with pytest.raises(Invalid, match=f"segment 1 of 'x', of copies, has .*{word}"):
            check(manifest(*rows, segments=(SegmentRow(16, FILE), SegmentRow(nbytes, aside=True))), source="file")


@given(st.binary(max_size=200))
def test_noise_is_refused_and_never_raises_anything_else(noise: bytes) -> None:
    with pytest.raises(TensorCastError):
        check(manifest(GOOD), body=noise)


def test_a_deeply_nested_draft_is_refused() -> None:
    with pytest.raises(LocalProtocolError):
        check(manifest(GOOD), body=b"\x91" * 50_000)


def test_room_is_counted_in_whole_blocks_from_256_kib() -> None:
    assert [room_bytes(n) for n in (0, 100, 256 << 10, (2 << 20) + 1)] == [0, 100, 2 << 20, 4 << 20]
