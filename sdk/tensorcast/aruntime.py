"""The async face: AsyncRuntime, AsyncArtifact, AsyncLease and aconnect(). The sync face's calls, as awaitables.

Each call runs the blocking one in a thread; its deadline starts at the call, before a thread is free. A cancelled
await gives up at once, except in put(), register() and copy_into(), which reach the caller's memory: there it returns
when the call has left that memory alone, by the call's own deadline at the latest. A cancelled put may have been
stored, whole and as given, never mixed; a cancelled registration is released.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from tensorcast.artifact import Artifact, Selection
from tensorcast.deadline import DEADLINE_MS_DEFAULT, Deadline
from tensorcast.leases.lease import Lease
from tensorcast.leases.registering import TTL_S_DEFAULT
from tensorcast.records import UNSET, AliasRecord, ArtifactRecord, PutStats, TensorMeta, Unset
from tensorcast.runtime import Puttable, Runtime, connect
from tensorcast.threads import in_thread

if TYPE_CHECKING:
    import torch


class AsyncArtifact:
    """See Artifact."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact

    @property
    def art_id(self) -> str:
        return self._artifact.art_id

    @property
    def outcome(self) -> str | None:
        return self._artifact.outcome

    @property
    def stats(self) -> PutStats | None:
        return self._artifact.stats

    async def view(
        self,
        select: Selection | None = None,
        name: str | None = None,
        *,
        rename: Mapping[str, str] | None = None,
        deadline_ms: int = DEADLINE_MS_DEFAULT,
    ) -> AsyncArtifact:
        """Without `name` nothing is waited for."""
        if name is None:
            return AsyncArtifact(self._artifact.view(select, rename=rename))
        deadline = Deadline(deadline_ms, f"view {name!r} of {self.art_id!r}")
        made = await in_thread(lambda ms: self._artifact.view(select, name, rename=rename, deadline_ms=ms), deadline)
        return AsyncArtifact(made)

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


class AsyncLease:
    """See Lease."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self.art_id = lease.art_id
        self.digest = lease.digest
        self.ttl_s = lease.ttl_s
        self.stats = lease.stats

    @property
    def lease_id(self) -> int:
        return self._lease.lease_id

    async def renew(self, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        deadline = Deadline(deadline_ms, f"renewal of the lease on {self.art_id!r}")
        await in_thread(lambda ms: self._lease.renew(deadline_ms=ms), deadline)

    async def release(self, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        deadline = Deadline(deadline_ms, f"release of the lease on {self.art_id!r}")
        await in_thread(lambda ms: self._lease.release(deadline_ms=ms), deadline)

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    def __repr__(self) -> str:
        return f"<Async{repr(self._lease)[1:]}"


class AsyncRuntime:
    """See Runtime. Made by aconnect()."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def put(
        self,
        x: Puttable,
        art_id: str,
        *,
        durable: bool = False,
        base: str | None = None,
        changed: Iterable[str] | None = None,
        deadline_ms: int = DEADLINE_MS_DEFAULT,
    ) -> AsyncArtifact:
        """A cancelled await returns when the memory of `x` is the caller's again, by the deadline at the latest. What
        was cancelled may have been stored, whole and as given, never mixed."""
        deadline = Deadline(deadline_ms, f"put of {art_id!r}")
        stored = await in_thread(
            lambda ms: self._runtime.put(x, art_id, durable=durable, base=base, changed=changed, deadline_ms=ms),
            deadline,
            to_its_end=True,
        )
        return AsyncArtifact(stored)

    async def register(
        self, x: Puttable, art_id: str, *, ttl_s: float = TTL_S_DEFAULT, deadline_ms: int = DEADLINE_MS_DEFAULT
    ) -> AsyncLease:
        """A cancelled await returns when the memory of `x` is the caller's again; what was registered is released."""
        deadline = Deadline(deadline_ms, f"register of {art_id!r}")
        lease = await in_thread(
            lambda ms: self._runtime.register(x, art_id, ttl_s=ttl_s, deadline_ms=ms), deadline, to_its_end=True
        )
        return AsyncLease(lease)

    def artifact(self, art_id: str) -> AsyncArtifact:
        """No I/O, so nothing to await."""
        return AsyncArtifact(self._runtime.artifact(art_id))

    async def delete(self, art_id: str, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        deadline = Deadline(deadline_ms, f"delete of {art_id!r}")
        await in_thread(lambda ms: self._runtime.delete(art_id, deadline_ms=ms), deadline)

    async def list_artifacts(self, prefix: str = "", *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> list[ArtifactRecord]:
        deadline = Deadline(deadline_ms, f"list of {prefix!r}")
        return await in_thread(lambda ms: self._runtime.list_artifacts(prefix, deadline_ms=ms), deadline)

    async def set_alias(
        self,
        name: str,
        art_id: str,
        *,
        expect: AliasRecord | str | Unset | None = UNSET,
        deadline_ms: int = DEADLINE_MS_DEFAULT,
    ) -> AliasRecord:
        deadline = Deadline(deadline_ms, f"setting of alias {name!r}")
        return await in_thread(
            lambda ms: self._runtime.set_alias(name, art_id, expect=expect, deadline_ms=ms), deadline
        )

    async def alias(self, name: str, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> AliasRecord:
        deadline = Deadline(deadline_ms, f"look at alias {name!r}")
        return await in_thread(lambda ms: self._runtime.alias(name, deadline_ms=ms), deadline)

    async def list_aliases(self, prefix: str = "", *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> list[AliasRecord]:
        deadline = Deadline(deadline_ms, f"list of aliases {prefix!r}")
        return await in_thread(lambda ms: self._runtime.list_aliases(prefix, deadline_ms=ms), deadline)

    async def delete_alias(
        self,
        name: str,
        *,
        expect: AliasRecord | str | Unset | None = UNSET,
        deadline_ms: int = DEADLINE_MS_DEFAULT,
    ) -> None:
        deadline = Deadline(deadline_ms, f"delete of alias {name!r}")
        await in_thread(lambda ms: self._runtime.delete_alias(name, expect=expect, deadline_ms=ms), deadline)

    async def wait_alias(
        self, name: str, *, after: AliasRecord | None = None, deadline_ms: int = DEADLINE_MS_DEFAULT
    ) -> AliasRecord:
        deadline = Deadline(deadline_ms, f"wait for alias {name!r}")
        return await in_thread(lambda ms: self._runtime.wait_alias(name, after=after, deadline_ms=ms), deadline)

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
