"""The global store's catalog against a model that a page can hold: commits, reports, drops, deletes, restarts.

The model keeps sets; the core keeps entries, claims, stamps and saved rows. After every step both must agree about
every id, and the rows that were saved must be all that a restart needs.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tensorcast_bus.errors import AlreadyExists, NotFound, StaleFence
from tensorcast_bus.messages import (
    ArtifactPage,
    Committed,
    Delete,
    DeletedRow,
    Dropped,
    ListArtifacts,
    Reported,
    Resolve,
    Resolved,
)
from tests.unit.services.global_store.cases import Desk, commit, drop, report

IDS = ("m@1", "m@2", "n")
PROCESSES = ("storage-a", "storage-b")
TIERS = ("host", "file")
Claim = tuple[str, str, str]  # (id, process, tier)

ids = st.sampled_from(IDS)
processes = st.sampled_from(PROCESSES)
digests = st.sampled_from(("aa", "bb"))
tier_sets = st.sampled_from((("host",), ("file",), ("host", "file")))


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.incarnation = dict.fromkeys(PROCESSES, 1)
        self.content: dict[str, str] = {}
        self.claims: dict[Claim, int] = {}  # standing claims and their incarnation
        self.deleted: set[str] = set()
        self.known: dict[str, int] = {}  # the incarnation that the global store knows of
        self.heard: set[str] = set()  # processes that it heard since its start
        self.dead: set[str] = set()
        self.grace = True
        self.commands = 0
        self.last_revision = 0

    # What the model believes

    def lives(self, process: str, incarnation: int) -> bool:
        if incarnation < self.known.get(process, 0):
            return False
        if process in self.heard:
            return process not in self.dead and incarnation == self.known[process]
        return self.grace

    def living(self, art_id: str) -> set[tuple[str, str]]:
        return {
            (process, tier)
            for (of, process, tier), incarnation in self.claims.items()
            if of == art_id and self.lives(process, incarnation)
        }

    def heard_from(self, process: str) -> bool:
        """A word of the process's current incarnation arrives; False when the global store knows a newer one."""
        self.known[process] = self.incarnation[process]
        self.heard.add(process)
        self.dead.discard(process)
        return True

    # Rules

    @rule(art_id=ids, process=processes, digest=digests, tiers=tier_sets)
    def commits(self, art_id: str, process: str, digest: str, tiers: tuple[str, ...]) -> None:
        self.heard_from(process)
        ask = commit(art_id, digest, process=process, incarnation=self.incarnation[process], tiers=tiers)
        self.commands += 1
        idem = f"command {self.commands}"
        if self.content.get(art_id, digest) != digest:
            try:
                self.desk.ask(ask, Committed, idem=idem)
            except AlreadyExists as refused:
                assert refused.context["stored"] == self.content[art_id]
                return
            raise AssertionError(f"{art_id} got a second content")
        present = any(p == process for p, _ in self.living(art_id))
        done = self.desk.ask(ask, Committed, idem=idem)
        assert done.outcome == ("already_present" if present else "stored")
        self.content[art_id] = digest
        self.deleted.discard(art_id)
        self.claims |= {(art_id, process, tier): self.incarnation[process] for tier in tiers}
        assert self.desk.ask(ask, Committed, idem=idem) == done

    @rule(process=processes, held=st.dictionaries(ids, st.tuples(digests, tier_sets)), cut=st.integers(0, 6))
    def reports(self, process: str, held: dict[str, tuple[str, tuple[str, ...]]], cut: int) -> None:
        self.heard_from(process)
        incarnation = self.incarnation[process]
        rows = [(i, digest, tier) for i, (digest, tiers) in sorted(held.items()) for tier in tiers]
        refused: list[str] = []
        for part, first, last in ((rows[:cut], True, False), (rows[cut:], False, True)):
            ask = report(*part, process=process, incarnation=incarnation, first=first, last=last)
            refused += self.desk.ask(ask, Reported).refused
        expected = [i for i, digest, _ in rows if i in self.deleted or self.content.get(i, digest) != digest]
        assert refused == expected
        self.claims = {claim: n for claim, n in self.claims.items() if claim[1] != process}
        for art_id, digest, tier in rows:
            if art_id not in expected:
                self.content[art_id] = digest
                self.claims[(art_id, process, tier)] = incarnation

    @rule(art_id=ids, process=processes, tier=st.sampled_from(TIERS))
    def drops(self, art_id: str, process: str, tier: str) -> None:
        self.heard_from(process)
        others = [(p, t) for p, t in self.living(art_id) if (p, t) != (process, tier) and p in self.heard]
        granted = art_id not in self.content or tier == "file" or bool(others)
        ask = drop(art_id, tier=tier, process=process, incarnation=self.incarnation[process])
        assert self.desk.ask(ask, Dropped).granted == granted
        if granted:
            self.claims.pop((art_id, process, tier), None)

    @rule(art_id=ids)
    def deletes(self, art_id: str) -> None:
        self.commands += 1
        idem = f"command {self.commands}"
        if art_id not in self.content:
            try:
                self.desk.ask(Delete(art_id), DeletedRow, idem=idem)
            except NotFound:
                return
            raise AssertionError(f"{art_id} was deleted twice")
        done = self.desk.ask(Delete(art_id), DeletedRow, idem=idem)
        assert self.desk.ask(Delete(art_id), DeletedRow, idem=idem) == done
        del self.content[art_id]
        self.deleted.add(art_id)
        self.claims = {claim: n for claim, n in self.claims.items() if claim[0] != art_id}

    @rule(process=processes)
    def starts_again(self, process: str) -> None:
        """A storage process is replaced; the global store hears of it when it speaks."""
        self.incarnation[process] += 1

    @rule(process=processes)
    def beats(self, process: str) -> None:
        self.desk.beat(process, self.incarnation[process])
        self.heard_from(process)

    @rule(process=processes)
    def an_old_incarnation_speaks(self, process: str) -> None:
        if self.known.get(process, 0) < 2:
            return
        old = self.known[process] - 1
        for ask in (
            commit("zombie", process=process, incarnation=old),
            report(("zombie", "aa", "host"), process=process, incarnation=old),
            drop(process=process, incarnation=old),
        ):
            try:
                self.desk.ask(ask, Committed)
            except StaleFence:
                continue
            raise AssertionError(f"{ask} of a replaced incarnation was heard")
        self.desk.beat(process, old)

    @rule(awake=st.sets(processes))
    def six_seconds_pass(self, awake: set[str]) -> None:
        self.desk.pass_time(6_000, beating=[(p, self.incarnation[p]) for p in sorted(awake)])
        for process in PROCESSES:
            if process in awake:
                self.heard_from(process)
            elif process in self.heard:
                self.dead.add(process)
        self.grace = False

    @precondition(lambda self: self.commands > 0)
    @rule()
    def the_global_store_restarts(self) -> None:
        self.desk.restart()
        self.heard.clear()
        self.dead.clear()
        self.grace = True
        # What it knows of incarnations is what its rows name.
        self.known = {}
        for claim in self.desk.saved().replicas:
            self.known[claim.process] = max(claim.incarnation, self.known.get(claim.process, 0))

    # What must hold after each

    @invariant()
    def both_agree_about_every_id(self) -> None:
        for art_id in IDS:
            try:
                found = self.desk.ask(Resolve(art_id), Resolved)
            except NotFound:
                assert art_id not in self.content
                continue
            assert found.artifact.digest == self.content[art_id]
            assert {(r.process, r.tier) for r in found.replicas if r.living} == self.living(art_id)
            assert {r.digest for r in found.replicas} <= {self.content[art_id]}

    @invariant()
    def the_list_shows_what_resolves(self) -> None:
        page = self.desk.ask(ListArtifacts(), ArtifactPage)
        assert [row.art_id for row in page.rows] == sorted(self.content)
        for row, places in zip(page.rows, page.places, strict=True):
            assert set(places) == {f"{p[-1]}:{tier}" for p, tier in self.living(row.art_id)}

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
