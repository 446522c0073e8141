"""The link to the storage on this node: native calls on the caller's thread.

Connects at first use, again after the storage restarted (its socket is looked up anew) and in a forked child, which
must not speak on its parent's socket. Calls that can be repeated are repeated inside their deadline when the storage
goes away in the middle; a put or delete is not, since its outcome is unknown: that is StorageLost. Native exceptions
and statuses end here; above this room there are only TensorCast's errors.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from tensorcast.answers import answered, decoded, put_answer, refuse
from tensorcast.deadline import Deadline
from tensorcast.drafts.draft import Draft
from tensorcast.shortage import shortage
from tensorcast_bus.errors import Invalid, NotConnected, StorageLost, TensorCastError, Unavailable
from tensorcast_bus.notes import (
    AboutManifest,
    Ask,
    AskCommitView,
    Greeting,
    Leased,
    LeaseDraft,
    PutAnswer,
    PutDraft,
    Redirect,
)
from tensorcast_native import Attachment, Client, LocalStatus, PeerGone, Ticket, WaitedTooLong

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")

RETRY_S_FIRST = 0.02
RETRY_S_MAX = 0.25
CONNECT_MS_MAX = 2_000
# What the local protocol takes as one part of a message; the native floor refuses more, in its own words.
PART_BYTES_MAX = 64 << 20


class _Seat:
    """One process's end of the link. A forked child gets a seat of its own; the parent's lock may be held for ever."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.client: Client | None = None


