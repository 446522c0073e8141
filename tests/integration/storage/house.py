"""One node by hand: a nats-server, a global store and storages as real processes, each to be killed and started again.

Clients speak to the storage through the native Client only: what is tested is the storage, not the SDK.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tensorcast_bus.dtypes import tensor_bytes
from tensorcast_bus.errors import ErrorRecord, TensorCastError, from_record
from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, SourceFile, TensorRow, decode_manifest
from tensorcast_bus.nats.server import config_text, find_server, server_url
from tensorcast_bus.notes import (
    AskDelete,
    AskDescribe,
    AskStats,
    Deleted,
    Described,
    PutAnswer,
    PutDraft,
    StorageStats,
)
from tensorcast_native import Attachment, Client, LocalStatus

TOKEN = "integration-storage-token"
START_S_MAX = 20.0
BUDGET_MS = 15_000
_PIECE, _ROW = struct.Struct("<IIQQQII"), struct.Struct("<IIQQ")
INLINE, MEMORY, FILE, SEGMENT = 1, 2, 3, 4
FIRST_SEGMENT = 1  # an attachment's segment 0 is the manifest itself


def until(holds: Callable[[], bool], *, what: str, seconds: float = START_S_MAX) -> None:
    """Polls what other processes change; fails at the deadline."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.01)  # the deadline above bounds the polling of another process


