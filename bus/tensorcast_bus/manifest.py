"""The manifest: which tensors an artifact has, and where their bytes lie in its segments.

Built by the SDK as a draft (no digests), finished by the storage once native code has digested every tensor, sealed
as a small segment of its own, and read by whoever attaches. It travels by the data plane and never rides the bus.
Invariants: names are unique; rows lie inside their segment; rows with equal place are tied tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

MANIFEST_VERSION = 1
MANIFEST_BYTES_MAX = 256 << 20
PENDING = "pending:"
"""Begins what stands for the content digest of registered files until they were read once; 32 hex digits follow."""


class SourceFile(msgspec.Struct, frozen=True, array_like=True):
    """The file a segment was read from, and its identity when its header was read. Path is absolute and resolved;
    `header_digest` is xxh3-128 of the file's bytes up to its data, so that header and bytes are of one version."""

    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    header_digest: bytes = b""


class SegmentRow(msgspec.Struct, frozen=True, array_like=True):
    """One sealed region. With `file` it is that file's image, byte for byte, from offset 0; `aside` marks a segment
    of aligned copies of tensors that lie misaligned in another segment. `key` (32 hex digits, given by the storage)
    names the sealed region wherever it lies: artifacts that share a segment name it by the same key, and it is the
    name of its file on disk. In a draft a row with a key is borrowed from the draft's base; those rows come last."""

    nbytes: int
    file: SourceFile | None = None
    aside: bool = False
    key: str = ""


class TensorRow(msgspec.Struct, frozen=True, array_like=True):
    """One tensor. `dtype` in safetensors spelling, `digest` 16 bytes (empty in a draft). `copied_from` is
    (segment, offset) of the misaligned original when the row lies in an aside segment."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    segment: int
    offset: int
    nbytes: int
    digest: bytes = b""
    copied_from: tuple[int, int] | None = None


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """`metadata` is what the source file's header carried under ``__metadata__``. `view`: the dense answer to a view
    of an artifact that is not loaded; it is made for one reader and kept nowhere."""

    version: int
    art_id: str
    segments: tuple[SegmentRow, ...]
    tensors: tuple[TensorRow, ...]
    metadata: dict[str, str] = {}
    view: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the distinct tensors; tied ones count once."""
        # An empty tensor begins where the next one does, so the place alone does not tell tensors apart.
        return sum(nbytes for _, _, nbytes in {(t.segment, t.offset, t.nbytes) for t in self.tensors})


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.msgpack.encode(manifest)


def decode_manifest(blob: bytes | memoryview) -> Manifest:
    """Raises msgspec.DecodeError or ValidationError on anything else."""
    return msgspec.msgpack.decode(blob, type=Manifest)


def with_digests(draft: Manifest, digests: Sequence[bytes]) -> Manifest:
    """The finished manifest; `digests` in the order of the draft's tensors."""
    rows = tuple(msgspec.structs.replace(t, digest=d) for t, d in zip(draft.tensors, digests, strict=True))
    return msgspec.structs.replace(draft, tensors=rows)


def is_pending(digest: str) -> bool:
    return digest.startswith(PENDING)


def content_digest(manifest: Manifest) -> str:
    """Hex of blake2b-128 over the sorted (name, dtype, shape, digest) rows: equal content has equal digests, wherever
    the bytes came from and however they are laid out. Metadata and segments do not count."""
    rows = sorted((t.name, t.dtype, t.shape, t.digest) for t in manifest.tensors)
    return hashlib.blake2b(msgspec.msgpack.encode(rows), digest_size=16).hexdigest()
