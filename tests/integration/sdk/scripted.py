"""A storage whose word on leases a test writes: the real native server and socket, answers from a script.

What no real storage does on demand: forget everything at a restart, fall silent, refuse to have a lease again.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tensorcast.local import StorageLink
from tensorcast_bus.errors import LeaseLost, NotFound, TensorCastError
from tensorcast_bus.manifest import Manifest
from tensorcast_bus.notes import (
    Ask,
    AskRelease,
    AskRenew,
    Deleted,
    Draft,
    Greeting,
    Leased,
    LeaseDraft,
    Redirect,
    Renewed,
)
from tensorcast_native import LocalServer, LocalStatus, Pool, Request

MIB = 1 << 20


class ScriptedStorage:
    """One incarnation. `heard` is what it was asked, in order; `silent` keeps it from answering; `refusal` is what it
    says to a registration; `redirects` are answered to attaches of a name, in turn, the last one for ever."""

    def __init__(self, path: Path, *, incarnation: int) -> None:
        self.heard: list[LeaseDraft | AskRenew | AskRelease | str] = []
        self.leases: dict[int, str] = {}
        self.silent = False
        self.refusal: TensorCastError | None = None
        self.redirects: dict[str, list[Redirect]] = {}
        self._numbers = iter(range(incarnation * 1000, incarnation * 1000 + 1000))
        self._pool = Pool(capacity_bytes=64 * MIB, prefault_ahead_bytes=0, memory_reserve_bytes=0)
        greeting = msgspec.msgpack.encode(Greeting("a", "storage-a", incarnation, "test"))
        self._server = LocalServer(self._pool, str(path), greeting=greeting)
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def wait(self, happened: Callable[[], bool], *, seconds: float) -> bool:
        """Whether it came to be, looked at after everything that is heard."""
        with self._changed:
            return self._changed.wait_for(happened, seconds)

    def count(self, kind: type[object]) -> int:
        return sum(isinstance(heard, kind) for heard in self.heard)

    def publish(self, art_id: str) -> None:
        manifest = msgspec.msgpack.encode(Manifest(1, art_id, (), ()))
        segment = self._pool.reserve(len(manifest))
        self._pool.write(segment, 0, manifest)
        self._pool.seal(segment)
        self._server.publish(art_id, segment, [])
        self._pool.drop(segment)

    def close(self) -> None:
        self._over = True
        self._thread.join()
        self._server.stop()
        self._pool.stop()

    def _serve(self) -> None:
        while not self._over:
            select.select([self._server.event_fd], [], [], 0.05)
            for event in self._server.events():
                assert isinstance(event, Request)
                with self._changed:
                    self._take(event)
                    self._changed.notify_all()

    def _take(self, request: Request) -> None:
        match request.kind:
            case "put":
                draft = msgspec.msgpack.decode(request.body, type=Draft)
                assert isinstance(draft, LeaseDraft)
                self.heard.append(draft)
                self._answer(request, self._register(draft))
            case "call":
                ask = msgspec.msgpack.decode(request.body, type=Ask)
                assert isinstance(ask, AskRenew | AskRelease)
                self.heard.append(ask)
                self._answer(request, self._renew(ask) if isinstance(ask, AskRenew) else self._release(ask))
            case "attach":
                self.heard.append(request.art_id)
                hops = self.redirects.get(request.art_id, [])
                unknown = NotFound(f"there is no {request.art_id!r}")
                self._answer(request, (hops.pop(0) if len(hops) > 1 else hops[0]) if hops else unknown)

    def _register(self, draft: LeaseDraft) -> msgspec.Struct | TensorCastError:
        if self.refusal is not None:
            return self.refusal
        lease = next(self._numbers)
        self.leases[lease] = draft.digest
        return Leased(lease, draft.digest, draft.manifest.nbytes, draft.ttl_ms, "vm_read")

    def _renew(self, ask: AskRenew) -> msgspec.Struct | TensorCastError:
        if ask.lease not in self.leases:
            return LeaseLost(f"there is no lease {ask.lease} on {ask.art_id!r}")
        return Renewed(ask.ttl_ms)

    def _release(self, ask: AskRelease) -> Deleted:
        self.leases.pop(ask.lease, None)
        return Deleted(ask.art_id)

    def _answer(self, request: Request, answer: msgspec.Struct | TensorCastError) -> None:
        if self.silent:
            return
        if isinstance(answer, TensorCastError):
            self._server.reply(request.id, LocalStatus.FAILED, msgspec.msgpack.encode(answer.record()))
        else:
            status = LocalStatus.MOVED if isinstance(answer, Redirect) else LocalStatus.OK
            self._server.reply(request.id, status, msgspec.msgpack.encode(answer))


class Place:
    """Where a storage may be, and the link of a caller to it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "s.sock"
        self._incarnation = 0
        self.link = StorageLink(lambda: str(self._path))
        self.storage = self.start()

    def start(self) -> ScriptedStorage:
        self._incarnation += 1
        self.storage = ScriptedStorage(self._path, incarnation=self._incarnation)
        return self.storage

    def restart(self) -> ScriptedStorage:
        """Another incarnation, which knows nothing."""
        self.storage.close()
        return self.start()


@contextmanager
def scripted(folder: Path) -> Iterator[Place]:
    place = Place(folder)
    try:
        yield place
    finally:
        place.link.close()
        place.storage.close()
