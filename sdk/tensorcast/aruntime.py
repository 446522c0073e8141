"""The async face: AsyncRuntime, AsyncArtifact and aconnect(). The same calls as the sync face, as awaitables.

Each call runs the blocking one in a thread of the caller's loop. A cancelled await gives up waiting; the call itself
ends by its own deadline.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from tensorcast.artifact import Artifact
from tensorcast.deadline import DEADLINE_MS_DEFAULT
from tensorcast.records import ArtifactRecord, TensorMeta
from tensorcast.runtime import Puttable, Runtime, connect

if TYPE_CHECKING:
    import torch


class AsyncArtifact:
    """See Artifact."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self.art_id = artifact.art_id
        self.outcome = artifact.outcome
        self.stats = artifact.stats

    async def tensor_meta(self, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> dict[str, TensorMeta]:
        return await asyncio.to_thread(self._artifact.tensor_meta, deadline_ms=deadline_ms)

    async def tensor_dict(
        self, device: str | torch.device = "cpu", *, deadline_ms: int = DEADLINE_MS_DEFAULT
    ) -> dict[str, torch.Tensor]:
        return await asyncio.to_thread(self._artifact.tensor_dict, device, deadline_ms=deadline_ms)

    async def tensor(self, name: str | None = None, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> torch.Tensor:
        return await asyncio.to_thread(self._artifact.tensor, name, deadline_ms=deadline_ms)

    async def copy_into(self, targets: Mapping[str, torch.Tensor], *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        await asyncio.to_thread(self._artifact.copy_into, targets, deadline_ms=deadline_ms)

    async def save(self, path: str | os.PathLike[str], *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        await asyncio.to_thread(self._artifact.save, path, deadline_ms=deadline_ms)

    async def release(self) -> None:
        self._artifact.release()

    def __repr__(self) -> str:
        return f"<Async{repr(self._artifact)[1:]}"


class AsyncRuntime:
    """See Runtime. Made by aconnect()."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def put(
        self, x: Puttable, art_id: str, *, durable: bool = False, deadline_ms: int = DEADLINE_MS_DEFAULT
    ) -> AsyncArtifact:
        return AsyncArtifact(
            await asyncio.to_thread(self._runtime.put, x, art_id, durable=durable, deadline_ms=deadline_ms)
        )

    def artifact(self, art_id: str) -> AsyncArtifact:
        """No I/O, so nothing to await."""
        return AsyncArtifact(self._runtime.artifact(art_id))

    async def delete(self, art_id: str, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        await asyncio.to_thread(self._runtime.delete, art_id, deadline_ms=deadline_ms)

    async def list_artifacts(self, prefix: str = "", *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> list[ArtifactRecord]:
        return await asyncio.to_thread(self._runtime.list_artifacts, prefix, deadline_ms=deadline_ms)

    async def close(self) -> None:
        await asyncio.to_thread(self._runtime.close)

    async def __aenter__(self) -> AsyncRuntime:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def aconnect(addr: str | None = None, *, node: str | None = None, name: str | None = None) -> AsyncRuntime:
    """See connect()."""
    return AsyncRuntime(await asyncio.to_thread(connect, addr, node=node, name=name))
