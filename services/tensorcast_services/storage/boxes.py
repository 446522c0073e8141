"""Boxes of a client, checked against the manifest that they cut: names, bounds, and whole bytes.

Pure; runs on a thread for tables. Bounds beyond a size are refused, not clamped: a row that silently goes missing is
wrong bytes. Packed types (F4, F6) are cut only where every run of a box begins and ends at a whole byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from tensorcast_bus.dtypes import DTYPE_BITS
from tensorcast_bus.errors import Invalid, NotFound, SliceMismatch
from tensorcast_bus.manifest import Manifest, TensorRow
from tensorcast_bus.notes import Box
from tensorcast_services.storage.draft_rows import NAME_CHARS_MAX


class Cut(msgspec.Struct, frozen=True):
    """A checked box of `row`: `nbytes` in runs of `run_bytes` that begin `begin` bytes into the tensor and repeat by
    `counts` and `strides` (bytes) of the outer dimensions, outermost first. `whole`: it is all of the tensor."""

    name: str
    row: TensorRow
    shape: tuple[int, ...]
    nbytes: int
    begin: int
    run_bytes: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    whole: bool

    @property
    def runs(self) -> int:
        return math.prod(self.counts) if self.nbytes else 0

    @property
    def end(self) -> int:
        """Where its last run ends in the tensor."""
        steps = zip(self.counts, self.strides, strict=True)
        return self.begin + sum((count - 1) * stride for count, stride in steps) + self.run_bytes


def cut_boxes(manifest: Manifest, boxes: Sequence[Box], *, boxes_max: int) -> list[Cut]:
    """NotFound for a name that the artifact does not have, SliceMismatch and Invalid naming the box."""
    if len(boxes) > boxes_max:
        raise Invalid(
            f"a view of {manifest.art_id!r} has {len(boxes)} boxes; the limit is {boxes_max} (storage.tensors_max)",
            art_id=manifest.art_id,
        )
    rows = {row.name: row for row in manifest.tensors}
    names: set[str] = set()
    cuts: list[Cut] = []
    for box in boxes:
        row = rows.get(box.source)
        if row is None:
            raise NotFound(
                f"{manifest.art_id!r} has no tensor {box.source[:200]!r}, which a view of it asks for; its manifest "
                "names those that it has",
                art_id=manifest.art_id,
            )
        if box.name in names or len(box.name) > NAME_CHARS_MAX:
            raise Invalid(
                f"two boxes of a view of {manifest.art_id!r} have the name {box.name[:200]!r}, or it is longer than "
                f"{NAME_CHARS_MAX} characters",
                art_id=manifest.art_id,
            )
        names.add(box.name)
        cuts.append(_cut(manifest.art_id, box, row))
    return cuts


def _cut(art_id: str, box: Box, row: TensorRow) -> Cut:
    shape, starts, lengths = row.shape, box.starts, box.lengths
    if not len(starts) == len(lengths) == len(shape):
        raise _mismatch(art_id, box, row, f"has {len(starts)} starts and {len(lengths)} lengths")
    for dim, (size, start, length) in enumerate(zip(shape, starts, lengths, strict=True)):
        if start < 0 or length < 0 or start + length > size:
            raise _mismatch(art_id, box, row, f"asks for {start} to {start + length} of {size} in dimension {dim}")
    bits = DTYPE_BITS[row.dtype]
    total = math.prod(lengths) * bits
    strides = [bits * math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    if not total:
        return Cut(box.name, row, lengths, 0, 0, 0, (), (), whole=lengths == shape)
    inner = len(shape)
    while inner and lengths[inner - 1] == shape[inner - 1]:
        inner -= 1
    outer = max(0, inner - 1)
    run = bits * math.prod(lengths[outer:])
    begin = sum(start * stride for start, stride in zip(starts, strides, strict=True))
    steps = [(lengths[dim], strides[dim]) for dim in range(outer) if lengths[dim] > 1]
    if any(number % 8 for number in (begin, run, *(stride for _, stride in steps))):
        raise _mismatch(art_id, box, row, f"cuts {row.dtype}, of {bits} bits, inside a byte")
    counts, wide = tuple(count for count, _ in steps), tuple(stride // 8 for _, stride in steps)
    return Cut(box.name, row, lengths, total // 8, begin // 8, run // 8, counts, wide, whole=lengths == shape)


def _mismatch(art_id: str, box: Box, row: TensorRow, what: str) -> SliceMismatch:
    return SliceMismatch(
        f"box {box.name[:200]!r} of tensor {row.name[:200]!r} {list(row.shape)} of {art_id!r} {what}; a view must lie "
        "inside its tensor, and at whole bytes",
        art_id=art_id,
        tensor=row.name[:200],
    )
