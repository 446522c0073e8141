"""One deadline for one call. Every wait inside the call asks it how much is left; nothing waits on its own clock."""

from __future__ import annotations

import time

from tensorcast_bus.errors import Invalid, Timeout

DEADLINE_MS_DEFAULT = 30_000
DEADLINE_MS_MAX = 7 * 24 * 3_600_000


class RunningMs(int):
    """Milliseconds whose clock runs already. The async face gives them to a blocking call in place of a plain number,
    so that the wait for a thread counts; `given_up` ends that call at its next look at the clock."""

    def __init__(self, deadline_ms: int) -> None:
        self.started = time.monotonic()
        self.given_up = False


class Deadline:
    """Starts when it is made. `what` names the call for the error text, as in "put of 'llama'"."""

    def __init__(self, deadline_ms: int, what: str) -> None:
        """Raises Invalid for a deadline that is not a whole number of milliseconds from 1 to a week."""
        if isinstance(deadline_ms, bool) or not isinstance(deadline_ms, int):
            raise Invalid(f"{what}: deadline_ms is {deadline_ms!r}; give whole milliseconds, such as 30_000")
        if not 1 <= deadline_ms <= DEADLINE_MS_MAX:
            raise Invalid(f"{what}: deadline_ms is {deadline_ms}; allowed is 1 to {DEADLINE_MS_MAX} (a week)")
        self.running = deadline_ms if isinstance(deadline_ms, RunningMs) else RunningMs(deadline_ms)
        self.what = what

    @property
    def deadline_ms(self) -> int:
        return self.running

    @property
    def passed_ms(self) -> float:
        return (time.monotonic() - self.running.started) * 1000

    @property
    def over(self) -> bool:
        return self.running.given_up or self.passed_ms >= self.running

    def left_ms(self, phase: str) -> int:
        """At least 1. Raises Timeout naming `phase` when nothing is left."""
        left = 0 if self.running.given_up else int(self.running - self.passed_ms)
        if left < 1:
            raise self.timeout(phase)
        return left

    def timeout(self, phase: str) -> Timeout:
        return Timeout(
            f"{self.what} did not end within its deadline of {self.running} ms (while {phase}); "
            "give a longer deadline_ms, or see `tensorcast status` for what is stuck",
            phase=phase,
            deadline_ms=int(self.running),
        )
