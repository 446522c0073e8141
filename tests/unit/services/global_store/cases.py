"""Short words for the global store's tests: a core in virtual time and the messages they send."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct

from tensorcast_bus.errors import TensorCastError
from tensorcast_bus.messages import (
    AliasRow,
    ArtifactEvent,
    Commit,
    DropReplica,
    EndLease,
    Expectation,
    Heartbeat,
    ReplicaClaim,
    Report,
    SetAlias,
)
from tensorcast_services.effect import NOBODY, Announce, Effect, Origin, Reply, Save
from tensorcast_services.global_store.core.machine import GlobalStoreCore
from tensorcast_services.global_store.core.rows import (
    ALIASES,
    ANSWERS,
    ARTIFACTS,
    DELETED,
    LEASE,
    MARKS,
    REPLICAS,
    SYSTEM,
    SavedRows,
)

T = TypeVar("T", bound=Struct)
START_MS = 1_700_000_000_000
INCARNATION = 100
PENDING = "pending:" + "0f" * 16
ANY = Expectation()


class Desk:
    """A global store's core with its clock and its saved rows; a restart knows only what was saved."""

    def __init__(self, *, own: str = "") -> None:
        self.now_ms = START_MS
        self.own = own
        self.rows: dict[tuple[str, tuple[str, ...]], Struct] = {}
        self.events: list[ArtifactEvent] = []
        self.incarnation = INCARNATION
        self.core = GlobalStoreCore(self.incarnation, SavedRows(), own=own)
        self.tick()

    def ask(self, body: Struct, answer: type[T], *, idem: str = "") -> T:
        """The answer; raises the error that was answered."""
        replies = [
            e
            for e in self._carry_out(self.core.step(body, Origin(1, "test", "", 5_000, idem), self.now_ms))
            if isinstance(e, Reply)
        ]
        assert len(replies) == 1
        got = replies[0].body
        if isinstance(got, TensorCastError):
            raise got
        assert isinstance(got, answer), got
        return got

    def beat(self, process: str = "storage-a", incarnation: int = 1, *, role: str = "storage") -> None:
        node = process.rpartition("-")[2]
        beat = Heartbeat(process, role, node, incarnation, 1, 4242, "0.1.0", 10, {"bytes": 5})
        assert not self._carry_out(self.core.step(beat, NOBODY, self.now_ms))

    def tick(self, *, after_ms: int = 0) -> None:
        self.now_ms += after_ms
        self._carry_out(self.core.tick(self.now_ms))

    def pass_time(self, ms: int, *, beating: Iterable[tuple[str, int]] = ()) -> None:
        """Ticks as the runtime does, with the heartbeats of those who live."""
        for _ in range(ms // 500):
            for process, incarnation in beating:
                self.beat(process, incarnation)
            self.tick(after_ms=500)

    def restart(self) -> None:
        self.incarnation += 1
        self.events.clear()
        self.core = GlobalStoreCore(self.incarnation, self.saved(), own=self.own)
        self.tick()

    def saved(self) -> SavedRows:
        def of(table: str) -> list[object]:
            return [row for (name, _), row in sorted(self.rows.items(), key=lambda i: i[0]) if name == table]

        return SavedRows(
            *(of(table) for table in (ARTIFACTS, REPLICAS, DELETED, ANSWERS, ALIASES, MARKS))  # type: ignore[arg-type]
        )

    def told(self, *, hellos: bool = False) -> list[tuple[str, str]]:
        """(kind, id) of the events since the last call."""
        found = [(e.kind, e.art_id) for e in self.events if hellos or e.kind != "hello"]
        self.events.clear()
        return found

    def _carry_out(self, effects: Iterable[Effect]) -> list[Effect]:
        effects = list(effects)
        for effect in effects:
            if isinstance(effect, Save):
                told_new = (effect.table, effect.key) not in self.rows
                assert told_new or not effect.new, f"{effect.key} of {effect.table} is saved already"
                if effect.row is None:
                    self.rows.pop((effect.table, effect.key), None)
                else:
                    self.rows[(effect.table, effect.key)] = effect.row
            elif isinstance(effect, Announce):
                assert isinstance(effect.body, ArtifactEvent)
                self.events.append(effect.body)
        return effects


def commit(
    art_id: str = "m@1",
    digest: str = "aa",
    *,
    process: str = "storage-a",
    incarnation: int = 1,
    tiers: tuple[str, ...] = ("host",),
    ownership: str = SYSTEM,
) -> Commit:
    node = process.rpartition("-")[2]
    return Commit(art_id, digest, 100, 3, node, process, incarnation, tiers, "me", ownership)


def lease(
    art_id: str = "m@1",
    digest: str = "aa",
    *,
    process: str = "storage-a",
    incarnation: int = 1,
    tiers: tuple[str, ...] = (LEASE,),
) -> Commit:
    """What a storage commits for a caller that registered."""
    return commit(art_id, digest, process=process, incarnation=incarnation, tiers=tiers, ownership=LEASE)


def end(art_id: str = "m@1", digest: str = "aa", *, process: str = "storage-a", incarnation: int = 1) -> EndLease:
    return EndLease(art_id, digest, process.rpartition("-")[2], process, incarnation)


def report(
    *claims: tuple[str, str, str] | ReplicaClaim,
    process: str = "storage-a",
    incarnation: int = 1,
    full: bool = True,
    first: bool = True,
    last: bool = True,
) -> Report:
    """Claims are (id, digest, tier), or as `claim` makes them."""
    rows = tuple(row if isinstance(row, ReplicaClaim) else claim(*row) for row in claims)
    return Report(process.rpartition("-")[2], process, incarnation, rows, full, first, last)


def claim(art_id: str, digest: str, tier: str, *, was: str = "", ownership: str = SYSTEM) -> ReplicaClaim:
    return ReplicaClaim(art_id, digest, tier, 100, 3, was, ownership)


def drop(art_id: str = "m@1", *, tier: str = "host", process: str = "storage-a", incarnation: int = 1) -> DropReplica:
    return DropReplica(art_id, tier, process.rpartition("-")[2], process, incarnation)


def set_to(art_id: str, name: str = "m@latest", *, expect: Expectation = ANY) -> SetAlias:
    return SetAlias(name, art_id, expect)


def absent() -> Expectation:
    return Expectation("absent")


def pointing_at(art_id: str) -> Expectation:
    return Expectation("id", art_id)


def as_set(row: AliasRow) -> Expectation:
    """This very setting."""
    return Expectation("revision", "", row.revision)
