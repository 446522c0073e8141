"""The sync face: Runtime and connect(). Thin over Session; aruntime.py is the same for async callers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias, Union

from tensorcast.artifact import Artifact
from tensorcast.deadline import DEADLINE_MS_DEFAULT
from tensorcast.ids import checked_id
from tensorcast.records import ArtifactRecord
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
        self, x: Puttable, art_id: str, *, durable: bool = False, deadline_ms: int = DEADLINE_MS_DEFAULT
    ) -> Artifact:
        """Stores `x` under `art_id`: the pool has a copy of its own when this returns, visible to all.

        x: a tensor or array (stored as "tensor"), a dict of them (nested ones join their keys with "."), a module (its
        state dict), or the path of a safetensors file, directory or index. Equal content under the id is
        `already_present`. Raises AlreadyExists (other content), BadCheckpoint (names file or tensor), CapacityExceeded,
        StorageLost (outcome unknown: put again), NoLocalStorage, Invalid, Timeout.
        """
        return Artifact(self._session, art_id, self._session.put(x, art_id, durable=durable, deadline_ms=deadline_ms))

    def artifact(self, art_id: str) -> Artifact:
        """A lazy handle; no I/O. Raises Invalid for an id that cannot be one."""
        return Artifact(self._session, checked_id(art_id))

    def delete(self, art_id: str, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        """The id is gone at once; memory that readers still map returns with their last tensor. Raises NotFound."""
        self._session.delete(art_id, deadline_ms=deadline_ms)

    def list_artifacts(self, prefix: str = "", *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> list[ArtifactRecord]:
        """The catalog's artifacts whose ids begin with `prefix`, ordered by id."""
        return self._session.list_artifacts(prefix, deadline_ms=deadline_ms)

    def close(self) -> None:
        """Ends the links; later calls raise NotConnected, living tensors stay right. May be called twice."""
        self._session.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(addr: str | None = None, *, node: str | None = None, name: str | None = None) -> Runtime:
    """The cluster that `tensorcast up` made on this host (`name`, else TENSORCAST_CLUSTER, else "default"), or the one
    whose bus is at the NATS URL `addr`. `node` picks a storage where one host runs several; the first one else.
    Raises NotConnected, with the command that starts a cluster, and NotFound for an unknown node."""
    return Runtime(open_session(addr, node=node, name=name))
