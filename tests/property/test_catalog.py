"""The global store's catalog against beliefs that a page can hold: commits, leases, reports, drops, ends, deletes,
aliases, time and restarts.

The beliefs are sets; the core keeps entries, claims, stamps and saved rows. After every step both must agree about
every name, and the rows that were saved must be all that a restart needs.
"""

from __future__ import annotations

from typing import TypeVar

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import Struct

from tensorcast_bus.errors import AlreadyExists, Conflict, LeaseLost, NotFound, StaleFence, TensorCastError
from tensorcast_bus.messages import (
    AliasPage,
    AliasRow,
    ArtifactPage,
    Committed,
    Delete,
    DeleteAlias,
    DeletedRow,
    Dropped,
    Expectation,
    ListAliases,
    ListArtifacts,
    ReplicaClaim,
    Reported,
    Resolve,
    Resolved,
)
from tests.property.catalog_beliefs import Beliefs
from tests.unit.services.global_store.cases import PENDING, Desk, claim, commit, drop, end, report, set_to

NAMES = ("m@1", "m@2", "n", "latest")
PROCESSES = ("storage-a", "storage-b")
TIERS = ("host", "file", "disk", "lease")
TICK_MS = 500
T = TypeVar("T", bound=Struct)

names = st.sampled_from(NAMES)
processes = st.sampled_from(PROCESSES)
digests = st.sampled_from(("aa", "bb"))
any_digests = st.sampled_from(("aa", "bb", PENDING))
kinds = st.sampled_from(("any", "absent", "id", "revision"))
places = st.lists(st.sampled_from(("host", "file", "disk")), min_size=1, max_size=3, unique=True)
lent_places = st.sampled_from((("lease",), ("lease", "host"), ("host",)))


