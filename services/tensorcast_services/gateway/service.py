"""Serves ``gw.<caller>.<verb>``, the verbs of GatewayRequest, in the queue group "gw" by asking the global store.

Holds nothing: whichever gateway gets a request, the answer is the global store's, within what is left of the caller's
budget. The idempotency id travels with it, so a caller may repeat its request at another gateway.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from tensorcast_bus.bus import Caller
from tensorcast_bus.codec import kind_of
from tensorcast_bus.errors import Invalid, Unavailable
from tensorcast_bus.messages import (
    AliasPage,
    AliasRow,
    ArtifactPage,
    Delete,
    DeleteAlias,
    DeletedRow,
    GatewayRequest,
    GetAlias,
    ListAliases,
    ListArtifacts,
    ListWorkers,
    Resolve,
    Resolved,
    SetAlias,
    WorkerList,
)
from tensorcast_bus.subjects import Subjects
from tensorcast_services.gateway.settings import GatewaySettings
from tensorcast_services.process import Context

BEAT_MS = 250
QUEUE = "gw"
ANSWERS: dict[type[Struct], type[Struct]] = {
    ListArtifacts: ArtifactPage,
    Resolve: Resolved,
    Delete: DeletedRow,
    ListWorkers: WorkerList,
    SetAlias: AliasRow,
    DeleteAlias: AliasRow,
    GetAlias: AliasRow,
    ListAliases: AliasPage,
}


class GatewayService:
    """See process.Service."""

    def __init__(self, context: Context, settings: GatewaySettings) -> None:
        self.ready = asyncio.Event()
        self._bus = context.bus
        self._beats = context.beats
        self._settings = settings
        self._stopping = asyncio.Event()
        self._asked = 0
        self._under_way = 0

    async def run(self) -> None:
        await self._bus.serve(Subjects.gateway_all(), GatewayRequest, self._ask, queue=QUEUE)
        self.ready.set()
        while not self._stopping.is_set():
            self._beats.beat()
            try:
                async with asyncio.timeout(BEAT_MS / 1000):
                    await self._stopping.wait()
            except TimeoutError:
                pass

    def stop(self) -> None:
        self._stopping.set()

    async def close(self) -> None:
        """Nothing is held."""

    def figures(self) -> dict[str, int]:
        return {"requests": self._asked, "requests_under_way": self._under_way}

    async def _ask(self, body: Struct, caller: Caller) -> Struct:
        answer = ANSWERS.get(type(body))
        if answer is None:
            raise Invalid(f"a gateway has no answer to {type(body).__name__}")
        if self._under_way >= self._settings.requests_max:
            raise Unavailable(
                f"{self._bus.name} has {self._under_way} requests under way, its limit; try again",
                process=self._bus.name,
            )
        self._asked += 1
        self._under_way += 1
        try:
            return await self._bus.request(
                Subjects.global_store(kind_of(type(body))),
                body,
                answer=answer,
                budget_ms=caller.budget_ms,
                idem=caller.idem,
                trace_id=caller.trace_id,
            )
        finally:
            self._under_way -= 1


async def build(context: Context, settings: GatewaySettings) -> GatewayService:
    return GatewayService(context, settings)