@dataclass
class House:
    folder: Path
    settings: str = '[storage]\nhost_bytes_max = "64MiB"\nprefault_ahead_bytes = 0\nmemory_reserve_bytes = 0\n'
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    lifelines: dict[str, int] = field(default_factory=dict)
    url: str = ""

    def open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "tensorcast.toml").write_text(self.settings)
        self.start_nats()
        self.start("global_store")
        self.start("storage", node="a")

    def start_nats(self, *, port: int = -1) -> None:
        nats = self.folder / "nats"
        nats.mkdir(exist_ok=True)
        config = self.folder / "nats.conf"
        config.write_text(config_text(port=port, token=TOKEN, folder=str(nats)))
        server = subprocess.Popen(
            [find_server().path, "-c", str(config)],
            stderr=(self.folder / "nats.log").open("ab"),
            stdin=subprocess.DEVNULL,
        )
        self.processes["nats"] = server
        until(lambda: server_url(str(nats), pid=server.pid) is not None, what="nats-server listens")
        self.url = server_url(str(nats), pid=server.pid) or ""

    def start(self, role: str, *, node: str = "") -> None:
        """Returns once the process says that it is ready."""
        name = f"{role}-{node}" if node else role
        ready_read, ready_write = os.pipe()
        life_read, life_write = os.pipe()
        command = [
            sys.executable,
            "-m",
            f"tensorcast_services.{role}",
            "--config",
            str(self.folder / "tensorcast.toml"),
        ]
        command += ["--node", node] if node else []
        command += ["--lifeline-fd", str(life_read), "--ready-fd", str(ready_write)]
        env = {**os.environ, "TENSORCAST_BUS__URL": self.url, "TENSORCAST_BUS__TOKEN": TOKEN}
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                command, env=env, pass_fds=(life_read, ready_write), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        os.close(ready_write)
        os.close(life_read)
        self.processes[name], self.lifelines[name] = process, life_write
        os.set_blocking(ready_read, False)
        try:
            until(lambda: self._said_ready(name, ready_read), what=f"{name} is ready")
        finally:
            os.close(ready_read)

    def _said_ready(self, name: str, fd: int) -> bool:
        try:
            said = os.read(fd, 16)
        except BlockingIOError:
            return False
        assert said == b"ready\n", f"{name} ended at its start:\n{self.log(name).read_text()}"
        return True

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def kill(self, name: str, *, sig: signal.Signals = signal.SIGKILL) -> int:
        """Ends a process and waits for it; its exit code."""
        process = self.processes.pop(name)
        process.send_signal(sig)
        code = process.wait(START_S_MAX)
        if name in self.lifelines:
            os.close(self.lifelines.pop(name))
        return code

    def close(self) -> None:
        for name in sorted(self.processes, key=lambda name: (name == "nats", name == "global_store")):
            process = self.processes.pop(name)
            process.terminate()
            try:
                process.wait(START_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            finally:
                if name in self.lifelines:
                    os.close(self.lifelines.pop(name))

    @property
    def socket(self) -> str:
        return str(self.folder / "storage-a.sock")

    def client(self) -> Client:
        return Client(self.socket, deadline_ms=BUDGET_MS)

    def disk(self) -> list[Path]:
        """What lies in the disk folder, data and sidecars."""
        return sorted(path for path in (self.folder / "storage-a" / "disk").iterdir() if path.name != "lock")

    def sidecars(self) -> list[Path]:
        return sorted((self.folder / "storage-a").glob("*.manifest"))


def draft_of(
    art_id: str, tensors: dict[str, int], *, file: SourceFile | None = None, base: int = 0, durable: bool = False
) -> PutDraft:
    """U8 tensors of the given sizes back to back from `base` in one segment."""
    rows, at = [], base
    for name, nbytes in tensors.items():
        assert tensor_bytes("U8", (nbytes,)) == nbytes
        rows.append(TensorRow(name, "U8", (nbytes,), 0, at, nbytes))
        at += nbytes
    size = file.size if file else at
    return PutDraft(Manifest(MANIFEST_VERSION, art_id, (SegmentRow(size, file),), tuple(rows)), durable)


def put_memory(
    client: Client,
    art_id: str,
    tensors: dict[str, bytes],
    *,
    durable: bool = False,
    deadline_ms: int = BUDGET_MS,
) -> PutAnswer:
    """Raises the storage's error."""
    draft = draft_of(art_id, {name: len(content) for name, content in tensors.items()}, durable=durable)
    blob = b"".join(tensors.values())
    memory = ctypes.create_string_buffer(blob, len(blob))
    pieces = _PIECE.pack(0, MEMORY, 0, len(blob), ctypes.addressof(memory), 0, 0) if blob else b""
    status, body = client.put(
        art_id,
        draft=msgspec.msgpack.encode(draft),
        segment_bytes=[len(blob)],
        pieces=pieces,
        rows=rows_of(draft.manifest),
        deadline_ms=deadline_ms,
    )
    return put_answer(status, body)


def identity(path: Path) -> SourceFile:
    s = path.stat()
    return SourceFile(str(path), s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns)


def put_file(
    client: Client,
    art_id: str,
    path: Path,
    *,
    header: int = 8,
    durable: bool = False,
    deadline_ms: int = BUDGET_MS,
) -> PutAnswer:
    """The file as one segment: `header` bytes, then one tensor. Raises the storage's error."""
    file = identity(path)
    draft = draft_of(art_id, {"tensor": file.size - header}, file=file, base=header, durable=durable)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status, body = client.put(
            art_id,
            draft=msgspec.msgpack.encode(draft),
            segment_bytes=[file.size],
            pieces=_PIECE.pack(0, FILE, 0, file.size, 0, 0, 0),
            rows=rows_of(draft.manifest),
            files=[(fd, file.device, file.inode, file.size, file.mtime_ns)],
            deadline_ms=deadline_ms,
        )
    finally:
        os.close(fd)
    return put_answer(status, body)


def put_with_asides(client: Client, art_id: str, path: Path, *, offsets: tuple[int, int], nbytes: int) -> PutAnswer:
    """A file with two misaligned F32 tensors, copied aside with a gap of 64 zeros between them."""
    file, words = identity(path), nbytes // 4
    second = nbytes + 64
    segments = (SegmentRow(file.size, file), SegmentRow(second + nbytes, aside=True))
    rows = tuple(
        TensorRow(name, "F32", (words,), 1, at, nbytes, b"", (0, offset))
        for name, at, offset in zip("ab", (0, second), offsets, strict=True)
    )
    manifest = Manifest(MANIFEST_VERSION, art_id, segments, rows)
    pieces = [
        _PIECE.pack(0, FILE, 0, file.size, 0, 0, 0),
        _PIECE.pack(1, SEGMENT, 0, nbytes, offsets[0], 0, 0),
        _PIECE.pack(1, INLINE, nbytes, 64, 0, 0, 0),
        _PIECE.pack(1, SEGMENT, second, nbytes, offsets[1], 0, 0),
    ]
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status, body = client.put(
            art_id,
            draft=msgspec.msgpack.encode(PutDraft(manifest)),
            segment_bytes=[segment.nbytes for segment in segments],
            pieces=b"".join(pieces),
            rows=rows_of(manifest),
            inline=bytes(64),
            files=[(fd, file.device, file.inode, file.size, file.mtime_ns)],
            deadline_ms=BUDGET_MS,
        )
    finally:
        os.close(fd)
    return put_answer(status, body)


def rows_of(manifest: Manifest) -> bytes:
    return b"".join(_ROW.pack(t.segment, 0, t.offset, t.nbytes) for t in manifest.tensors)


def put_answer(status: int, body: bytes) -> PutAnswer:
    if status == LocalStatus.OK:
        return msgspec.msgpack.decode(body, type=PutAnswer)
    raise refusal(status, body)


def refusal(status: int, body: bytes) -> TensorCastError:
    assert status == LocalStatus.FAILED, (status, body)
    return from_record(msgspec.msgpack.decode(body, type=ErrorRecord))


def attach(client: Client, art_id: str, *, body: bytes = b"", deadline_ms: int = BUDGET_MS) -> Attachment:
    """Raises the storage's error."""
    found = client.attach(art_id, deadline_ms=deadline_ms, body=body)
    if isinstance(found, tuple):
        raise refusal(*found)
    return found


def content(attached: Attachment) -> dict[str, bytes]:
    manifest = decode_manifest(attached.manifest)
    return {t.name: bytes(attached.view(t.segment + FIRST_SEGMENT, t.offset, t.nbytes)) for t in manifest.tensors}


def read(client: Client, art_id: str, *, deadline_ms: int = BUDGET_MS) -> dict[str, bytes]:
    attached = attach(client, art_id, deadline_ms=deadline_ms)
    found = content(attached)
    assert attached.release() == 0
    return found


def delete(client: Client, art_id: str) -> Deleted:
    status, body = client.call(msgspec.msgpack.encode(AskDelete(art_id)), deadline_ms=BUDGET_MS)
    if status != LocalStatus.OK:
        raise refusal(status, body)
    return msgspec.msgpack.decode(body, type=Deleted)


def describe(client: Client, art_id: str) -> Described:
    status, body = client.call(msgspec.msgpack.encode(AskDescribe(art_id)), deadline_ms=BUDGET_MS)
    assert status == LocalStatus.OK, body
    return msgspec.msgpack.decode(body, type=Described)


def stats(client: Client) -> StorageStats:
    status, body = client.call(msgspec.msgpack.encode(AskStats()), deadline_ms=BUDGET_MS)
    assert status == LocalStatus.OK, body
    return msgspec.msgpack.decode(body, type=StorageStats)
