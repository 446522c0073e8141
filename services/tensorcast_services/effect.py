"""What a pure core takes in and gives out: ``step(event, origin, now_ms)`` and ``tick(now_ms)`` return effects.

A core never awaits. It changes its memory at once and returns what should happen outside; the runtime saves all
``Save`` of a batch in one transaction and only then sends its replies and announcements. Effects that the runtime
does not know (a storage's native ones) go to the service's own ``perform``. Times are ms on one clock that never
jumps. Called by every core; imports nothing that could wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from tensorcast_bus.errors import TensorCastError


class Origin(Struct, frozen=True):
    """Who asked. `ticket` names the answer that the runtime owes, 0 when nobody waits; `budget_ms` is what is left of
    the asker's patience; `idem` is the idempotency id, empty when there is none."""

    ticket: int = 0
    sender: str = ""
    trace_id: str = ""
    budget_ms: int = 0
    idem: str = ""


NOBODY = Origin()


class Save(Struct, frozen=True):
    """Write this row before anything of the batch is sent. `table` and `key` name the row; of several in one batch the
    last wins. `row` None removes it. `new` when the core knows that no row of this key is saved: that is cheaper."""

    table: str
    key: tuple[str, ...]
    row: Struct | None
    new: bool = False


class Reply(Struct, frozen=True):
    """The answer to the request that came with `ticket`. An error goes out as its record. Answers to a ticket that is
    unknown or already answered are dropped: the asker has left."""

    ticket: int
    body: Struct | TensorCastError


class Call(Struct, frozen=True):
    """A request on the bus. Its end comes back as an `Answered` event with the same `token`, errors included."""

    token: int
    subject: str
    body: Struct
    answer: type[Struct]
    budget_ms: int
    idem: str = ""
    trace_id: str = ""


class Answered(Struct, frozen=True):
    """The end of a Call."""

    token: int
    result: Struct | TensorCastError


class Announce(Struct, frozen=True):
    """A publication on the bus. They leave in order; when the bus lags too far behind the oldest are lost, which their
    readers see by their sequence."""

    subject: str
    body: Struct


Effect = Struct


class Core(Protocol):
    """A service's pure part. `now_ms` of a step is when its event arrived; a tick's is a time up to which every event
    has been given to `step`, so nothing that a core expires has an unread word in the inbox. Both only grow."""

    def step(self, event: Struct, origin: Origin, now_ms: int) -> Sequence[Effect]: ...

    def tick(self, now_ms: int) -> Sequence[Effect]: ...
