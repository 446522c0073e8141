"""The sync face: Runtime and connect(). Thin over Session; aruntime.py is the same for async callers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias, Union

from tensorcast.artifact import Artifact
from tensorcast.deadline import DEADLINE_MS_DEFAULT
from tensorcast.ids import checked_id
from tensorcast.leases.lease import Lease
from tensorcast.leases.registering import TTL_S_DEFAULT
from tensorcast.records import UNSET, AliasRecord, ArtifactRecord, Unset
from tensorcast.session import Session, open_session

if TYPE_CHECKING:
    import numpy
    import torch

    Array: TypeAlias = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.generic]]

Puttable: TypeAlias = Union[
    "torch.Tensor", "torch.nn.Module", "Array", str, "os.PathLike[str]", Mapping[str, "Puttable"]
]


class Runtime:
    """A caller's end of a cluster. Thread-safe. After a fork the child connects anew at its first use; tensors attached
    before stay right. Made by connect()."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def put(
        self,
        x: Puttable,
        art_id: str,
        *,
        durable: bool = False,
        base: str | None = None,
        changed: Iterable[str] | None = None,
        deadline_ms: int = DEADLINE_MS_DEFAULT,
    ) -> Artifact:
        """Stores `x` under `art_id`: the pool has a copy of its own when this returns, visible to all.

        x: a tensor or array (stored as "tensor"), a dict of them (nested ones join their keys with "."), a module (its
        state dict), or the path of a safetensors file, directory or index. Equal content under the id is
        `already_present`. `durable`: it is on this node's disk too when this returns.

        A new version moves only what differs from a base in the pool: from `base` (an id or alias), or without one
        from the newest version of the same name (the part before "@"). To find out, every tensor is digested;
        `changed` names those that differ from `base`, and then the others are taken from there unread: your word.

        Raises AlreadyExists (other content, or the id is an alias or registered), BadCheckpoint (names file or tensor),
        CapacityExceeded, StorageLost (outcome unknown: put again), Unavailable (`durable`, and the storage has no disk
        tier), NoLocalStorage, NotFound (the base), Invalid, Timeout.
        """
        stored = self._session.put(x, art_id, durable=durable, base=base, changed=changed, deadline_ms=deadline_ms)
        return Artifact(self._session, art_id, stored)

    def register(
        self, x: Puttable, art_id: str, *, ttl_s: float = TTL_S_DEFAULT, deadline_ms: int = DEADLINE_MS_DEFAULT
    ) -> Lease:
        """Lets others read `x` under `art_id` where it lies, while the lease lives; the first reader makes the storage
        fetch it, and what was fetched is shared like any artifact.

        x as in put(). Of tensors on the CPU the digests are taken now: leave them unchanged until the lease is over. A
        write that the storage meets when it reads ends the lease, and its readers hear LeaseLost. Files are opened now
        and read when somebody asks; one that changed is BadCheckpoint then. The lease ends `ttl_s` (1 to 86,400) after
        its last renewal, which happens in the background, and at once with release() or the process.

        Raises AlreadyExists and Conflict for an id in use, BadCheckpoint (also for tensors on a device), StorageLost,
        NoLocalStorage, Invalid, Timeout.
        """
        return self._session.register(x, art_id, ttl_s=ttl_s, deadline_ms=deadline_ms)

    def artifact(self, art_id: str) -> Artifact:
        """A lazy handle on an id, or on what an alias points at when it is first used; from then on it stands for that
        very content and `.art_id` is its id. No I/O. Raises Invalid for what cannot be an id."""
        return Artifact(self._session, checked_id(art_id))

    def delete(self, art_id: str, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        """The id is gone at once; memory that readers still map returns with their last tensor, and what other versions
        borrowed stays. A lease on it, whosever, ends. Raises NotFound, also for an alias: see delete_alias()."""
        self._session.delete(art_id, deadline_ms=deadline_ms)

    def list_artifacts(self, prefix: str = "", *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> list[ArtifactRecord]:
        """The catalog's artifacts whose ids begin with `prefix`, ordered by id; those that nobody alive holds too."""
        return self._session.list_artifacts(prefix, deadline_ms=deadline_ms)

    def set_alias(
        self,
        name: str,
        art_id: str,
        *,
        expect: AliasRecord | str | Unset | None = UNSET,
        deadline_ms: int = DEADLINE_MS_DEFAULT,
    ) -> AliasRecord:
        """Makes the alias `name` point at an artifact, and returns the setting. Names are written as ids are.

        `expect` compares first, in one step: None (it must not exist), an id (it must point there), or a record (it
        must be that very setting, also where it was moved away and back meanwhile). Raises Conflict where it is
        otherwise, with the present setting in its context (`art_id`, `revision`, `set_ms`), and where `name` is an
        artifact's id; NotFound where `art_id` is no artifact.
        """
        return self._session.set_alias(name, art_id, expect=expect, deadline_ms=deadline_ms)

    def alias(self, name: str, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> AliasRecord:
        """How the alias is set now. Raises NotFound."""
        return self._session.alias(name, deadline_ms=deadline_ms)

    def list_aliases(self, prefix: str = "", *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> list[AliasRecord]:
        """The aliases whose names begin with `prefix`, ordered by name."""
        return self._session.list_aliases(prefix, deadline_ms=deadline_ms)

    def delete_alias(
        self,
        name: str,
        *,
        expect: AliasRecord | str | Unset | None = UNSET,
        deadline_ms: int = DEADLINE_MS_DEFAULT,
    ) -> None:
        """The name is free; the artifact stays. `expect` as in set_alias(). Raises NotFound, Conflict."""
        self._session.delete_alias(name, expect=expect, deadline_ms=deadline_ms)

    def wait_alias(
        self, name: str, *, after: AliasRecord | None = None, deadline_ms: int = DEADLINE_MS_DEFAULT
    ) -> AliasRecord:
        """Blocks until the alias is set, and otherwise than `after` was; returns the setting. One that came and went
        meanwhile is not seen. Raises Timeout."""
        return self._session.wait_alias(name, after=after, deadline_ms=deadline_ms)

    def close(self) -> None:
        """Releases this runtime's leases and ends its links; later calls raise NotConnected, living tensors stay right.
        May be called twice."""
        self._session.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(addr: str | None = None, *, node: str | None = None, name: str | None = None) -> Runtime:
    """The cluster that `tensorcast up` made on this host (`name`, else TENSORCAST_CLUSTER, else "default"), or the one
    whose bus is at the NATS URL `addr`; where neither `addr` nor `name` is given and no cluster runs here, at NATS_URL.
    `node` picks a storage where one host runs several; the first one else. Raises NotConnected, with the command that
    starts a cluster; NotFound for an unknown node; NoLocalStorage for a node where the bus has no storage here."""
    return Runtime(open_session(addr, node=node, name=name))
