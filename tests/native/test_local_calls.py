"""The local socket from Python: put, attach, call, and what the storage's side sees and decides."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import threading
from pathlib import Path

import pytest

from tensorcast_native import (
    Attachment,
    Client,
    FillDone,
    LocalServer,
    LocalStatus,
    PeerGone,
    Pool,
    Request,
    tensor_digest,
)
from tests.native.local_storage import MIB, Storage, eventually, memory_piece, pattern, whole_row

DEADLINE_MS = 20_000


def put(client: Client, art_id: str, content: bytes) -> tuple[int, bytes]:
    memory = ctypes.create_string_buffer(content, len(content))
    return client.put(
        art_id,
        draft=b"draft of " + art_id.encode(),
        segment_bytes=[len(content)],
        pieces=memory_piece(ctypes.addressof(memory), len(content)),
        rows=whole_row(len(content)),
        deadline_ms=DEADLINE_MS,
    )


def attach(client: Client, art_id: str) -> Attachment:
    got = client.attach(art_id, deadline_ms=DEADLINE_MS)
    assert isinstance(got, Attachment), got
    return got


@pytest.mark.parametrize(("vm_read", "source"), [(True, b"vm_read"), (False, b"socket")])
def test_a_put_comes_back_as_it_was_by_either_path(storage: Storage, vm_read: bool, source: bytes) -> None:
    client = Client(storage.path, deadline_ms=DEADLINE_MS, vm_read=vm_read)
    assert (client.greeting, client.vm_read, client.alive, client.pid) == (b"hello", vm_read, True, os.getpid())
    content = pattern(9 * MIB + 123, 1)
    assert put(client, "a", content) == (LocalStatus.OK, source + b" " + tensor_digest(content))
    got = attach(client, "a")
    assert got.manifest == b"draft of a"
    assert got.segments == 2
    assert bytes(got.view(1, 0, len(content))) == content
    client.close()


def test_a_put_of_small_inline_bytes_is_a_copy(storage: Storage, client: Client) -> None:
    piece = struct.pack("<IIQQQII", 0, 1, 0, 5, 0, 0, 0)
    answer = client.put(
        "s", draft=b"d", segment_bytes=[5], pieces=piece, rows=b"", inline=b"12345", deadline_ms=DEADLINE_MS
    )
    assert answer == (LocalStatus.OK, b"socket ")
    got = attach(client, "s")
    assert (bytes(got.view(1, 0, 5)), got.mapped_bytes, storage.pins()) == (b"12345", 0, 0)


def test_a_put_of_a_file_is_read_from_its_descriptor(storage: Storage, client: Client, tmp_path: Path) -> None:
    content = pattern(3 * MIB, 2)
    (tmp_path / "f").write_bytes(content)
    with (tmp_path / "f").open("rb") as file:
        seen = os.fstat(file.fileno())
        answer = client.put(
            "f",
            draft=b"d",
            segment_bytes=[len(content)],
            pieces=struct.pack("<IIQQQII", 0, 3, 0, len(content), 0, 0, 0),
            rows=whole_row(len(content)),
            files=[(file.fileno(), seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)],
            deadline_ms=DEADLINE_MS,
        )
    assert answer == (LocalStatus.OK, b"file " + tensor_digest(content))


def test_the_storage_sees_what_is_asked_and_by_whom(storage: Storage, client: Client) -> None:
    storage.holding = {"put"}
    put_thread = threading.Thread(target=put, args=(client, "a", b"x" * MIB))
    put_thread.start()
    assert eventually(lambda: len(storage.held) == 1)
    request = storage.held[0]
    assert (request.kind, request.art_id, request.body) == ("put", "a", b"draft of a")
    assert (request.segment_bytes, request.source, request.pid) == ([MIB], "vm_read", os.getpid())
    assert request.session == storage.server.sessions()[0][0]
    assert 0 < request.budget_ms <= DEADLINE_MS
    storage.answer(request)
    put_thread.join()


def test_a_put_that_does_not_fit_stays_pending_until_it_is_answered(storage: Storage, client: Client) -> None:
    status, body = put(client, "big", b"x" * (100 * MIB))
    free_bytes, longest_run_bytes = eval(body)
    assert status == LocalStatus.FAILED
    assert 0 < longest_run_bytes <= free_bytes == storage.pool.stats()["free_bytes"]


def test_an_unknown_artifact_is_loaded_by_the_storage_and_then_attached(storage: Storage, client: Client) -> None:
    storage.holding = {"attach"}
    got: list[object] = []
    asking = threading.Thread(target=lambda: got.append(client.attach("late", deadline_ms=DEADLINE_MS)))
    asking.start()
    assert eventually(lambda: len(storage.held) == 1)
    with pytest.raises(KeyError, match="not published"):
        storage.server.attach_now(storage.held[0].id)
    storage.publish("late", b"z" * MIB)
    storage.server.attach_now(storage.held[0].id)
    asking.join()
    assert isinstance(got[0], Attachment)
    assert bytes(got[0].view(1, 0, MIB)) == b"z" * MIB
    with pytest.raises(KeyError):
        storage.server.attach_now(storage.held[0].id)


def test_a_refused_attach_carries_the_storages_words(client: Client) -> None:
    assert client.attach("nope", deadline_ms=DEADLINE_MS) == (LocalStatus.FAILED, b"no nope")


def test_calls_carry_any_bytes_up_to_the_limit(client: Client) -> None:
    for body in (b"", b"\0\xff", pattern(20 * MIB, 3)):
        assert client.call(body, deadline_ms=DEADLINE_MS) == (LocalStatus.OK, body)
    with pytest.raises(ValueError, match="does not fit"):
        client.call(bytes(65 * MIB), deadline_ms=DEADLINE_MS)


def test_an_id_is_published_once_and_only_with_sealed_segments(storage: Storage) -> None:
    storage.publish("a", b"1")
    with pytest.raises(ValueError, match="published already"):
        storage.publish("a", b"2")
    reserved = storage.pool.reserve(10)
    with pytest.raises(ValueError, match="sealed"):
        storage.server.publish("b", reserved, [])
    assert storage.server.withdraw("a") is True
    assert storage.server.withdraw("a") is False


def test_usage_shows_attaches_pins_and_bytes(storage: Storage, client: Client) -> None:
    storage.publish("a", b"x" * MIB)
    ((_, before_ns, pins, nbytes),) = storage.server.usage()
    assert (pins, nbytes) == (0, MIB + len(b"manifest of a"))
    got = attach(client, "a")
    ((_, after_ns, pins, _),) = storage.server.usage()
    assert (after_ns > before_ns, pins) == (True, 1)
    got.release()
    assert eventually(lambda: storage.server.usage()[0][2] == 0)


def test_a_load_reports_its_end_and_its_descriptors_are_the_servers_own(storage: Storage, tmp_path: Path) -> None:
    content = pattern(5 * MIB, 4)
    (tmp_path / "f").write_bytes(content)
    descriptor = os.open(tmp_path / "f", os.O_RDONLY)
    seen = os.fstat(descriptor)
    storage.server.load(
        7,
        segment_bytes=[len(content)],
        pieces=struct.pack("<IIQQQII", 0, 3, 0, len(content), 0, 0, 0),
        rows=whole_row(len(content)),
        files=[(descriptor, seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)],
        deadline_ms=DEADLINE_MS,
    )
    os.close(descriptor)
    assert eventually(lambda: storage.kinds() == ["ok"])
    done = storage.log[0]
    assert isinstance(done, FillDone)
    assert (done.id, done.digests) == (7, tensor_digest(content))
    assert storage.pool.read(done.segments[0], 0, len(content)) == content
    assert storage.server.progress(7) == (0, 0)
    with pytest.raises(ValueError, match="2\\*\\*32"):
        storage.server.load(1 << 32, segment_bytes=[], pieces=b"", rows=b"", files=[], deadline_ms=1)


def test_answers_to_nobody_are_nothing(storage: Storage) -> None:
    storage.server.reply(1 << 40, LocalStatus.OK, b"")
    storage.server.cancel(99)
    with pytest.raises(KeyError):
        storage.server.accept_put(1 << 40)


def test_no_storage_is_said_with_the_path_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PeerGone, match=f"{tmp_path}/none.*tensorcast up"):
        Client(f"{tmp_path}/none", deadline_ms=1000)


def test_a_second_server_on_a_served_path_is_refused_and_a_stale_socket_is_not(tmp_path: Path) -> None:
    pool = Pool(capacity_bytes=16 * MIB, prefault_ahead_bytes=0)
    first = LocalServer(pool, str(tmp_path / "s"), greeting=b"")
    with pytest.raises(OSError, match="served by another process"):
        LocalServer(pool, str(tmp_path / "s"), greeting=b"")
    os.link(tmp_path / "s", tmp_path / "stale")
    first.stop()
    assert not (tmp_path / "s").exists()
    second = LocalServer(pool, str(tmp_path / "stale"), greeting=b"again", mode=0o660)
    assert (tmp_path / "stale").stat().st_mode & 0o777 == 0o660
    client = Client(str(tmp_path / "stale"), deadline_ms=DEADLINE_MS)
    assert client.greeting == b"again"
    second.stop()
    assert eventually(lambda: not client.alive)
    with pytest.raises(PeerGone, match="hung up"):
        client.call(b"", deadline_ms=1000)


def test_ctrl_c_ends_a_waiting_call_and_the_client_goes_on(storage: Storage, client: Client) -> None:
    storage.holding = {"call"}

    def interrupt() -> None:
        assert eventually(lambda: len(storage.held) == 1)
        signal.raise_signal(signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        client.call(b"x", deadline_ms=DEADLINE_MS)
    interrupting.join()
    assert eventually(lambda: "gone" in storage.kinds())
    storage.holding = set()
    assert client.call(b"y", deadline_ms=DEADLINE_MS) == (LocalStatus.OK, b"y")
    gone = next(e for e in storage.log if isinstance(e, Request) and e.kind == "gone")
    assert gone.id == storage.held[0].id
