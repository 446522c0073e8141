"""Frozen records that callers get: metadata of a tensor, figures of a put, rows of the catalog."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import msgspec

from tensorcast import tensors

if TYPE_CHECKING:
    import torch


class TensorMeta(msgspec.Struct, frozen=True):
    """One tensor of an artifact. `dtype` in safetensors spelling ("BF16"), `shape` in elements, `nbytes` in bytes,
    `digest` the hex of the 16-byte content digest."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    digest: str

    @property
    def torch_dtype(self) -> torch.dtype | None:
        """The torch dtype, or None where this torch has no such type and the tensor comes as uint8. Imports torch."""
        return tensors.torch_dtype(self.dtype)


class PutStats(msgspec.Struct, frozen=True):
    """`bytes_total` of the distinct tensors (tied ones count once), `bytes_moved` into the pool, `bytes_copied` once
    more on the way (made contiguous by the caller, or aligned by the storage). `path` is "file", "vm_read" or
    "socket", "pool" for a committed view, "read" for a view read from elsewhere than the pool, and "" where nothing was
    moved. `ms` is the whole call as the caller saw it."""

    bytes_total: int
    bytes_moved: int
    bytes_copied: int
    path: str
    ms: float


class ArtifactRecord(msgspec.Struct, frozen=True):
    """An artifact in the catalog. `nbytes` in bytes, `created_ms` since the epoch, `places` as "node:tier", `ownership`
    "system", or "lease" for what its registering process owns. `digest` begins with "pending:" until registered files
    were read once. No `places`: nobody alive holds its bytes."""

    art_id: str
    digest: str
    nbytes: int
    tensors: int
    created_ms: int
    places: tuple[str, ...]
    ownership: str = "system"


class AliasRecord(msgspec.Struct, frozen=True):
    """A movable name as it was set at `set_ms` (since the epoch), pointing at `art_id`. `revision` is of the whole
    catalog and only grows: two records with one revision are one setting, however often the name came back to an id."""

    name: str
    art_id: str
    revision: int
    set_ms: int


class Unset(enum.Enum):
    """The type of UNSET, which says that nothing was said: None means something of its own."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
