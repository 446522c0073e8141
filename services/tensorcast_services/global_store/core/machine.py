"""The global store's core: every request and heartbeat in, its answer, rows and events out.

Called by the runtime only. A change, its rows and the memory of its idempotency id belong to one step, so they are
saved in one transaction; events carry (incarnation, sequence) without a gap, and a hello fills the silence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from tensorcast_bus.errors import Invalid, TensorCastError
from tensorcast_bus.ids import subject_token
from tensorcast_bus.messages import (
    ArtifactEvent,
    Commit,
    Delete,
    DeleteAlias,
    DropReplica,
    EndLease,
    GetAlias,
    Heartbeat,
    ListAliases,
    ListArtifacts,
    ListWorkers,
    Report,
    Reported,
    Resolve,
    SetAlias,
    WorkerList,
)
from tensorcast_bus.subjects import Subjects
from tensorcast_services.effect import Announce, Effect, Origin, Reply, Save
from tensorcast_services.global_store.core import checks, reading
from tensorcast_services.global_store.core.answers import Answers
from tensorcast_services.global_store.core.catalog import Catalog
from tensorcast_services.global_store.core.journal import Change, Journal
from tensorcast_services.global_store.core.registry import Registry
from tensorcast_services.global_store.core.rows import SavedRows

HELLO_MS = 2_000
TOPIC = "artifact"
EVERYBODY = "all"


class GlobalStoreCore:
    """`incarnation` is this process's; `saved` all that the last one left; `own` as in Registry."""

    def __init__(self, incarnation: int, saved: SavedRows, *, own: str = "") -> None:
        self._incarnation = incarnation
        self._sequence = 0
        newest: dict[str, int] = {}
        for claim in saved.replicas:
            newest[claim.process] = max(claim.incarnation, newest.get(claim.process, 0))
        self._registry = Registry(own=own, newest=newest)
        self._journal = Journal(saved)
        self._catalog = Catalog(self._registry, saved, self._journal)
        self._answers = Answers(saved.answers, self._journal)
        self._next_hello_ms = 0

    def step(self, event: Struct, origin: Origin, now_ms: int) -> Sequence[Effect]:
        if isinstance(event, Heartbeat):
            self._heartbeat(event, now_ms)
            return ()
        try:
            body: Struct | TensorCastError = self._answer(event, origin, now_ms)
        except TensorCastError as error:
            body = error
        saves, announcements = self._take()
        if isinstance(body, Reported):
            # The events of the report itself are part of what the storage has seen by it.
            body = Reported(body.refused, self._incarnation, self._sequence)
        return [*saves, Reply(origin.ticket, body), *announcements]

    def tick(self, now_ms: int) -> Sequence[Effect]:
        self._registry.tick(now_ms)
        self._answers.expire(now_ms)
        self._catalog.end_silent_leases(now_ms)
        saves, announcements = self._take()
        effects: list[Effect] = [*saves, *announcements]
        if now_ms >= self._next_hello_ms:
            self._next_hello_ms = now_ms + HELLO_MS
            effects.append(Announce(Subjects.event(TOPIC, EVERYBODY), self._event(Change("hello", "", "", 0))))
        return effects

    def figures(self) -> dict[str, int]:
        return {
            "artifacts": len(self._catalog.entries),
            "aliases": len(self._catalog.aliases),
            "leases": self._catalog.leased,
            "answers_remembered": len(self._answers),
            "events": self._sequence,
            **self._registry.counts(),
        }

    def _heartbeat(self, beat: Heartbeat, now_ms: int) -> None:
        try:
            checks.check_heartbeat(beat)
        except Invalid:
            # Nobody waits for an answer, and one process's garbage must not cost the others anything.
            return
        self._registry.heartbeat(beat, now_ms)

    def _answer(self, event: Struct, origin: Origin, now_ms: int) -> Struct:
        match event:
            case Commit():
                checks.check_commit(event)
                self._sight(event, now_ms)
                return self._once(event, origin, now_ms, lambda: self._catalog.commit(event, now_ms))
            case Delete():
                checks.check_named(event)
                return self._once(event, origin, now_ms, lambda: self._catalog.delete(event.art_id, now_ms))
            case EndLease():
                checks.check_end(event)
                self._sight(event, now_ms)
                return self._once(event, origin, now_ms, lambda: self._catalog.end_lease(event, now_ms))
            case SetAlias():
                checks.check_alias(event)
                return self._once(event, origin, now_ms, lambda: self._catalog.aliases.set(event, now_ms))
            case DeleteAlias():
                checks.check_alias(event)
                return self._once(event, origin, now_ms, lambda: self._catalog.aliases.delete(event))
            case Report():
                checks.check_report(event)
                self._sight(event, now_ms)
                refused = self._catalog.report(event, now_ms)
                return Reported(refused, self._incarnation, self._sequence)
            case DropReplica():
                checks.check_drop(event)
                self._sight(event, now_ms)
                return self._catalog.drop(event, now_ms)
            case _:
                return self._read(event, now_ms)

    def _read(self, event: Struct, now_ms: int) -> Struct:
        match event:
            case Resolve():
                checks.check_named(event)
                return reading.resolve(self._catalog, self._registry, event.art_id, now_ms)
            case ListArtifacts():
                return reading.page(self._catalog, event)
            case GetAlias():
                checks.check_alias(event)
                return self._catalog.aliases.get(event.name)
            case ListAliases():
                return reading.alias_page(self._catalog, event)
            case ListWorkers():
                return WorkerList(self._registry.workers(event.role, now_ms))
            case _:
                raise Invalid(f"the global store has no answer to {type(event).__name__}")

    def _once(self, command: Struct, origin: Origin, now_ms: int, act: Callable[[], Struct]) -> Struct:
        """Takes effect once for an idempotency id; a repeat gets the answer that the first one had."""
        known = self._answers.find(origin.idem, command)
        if known is not None:
            return known
        answer = act()
        self._answers.remember(origin.idem, command, answer, now_ms)
        return answer

    def _sight(self, ask: Commit | EndLease | Report | DropReplica, now_ms: int) -> None:
        """StaleFence from a replaced incarnation; else its word counts as a sign of life."""
        self._registry.check_newest(ask.process, ask.incarnation)
        self._registry.sight(ask.process, role="storage", node=ask.node, incarnation=ask.incarnation, now_ms=now_ms)

    def _take(self) -> tuple[Sequence[Save], list[Announce]]:
        saves, changes = self._journal.take()
        return saves, [
            Announce(Subjects.event(TOPIC, subject_token(change.art_id)), self._event(change)) for change in changes
        ]

    def _event(self, change: Change) -> ArtifactEvent:
        self._sequence += 1
        return ArtifactEvent(
            self._incarnation,
            self._sequence,
            change.kind,
            change.art_id,
            change.digest,
            change.revision,
            change.target,
        )
