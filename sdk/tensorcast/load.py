"""load_file(): the drop-in for `safetensors.torch.load_file` that shares what it loads.

The first process imports the checkpoint, every later one attaches. The id is made of the files' identities, so a
rewritten file is another artifact and never an old one's bytes.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import msgspec

from tensorcast.checkpoint.source import identities
from tensorcast.deadline import Deadline
from tensorcast.runtime import Runtime, connect
from tensorcast.settings import SdkSettings, read_settings
from tensorcast_bus.errors import NoReplica, NotFound

if TYPE_CHECKING:
    import torch

LOAD_DEADLINE_MS = 600_000


class _Default:
    """The process's own runtime, and the settings it was made under. Two threads that make it at once make two, of
    which one is dropped: cheaper than a lock that would not survive a fork."""

    made: tuple[SdkSettings, Runtime] | None = None


def load_file(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file, sharded checkpoint directory or index: private, writable, zero-copy on "cpu".

    Uses the cluster that connect() finds. Raises NotConnected, with the command that starts one; BadCheckpoint naming
    the file, what it looks like and the next step; CapacityExceeded; Timeout after 10 minutes in all.
    """
    name = os.fsdecode(path)
    deadline = Deadline(LOAD_DEADLINE_MS, f"load_file of {name!r}")
    art_id = art_id_of(name, deadline)
    runtime = _runtime()
    try:
        return runtime.artifact(art_id).tensor_dict(device, deadline_ms=deadline.left_ms("attaching"))
    except (NotFound, NoReplica):
        stored = runtime.put(name, art_id, deadline_ms=deadline.left_ms("importing"))
        return stored.tensor_dict(device, deadline_ms=deadline.left_ms("attaching what was imported"))


def art_id_of(path: str, deadline: Deadline) -> str:
    """`file:` and the hex of a digest over resolved path and identity of every file. Raises BadCheckpoint."""
    facts = msgspec.msgpack.encode(identities(path, deadline))
    return f"file:{hashlib.blake2b(facts, digest_size=16).hexdigest()}"


def _runtime() -> Runtime:
    settings = read_settings()
    if _Default.made is None or _Default.made[0] != settings:
        _Default.made = (settings, connect())
    return _Default.made[1]
