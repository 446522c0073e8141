"""What the handles of one origin know of an id: what it resolved to, which content it stands for, and how to read it.

An artifact() and all views made from it share one Content, so they never stand for two settings of an alias or two
contents of an id. Thread-safe without a lock, which another thread could hold at a fork: what is learned is set whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tensorcast.deadline import Deadline
from tensorcast.records_local import About, Attached
from tensorcast.views.part import Part, boxes_of
from tensorcast.views.spec import Step
from tensorcast_bus.errors import LocalProtocolError, NotFound, ProtocolError
from tensorcast_bus.manifest import Manifest, TensorRow, content_digest, decode_manifest, is_pending
from tensorcast_bus.notes import Box, ViewWish

if TYPE_CHECKING:
    from tensorcast.session import Session
    from tensorcast_native import Attachment


@dataclass(frozen=True)
class Reading:
    """`parts` lie in `attachment` (None where none of them has bytes). `bytes_read` of the source where the storage
    read the parts alone, 0 where they are over the artifact's own map."""

    attachment: Attachment | None
    parts: tuple[Part, ...]
    bytes_read: int


@dataclass(frozen=True)
class _Known:
    digest: str
    blob: bytes
    manifest: Manifest


class Content:
    """`digest` where a put told it."""

    def __init__(self, session: Session, art_id: str, digest: str = "") -> None:
        self.session = session
        self.art_id = art_id
        self._told = digest
        self._known: _Known | None = None

    @property
    def metadata(self) -> dict[str, str]:
        """What the manifest says besides its tensors; of what was read once."""
        return self._known.manifest.metadata if self._known else {}

    def about(self, deadline: Deadline) -> Manifest:
        """The manifest as it is now; loads nothing. Its digests are empty while the content is pending."""
        return self._learn(self._attach(deadline, manifest_only=True), deadline).manifest

    def agreed(self, deadline: Deadline) -> tuple[str, Manifest]:
        """Digest and manifest that boxes may be made for. Asked for once: whoever reads them is told if they changed.
        A pending digest becomes another one any time, so it is asked for again."""
        known = self._known
        if known is None or is_pending(known.digest):
            known = self._learn(self._attach(deadline, manifest_only=True), deadline)
        return known.digest, known.manifest

    def whole(self, deadline: Deadline) -> tuple[Attachment, Manifest]:
        """Maps of everything; loads what is away."""
        got = self._attach(deadline)
        return _mapped(got, deadline), self._learn(got, deadline).manifest

    def read(self, parts: Sequence[Part], digest: str, deadline: Deadline) -> Reading:
        """The parts' bytes, as cheaply as the storage has them: over its map, or read alone into dense ones. Raises
        NotFound where the content is another one by now."""
        carriers: dict[tuple[object, ...], Part] = {}
        for part in parts:
            if part.nbytes:
                carriers.setdefault(part.tie, part)
        if not carriers:
            self.about(deadline)  # without a byte to read: is it still there, and the same?
            return Reading(None, tuple(parts), 0)
        boxes = boxes_of(carriers.values())
        wish = ViewWish(digest, boxes, whole=all(part.whole for part in carriers.values()))
        got = self._attach(deadline, body=msgspec.msgpack.encode(wish))
        attachment = _mapped(got, deadline)
        manifest = _decoded(attachment.manifest, deadline)
        if not manifest.view:
            rows = {row.name: row for row in self._learn(got, deadline).manifest.tensors}
            moved = tuple(msgspec.structs.replace(part, row=rows[part.row.name]) for part in parts)
            return Reading(attachment, moved, 0)
        dense = _dense_rows(manifest, boxes, list(carriers.values()), deadline)
        made = tuple(_dense(part, dense[carriers[part.tie].name]) if part.nbytes else part for part in parts)
        return Reading(attachment, made, sum(row.nbytes for row in dense.values()))

    def _attach(self, deadline: Deadline, *, manifest_only: bool = False, body: bytes = b"") -> Attached | About:
        while True:
            asked = self.art_id
            got = self.session.attach(asked, deadline=deadline, manifest_only=manifest_only, body=body)
            # Another thread may have resolved the alias meanwhile, to what it was a moment before; the first one holds.
            if self.art_id in (asked, got.art_id):
                return got

    def _learn(self, got: Attached | About, deadline: Deadline) -> _Known:
        blob = got.manifest if isinstance(got, About) else got.attachment.manifest
        known = self._known
        if known is None or blob != known.blob:
            manifest = _decoded(blob, deadline)
            now = _Known(got.digest if isinstance(got, About) else content_digest(manifest), blob, manifest)
            self._check_same(now)
            self._known = known = now
        self.art_id = got.art_id
        return known

    def _check_same(self, now: _Known) -> None:
        """An id may be deleted and put again with other content; a handle never switches under its holder."""
        known = self._known
        told = known.digest if known else self._told
        if not told or now.digest == told:
            return
        if (is_pending(told) or is_pending(now.digest)) and (
            known is None or _same_files(known.manifest, now.manifest)
        ):
            return
        raise NotFound(
            f"the content of {self.art_id!r} that this handle stands for ({told}) was deleted; the id has "
            f"other content now ({now.digest}): take a new handle with artifact()",
            art_id=self.art_id,
        )


@dataclass(frozen=True)
class Viewed:
    """An anonymous view: what was said, in the order said, of one content."""

    content: Content
    steps: tuple[Step, ...]


def _same_files(one: Manifest, other: Manifest) -> bool:
    """Whether two manifests are of the same tensors in the same unchanged files; a pending digest tells no more."""
    facts = [
        (
            [(s.nbytes, s.file, s.aside) for s in manifest.segments],
            [(t.name, t.dtype, t.shape, t.segment, t.offset, t.nbytes) for t in manifest.tensors],
        )
        for manifest in (one, other)
    ]
    return facts[0] == facts[1] and all(s.file is not None or s.aside for s in one.segments)


def _mapped(got: Attached | About, deadline: Deadline) -> Attachment:
    if isinstance(got, Attached):
        return got.attachment
    raise LocalProtocolError(f"{deadline.what}: the storage told of the manifest where bytes were asked for")


def _decoded(blob: bytes, deadline: Deadline) -> Manifest:
    try:
        return decode_manifest(blob)
    except msgspec.DecodeError as error:
        raise ProtocolError(
            f"{deadline.what}: its manifest ({len(blob)} bytes) is not understood: {error}; install one version of "
            "tensorcast in caller and cluster"
        ) from error


def _dense_rows(
    manifest: Manifest, boxes: Sequence[Box], parts: Sequence[Part], deadline: Deadline
) -> dict[str, TensorRow]:
    wanted = {part.name: (part.dtype, part.shape, part.nbytes) for part in parts}
    dense = {row.name: row for row in manifest.tensors}
    if {name: (row.dtype, row.shape, row.nbytes) for name, row in dense.items()} != wanted:
        raise LocalProtocolError(
            f"{deadline.what}: the storage read {len(dense)} tensors that are not the {len(boxes)} slices it was asked "
            "for; install one version of tensorcast in caller and cluster"
        )
    return dense


def _dense(part: Part, row: TensorRow) -> Part:
    return Part(part.name, row, (0,) * len(row.shape), row.shape)
