"""Clients whose word about their own put is not true: what others read, and what a reload brings, stays right."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

import msgspec
import pytest

from tensorcast_bus.errors import Invalid, LocalProtocolError, NotFound
from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, SourceFile, TensorRow
from tensorcast_bus.notes import PutAnswer, PutDone, PutDraft, PutExists
from tensorcast_native import Client
from tests.integration.storage.house import (
    BUDGET_MS,
    FILE,
    INLINE,
    MEMORY,
    SEGMENT,
    House,
    describe,
    draft_of,
    identity,
    put_answer,
    put_file,
    put_memory,
    read,
    rows_of,
    stats,
)
from tests.integration.storage.test_storage import MIB, a_file

_PIECE, _ROW = struct.Struct("<IIQQQII"), struct.Struct("<IIQQ")


def put_manifest(
    client: Client,
    manifest: Manifest,
    *,
    pieces: bytes,
    rows: bytes = b"",
    inline: bytes = b"",
    file: Path | None = None,
) -> PutAnswer:
    """Sends exactly this, true or not."""
    files, fd = [], -1
    if file is not None:
        fd, seen = os.open(file, os.O_RDONLY | os.O_CLOEXEC), identity(file)
        files = [(fd, seen.device, seen.inode, seen.size, seen.mtime_ns)]
    try:
        status, body = client.put(
            manifest.art_id,
            draft=msgspec.msgpack.encode(PutDraft(manifest)),
            segment_bytes=[segment.nbytes for segment in manifest.segments],
            pieces=pieces,
            rows=rows or rows_of(manifest),
            inline=inline,
            files=files,
            deadline_ms=BUDGET_MS,
        )
    finally:
        if fd >= 0:
            os.close(fd)
    return put_answer(status, body)


def test_a_row_table_that_points_elsewhere_gives_other_content_no_foreign_digest(house: House) -> None:
    client, honest, forged = house.client(), b"A" * 4096, b"B" * 4096
    stored = put_memory(client, "honest", {"w": honest})
    both = ctypes.create_string_buffer(forged + honest, 8192)
    manifest = Manifest(MANIFEST_VERSION, "forged", (SegmentRow(8192),), (TensorRow("w", "U8", (4096,), 0, 0, 4096),))
    answer = put_manifest(
        client,
        manifest,
        pieces=_PIECE.pack(0, MEMORY, 0, 8192, ctypes.addressof(both), 0, 0),
        rows=_ROW.pack(0, 0, 4096, 4096),
    )
    again = put_memory(client, "again", {"w": forged})
    assert isinstance(answer, PutDone) and isinstance(stored, PutDone) and isinstance(again, PutDone)
    assert answer.digest != stored.digest and answer.digest == again.digest
    assert read(client, "forged") == {"w": forged}


def test_a_put_that_names_another_file_than_it_sends_is_refused(house: House) -> None:
    client, mine, other = house.client(), a_file(house.folder, "a.bin", MIB), a_file(house.folder, "b.bin", MIB)
    draft = draft_of("x", {"tensor": MIB - 8}, file=identity(other), base=8)
    with pytest.raises(LocalProtocolError, match="names 1 source files"):
        put_manifest(client, draft.manifest, pieces=_PIECE.pack(0, FILE, 0, MIB, 0, 0, 0), file=mine)
    with pytest.raises(NotFound):
        read(client, "x")
    assert not house.sidecars() and stats(client).pool["reserved_bytes"] == 0


def test_a_put_whose_copies_come_from_elsewhere_than_its_draft_says_is_refused(house: House) -> None:
    client, path = house.client(), a_file(house.folder, "a.bin", MIB)
    segments = (SegmentRow(MIB, identity(path)), SegmentRow(4096, aside=True))
    manifest = Manifest(MANIFEST_VERSION, "x", segments, (TensorRow("w", "U8", (4096,), 1, 0, 4096, b"", (0, 9)),))
    whole = _PIECE.pack(0, FILE, 0, MIB, 0, 0, 0)
    with pytest.raises(LocalProtocolError, match="otherwise than its draft says"):
        put_manifest(client, manifest, pieces=whole + _PIECE.pack(1, SEGMENT, 0, 4096, 10, 0, 0), file=path)
    with pytest.raises(LocalProtocolError, match="otherwise than its draft says"):
        plan = whole + _PIECE.pack(1, INLINE, 0, 4096, 0, 0, 0)
        put_manifest(client, manifest, pieces=plan, inline=bytes(4096), file=path)
    good = put_manifest(client, manifest, pieces=whole + _PIECE.pack(1, SEGMENT, 0, 4096, 9, 0, 0), file=path)
    assert isinstance(good, PutDone) and read(client, "x") == {"w": path.read_bytes()[9 : 9 + 4096]}


def test_a_gap_between_copies_that_a_load_would_have_to_make_up_is_refused(house: House) -> None:
    client, path = house.client(), a_file(house.folder, "a.bin", MIB)
    gap = 16 * MIB
    segments = (SegmentRow(MIB, identity(path)), SegmentRow(gap + 64, aside=True))
    manifest = Manifest(MANIFEST_VERSION, "x", segments, (TensorRow("w", "U8", (64,), 1, gap, 64, b"", (0, 0)),))
    pieces = [
        _PIECE.pack(0, FILE, 0, MIB, 0, 0, 0),
        _PIECE.pack(1, INLINE, 0, gap, 0, 0, 0),
        _PIECE.pack(1, SEGMENT, gap, 64, 0, 0, 0),
    ]
    with pytest.raises(Invalid, match="gap of"):
        put_manifest(client, manifest, pieces=b"".join(pieces), inline=bytes(gap), file=path)


def test_files_that_a_put_from_memory_names_are_told_to_nobody(house: House) -> None:
    client, path = house.client(), a_file(house.folder, "a.bin", 4096)
    content = ctypes.create_string_buffer(b"other than the file", 4096)
    named: SourceFile = identity(path)
    manifest = draft_of("x", {"tensor": 4096}, file=named).manifest
    answer = put_manifest(client, manifest, pieces=_PIECE.pack(0, MEMORY, 0, 4096, ctypes.addressof(content), 0, 0))
    assert isinstance(answer, PutDone)
    exists = put_file(client, "x", path, header=0)
    assert isinstance(exists, PutExists) and exists.files == () and not house.sidecars()
    assert describe(client, "x").state == "resident"