@st.composite
def held(draw: st.DrawFn) -> list[ReplicaClaim]:
    """What a storage may report of one id: one content and ownership, in one or more tiers."""
    art_id = draw(names)
    if draw(st.booleans()):
        return [claim(art_id, draw(digests), tier) for tier in draw(places)]
    digest = draw(any_digests)
    was = PENDING if digest != PENDING and draw(st.booleans()) else ""
    return [claim(art_id, digest, tier, was=was, ownership="lease") for tier in draw(lent_places)]


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.beliefs = Beliefs(self.desk.now_ms, PROCESSES)
        self.commands = 0
        self.last_revision = 0

    def once(self, ask: Struct, answer: type[T]) -> T:
        """Asks twice under one idempotency id: the repeat gets the same answer and changes nothing."""
        self.commands += 1
        idem = f"command {self.commands}"
        done = self.desk.ask(ask, answer, idem=idem)
        rows = dict(self.desk.rows)
        assert self.desk.ask(ask, answer, idem=idem) == done
        assert self.desk.rows == rows
        return done

    def refused(self, ask: Struct, *errors: type[TensorCastError]) -> TensorCastError:
        rows = dict(self.desk.rows)
        try:
            got = self.desk.ask(ask, Struct)
        except errors as error:
            assert self.desk.rows == rows
            return error
        raise AssertionError(f"{ask} was answered {got}")

    # Rules

    @rule(art_id=names, process=processes, digest=digests, tiers=places)
    def puts(self, art_id: str, process: str, digest: str, tiers: list[str]) -> None:
        self._commit(art_id, process, digest, tuple(tiers), "system")

    @rule(art_id=names, process=processes, digest=any_digests, tiers=lent_places)
    def registers(self, art_id: str, process: str, digest: str, tiers: tuple[str, ...]) -> None:
        self._commit(art_id, process, digest, tiers, "lease")

    def _commit(self, art_id: str, process: str, digest: str, tiers: tuple[str, ...], ownership: str) -> None:
        beliefs = self.beliefs
        beliefs.hear(process)
        incarnation = beliefs.incarnation[process]
        ask = commit(art_id, digest, process=process, incarnation=incarnation, tiers=tiers, ownership=ownership)
        present = any(holder == process for holder, _ in beliefs.living(art_id))
        if not beliefs.commit(ask):
            error = self.refused(ask, AlreadyExists)
            if art_id in beliefs.aliases:
                assert error.context["target"] == beliefs.aliases[art_id].art_id
            return
        assert self.once(ask, Committed).outcome == ("already_present" if present else "stored")

    @rule(process=processes, holds=st.lists(held(), max_size=4), cut=st.integers(0, 6))
    def reports(self, process: str, holds: list[list[ReplicaClaim]], cut: int) -> None:
        self.beliefs.hear(process)
        incarnation = self.beliefs.incarnation[process]
        rows = [row for rows in holds for row in rows]
        parts = [
            report(*rows[:cut], process=process, incarnation=incarnation, last=False),
            report(*rows[cut:], process=process, incarnation=incarnation, first=False),
        ]
        refused = [art_id for part in parts for art_id in self.desk.ask(part, Reported).refused]
        assert refused == self.beliefs.report(parts)

    @rule(art_id=names, process=processes, tier=st.sampled_from(TIERS))
    def drops(self, art_id: str, process: str, tier: str) -> None:
        self.beliefs.hear(process)
        ask = drop(art_id, tier=tier, process=process, incarnation=self.beliefs.incarnation[process])
        assert self.desk.ask(ask, Dropped).granted == self.beliefs.drop(art_id, process, tier)

    @rule(art_id=names, process=processes, digest=any_digests)
    def a_lease_ends(self, art_id: str, process: str, digest: str) -> None:
        self.beliefs.hear(process)
        ask = end(art_id, digest, process=process, incarnation=self.beliefs.incarnation[process])
        ended = self.beliefs.end_lease(ask)
        assert (self.once(ask, DeletedRow).revision > 0) == ended

    @rule(art_id=names)
    def deletes(self, art_id: str) -> None:
        if art_id not in self.beliefs.content:
            self.refused(Delete(art_id), NotFound)
            return
        self.once(Delete(art_id), DeletedRow)
        self.beliefs.remove(art_id, "deleted")

    @rule(name=names, to=names, kind=kinds, other=names, pick=st.integers(0, 1000))
    def sets_an_alias(self, name: str, to: str, kind: str, other: str, pick: int) -> None:
        ask = set_to(to, name, expect=self._expectation(name, kind, other, pick))
        match self.beliefs.may_set(name, to, ask.expect):
            case "":
                row = self.once(ask, AliasRow)
                assert (row.name, row.art_id, row.set_ms) == (name, to, self.desk.now_ms)
                self.beliefs.set(row)
            case "NotFound":
                self.refused(ask, NotFound)
            case _:
                self.refused(ask, Conflict)

    @rule(name=names, kind=kinds, other=names, pick=st.integers(0, 1000))
    def removes_an_alias(self, name: str, kind: str, other: str, pick: int) -> None:
        ask = DeleteAlias(name, self._expectation(name, kind, other, pick))
        match self.beliefs.may_unset(name, ask.expect):
            case "":
                assert self.once(ask, AliasRow) == self.beliefs.aliases.pop(name)
            case "NotFound":
                self.refused(ask, NotFound)
            case _:
                self.refused(ask, Conflict)

    def _expectation(self, name: str, kind: str, art_id: str, pick: int) -> Expectation:
        earlier = [row.revision for row in self.beliefs.settings if row.name == name] or [0]
        return Expectation(kind, art_id, earlier[pick % len(earlier)])

    @rule(process=processes)
    def starts_again(self, process: str) -> None:
        """A storage process is replaced; the global store hears of it when it speaks."""
        self.beliefs.incarnation[process] += 1

    @rule(process=processes)
    def beats(self, process: str) -> None:
        self.desk.beat(process, self.beliefs.incarnation[process])
        self.beliefs.hear(process)

    @rule(process=processes)
    def an_old_incarnation_speaks(self, process: str) -> None:
        if self.beliefs.known.get(process, 0) < 2:
            return
        old = self.beliefs.known[process] - 1
        for ask in (
            commit("zombie", process=process, incarnation=old),
            report(("zombie", "aa", "host"), process=process, incarnation=old),
            drop(process=process, incarnation=old),
            end(process=process, incarnation=old),
        ):
            self.refused(ask, StaleFence)
        self.desk.beat(process, old)

    @rule(awake=st.sets(processes), ticks=st.sampled_from((2, 12, 140)))
    def time_passes(self, awake: set[str], ticks: int) -> None:
        for _ in range(ticks):
            for process in sorted(awake):
                self.beats(process)
            self.desk.tick(after_ms=TICK_MS)
            self.beliefs.tick(self.desk.now_ms)

    @precondition(lambda self: self.commands > 0)
    @rule()
    def the_global_store_restarts(self) -> None:
        self.desk.restart()
        # What it knows of incarnations is what its rows name.
        known: dict[str, int] = {}
        for record in self.desk.saved().replicas:
            known[record.process] = max(record.incarnation, known.get(record.process, 0))
        self.beliefs.restart(known)
        self.beliefs.tick(self.desk.now_ms)

    # What must hold after each

    @invariant()
    def both_agree_about_every_name(self) -> None:
        for name in NAMES:
            alias = self.beliefs.aliases.get(name)
            art_id = alias.art_id if alias is not None else name
            if art_id not in self.beliefs.content:
                error = self.refused(Resolve(name), NotFound, LeaseLost)
                assert isinstance(error, LeaseLost) == (self.beliefs.gone.get(art_id) == "lease")
                assert art_id in error.text
                continue
            found = self.desk.ask(Resolve(name), Resolved)
            assert found.alias == alias
            row = found.artifact
            assert (row.art_id, row.digest) == (art_id, self.beliefs.content[art_id])
            assert row.ownership == self.beliefs.ownership[art_id]
            assert {(r.process, r.tier) for r in found.replicas if r.living} == self.beliefs.living(art_id)
            assert {r.digest for r in found.replicas} <= {row.digest}

    @invariant()
    def the_lists_show_what_resolves(self) -> None:
        page = self.desk.ask(ListArtifacts(), ArtifactPage)
        assert [row.art_id for row in page.rows] == sorted(self.beliefs.content)
        for row, where in zip(page.rows, page.places, strict=True):
            assert set(where) == {f"{p[-1]}:{tier}" for p, tier in self.beliefs.living(row.art_id)}
        aliases = self.desk.ask(ListAliases(), AliasPage)
        assert list(aliases.rows) == [row for _, row in sorted(self.beliefs.aliases.items())]

    @invariant()
    def no_name_is_both_an_id_and_an_alias(self) -> None:
        assert not self.beliefs.content.keys() & self.beliefs.aliases.keys()
        figures = self.desk.core.figures()
        assert figures["leases"] == sum(ownership == "lease" for ownership in self.beliefs.ownership.values())

    @invariant()
    def events_and_revisions_only_grow(self) -> None:
        sequences = [e.sequence for e in self.desk.events]
        assert sequences == list(range(sequences[0], sequences[0] + len(sequences))) if sequences else True
        revisions = [e.revision for e in self.desk.events if e.kind != "hello"]
        assert revisions == sorted(set(revisions))
        assert not revisions or revisions[0] > self.last_revision
        self.last_revision = max([self.last_revision, *revisions])
        self.desk.events.clear()


Model.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestCatalog = Model.TestCase
