"""When to start a dead child again, and when a cluster that never came up should say so instead. Pure."""

from __future__ import annotations

from tensorcast_services.process import REFUSED_CODE, TAKEN_OVER_CODE

DELAY_MS_MIN = 100
DELAY_MS_MAX = 5_000
STEADY_MS = 30_000
REFUSALS_MAX = 2
DEATHS_AT_START_MAX = 5


class Restarts:
    """One child's. `restarts` counts since `up`; `proven` once it was ready."""

    def __init__(self) -> None:
        self.restarts = 0
        self.proven = False
        self._refusals = 0
        self._deaths = 0
        self._delay_ms = DELAY_MS_MIN

    def is_ready(self) -> None:
        """From now on the child has shown that it can run here; it is started again for ever."""
        self.proven = True
        self._refusals = 0

    def died(self, *, code: int, lived_ms: int) -> int | None:
        """Milliseconds to wait before the next start; None when it must not be started again: it cannot run here, or
        another process has its place."""
        if code == TAKEN_OVER_CODE:
            return None
        if not self.proven:
            self._deaths += 1
            self._refusals = self._refusals + 1 if code == REFUSED_CODE else 0
            if self._refusals >= REFUSALS_MAX or self._deaths >= DEATHS_AT_START_MAX:
                return None
        if lived_ms >= STEADY_MS:
            self._delay_ms = DELAY_MS_MIN
        delay_ms, self._delay_ms = self._delay_ms, min(2 * self._delay_ms, DELAY_MS_MAX)
        self.restarts += 1
        return delay_ms
