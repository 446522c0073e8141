"""The draft of a put: manifest without digests, plus the plan by which the storage pulls the bytes.

Pieces and rows are packed as the native floor reads them (its stub names the fields). A draft owns what its plan
points at: tensors in memory, open files. It can digest its own content without a storage, for the case that the id
is already taken.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

import msgspec

from tensorcast.deadline import Deadline
from tensorcast.drafts.intake import Block
from tensorcast_bus.manifest import Manifest, content_digest, with_digests

PIECE = struct.Struct("<IIQQQII")
ROW = struct.Struct("<IIQQ")
INLINE, MEMORY, FILE, SEGMENT = 1, 2, 3, 4

FileHandle = tuple[int, int, int, int, int]


class Piece(msgspec.Struct, frozen=True):
    """`nbytes` to `dst` in segment number `segment`, from `src` in a source of `kind` (number `src_index`)."""

    segment: int
    kind: int
    dst: int
    nbytes: int
    src: int
    src_index: int = 0


class Draft:
    """`bytes_copied`: bytes that the SDK itself copied to make tensors contiguous. `blocks` are the tensors of a draft
    from memory, in no order; None for one from files. The plan (segment_bytes, pieces, rows) is of the segments that
    this draft brings; those that a delta version borrows from `base` (of content `base_digest`) have a key."""

    def __init__(
        self,
        manifest: Manifest,
        *,
        pieces: Sequence[Piece],
        digester: Callable[[Deadline], list[bytes]],
        inline: bytes = b"",
        files: tuple[FileHandle, ...] = (),
        bytes_copied: int = 0,
        blocks: Sequence[Block] | None = None,
        base: str = "",
        base_digest: str = "",
        close: Callable[[], None] | None = None,
    ) -> None:
        self.manifest = manifest
        brought = [s.nbytes for s in manifest.segments if not s.key]
        self.segment_bytes = tuple(brought)
        self.pieces = b"".join(PIECE.pack(p.segment, p.kind, p.dst, p.nbytes, p.src, p.src_index, 0) for p in pieces)
        self.rows = pack_rows((t.segment, t.offset, t.nbytes) for t in manifest.tensors if t.segment < len(brought))
        self.inline = inline
        self.files = files
        self.bytes_copied = bytes_copied
        self.blocks = blocks
        self.base = base
        self.base_digest = base_digest
        self._digester = digester
        self._close = close
        self._digested: Manifest | None = None

    def with_digests(self, deadline: Deadline) -> Manifest:
        """The manifest with every digest, computed here from what the draft would store; once. Raises BadCheckpoint
        when a source file changed, and Timeout."""
        if self._digested is None:
            self._digested = with_digests(self.manifest, self._digester(deadline))
        return self._digested

    def digest(self, deadline: Deadline) -> str:
        """The content digest of what this draft would store. Raises as with_digests."""
        return content_digest(self.with_digests(deadline))

    def __enter__(self) -> Draft:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._close is not None:
            self._close()


def pack_rows(rows: Iterable[tuple[int, int, int]]) -> bytes:
    """Rows of (segment, offset, nbytes)."""
    return b"".join(ROW.pack(segment, 0, offset, nbytes) for segment, offset, nbytes in rows)


def memory_at(address: int, nbytes: int) -> memoryview:
    """A window on memory that the caller keeps alive."""
    return memoryview((ctypes.c_char * nbytes).from_address(address))