class StorageLink:
    """`locate` returns the socket's path, or raises; it is asked again for every new connection. Thread-safe."""

    def __init__(self, locate: Callable[[], str]) -> None:
        self._locate = locate
        self._seat = _Seat()
        self._closed = False

    def put(self, draft: Draft, *, durable: bool, deadline: Deadline) -> PutAnswer:
        """Raises what the storage refused with, StorageLost when it went away with the outcome unknown."""
        note = PutDraft(draft.manifest, durable, base=draft.base, base_digest=draft.base_digest)
        return put_answer(*self._send(draft, msgspec.msgpack.encode(note), None, deadline), deadline.what)

    def register(self, draft: Draft, note: LeaseDraft, *, ticket: Ticket, deadline: Deadline) -> Leased:
        """The same, for a registration: memory and files of the draft stay open to the storage until `ticket` ends."""
        status, got = self._send(draft, msgspec.msgpack.encode(note), ticket, deadline)
        return answered(status, got, Leased, deadline.what)

    def _send(self, draft: Draft, body: bytes, ticket: Ticket | None, deadline: Deadline) -> tuple[int, bytes]:
        art_id = draft.manifest.art_id
        for part, nbytes in (("manifest", len(body)), ("plan", len(draft.pieces)), ("file header", len(draft.inline))):
            if nbytes > PART_BYTES_MAX:
                raise Invalid(
                    f"{deadline.what}: its {part} has {nbytes} bytes for {len(draft.manifest.tensors)} tensors; the "
                    f"limit part_bytes_max is {PART_BYTES_MAX}: put it in several artifacts, or under shorter names",
                    art_id=art_id,
                )

        def ask(client: Client) -> tuple[int, bytes]:
            return client.put(
                art_id,
                draft=body,
                segment_bytes=draft.segment_bytes,
                pieces=draft.pieces,
                rows=draft.rows,
                inline=draft.inline,
                files=draft.files,
                ticket=ticket,
                deadline_ms=deadline.left_ms("putting"),
            )

        return self._call(ask, deadline, repeatable=False)

    def attach(
        self, art_id: str, *, deadline: Deadline, manifest_only: bool = False, body: bytes = b""
    ) -> Attachment | Redirect | AboutManifest:
        """Maps of the artifact, or its manifest alone: mapped, or as the storage tells of it where it is not in the
        pool; a Redirect for an alias. Raises NotFound, NoReplica, LeaseLost, BadCheckpoint, Timeout ..."""

        def ask(client: Client) -> Attachment | tuple[int, bytes]:
            left = deadline.left_ms("attaching")
            return client.attach(art_id, deadline_ms=left, manifest_only=manifest_only, body=body)

        got = self._call(ask, deadline, repeatable=True)
        if not isinstance(got, tuple):
            return got
        status, told = got
        if status == LocalStatus.MOVED:
            return decoded(told, Redirect, deadline.what)
        if status != LocalStatus.MANIFEST:
            refuse(status, told, deadline.what)
        return decoded(told, AboutManifest, deadline.what)

    def ask(self, ask: Ask, *, answer: type[T], deadline: Deadline, repeatable: bool = True) -> T:
        """One question to the storage's Python."""
        status, got = self._ask(ask, deadline, repeatable=repeatable)
        return answered(status, got, answer, deadline.what)

    def ask_to_put(self, ask: AskCommitView, *, deadline: Deadline) -> PutAnswer:
        """A put of what the pool has already. Not repeated, as no put is."""
        return put_answer(*self._ask(ask, deadline, repeatable=False), deadline.what)

    def _ask(self, ask: Ask, deadline: Deadline, *, repeatable: bool) -> tuple[int, bytes]:
        body = msgspec.msgpack.encode(ask)
        return self._call(
            lambda client: client.call(body, deadline_ms=deadline.left_ms("asking the storage")),
            deadline,
            repeatable=repeatable,
        )

    def greeting(self, *, deadline: Deadline) -> Greeting:
        """Who answers at the other end; connects if need be."""
        return decoded(self._client(deadline).greeting, Greeting, deadline.what)

    def close(self) -> None:
        """Later calls raise NotConnected. Maps in use stay. In a child it leaves the parent's socket alone."""
        self._closed = True
        seat = self._seat
        if seat.pid == os.getpid() and seat.client is not None:
            seat.client.close()
            seat.client = None

    def _call(self, ask: Callable[[Client], R], deadline: Deadline, *, repeatable: bool) -> R:
        pause = RETRY_S_FIRST
        while True:
            client = self._client(deadline)
            try:
                return ask(client)
            except WaitedTooLong as late:
                raise deadline.timeout(str(late.args[0]) if late.args else "waiting for the storage") from None
            except (OSError, MemoryError) as error:
                raise shortage(error, deadline.what) or _system(error, deadline) from error
            except PeerGone as gone:
                self._forget(client)
                if self._closed:
                    raise _closed(deadline) from None
                if not repeatable:
                    raise StorageLost(
                        f"{deadline.what}: the storage went away after {deadline.passed_ms:.0f} ms ({gone.args[0]}); "
                        "whether it took effect is unknown: do it again, a put of the same content is harmless",
                    ) from None
                pause = _wait(pause, deadline, str(gone.args[0]))

    def _client(self, deadline: Deadline) -> Client:
        if self._closed:
            raise _closed(deadline)
        seat = self._seat
        if seat.pid != os.getpid():
            seat = self._seat = _Seat()
        client = seat.client
        if client is not None and client.alive:
            return client
        if not seat.lock.acquire(timeout=deadline.left_ms("connecting to the storage") / 1000):
            raise deadline.timeout("waiting for another thread to connect to the storage")
        try:
            if seat.client is None or not seat.client.alive:
                seat.client = self._connect(deadline)
            return seat.client
        finally:
            seat.lock.release()

    def _connect(self, deadline: Deadline) -> Client:
        pause = RETRY_S_FIRST
        while True:
            path = self._locate()
            try:
                return Client(path, deadline_ms=min(CONNECT_MS_MAX, deadline.left_ms("connecting to the storage")))
            except PermissionError as error:
                raise NotConnected(
                    f"{deadline.what}: {error}; run as its owner, or set the storage's socket group", socket=path
                ) from None
            except (OSError, MemoryError) as error:
                raise shortage(error, deadline.what) or _system(error, deadline) from error
            except (PeerGone, WaitedTooLong) as error:
                pause = _wait(pause, deadline, f"{path}: {error.args[0]}")

    def _forget(self, client: Client) -> None:
        seat = self._seat
        if seat.client is client:
            seat.client = None
        client.close()


def _wait(pause: float, deadline: Deadline, why: str) -> float:
    """Sleeps before another try and returns the next pause; StorageLost when the deadline would pass meanwhile."""
    if deadline.deadline_ms - deadline.passed_ms <= pause * 1000:
        raise StorageLost(
            f"{deadline.what}: the storage was not there for {deadline.passed_ms:.0f} ms ({why}); "
            "look at `tensorcast status` and `tensorcast logs`",
        )
    time.sleep(pause)
    return min(pause * 2, RETRY_S_MAX)


def _system(error: BaseException, deadline: Deadline) -> Unavailable:
    return Unavailable(f"{deadline.what}: the system refused: {error}; see `tensorcast status`, then call again")


def _closed(deadline: Deadline) -> TensorCastError:
    return NotConnected(f"{deadline.what}: this runtime was closed; make another with tensorcast.connect()")
