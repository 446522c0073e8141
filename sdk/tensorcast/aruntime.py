"""The async face: AsyncRuntime, AsyncArtifact and aconnect(). The same calls as the sync face, as awaitables.

Each call runs the blocking one in a thread; its deadline starts at the call, before a thread is free. A cancelled
await gives up at once, except in put() and copy_into(), which reach the caller's memory: there it returns when the
call has left that memory alone, by the call's own deadline at the latest. A cancelled put may have been stored, whole
and as given, never mixed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from tensorcast.artifact import Artifact
from tensorcast.deadline import DEADLINE_MS_DEFAULT, Deadline
from tensorcast.records import ArtifactRecord, TensorMeta
from tensorcast.runtime import Puttable, Runtime, connect
from tensorcast.threads import in_thread

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
        deadline = Deadline(deadline_ms, f"tensor_meta of {self.art_id!r}")
        return await in_thread(lambda ms: self._artifact.tensor_meta(deadline_ms=ms), deadline)

    async def tensor_dict(
        self, device: str | torch.device = "cpu", *, deadline_ms: int = DEADLINE_MS_DEFAULT
    ) -> dict[str, torch.Tensor]:
        deadline = Deadline(deadline_ms, f"tensor_dict of {self.art_id!r}")
        return await in_thread(lambda ms: self._artifact.tensor_dict(device, deadline_ms=ms), deadline)

    async def tensor(self, name: str | None = None, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> torch.Tensor:
        deadline = Deadline(deadline_ms, f"tensor {name!r} of {self.art_id!r}")
        return await in_thread(lambda ms: self._artifact.tensor(name, deadline_ms=ms), deadline)

    async def copy_into(self, targets: Mapping[str, torch.Tensor], *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        """A cancelled await returns when nothing is written to the targets any more; they may be filled in part."""
        deadline = Deadline(deadline_ms, f"copy_into from {self.art_id!r}")
        await in_thread(lambda ms: self._artifact.copy_into(targets, deadline_ms=ms), deadline, to_its_end=True)

    async def save(self, path: str | os.PathLike[str], *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        deadline = Deadline(deadline_ms, f"save of {self.art_id!r}")
        await in_thread(lambda ms: self._artifact.save(path, deadline_ms=ms), deadline)

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
        """A cancelled await returns when the memory of `x` is the caller's again, by the deadline at the latest. What
        was cancelled may have been stored, whole and as given, never mixed."""
        deadline = Deadline(deadline_ms, f"put of {art_id!r}")
        stored = await in_thread(
            lambda ms: self._runtime.put(x, art_id, durable=durable, deadline_ms=ms), deadline, to_its_end=True
        )
        return AsyncArtifact(stored)

    def artifact(self, art_id: str) -> AsyncArtifact:
        """No I/O, so nothing to await."""
        return AsyncArtifact(self._runtime.artifact(art_id))

    async def delete(self, art_id: str, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        deadline = Deadline(deadline_ms, f"delete of {art_id!r}")
        await in_thread(lambda ms: self._runtime.delete(art_id, deadline_ms=ms), deadline)

    async def list_artifacts(self, prefix: str = "", *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> list[ArtifactRecord]:
        deadline = Deadline(deadline_ms, f"list of {prefix!r}")
        return await in_thread(lambda ms: self._runtime.list_artifacts(prefix, deadline_ms=ms), deadline)

    async def close(self) -> None:
        await in_thread(lambda _: self._runtime.close(), Deadline(DEADLINE_MS_DEFAULT, "close"))

    async def __aenter__(self) -> AsyncRuntime:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def aconnect(addr: str | None = None, *, node: str | None = None, name: str | None = None) -> AsyncRuntime:
    """See connect()."""
    deadline = Deadline(DEADLINE_MS_DEFAULT, "connect")
    return AsyncRuntime(await in_thread(lambda _: connect(addr, node=node, name=name), deadline))
