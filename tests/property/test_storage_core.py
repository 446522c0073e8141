"""The storage's core against a world where everything may end in any order, be lost, or never come.

The world checks on the way: one answer each and by its deadline, nothing published that is not committed, segments and
kept sources freed exactly once, the last replica never gone, nothing read after its lease ended.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tensorcast_bus.notes import PutDone
from tests.property.storage_storm import Storm
from tests.unit.services.storage.world import World

STORMS = 300
STORM_STEPS = 300

IDS = st.sampled_from(["x", "y", "z"])
DIGESTS = st.sampled_from(["red", "blue"])
PATHS = st.sampled_from(["", "", "/p", "/q"])
BUDGETS = st.sampled_from([50, 500, 5_000, 200_000])
HOWS = st.sampled_from(["whole", "whole", "manifest", "view", "view"])
ENDS = st.sampled_from(["", "", "", "", "lost", "unheard", "fail"])
BASES = st.sampled_from(["", "", "", "x", "y"])
GOOD = ["nothing", "a file", "memory", "a lease", "more"]
CHANGES = [
    "another node puts",
    "a caller deletes",
    "another node deletes",
    "an event arrives",
    "a file changes",
    "a bit flips on disk",
    "the pool is looked at",
    "the pool is looked at",
]


class StorageMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @initialize(disk_on=st.sampled_from([True, True, False]))
    def begin(self, disk_on: bool) -> None:
        self.world = World(disk_on=disk_on, files={"/p": "red", "/q": "blue"})

    @rule(
        art_id=IDS,
        digest=DIGESTS,
        path=PATHS,
        budget_ms=BUDGETS,
        durable=st.booleans(),
        base=BASES,
    )
    def put(self, art_id: str, digest: str, path: str, budget_ms: int, durable: bool, base: str) -> None:
        if path and path in self.world.files:
            digest = self.world.files[path]
        base = "" if base == art_id else base
        self.world.put(art_id, digest, path=path, budget_ms=budget_ms, durable=durable, base=base)

    @rule(art_id=IDS, budget_ms=BUDGETS, how=HOWS)
    def attach(self, art_id: str, budget_ms: int, how: str) -> None:
        self.world.attach(art_id, budget_ms=budget_ms, how=how)

    @rule(art_id=IDS, budget_ms=BUDGETS)
    def make_durable(self, art_id: str, budget_ms: int) -> None:
        self.world.durable(art_id, budget_ms=budget_ms)

    @rule(
        art_id=IDS,
        content=DIGESTS,
        digest=st.sampled_from(["", "", "pending:1", "green"]),
        ttl_ms=st.sampled_from([300, 20_000]),
        budget_ms=BUDGETS,
        eager=st.booleans(),
    )
    def register(self, art_id: str, content: str, digest: str, ttl_ms: int, budget_ms: int, eager: bool) -> None:
        digest = "" if eager and digest.startswith("pending") else digest
        self.world.register(art_id, content, digest=digest, ttl_ms=ttl_ms, budget_ms=budget_ms, eager=eager)

    @precondition(lambda self: self.world.sources)
    @rule(draw=st.data(), what=st.sampled_from(["renew", "release", "die", "change", "hang up and die"]))
    def an_owner_acts(self, draw: st.DataObject, what: str) -> None:
        world = self.world
        source = draw.draw(st.integers(1, world.sources))
        kept = world.kept.get(source)
        art_id = kept.art_id if kept is not None else draw.draw(IDS)
        match what:
            case "renew":
                world.renew(art_id, source, ttl_ms=1_000)
            case "release":
                world.release(art_id, source)
            case "change" if kept is not None:
                kept.content = "green"
            case _:
                asked = [r for r in world.open_requests() if world.offered.get(r) == source]
                if what.startswith("hang up") and asked:
                    world.hang_up(asked[0])
                world.die(source)

    @precondition(lambda self: self.world.open_requests())
    @rule(draw=st.data())
    def hang_up(self, draw: st.DataObject) -> None:
        self.world.hang_up(draw.draw(st.sampled_from(sorted(self.world.open_requests()))))

    @precondition(lambda self: self.world.pending or self.world.fills)
    @rule(ends=st.lists(st.tuples(st.integers(0, 11), ENDS), min_size=1, max_size=5))
    def things_end_in_any_order(self, ends: list[tuple[int, str]]) -> None:
        world = self.world
        for number, how in ends:
            if world.pending and (number % 4 or not world.fills):
                world.end(number % len(world.pending), how=how)
            elif world.fills:
                fills = sorted(world.fills)
                world.end_fill(fills[number % len(fills)], how="fail" if how == "fail" else "")

    @precondition(lambda self: self.world.pending or self.world.fills)
    @rule(ends=st.lists(st.tuples(st.integers(0, 11), ENDS), min_size=1, max_size=4))
    def some_things_end(self, ends: list[tuple[int, str]]) -> None:
        self.things_end_in_any_order(ends)

    @precondition(lambda self: self.world.pending or self.world.fills)
    @rule(ends=st.lists(st.tuples(st.integers(0, 11), ENDS), min_size=3, max_size=9))
    def more_things_end(self, ends: list[tuple[int, str]]) -> None:
        self.things_end_in_any_order(ends)

    @rule(ms=st.sampled_from([1, 60, 60, 400, 400, 2_500, 2_500, 130_000]))
    def wait(self, ms: int) -> None:
        self.world.wait(ms)

    @rule(art_id=IDS, what=st.sampled_from(CHANGES), content=st.sampled_from(["red", "blue", "green", ""]))
    def the_world_changes(self, art_id: str, what: str, content: str) -> None:
        world = self.world
        match what:
            case "another node puts" if content in ("red", "blue"):
                world.put_elsewhere(art_id, content)
            case "a caller deletes":
                world.delete(art_id)
            case "another node deletes":
                world.delete_elsewhere(art_id)
            case "an event arrives" if world.events:
                world.hear()
            case "a bit flips on disk" if art_id in world.disk:
                world.disk[art_id] = "flipped"
            case "the pool is looked at":
                world.see_pool()
            case _ if content:
                world.files["/q" if art_id == "x" else "/p"] = content
            case _:
                world.files.pop("/p", None)

    @rule(art_id=IDS, what=st.sampled_from(GOOD), number=st.integers(0, 3))
    def all_goes_well_for_a_while(self, art_id: str, what: str, number: int) -> None:
        world = self.world
        match what:
            case "a file" if "/p" in world.files:
                world.put(art_id, world.files["/p"], path="/p")
            case "memory":
                world.put(art_id, "red")
            case "a lease":
                world.register(art_id, "red")
            case "more":
                world.put(f"more-{number}", "red")
        world.settle()

    @precondition(lambda self: self.world.published)
    @rule(draw=st.data(), by=st.sampled_from([1, -1]))
    def map_or_unmap(self, draw: st.DataObject, by: int) -> None:
        here = self.world.published[draw.draw(st.sampled_from(sorted(self.world.published)))]
        here.pins = max(0, here.pins + by)

    @invariant()
    def nobody_waits_past_his_deadline(self) -> None:
        due = self.world.core.next_due_ms()
        assert due is None or due > self.world.now_ms or self.world.open_requests()

    def teardown(self) -> None:
        world = self.world
        world.settle()
        world.wait(400_000)
        world.settle()
        while world.events:
            world.hear()
        world.settle()
        world.check_quiet()
        for source in list(world.kept):
            world.die(source)
        world.settle()
        assert not world.kept and world.let_gone == set(range(1, world.sources + 1)), "kept, or let go, for ever"
        # Room, ids and line are usable afterwards.
        for art_id in list(world.published):
            world.delete_elsewhere(art_id)
        while world.events:
            world.hear()
        last = world.put("last", "red")
        world.settle()
        assert isinstance(world.answers[last], PutDone)


def test_no_storm_breaks_a_promise() -> None:
    for seed in range(STORMS):
        storm = Storm(seed)
        try:
            for _ in range(STORM_STEPS):
                storm.blow()
            storm.calm()
        except (AssertionError, RuntimeError, LookupError) as error:
            raise AssertionError(f"storm {seed}: {error}") from error


TestStorageMachine = StorageMachine.TestCase
TestStorageMachine.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
