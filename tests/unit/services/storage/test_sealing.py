"""A file's image must begin with the header that named its tensors."""

from __future__ import annotations

import pytest

from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, SourceFile
from tensorcast_native import xxh3_128
from tensorcast_services.storage.sealing import check_headers
from tensorcast_services.storage.sources import SourceTrouble

HEADER = b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'
IMAGE = len(HEADER).to_bytes(8, "little") + HEADER + b"\1\2"
DIGEST = xxh3_128(IMAGE[:-2])


def manifest_of(digest: bytes) -> Manifest:
    file = SourceFile("/models/m.safetensors", 1, 2, len(IMAGE), 3, digest)
    return Manifest(MANIFEST_VERSION, "m@1", (SegmentRow(64, aside=True), SegmentRow(len(IMAGE), file)), ())


def check(image: bytes, digest: bytes = DIGEST) -> None:
    check_headers("m@1", manifest_of(digest), lambda number, nbytes: (b"", image)[number][:nbytes])


def test_the_header_that_was_read_is_the_images_own() -> None:
    check(IMAGE)


def test_another_header_of_the_same_length_is_a_changed_file() -> None:
    with pytest.raises(SourceTrouble, match="another header"):
        check(IMAGE.replace(b'"U8"', b'"I8"'))


def test_a_length_beyond_the_image_is_a_changed_file_and_nothing_is_read() -> None:
    with pytest.raises(SourceTrouble, match="another header"):
        check((2**63).to_bytes(8, "little") + IMAGE[8:])


def test_a_draft_without_a_header_digest_is_left_to_its_tensors() -> None:
    check(b"\0" * len(IMAGE), b"")
