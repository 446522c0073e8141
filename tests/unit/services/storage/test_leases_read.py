"""Drafts of registrations: what a lease must bring, and how a load of one is finished."""

from __future__ import annotations

import msgspec
import pytest

from tensorcast_bus.errors import Invalid, LeaseLost
from tensorcast_bus.manifest import (
    MANIFEST_VERSION,
    Manifest,
    SegmentRow,
    SourceFile,
    TensorRow,
    content_digest,
    decode_manifest,
    encode_manifest,
)
from tensorcast_bus.notes import LeaseDraft
from tensorcast_services.storage.drafts import TTL_MS_MAX, TTL_MS_MIN, LeasePlan, decode_note, read_lease
from tensorcast_services.storage.sealing import finish_lease
from tensorcast_services.storage.sources import SourceTrouble

PENDING = "pending:" + "0a" * 16
FILE = SourceFile("/data/m.safetensors", 1, 2, 16, 3)
IN_MEMORY = Manifest(
    MANIFEST_VERSION,
    "x",
    (SegmentRow(16),),
    (TensorRow("t", "F32", (2,), 0, 0, 8, b"d" * 16), TensorRow("u", "U8", (8,), 0, 8, 8, b"e" * 16)),
)
IN_FILE = Manifest(MANIFEST_VERSION, "x", (SegmentRow(16, FILE),), (TensorRow("t", "F32", (4,), 0, 0, 16),))


def check(manifest: Manifest, digest: str, *, source: str = "vm_read", ttl_ms: int = 60_000) -> LeasePlan:
    note = decode_note(
        msgspec.msgpack.encode(LeaseDraft(manifest, ttl_ms, digest)), art_id="x", draft_bytes_max=100_000
    )
    assert isinstance(note, LeaseDraft)
    sizes = [segment.nbytes for segment in manifest.segments]
    return read_lease(note, art_id="x", segment_bytes=sizes, source=source, tensors_max=3)


def test_memory_is_registered_under_its_content_digest() -> None:
    plan = check(IN_MEMORY, content_digest(IN_MEMORY))
    assert plan.ttl_ms == 60_000 and plan.draft.manifest_bytes == len(encode_manifest(plan.draft.manifest))
    for digest in ("0a" * 16, PENDING, ""):
        with pytest.raises(Invalid, match="it must be"):
            check(IN_MEMORY, digest)


def test_files_are_registered_under_a_pending_digest_without_digests_of_tensors() -> None:
    assert check(IN_FILE, PENDING, source="file").digest == PENDING
    for digest in (content_digest(IN_FILE), "pending:", "pending:" + "0A" * 16, "pending:" + "0a" * 17):
        with pytest.raises(Invalid, match="nobody has read"):
            check(IN_FILE, digest, source="file")
    rows = (msgspec.structs.replace(IN_FILE.tensors[0], digest=b"d" * 16),)
    with pytest.raises(Invalid, match="has a digest already"):
        check(msgspec.structs.replace(IN_FILE, tensors=rows), PENDING, source="file")


def test_memory_that_calls_itself_a_file_is_refused() -> None:
    with pytest.raises(Invalid, match="not all of it comes from them"):
        check(IN_FILE, content_digest(IN_FILE), source="vm_read")


@pytest.mark.parametrize("digest", [b"", b"d" * 15, b"d" * 17])
def test_a_row_of_memory_has_sixteen_bytes_of_digest(digest: bytes) -> None:
    rows = (msgspec.structs.replace(IN_MEMORY.tensors[0], digest=digest),)
    broken = msgspec.structs.replace(IN_MEMORY, tensors=rows)
    with pytest.raises(Invalid, match=f"a digest of {len(digest)} bytes"):
        check(broken, content_digest(broken))


@pytest.mark.parametrize("ttl_ms", [TTL_MS_MIN - 1, 0, -1, TTL_MS_MAX + 1, 1 << 62])
def test_a_lease_lasts_a_second_to_a_week(ttl_ms: int) -> None:
    with pytest.raises(Invalid, match=f"would last {ttl_ms} ms"):
        check(IN_MEMORY, content_digest(IN_MEMORY), ttl_ms=ttl_ms)


def test_a_lease_borrows_nothing() -> None:
    segments = (SegmentRow(16, key="0a" * 16),)
    borrowing = msgspec.structs.replace(IN_MEMORY, segments=segments)
    note = LeaseDraft(borrowing, 60_000, content_digest(borrowing))
    with pytest.raises(Invalid, match="borrows segments"):
        read_lease(note, art_id="x", segment_bytes=[], source="vm_read", tensors_max=3)


def test_memory_that_was_written_to_after_its_registration_is_a_lost_lease() -> None:
    plan = check(IN_MEMORY, content_digest(IN_MEMORY))
    summary, manifest, blob = finish_lease(plan, b"d" * 16 + b"e" * 16)
    assert summary.digest == content_digest(IN_MEMORY) and decode_manifest(blob) == manifest == plan.draft.manifest
    with pytest.raises(SourceTrouble, match="tensor 'u' has other bytes") as lost:
        finish_lease(plan, b"d" * 16 + b"f" * 16)
    assert lost.value.lost and isinstance(lost.value.error, LeaseLost)


def test_the_first_load_of_registered_files_gives_them_their_digests() -> None:
    plan = check(IN_FILE, PENDING, source="file")
    summary, manifest, blob = finish_lease(plan, b"d" * 16)
    assert manifest.tensors[0].digest == b"d" * 16 and len(blob) == plan.draft.manifest_bytes
    assert summary.digest == content_digest(manifest) and summary.files == (("/data/m.safetensors", 1, 2, 16, 3),)
