"""A draft of a new version that brings only what its base has not; the rest is borrowed from the base's segments.

Made from a whole draft of tensors in memory and the manifest of a base in the pool. A tensor is borrowed when the base
has one of the same dtype and bytes, under whatever name. The new segment comes first, then the borrowed ones by their
keys. The storage compares what is borrowed with the base's manifest again, and digests itself what is new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tensorcast.deadline import Deadline
from tensorcast.drafts.digests import digests_of
from tensorcast.drafts.draft import Draft
from tensorcast.drafts.intake import Block
from tensorcast.drafts.memory import image_of
from tensorcast_bus.errors import BadCheckpoint, Invalid
from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, TensorRow, content_digest

NAMES_SHOWN_MAX = 8
# Every segment is a map of its own in each reader; a long line of versions must not fall to pieces.
BORROWED_SEGMENTS_MAX = 256
# A segment of which less than this part is wanted is not worth keeping alive: that little is brought again.
SHARE_MIN = 1024

_Content = tuple[str, int, bytes]  # dtype, nbytes, digest


def delta_draft(draft: Draft, base: Manifest, *, changed: frozenset[str] | None, deadline: Deadline) -> Draft:
    """`draft` itself where the base has none of its tensors. With `changed` only those (and what is tied to them) are
    digested; that all others have the base's bytes under the same name is the caller's word, and only their dtype and
    shape are compared. Raises Invalid for a draft from files, BadCheckpoint naming the tensors that `changed` should or
    should not name, and Timeout. The result lives on the memory of `draft`."""
    if draft.blocks is None:
        raise Invalid("base and changed are for tensors in memory; put a path without them")
    blocks = {block.name: block for block in draft.blocks}
    if changed is None:
        digested = draft.with_digests(deadline)
        digests = {row.name: row.digest for row in digested.tensors}
    else:
        digests = _trusting(blocks, base, changed, deadline)
    homes = _homes(base)
    at_home = {
        block.tie: home
        for block in draft.blocks
        if block.nbytes and (home := homes.get((block.dtype, block.nbytes, digests[block.name]))) is not None
    }
    at_home = _worth_borrowing(at_home, base)
    if not at_home:
        return draft
    deadline.left_ms("describing the tensors")
    return _borrowing(draft, base, at_home, digests)


def _homes(base: Manifest) -> dict[_Content, TensorRow]:
    """Rows of the base that can be borrowed, by what they hold."""
    homes: dict[_Content, TensorRow] = {}
    for row in base.tensors:
        if row.nbytes and base.segments[row.segment].key:
            homes.setdefault((row.dtype, row.nbytes, row.digest), row)
    return homes


def _worth_borrowing(at_home: Mapping[object, TensorRow], base: Manifest) -> dict[object, TensorRow]:
    """Only what lies in the segments that give most, and more than a trifle of themselves."""
    given: Counter[int] = Counter()
    for home in at_home.values():
        given[home.segment] += home.nbytes
    fullest = {
        segment
        for segment, nbytes in given.most_common(BORROWED_SEGMENTS_MAX)
        if nbytes * SHARE_MIN >= base.segments[segment].nbytes
    }
    return {tie: home for tie, home in at_home.items() if home.segment in fullest}


def _trusting(
    blocks: Mapping[str, Block], base: Manifest, changed: frozenset[str], deadline: Deadline
) -> dict[str, bytes]:
    """The digest of each name: the base's, but for what is said to have changed."""
    _refuse(sorted(changed - blocks.keys()), "`changed` names {names}, which are not among the tensors of this put")
    # Whoever shares memory with a tensor that changed has changed too.
    ties = {blocks[name].tie for name in changed if blocks[name].nbytes}
    mine = [block for block in blocks.values() if block.name in changed or block.tie in ties]
    digests = dict(zip([block.name for block in mine], digests_of(mine, deadline), strict=True))
    theirs = {row.name: row for row in base.tensors}
    others = [block for block in blocks.values() if block.name not in digests]
    strange = [block.name for block in others if not _alike(block, theirs.get(block.name))]
    _refuse(
        strange,
        f"{base.art_id!r} has no {{names}} of the same dtype and shape; name them in `changed`, or leave it out",
    )
    digests |= {block.name: theirs[block.name].digest for block in others}
    first: dict[object, str] = {}
    for block in others:
        one = first.setdefault(block.tie, block.name) if block.nbytes else block.name
        if digests[one] != digests[block.name]:
            _refuse(
                [one, block.name], f"{{names}} are one tensor now and two in {base.art_id!r}; name them in `changed`"
            )
    return digests


def _alike(block: Block, row: TensorRow | None) -> bool:
    return row is not None and (row.dtype, row.shape) == (block.dtype, block.shape)


def _refuse(names: Sequence[str], text: str) -> None:
    if names:
        shown = ", ".join(map(repr, names[:NAMES_SHOWN_MAX]))
        more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
        raise BadCheckpoint(text.replace("{names}", shown + more), tensors=list(names[:NAMES_SHOWN_MAX]))


def _borrowing(
    draft: Draft, base: Manifest, at_home: Mapping[object, TensorRow], digests: Mapping[str, bytes]
) -> Draft:
    assert draft.blocks is not None
    new = [block for block in draft.blocks if not (block.nbytes and block.tie in at_home)]
    image = image_of(new) if any(block.nbytes for block in new) else None
    brought = [SegmentRow(image.nbytes)] if image is not None else []
    numbers = _numbers(at_home.values(), first=len(brought))
    places = image.places if image is not None else {}
    rows = [_row(block, places.get(block.tie), at_home.get(block.tie), numbers, digests) for block in draft.blocks]
    rows.sort(key=lambda row: (row.segment, row.offset, row.name))
    borrowed = [SegmentRow(base.segments[number].nbytes, key=base.segments[number].key) for number in numbers]
    manifest = Manifest(
        MANIFEST_VERSION, draft.manifest.art_id, (*brought, *borrowed), tuple(rows), draft.manifest.metadata
    )
    return Draft(
        manifest,
        pieces=image.pieces if image is not None else (),
        digester=lambda _: [digests[row.name] for row in rows],
        inline=image.header if image is not None else b"",
        bytes_copied=draft.bytes_copied,
        blocks=draft.blocks,
        base=base.art_id,
        base_digest=content_digest(base),
    )


def _numbers(homes: Iterable[TensorRow], *, first: int) -> dict[int, int]:
    """From the number of a base's segment to its number here, in the base's order."""
    used = sorted({home.segment for home in homes})
    return {segment: first + n for n, segment in enumerate(used)}


def _row(
    block: Block, place: int | None, home: TensorRow | None, numbers: Mapping[int, int], digests: Mapping[str, bytes]
) -> TensorRow:
    """New rows have no digest; the storage makes it. Empty tensors lie nowhere: at the front of the first segment."""
    if home is not None and block.nbytes:
        number = numbers[home.segment]
        return TensorRow(block.name, block.dtype, block.shape, number, home.offset, block.nbytes, home.digest)
    digest = digests[block.name] if 0 in numbers.values() else b""
    return TensorRow(block.name, block.dtype, block.shape, 0, place or 0, block.nbytes, digest)
