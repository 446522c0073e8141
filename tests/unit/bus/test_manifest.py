"""Manifests: sizes, digests and identity of content."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast_bus.dtypes import DTYPE_BITS, FILE_DTYPES, alignment, tensor_bytes
from tensorcast_bus.manifest import (
    MANIFEST_VERSION,
    Manifest,
    SegmentRow,
    SourceFile,
    TensorRow,
    content_digest,
    decode_manifest,
    encode_manifest,
    with_digests,
)

W = TensorRow("w", "F32", (2, 2), 0, 64, 16, b"\x01" * 16)
TIED = msgspec.structs.replace(W, name="lm_head")
EMPTY = TensorRow("empty", "F32", (0, 4), 0, 64, 0, b"\x02" * 16)
B = TensorRow("b", "BF16", (4,), 1, 0, 8, b"\x03" * 16)


def manifest(*tensors: TensorRow) -> Manifest:
    file = SourceFile("/models/m.safetensors", 1, 2, 80, 3)
    return Manifest(MANIFEST_VERSION, "m", (SegmentRow(80, file), SegmentRow(8)), tensors, {"format": "pt"})


def test_a_manifest_survives_its_wire_form() -> None:
    assert decode_manifest(encode_manifest(manifest(W, TIED, B))) == manifest(W, TIED, B)
    assert decode_manifest(memoryview(encode_manifest(manifest(W)))) == manifest(W)


@given(st.binary(max_size=100))
def test_anything_else_is_refused(blob: bytes) -> None:
    try:
        decode_manifest(blob)
    except msgspec.MsgspecError:
        pass


def test_tied_tensors_count_once() -> None:
    assert manifest(W, TIED, B).nbytes == 24


@pytest.mark.parametrize("rows", [(W, EMPTY), (EMPTY, W)])
def test_an_empty_tensor_at_the_place_of_another_hides_nothing(rows: tuple[TensorRow, ...]) -> None:
    assert manifest(*rows).nbytes == 16


def test_digests_are_filled_in_by_order() -> None:
    draft = manifest(msgspec.structs.replace(W, digest=b""), msgspec.structs.replace(B, digest=b""))
    assert with_digests(draft, [W.digest, B.digest]) == manifest(W, B)
    with pytest.raises(ValueError):
        with_digests(draft, [W.digest])


def test_equal_content_has_equal_digests_however_it_is_laid_out() -> None:
    moved = msgspec.structs.replace(W, segment=5, offset=4096, copied_from=(0, 3))
    elsewhere = Manifest(MANIFEST_VERSION, "other", (SegmentRow(9),), (B, moved))
    assert content_digest(manifest(W, B)) == content_digest(elsewhere)


@pytest.mark.parametrize(
    "other",
    [
        msgspec.structs.replace(W, name="v"),
        msgspec.structs.replace(W, dtype="I32"),
        msgspec.structs.replace(W, shape=(4,)),
        msgspec.structs.replace(W, digest=b"\x04" * 16),
    ],
)
def test_other_content_has_another_digest(other: TensorRow) -> None:
    assert content_digest(manifest(W, B)) != content_digest(manifest(other, B))


def test_the_content_digest_is_the_same_on_every_machine() -> None:
    assert content_digest(manifest(W, B)) == "e6042c843c04db52d8da9f64b630b76c"


def test_sizes_are_exact_also_below_a_byte() -> None:
    assert tensor_bytes("F32", (2, 3)) == 24
    assert tensor_bytes("F32", ()) == 4
    assert tensor_bytes("F32", (0, 7)) == 0
    assert tensor_bytes("F4", (2, 3)) == 3
    assert tensor_bytes("F6_E2M3", (4,)) == 3
    with pytest.raises(ValueError, match="whole number of bytes"):
        tensor_bytes("F4", (3,))


def test_alignment_is_the_item_size_and_at_least_a_byte() -> None:
    assert {name: alignment(name) for name in ("F4", "BOOL", "BF16", "C128")} == {
        "F4": 1,
        "BOOL": 1,
        "BF16": 2,
        "C128": 16,
    }
    assert set(DTYPE_BITS) - FILE_DTYPES == {"C128"}
