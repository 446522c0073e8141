"""The content digest of boxes of an artifact, computed here. Called by puts, where a view wants an id that is taken.

Reads the boxes as any view is read: over the artifact's map, or alone where it is away. Runs of a strided box are put
together in memory, one box at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec

from tensorcast.answers import decoded
from tensorcast.deadline import Deadline
from tensorcast.local import StorageLink
from tensorcast.records_local import Attached
from tensorcast.redirects import attach_by_name
from tensorcast.views.packed import runs_of
from tensorcast.views.part import FIRST_SEGMENT
from tensorcast_bus.dtypes import DTYPE_BITS
from tensorcast_bus.errors import NotFound, SliceMismatch
from tensorcast_bus.manifest import Manifest, TensorRow, content_digest
from tensorcast_bus.notes import Box, ViewWish
from tensorcast_native import Attachment, tensor_digest

_PHASE = "digesting the view"
_LOOK_RUNS = 4096


def boxes_digest(storage: StorageLink, base_id: str, digest: str, boxes: Sequence[Box], deadline: Deadline) -> str:
    """Of the artifact that the boxes of `base_id`, of content `digest`, would be. Raises NotFound where that has other
    content by now, and as an attach does."""
    wish = msgspec.msgpack.encode(ViewWish(digest, tuple(boxes)))
    got = attach_by_name(storage, base_id, deadline=deadline, body=wish)
    assert isinstance(got, Attached)
    base = decoded(got.attachment.manifest, Manifest, deadline.what)
    if not base.view and content_digest(base) != digest:
        raise NotFound(f"{base_id!r} has other content by now; take a new view of it", art_id=base_id)
    rows = {row.name: row for row in base.tensors}
    made = tuple(_row(got.attachment, base, rows, box, deadline) for box in boxes)
    return content_digest(Manifest(base.version, base_id, (), made))


def _row(
    attachment: Attachment, base: Manifest, rows: Mapping[str, TensorRow], box: Box, deadline: Deadline
) -> TensorRow:
    deadline.left_ms(_PHASE)
    row = rows[box.name if base.view else box.source]
    if base.view:
        digest = tensor_digest(_bytes(attachment, row))
    elif row.shape == box.lengths:
        digest = row.digest
    else:
        digest = tensor_digest(_gathered(attachment, row, box, deadline))
    return TensorRow(box.name, row.dtype, box.lengths, 0, 0, row.nbytes, digest)


def _bytes(attachment: Attachment, row: TensorRow) -> memoryview:
    if not row.nbytes:
        return memoryview(b"")
    return memoryview(attachment.view(row.segment + FIRST_SEGMENT, row.offset, row.nbytes))


def _gathered(attachment: Attachment, row: TensorRow, box: Box, deadline: Deadline) -> bytes | memoryview:
    runs = runs_of(row.shape, box.starts, box.lengths, bits=DTYPE_BITS[row.dtype])
    if runs is None:
        raise SliceMismatch(f"{deadline.what}: tensor {box.name!r} ({row.dtype}) cuts through a byte", tensor=box.name)
    if not runs.run_bytes:
        return b""
    source = _bytes(attachment, row)
    if not runs.counts:
        return source[runs.begin : runs.begin + runs.run_bytes]
    found = bytearray()
    for number, at in enumerate(itertools.product(*map(range, runs.counts))):
        if number % _LOOK_RUNS == 0:
            deadline.left_ms(_PHASE)
        begin = runs.begin + sum(n * stride for n, stride in zip(at, runs.strides, strict=True))
        found += source[begin : begin + runs.run_bytes]
    return bytes(found)
