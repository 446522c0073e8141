"""TensorCast: tensors with an identity and a life of their own, shared by the processes of a host.

    import tensorcast as tc
    rt = tc.connect()                                  # the cluster that `tensorcast up` made
    rt.put(model, "my/model@1")                        # once, by anyone
    weights = rt.artifact("my/model@1").tensor_dict()  # everywhere else: mapped, not copied

Names are imported when they are first used, so that `import tensorcast` costs nothing; torch is imported by the calls
that make tensors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorcast import errors as errors
    from tensorcast.artifact import Artifact as Artifact
    from tensorcast.aruntime import AsyncArtifact as AsyncArtifact
    from tensorcast.aruntime import AsyncLease as AsyncLease
    from tensorcast.aruntime import AsyncRuntime as AsyncRuntime
    from tensorcast.aruntime import aconnect as aconnect
    from tensorcast.leases.lease import Lease as Lease
    from tensorcast.load import load_file as load_file
    from tensorcast.records import UNSET as UNSET
    from tensorcast.records import AliasRecord as AliasRecord
    from tensorcast.records import ArtifactRecord as ArtifactRecord
    from tensorcast.records import PutStats as PutStats
    from tensorcast.records import TensorMeta as TensorMeta
    from tensorcast.runtime import Runtime as Runtime
    from tensorcast.runtime import connect as connect

__version__ = "0.1.0"

_ROOMS = {
    "AliasRecord": "records",
    "Artifact": "artifact",
    "ArtifactRecord": "records",
    "AsyncArtifact": "aruntime",
    "AsyncLease": "aruntime",
    "AsyncRuntime": "aruntime",
    "Lease": "leases.lease",
    "PutStats": "records",
    "Runtime": "runtime",
    "TensorMeta": "records",
    "UNSET": "records",
    "aconnect": "aruntime",
    "connect": "runtime",
    "load_file": "load",
}

__all__ = [
    "AliasRecord",
    "Artifact",
    "ArtifactRecord",
    "AsyncArtifact",
    "AsyncLease",
    "AsyncRuntime",
    "Lease",
    "PutStats",
    "Runtime",
    "TensorMeta",
    "UNSET",
    "__version__",
    "aconnect",
    "connect",
    "errors",
    "load_file",
]


def __getattr__(name: str) -> object:
    if name == "errors":
        return importlib.import_module("tensorcast.errors")
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module 'tensorcast' has no attribute {name!r}; it has {', '.join(__all__)}")
    found = getattr(importlib.import_module(f"tensorcast.{room}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
