"""How a segment of which little is still used becomes a smaller one: what lives, where it goes, and what must be true.

Pure; runs on a thread for tables. Every user of the segment is among the given manifests, so what none of them names is
dead. The new segment is a safetensors image with its tensors by falling item size; rows, digests and content digests of
the users stay what they were, only places change.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tensorcast_bus.dtypes import alignment
from tensorcast_bus.manifest import Manifest, SegmentRow, TensorRow
from tensorcast_services.storage.drafts import room_bytes
from tensorcast_services.storage.images import Stretch, image_head

INLINE, POOL = 1, 5
GAP_BYTES_MAX = 16  # no type asks for more
HEAD_SHARE_MAX = 16  # a head that describes each tensor takes at most a 16th of what lives
_PIECE = struct.Struct("<IIQQQII")
_ROW = struct.Struct("<IIQQ")

_Place = tuple[int, int]  # offset and nbytes in the old segment


class CompactionPlan(msgspec.Struct, frozen=True):
    """What LocalServer.load wants (the old segment is source 0), the digests that its rows must have, and the users'
    manifests over the new segment, in the order in which the old ones were given."""

    nbytes: int
    pieces: bytes
    rows: bytes
    inline: bytes
    digests: bytes
    manifests: tuple[Manifest, ...]


class _Run(msgspec.Struct):
    """A stretch of the old segment that moves as one: a tensor, or several that overlap. Its old and its new place are
    multiples of `aligned`."""

    start: int
    end: int
    aligned: int
    first: TensorRow
    alone: bool = True
    dst: int = 0


def plan_compaction(key: str, users: Sequence[Manifest], *, new_key: str) -> CompactionPlan | None:
    """None while at least half of the segment lives, and where a new one would take no less of the pool. ValueError
    when two users disagree about the same bytes."""
    old = next((row for user in users for row in user.segments if row.key == key), None)
    if old is None:
        return None
    tensors = _living(key, users)
    runs = _runs(tensors.values())
    living = sum(run.end - run.start for run in runs)
    if 2 * living >= old.nbytes:
        return None
    head = _lay_out(runs, living)
    nbytes = runs[-1].dst + runs[-1].end - runs[-1].start if runs else len(head)
    if room_bytes(nbytes) >= room_bytes(old.nbytes):
        return None
    places = _places(tensors, runs)
    return CompactionPlan(
        nbytes,
        _pieces(runs, head=len(head)),
        b"".join(_ROW.pack(0, 0, places[place], place[1]) for place in tensors),
        head + bytes(GAP_BYTES_MAX),
        b"".join(row.digest for row in tensors.values()),
        tuple(_moved(user, key, SegmentRow(nbytes, key=new_key), places) for user in users),
    )


def _living(key: str, users: Sequence[Manifest]) -> dict[_Place, TensorRow]:
    """Every distinct place, from the front to the end of the segment, with the row that asks most of its alignment."""
    found: dict[_Place, TensorRow] = {}
    for user in users:
        for row in _rows_in(key, user):
            other = found.setdefault((row.offset, row.nbytes), row)
            if other.digest != row.digest:
                raise ValueError(f"{row.name!r} of {user.art_id!r} and {other.name!r} have one place and two digests")
            if alignment(row.dtype) > alignment(other.dtype):
                found[row.offset, row.nbytes] = row
    return dict(sorted(found.items()))


def _rows_in(key: str, user: Manifest) -> Iterator[TensorRow]:
    """What a user has there. The misaligned original of a copy counts too: the copy is made again from it."""
    for row in user.tensors:
        if not row.nbytes:
            continue
        if user.segments[row.segment].key == key:
            yield row
        elif row.copied_from is not None and user.segments[row.copied_from[0]].key == key:
            _, offset = row.copied_from
            yield msgspec.structs.replace(row, dtype="U8", shape=(row.nbytes,), offset=offset, copied_from=None)


def _runs(rows: Iterable[TensorRow]) -> list[_Run]:
    runs: list[_Run] = []
    for row in rows:
        end, aligned = row.offset + row.nbytes, alignment(row.dtype)
        if runs and row.offset < runs[-1].end:
            last = runs[-1]
            last.end, last.aligned, last.alone = max(last.end, end), max(last.aligned, aligned), False
        else:
            runs.append(_Run(row.offset, end, aligned, row))
    for run in runs:
        run.start -= run.start % run.aligned
    return runs


def _lay_out(runs: list[_Run], living: int) -> bytes:
    """Sorts the runs, gives each its place, and returns the head of the image."""
    runs.sort(key=lambda run: (-run.aligned, run.start))
    stretches: list[Stretch] = []
    at = 0
    for run in runs:
        if gap := -at % run.aligned:
            stretches.append(Stretch("padding", "U8", (gap,), gap))
        run.dst, nbytes = at + gap, run.end - run.start
        row = run.first
        stretches.append(Stretch(row.name, *((row.dtype, row.shape) if run.alone else ("U8", (nbytes,))), nbytes))
        at = run.dst + nbytes
    head = image_head(stretches)
    if runs and HEAD_SHARE_MAX * len(head) > living:
        # Names of many small tensors can take more than the tensors: the manifests have them anyway.
        head = image_head([Stretch("tensors", "U8", (at,), at)])
    for run in runs:
        run.dst += len(head)
    return head


def _pieces(runs: Sequence[_Run], *, head: int) -> bytes:
    """Gaps are filled with the zeros that follow the head in the inline bytes."""
    pieces = [_PIECE.pack(0, INLINE, 0, head, 0, 0, 0)]
    at = head
    for run in runs:
        if run.dst > at:
            pieces.append(_PIECE.pack(0, INLINE, at, run.dst - at, head, 0, 0))
        at = run.dst + run.end - run.start
        pieces.append(_PIECE.pack(0, POOL, run.dst, run.end - run.start, run.start, 0, 0))
    return b"".join(pieces)


def _places(tensors: Iterable[_Place], runs: Iterable[_Run]) -> dict[_Place, int]:
    """Where each place went."""
    by_start = sorted(runs, key=lambda run: run.end)
    found: dict[_Place, int] = {}
    number = 0
    for offset, nbytes in tensors:
        while by_start[number].end <= offset:
            number += 1
        run = by_start[number]
        found[offset, nbytes] = run.dst + offset - run.start
    return found


def _moved(user: Manifest, key: str, segment: SegmentRow, places: Mapping[_Place, int]) -> Manifest:
    """The same rows at their new places. The new segment is a plain one, also where the old one was of copies."""
    number = next(n for n, row in enumerate(user.segments) if row.key == key)
    segments = (*user.segments[:number], segment, *user.segments[number + 1 :])
    rows: list[TensorRow] = []
    for row in user.tensors:
        if row.segment == number:
            offset = places[row.offset, row.nbytes] if row.nbytes else 0
            row = msgspec.structs.replace(row, offset=offset, copied_from=None)
        elif row.copied_from is not None and row.copied_from[0] == number:
            offset = places[row.copied_from[1], row.nbytes] if row.nbytes else 0
            row = msgspec.structs.replace(row, copied_from=(number, offset))
        rows.append(row)
    return msgspec.structs.replace(user, segments=segments, tensors=tuple(rows))
