"""A delta version's word on what it borrows, compared with the manifest of its base.

Pure; runs on a thread for tables, between the check of the draft and the start of the put. A key names one content for
ever, so a row that was found here stays right wherever the key lies by the time its segment is held.
"""

from __future__ import annotations

import msgspec

from tensorcast_bus.errors import LocalProtocolError
from tensorcast_bus.manifest import Manifest, SegmentRow, TensorRow
from tensorcast_native import tensor_digest
from tensorcast_services.storage.drafts import Draft

_EMPTY = tensor_digest(b"")


class BaseGone(Exception):
    """The base does not lie any more as the draft was made for; the client puts it again, whole."""


def check_borrowed(draft: Draft, base: Manifest) -> Draft:
    """The draft with `base_checked`, once each borrowed row was found in the base's manifest as it is now (the artifact
    `draft.base` of content `draft.base_digest`: the caller has looked). BaseGone when a borrowed segment lies there no
    more, for it was compacted meanwhile; LocalProtocolError for rows that the base never had. Shapes may differ: a
    draft's own check holds them to the same bytes."""
    sizes = {segment.key: segment.nbytes for segment in base.segments if segment.key}
    rows = {(base.segments[t.segment].key, t.offset, t.nbytes, t.dtype, t.digest) for t in base.tensors}
    manifest, art_id = draft.manifest, draft.manifest.art_id
    new = len(manifest.segments) - len(draft.borrowed)
    for segment in manifest.segments[new:]:
        if segment.key not in sizes:
            raise BaseGone(f"{draft.base!r} has no segment {segment.key} any more")
        if segment.nbytes != sizes[segment.key]:
            text = f"{art_id!r} borrows {segment.nbytes} bytes of a segment of {sizes[segment.key]} of {draft.base!r}"
            raise _not_the_bases(text, art_id)
    for row in manifest.tensors:
        if row.segment >= new and not _is_of_base(row, manifest.segments[row.segment], rows):
            text = f"tensor {row.name[:200]!r} of {art_id!r} is not as {draft.base!r} has it"
            raise _not_the_bases(text, art_id)
    return msgspec.structs.replace(draft, base_checked=True)


def _is_of_base(row: TensorRow, segment: SegmentRow, rows: set[tuple[str, int, int, str, bytes]]) -> bool:
    if not row.nbytes:
        return row.digest == _EMPTY
    return (segment.key, row.offset, row.nbytes, row.dtype, row.digest) in rows


def _not_the_bases(text: str, art_id: str) -> LocalProtocolError:
    return LocalProtocolError(f"{text}; client and storage must be of one version", art_id=art_id)
