"""The block allocator against one boolean a block, whatever the order of calls."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tensorcast_native import BlockAllocator, PoolFull

Run = tuple[int, int]
BLOCKS_MAX = 120


def free_runs(free: list[bool]) -> list[int]:
    """Lengths of the free runs, longest first."""
    runs = "".join("x" if block else " " for block in free).split()
    return sorted(map(len, runs), reverse=True)


def fewest_runs(free: list[bool], blocks: int) -> int:
    taken = 0
    for length in free_runs(free):
        if blocks <= 0:
            break
        blocks -= length
        taken += 1
    return taken


class BlockAllocatorMachine(RuleBasedStateMachine):
    """Holds runs until it frees them; the model knows which blocks are free."""

    @initialize()
    def start(self) -> None:
        self.allocator = BlockAllocator(BLOCKS_MAX)
        self.free: list[bool] = []
        self.held: list[list[Run]] = []

    @precondition(lambda self: len(self.free) < BLOCKS_MAX)
    @rule(count=st.integers(1, 40))
    def add(self, count: int) -> None:
        count = min(count, BLOCKS_MAX - len(self.free))
        self.allocator.add(len(self.free), count)
        self.free += [True] * count

    @rule(blocks=st.integers(0, 60))
    def allocate(self, blocks: int) -> None:
        if blocks > sum(self.free):
            with pytest.raises(PoolFull):
                self.allocator.allocate(blocks)
            return
        runs = self.allocator.allocate(blocks)
        assert sum(count for _, count in runs) == blocks
        assert len(runs) == fewest_runs(self.free, blocks)
        self.mark(runs, was=True)
        self.held.append(runs)

    @precondition(lambda self: self.held)
    @rule(choice=st.integers(0, 2**16))
    def give_back(self, choice: int) -> None:
        runs = self.held.pop(choice % len(self.held))
        self.allocator.free(runs)
        self.mark(runs, was=False)
        if runs:
            with pytest.raises(ValueError, match="double free"):
                self.allocator.free(runs)

    @rule(first=st.integers(0, BLOCKS_MAX + 5), count=st.integers(1, 8))
    def give_back_what_is_not_in_use(self, first: int, count: int) -> None:
        if first + count <= len(self.free) and not any(self.free[first : first + count]):
            return
        with pytest.raises(ValueError, match=r"double free|unknown"):
            self.allocator.free([(first, count)])

    @invariant()
    def figures_agree(self) -> None:
        assert self.allocator.free_blocks == sum(self.free)
        assert self.allocator.longest_run == max(free_runs(self.free), default=0)

    def mark(self, runs: list[Run], *, was: bool) -> None:
        for first, count in runs:
            for block in range(first, first + count):
                assert self.free[block] is was
                self.free[block] = not was


TestBlockAllocator = BlockAllocatorMachine.TestCase
