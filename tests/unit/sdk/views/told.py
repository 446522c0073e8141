"""A session that tells what a test lays down: artifacts over plain memory, in the pool or away, and what was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import msgspec

from tensorcast.deadline import Deadline
from tensorcast.errors import NotFound
from tensorcast.records import PutStats
from tensorcast.records_local import About, Attached, Stored
from tensorcast_bus.manifest import (
    MANIFEST_VERSION,
    Manifest,
    SegmentRow,
    TensorRow,
    content_digest,
    encode_manifest,
    with_digests,
)
from tensorcast_bus.notes import Box, ViewWish
from tensorcast_native import Attachment, tensor_digest
from tests.unit.sdk.views.memory import Memory

if TYPE_CHECKING:
    from tensorcast.session import Session


class Mapped(Memory):
    """Memory under a manifest."""

    manifest = b""


@dataclass
class Content:
    memory: Memory
    manifest: Manifest
    away: bool = False
    digest: str = ""

    @property
    def told_digest(self) -> str:
        return self.digest or content_digest(self.manifest)


@dataclass
class Told:
    """`aliases` point at ids; `asked` has the name and the wish of every attach, None for the manifest only."""

    contents: dict[str, Content] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, ViewWish | None]] = field(default_factory=list)
    committed: list[tuple[str, str, str, tuple[Box, ...]]] = field(default_factory=list)
    before: Callable[[], object] = lambda: None

    @property
    def session(self) -> Session:
        return cast("Session", self)

    def lay(self, art_id: str, *tensors: tuple[str, str, tuple[int, ...]], away: bool = False) -> Content:
        memory = Memory()
        rows = tuple(memory.lay(*tensor) for tensor in tensors)
        manifest = Manifest(MANIFEST_VERSION, art_id, (SegmentRow(memory.bytes.numel()),), rows, {"made by": "a test"})
        digests = [tensor_digest(memory.content(row)) for row in rows]
        self.contents[art_id] = Content(memory, with_digests(manifest, digests), away)
        return self.contents[art_id]

    def attach(
        self, art_id: str, *, deadline: Deadline, manifest_only: bool = False, body: bytes = b""
    ) -> Attached | About:
        wish = msgspec.msgpack.decode(body, type=ViewWish) if body else None
        self.asked.append((art_id, None if manifest_only else wish or ViewWish("", ())))
        at = self.aliases.get(art_id, art_id)
        self.before()
        if at not in self.contents:
            raise NotFound(f"no artifact {at!r}")
        found = self.contents[at]
        blob = encode_manifest(found.manifest)
        if manifest_only and found.away:
            return About(at, found.told_digest, blob)
        if wish is not None and found.away:
            return Attached(at, self._dense(found, wish))
        return Attached(at, self._mapped(found.memory, blob))

    def commit_view(
        self, base_id: str, *, digest: str, art_id: str, boxes: tuple[Box, ...], durable: bool, deadline: Deadline
    ) -> Stored:
        assert not durable
        self.committed.append((base_id, digest, art_id, boxes))
        return Stored("stored", "d", PutStats(1, 1, 0, "pool", 0.0))

    def _mapped(self, memory: Memory, blob: bytes) -> Attachment:
        mapped = Mapped()
        mapped.bytes, mapped.rows, mapped.manifest = memory.bytes, memory.rows, blob
        return mapped.attachment

    def _dense(self, found: Content, wish: ViewWish) -> Attachment:
        """The boxes one after the other, cut by another rule than the one under test: byte by byte."""
        assert wish.digest == found.told_digest
        dense = Mapped()
        rows: list[TensorRow] = []
        for box in wish.boxes:
            row = dense.lay(box.name, found.memory.rows[box.source].dtype, box.lengths)
            blob = found.memory.cut(found.memory.rows[box.source], box.starts, box.lengths)
            dense.overwrite(row, blob)
            rows.append(row)
        manifest = Manifest(MANIFEST_VERSION, found.manifest.art_id, (SegmentRow(1),), tuple(rows), view=True)
        dense.manifest = encode_manifest(manifest)
        return dense.attachment
