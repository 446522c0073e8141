"""The storage's core against a world where everything may end in any order, be lost, or never come."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tensorcast_bus.notes import PutDone
from tests.unit.services.storage.world import World

IDS = st.sampled_from(["x", "y", "z"])
DIGESTS = st.sampled_from(["red", "blue"])
PATHS = st.sampled_from(["", "/p", "/q"])
BUDGETS = st.sampled_from([50, 500, 5_000])


class StorageMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.files = {"/p": "red", "/q": "blue"}

    @rule(art_id=IDS, digest=DIGESTS, path=PATHS, budget_ms=BUDGETS)
    def put(self, art_id: str, digest: str, path: str, budget_ms: int) -> None:
        if path and path in self.world.files:
            digest = self.world.files[path]
        self.world.put(art_id, digest, path=path, budget_ms=budget_ms)

    @rule(art_id=IDS, budget_ms=BUDGETS)
    def attach(self, art_id: str, budget_ms: int) -> None:
        self.world.attach(art_id, budget_ms=budget_ms)

    @rule(art_id=IDS, budget_ms=BUDGETS)
    def delete(self, art_id: str, budget_ms: int) -> None:
        self.world.delete(art_id, budget_ms=budget_ms)

    @precondition(lambda self: self.world.open_requests())
    @rule(draw=st.data())
    def hang_up(self, draw: st.DataObject) -> None:
        self.world.hang_up(draw.draw(st.sampled_from(sorted(self.world.open_requests()))))

    @precondition(lambda self: self.world.pending)
    @rule(draw=st.data(), how=st.sampled_from(["", "", "", "lost", "unheard", "fail"]))
    def end_something(self, draw: st.DataObject, how: str) -> None:
        self.world.end(draw.draw(st.integers(0, len(self.world.pending) - 1)), how=how)

    @precondition(lambda self: self.world.fills)
    @rule(draw=st.data(), how=st.sampled_from(["", "", "fail"]))
    def end_a_fill(self, draw: st.DataObject, how: str) -> None:
        self.world.end_fill(draw.draw(st.sampled_from(sorted(self.world.fills))), how=how)

    @rule(ms=st.sampled_from([1, 100, 400, 2_500]))
    def wait(self, ms: int) -> None:
        self.world.wait(ms)

    @rule(path=st.sampled_from(["/p", "/q"]), content=st.sampled_from(["red", "blue", "green", None]))
    def change_a_file(self, path: str, content: str | None) -> None:
        if content is None:
            self.world.files.pop(path, None)
        else:
            self.world.files[path] = content

    @rule(art_id=IDS)
    def another_node_deletes(self, art_id: str) -> None:
        self.world.delete_elsewhere(art_id)

    @precondition(lambda self: self.world.events)
    @rule()
    def an_event_arrives(self) -> None:
        self.world.hear()

    @rule(art_id=IDS, digest=DIGESTS)
    def another_node_puts(self, art_id: str, digest: str) -> None:
        self.world.put_elsewhere(art_id, digest)

    @rule()
    def all_goes_well_for_a_while(self) -> None:
        self.world.settle()

    @rule(art_id=IDS, path=st.sampled_from(["/p", "/q"]))
    def a_file_is_put_and_done(self, art_id: str, path: str) -> None:
        if path in self.world.files:
            self.world.put(art_id, self.world.files[path], path=path)
            self.world.settle()

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
        world.wait(20_000)
        world.settle()
        while world.events:
            world.hear()
        world.settle()
        world.check_quiet()
        # Room, ids and line are usable afterwards.
        for art_id in list(world.published):
            world.delete_elsewhere(art_id)
        while world.events:
            world.hear()
        last = world.put("last", "red")
        world.settle()
        assert isinstance(world.answers[last], PutDone)


TestStorageMachine = StorageMachine.TestCase
TestStorageMachine.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
