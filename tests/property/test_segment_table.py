"""The segment table against a model of four numbers a segment, whatever the order of calls."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from tensorcast_native import SegmentTable


@dataclass
class Model:
    sealed: bool = False
    users: int = 1
    pins: int = 0

    @property
    def state(self) -> str:
        if self.users == 0:
            return "dropped" if self.pins else "unknown"
        return "sealed" if self.sealed else "reserved"


class SegmentTableMachine(RuleBasedStateMachine):
    """Every call is tried in every state: allowed ones agree with the model, others raise and change nothing."""

    segments: Bundle[int] = Bundle("segments")

    @initialize()
    def start(self) -> None:
        self.table = SegmentTable()
        self.models: dict[int, Model] = {}

    @rule(target=segments, nbytes=st.integers(0, 2**40))
    def reserve(self, nbytes: int) -> int:
        segment = self.table.reserve(nbytes)
        assert segment not in self.models, "an id was used again"
        self.models[segment] = Model()
        return segment

    @rule(segment=segments)
    def seal(self, segment: int) -> None:
        if self.allowed(segment, "reserved", call=self.table.seal):
            self.table.seal(segment)
            self.models[segment].sealed = True

    @rule(segment=segments)
    def hold(self, segment: int) -> None:
        if self.allowed(segment, "sealed", call=self.table.hold):
            self.table.hold(segment)
            self.models[segment].users += 1

    @rule(segment=segments)
    def pin(self, segment: int) -> None:
        if self.allowed(segment, "sealed", call=self.table.pin):
            self.table.pin(segment)
            self.models[segment].pins += 1

    @rule(segment=segments)
    def drop(self, segment: int) -> None:
        if self.allowed(segment, "reserved", "sealed", call=self.table.drop):
            freed = self.table.drop(segment)
            self.models[segment].users -= 1
            assert freed == (self.models[segment].state == "unknown")

    @rule(segment=segments)
    def unpin(self, segment: int) -> None:
        if self.models[segment].pins == 0:
            with pytest.raises(ValueError, match=f"segment {segment}"):
                self.table.unpin(segment)
            return
        freed = self.table.unpin(segment)
        self.models[segment].pins -= 1
        assert freed == (self.models[segment].state == "unknown")

    def allowed(self, segment: int, *states: str, call: Callable[[int], object]) -> bool:
        if self.models[segment].state in states:
            return True
        with pytest.raises(ValueError, match=f"segment {segment}"):
            call(segment)
        return False

    @invariant()
    def states_agree(self) -> None:
        for segment, model in self.models.items():
            assert self.table.state(segment) == model.state
        assert self.table.state(2**40) == "unknown"


TestSegmentTable = SegmentTableMachine.TestCase
