"""A storage for the tests of the local socket: a pool, the native server, and a thread that decides what a real
storage's Python would: commits every put under its id, echoes calls, refuses unknown attaches.
"""

from __future__ import annotations

import random
import select
import struct
import threading
import time
from collections.abc import Callable

from tensorcast_native import FillDone, LocalServer, LocalStatus, Pool, PoolFull, Request

WAIT_S = 20.0  # only reached when something is wrong
MIB = 1 << 20


def pattern(nbytes: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(nbytes)


def eventually(happened: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT_S
    while not happened():
        if time.monotonic() > end:
            return False
        select.select([], [], [], 0.002)
    return True


class Storage:
    """`held` keeps requests of the kinds in `holding` unanswered; `log` has every event."""

    def __init__(self, path: str, *, capacity_bytes: int = 64 * MIB) -> None:
        self.pool = Pool(capacity_bytes=capacity_bytes, prefault_ahead_bytes=0, memory_reserve_bytes=0)
        self.path = path
        self.server = LocalServer(self.pool, path, greeting=b"hello")
        self.holding: set[str] = set()
        self.held: list[Request] = []
        self.log: list[Request | FillDone] = []
        self._puts: dict[int, Request] = {}
        self._over = False
        self._decider = threading.Thread(target=self._decide, daemon=True)
        self._decider.start()

    def close(self) -> None:
        self._over = True
        self._decider.join()
        self.server.stop()
        self.pool.stop()

    def segment(self, content: bytes) -> int:
        segment = self.pool.reserve(len(content))
        self.pool.write(segment, 0, content)
        self.pool.seal(segment)
        return segment

    def publish(self, art_id: str, *contents: bytes) -> None:
        segments = [self.segment(content) for content in contents]
        manifest = self.segment(b"manifest of " + art_id.encode())
        self.server.publish(art_id, manifest, segments)
        for segment in (manifest, *segments):
            self.pool.drop(segment)

    def refill(self, seed: int) -> None:
        """Writes over all memory of the pool that is free."""
        segments: list[int] = []
        nbytes = self.pool.stats()["longest_run_bytes"]
        while nbytes >= 2 * MIB:
            try:
                segments.append(self.segment(bytes([seed]) * nbytes))
            except PoolFull:
                nbytes //= 2
        for segment in segments:
            self.pool.drop(segment)

    def pins(self) -> int:
        return sum(pins for _, _, pins, _ in self.server.sessions())

    def kinds(self) -> list[str]:
        return [e.kind if isinstance(e, Request) else e.status for e in list(self.log)]

    def _decide(self) -> None:
        while not self._over:
            select.select([self.server.event_fd], [], [], 0.05)
            for event in self.server.events():
                self.log.append(event)
                if isinstance(event, FillDone):
                    self._filled(event)
                elif event.kind in self.holding:
                    self.held.append(event)
                else:
                    self.answer(event)

    def answer(self, request: Request, *, rows: bytes | None = None) -> None:
        match request.kind:
            case "put":
                self._puts[request.id] = request
                try:
                    self.server.accept_put(request.id, rows)
                except PoolFull as full:
                    self.server.reply(request.id, LocalStatus.FAILED, repr(full.args[1:]).encode())
                except KeyError:
                    pass
            case "call":
                self.server.reply(request.id, LocalStatus.OK, request.body)
            case "attach":
                self.server.reply(request.id, LocalStatus.FAILED, b"no " + request.art_id.encode())

    def _filled(self, done: FillDone) -> None:
        request = self._puts.pop(done.id, None)
        if request is None:
            return
        if done.status != "ok":
            self.server.reply(done.id, LocalStatus.FAILED, f"{done.status}: {done.detail}".encode())
            return
        manifest = self.segment(request.body)
        self.server.publish(request.art_id, manifest, done.segments)
        for segment in (manifest, *done.segments):
            self.pool.drop(segment)
        self.server.reply(done.id, LocalStatus.OK, request.source.encode() + b" " + done.digests)


def memory_piece(address: int, nbytes: int) -> bytes:
    return struct.pack("<IIQQQII", 0, 2, 0, nbytes, address, 0, 0)


def whole_row(nbytes: int) -> bytes:
    return struct.pack("<IIQQ", 0, 0, 0, nbytes)
