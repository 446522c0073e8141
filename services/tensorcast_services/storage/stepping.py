"""The core as the runtime knows cores, with an alarm for its deadlines, so that nobody wakes up without a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from tensorcast_services.effect import Effect, Origin
from tensorcast_services.storage.core.artifacts import Artifacts


class Due(msgspec.Struct, frozen=True):
    """The time of the core's next deadline has come."""


class Stepping:
    """`post` brings Due into the runtime's inbox; `clock_ms` is the runtime's."""

    def __init__(self, artifacts: Artifacts, *, post: Callable[[Due], None], clock_ms: Callable[[], int]) -> None:
        self._artifacts = artifacts
        self._post = post
        self._clock_ms = clock_ms
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0

    def step(self, event: msgspec.Struct, _origin: Origin, now_ms: int) -> Sequence[Effect]:
        if isinstance(event, Due):
            self._alarm = None
            effects = self._artifacts.tick(now_ms=now_ms)
        else:
            effects = self._artifacts.step(event, now_ms=now_ms)  # type: ignore[arg-type]  # only events are posted
        self._set_alarm()
        return effects

    def tick(self, now_ms: int) -> Sequence[Effect]:
        return self._artifacts.tick(now_ms=now_ms)

    def _set_alarm(self) -> None:
        due_ms = self._artifacts.next_due_ms()
        if due_ms is None or (self._alarm is not None and self._alarm_ms <= due_ms):
            return  # one that comes too early finds nothing due and sets the next
        if self._alarm is not None:
            self._alarm.cancel()
        delay_s = max(0, due_ms - self._clock_ms()) / 1000
        self._alarm_ms = due_ms
        self._alarm = asyncio.get_running_loop().call_later(delay_s, self._post, Due())
