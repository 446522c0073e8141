"""Asking the global store: every request is repeatable, so it is sent again until it is answered or its budget ends.

Called by service.py, reports.py and lease_ends.py. An answer may be the peer's error, which is raised as it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from tensorcast_bus.bus import Bus
from tensorcast_bus.errors import ProtocolError, StaleFence, TensorCastError, Unavailable
from tensorcast_bus.messages import (
    Commit,
    Committed,
    Delete,
    DeletedRow,
    Dropped,
    DropReplica,
    EndLease,
    Report,
    Reported,
    Resolve,
    Resolved,
)
from tensorcast_bus.subjects import Subjects
from tensorcast_services.storage.core.effects import CallCommit, CallDelete, CallDrop, CallResolve
from tensorcast_services.storage.core.events import (
    CommitKnown,
    CommitRefused,
    CommitUnknown,
    DeleteAnswered,
    DropAnswered,
    ResolveAnswered,
)

T = TypeVar("T", bound=msgspec.Struct)

TRY_MS_MAX = 2_000
PAUSE_MS_MIN = 50
PAUSE_MS_MAX = 1_000
Command = Commit | Delete | DropReplica | EndLease | Report | Resolve
_VERBS: dict[type[msgspec.Struct], str] = {
    Commit: "commit",
    Delete: "delete",
    DropReplica: "drop",
    EndLease: "end_lease",
    Report: "report",
    Resolve: "resolve",
}


class Link:
    """This storage's voice at the global store. `process` and `incarnation` are its identity there; `on_stale` hears
    when a newer process has it."""

    def __init__(
        self,
        bus: Bus,
        *,
        node: str,
        process: str,
        incarnation: int,
        on_stale: Callable[[StaleFence], None] = lambda _: None,
    ) -> None:
        self._bus = bus
        self._node = node
        self._process = process
        self._incarnation = incarnation
        self._on_stale = on_stale

    async def commit(self, call: CallCommit) -> CommitKnown | CommitRefused | CommitUnknown:
        body = Commit(
            art_id=call.art_id,
            digest=call.digest,
            nbytes=call.nbytes,
            tensors=call.tensors,
            node=self._node,
            process=self._process,
            incarnation=self._incarnation,
            tiers=call.tiers,
            ownership=call.ownership,
        )
        try:
            answer = await self.ask(body, answer=Committed, budget_ms=call.budget_ms, idem=self._idem(call.request))
        except (Unavailable, ProtocolError) as error:
            # A lost or garbled answer says nothing about what the global store did.
            return CommitUnknown(call.ticket, error.record())
        except TensorCastError as error:
            return CommitRefused(call.ticket, error.record())
        return CommitKnown(call.ticket, answer.outcome, answer.revision)

    async def resolve(self, call: CallResolve) -> ResolveAnswered:
        try:
            answer = await self.ask(Resolve(call.art_id), answer=Resolved, budget_ms=call.budget_ms)
        except TensorCastError as error:
            return ResolveAnswered(call.ticket, trouble=error.record())
        return ResolveAnswered(call.ticket, answer)

    async def drop(self, call: CallDrop) -> DropAnswered:
        try:
            answer = await self.drop_tier(call.art_id, tier="host", budget_ms=call.budget_ms)
        except TensorCastError as error:
            return DropAnswered(call.ticket, granted=False, why=error.text)
        return DropAnswered(call.ticket, answer.granted, answer.why)

    async def drop_tier(self, art_id: str, *, tier: str, budget_ms: int) -> Dropped:
        body = DropReplica(art_id, tier, self._node, self._process, self._incarnation)
        return await self.ask(body, answer=Dropped, budget_ms=budget_ms)

    async def end_lease(self, art_id: str, digest: str, *, budget_ms: int) -> DeletedRow:
        """Revision 0 when the global store knows of no such lease of this process (any more)."""
        body = EndLease(art_id, digest, self._node, self._process, self._incarnation)
        return await self.ask(body, answer=DeletedRow, budget_ms=budget_ms)

    async def delete(self, call: CallDelete) -> DeleteAnswered:
        try:
            answer = await self.ask(
                Delete(call.art_id), answer=DeletedRow, budget_ms=call.budget_ms, idem=self._idem(call.request)
            )
        except TensorCastError as error:
            return DeleteAnswered(call.ticket, trouble=error.record())
        return DeleteAnswered(call.ticket, answer.revision)

    async def report(self, body: Report, *, budget_ms: int) -> Reported:
        return await self.ask(body, answer=Reported, budget_ms=budget_ms)

    async def ask(self, body: Command, *, answer: type[T], budget_ms: int, idem: str = "") -> T:
        """Raises the peer's error, or what the last try met when the budget is over."""
        deadline = time.monotonic() + budget_ms / 1000
        subject = Subjects.global_store(_VERBS[type(body)])
        pause_ms = PAUSE_MS_MIN
        while True:
            left_ms = int((deadline - time.monotonic()) * 1000)
            try:
                return await self._bus.request(
                    subject, body, answer=answer, budget_ms=max(1, min(left_ms, TRY_MS_MAX)), idem=idem
                )
            except StaleFence as error:
                self._on_stale(error)
                raise
            except TensorCastError as error:
                left_ms = int((deadline - time.monotonic()) * 1000)
                # A crash of the peer says nothing about the outcome; under one id it is safe to ask again.
                again = error.retryable or (bool(idem) and isinstance(error, ProtocolError))
                if not again or left_ms <= pause_ms:
                    raise
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 2, PAUSE_MS_MAX)

    def _idem(self, request: int) -> str:
        return f"{self._process}:{self._incarnation:x}:{request}"
