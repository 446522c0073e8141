"""What a storage decides for itself about what clients ask: which rows are digested, which files came, what may go."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from pathlib import Path

import pytest

from tensorcast_native import Attachment, Client, LocalStatus, tensor_digest
from tests.native.local_storage import MIB, Storage, eventually, memory_piece, pattern, whole_row

DEADLINE_MS = 20_000


def put(client: Client, art_id: str, content: bytes) -> tuple[int, bytes]:
    memory = ctypes.create_string_buffer(content, len(content))
    return client.put(
        art_id,
        draft=b"draft",
        segment_bytes=[len(content)],
        pieces=memory_piece(ctypes.addressof(memory), len(content)),
        rows=whole_row(len(content)),
        deadline_ms=DEADLINE_MS,
    )


def test_the_storage_sees_the_files_and_pieces_of_a_put_and_its_own_rows_are_digested(
    storage: Storage, client: Client, tmp_path: Path
) -> None:
    storage.holding = {"put"}
    content = pattern(MIB, 3)
    (tmp_path / "f").write_bytes(content)
    with (tmp_path / "f").open("rb") as file:
        seen = os.fstat(file.fileno())
        identity = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)
        piece = struct.pack("<IIQQQII", 0, 3, 0, len(content), 0, 0, 0)
        answers: list[tuple[int, bytes]] = []

        def ask() -> None:
            answer = client.put(
                "f",
                draft=b"d",
                segment_bytes=[len(content)],
                pieces=piece,
                rows=whole_row(1) * 2,
                files=[(file.fileno(), *identity)],
                deadline_ms=DEADLINE_MS,
            )
            answers.append(answer)

        asking = threading.Thread(target=ask)
        asking.start()
        assert eventually(lambda: len(storage.held) == 1)
        request = storage.held[0]
        assert (request.files, request.pieces) == ([identity], piece)
        with pytest.raises(ValueError, match="rows are 5 bytes"):
            storage.server.accept_put(request.id, b"12345")
        storage.answer(request, rows=whole_row(len(content)))
        asking.join()
    assert answers == [(LocalStatus.OK, b"file " + tensor_digest(content))]


def test_a_request_that_brings_no_file_shows_the_pieces_of_its_memory(storage: Storage, client: Client) -> None:
    storage.holding = {"put"}
    asking = threading.Thread(target=put, args=(client, "a", b"x"))
    asking.start()
    assert eventually(lambda: len(storage.held) == 1)
    request = storage.held[0]
    segment, kind, dst, nbytes, address, _, _ = struct.unpack("<IIQQQII", request.pieces)
    assert request.files == [] and (segment, kind, dst, nbytes) == (0, 2, 0, 1) and address > 0
    storage.answer(request)
    asking.join()


def test_only_what_nobody_maps_is_withdrawn_as_idle(storage: Storage, client: Client) -> None:
    storage.publish("a", b"x" * MIB)
    got = client.attach("a", deadline_ms=DEADLINE_MS)
    assert isinstance(got, Attachment)
    assert storage.server.withdraw_idle("a") is False
    assert [art_id for art_id, *_ in storage.server.usage()] == ["a"]
    got.release()
    assert eventually(lambda: storage.pins() == 0)
    assert storage.server.withdraw_idle("a") is True
    assert storage.server.withdraw_idle("a") is False
