"""The rows of a client's draft, one by one: every number in them is checked before anything is done with it.

Called by drafts.py alone. A row lies inside its segment, has the exact size that its dtype and shape ask for, and a
name of its own. Rows in borrowed segments (the last ones, from number `new` on) bring the digest of the base's row.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from string import hexdigits

from tensorcast_bus.dtypes import DTYPE_BITS, alignment, tensor_bytes
from tensorcast_bus.errors import Invalid
from tensorcast_bus.manifest import Manifest, SegmentRow, TensorRow

NAME_CHARS_MAX = 4096
DIMS_MAX = 64
BYTES_MAX = 1 << 60
DIGEST_BYTES = 16
KEY_CHARS = 32


def new_key() -> str:
    """A name for a segment that nothing else has."""
    return secrets.token_hex(KEY_CHARS // 2)


GAP_BYTES_MAX = 64  # between copies, which lie at multiples of it
_HEX = frozenset(hexdigits.lower())


def is_hex(text: str) -> bool:
    """32 lower-case hex digits: a key, or a content digest."""
    return len(text) == KEY_CHARS and _HEX.issuperset(text)


def check_segments(manifest: Manifest, *, new: int) -> None:
    """Invalid for a segment that cannot be what it says; `new` is how many the put brings."""
    keys: set[str] = set()
    for number, row in enumerate(manifest.segments):
        problem = _segment_problem(row) if number < new else _borrowed_problem(row, keys)
        if problem:
            raise Invalid(f"segment {number} of {manifest.art_id!r} {problem}", art_id=manifest.art_id)
        keys.add(row.key)


def check_rows(manifest: Manifest, *, new: int, digested: bool) -> None:
    """Invalid naming the tensor. `digested`: rows in memory segments that the caller brings have digests too, as a
    lease needs them; those of files never have."""
    art_id = manifest.art_id
    names: set[str] = set()
    for row in manifest.tensors:
        problem = (
            _row_problem(row, manifest.segments)
            or _copy_problem(row, manifest.segments, new=new)
            or _digest_problem(row, manifest.segments, new=new, digested=digested)
            or ("appears twice" if row.name in names else "")
        )
        if problem:
            raise Invalid(f"tensor {row.name[:200]!r} of {art_id!r} {problem}", art_id=art_id, tensor=row.name[:200])
        names.add(row.name)


def check_asides(manifest: Manifest) -> None:
    """A segment of copies holds nothing but copies, with gaps for their alignment: a load makes these gaps itself."""
    copies: dict[int, set[tuple[int, int, tuple[int, int]]]] = {}
    for row in manifest.tensors:
        if manifest.segments[row.segment].aside and row.nbytes:
            copies.setdefault(row.segment, set()).add((row.offset, row.nbytes, row.copied_from or (-1, 0)))
    for number, segment in enumerate(manifest.segments):
        if not segment.aside:
            continue
        end = 0
        for offset, nbytes, _ in (*sorted(copies.get(number, ())), (segment.nbytes, 0, (-1, 0))):
            gap = offset - end
            if not 0 <= gap <= GAP_BYTES_MAX:
                what = f"a gap of {gap} bytes (the limit is {GAP_BYTES_MAX})" if gap > 0 else "copies that overlap"
                raise Invalid(
                    f"segment {number} of {manifest.art_id!r}, of copies, has {what} at {end}", art_id=manifest.art_id
                )
            end = offset + nbytes


def _segment_problem(row: SegmentRow) -> str:
    if row.key:
        return "has a key and comes before one that has none; those that a put brings come first"
    if row.file is None:
        return ""
    if row.aside:
        return "cannot be a file's image and made of copies"
    path = row.file.path
    if not path.startswith("/") or "\0" in path or len(path.encode("utf-8", "surrogateescape")) > 4096:
        return f"names the file {path[:200]!r}, which is not an absolute path"
    return f"has {row.nbytes} bytes, its file {row.file.size}" if row.file.size != row.nbytes else ""


def _borrowed_problem(row: SegmentRow, keys: set[str]) -> str:
    if not is_hex(row.key):
        return f"has the key {row.key[:80]!r}, which is not {KEY_CHARS} hex digits"
    if row.file is not None or row.aside:
        return "is borrowed; it is named by its key alone, without a file, and is not one of copies"
    return f"has the key {row.key}, as another one has" if row.key in keys else ""


def _row_problem(row: TensorRow, segments: Sequence[SegmentRow]) -> str:
    if len(row.name) > NAME_CHARS_MAX:
        return f"has a name of {len(row.name)} characters; the limit is {NAME_CHARS_MAX}"
    if row.dtype not in DTYPE_BITS:
        return f"has dtype {row.dtype[:40]!r}; known are {', '.join(DTYPE_BITS)}"
    if len(row.shape) > DIMS_MAX or any(not 0 <= dim <= BYTES_MAX for dim in row.shape):
        return f"has a shape out of bounds (at most {DIMS_MAX} dimensions of 0 to 2^60)"
    try:
        wanted = tensor_bytes(row.dtype, row.shape)
    except ValueError as error:
        return f"does not fill whole bytes: {error}"
    if row.nbytes != wanted:
        return f"has {row.nbytes} bytes, and {row.dtype} {list(row.shape)} takes {wanted}"
    if not 0 <= row.segment < len(segments):
        return f"lies in segment {row.segment} of {len(segments)}"
    if row.offset < 0 or row.offset + row.nbytes > segments[row.segment].nbytes:
        return f"lies at {row.offset} to {row.offset + row.nbytes} of {segments[row.segment].nbytes} bytes"
    if row.nbytes and row.offset % alignment(row.dtype):
        return f"lies at {row.offset}, which is no multiple of its item size {alignment(row.dtype)}"
    return ""


def _digest_problem(row: TensorRow, segments: Sequence[SegmentRow], *, new: int, digested: bool) -> str:
    segment = segments[row.segment]
    if row.segment >= new or (digested and segment.file is None and not segment.aside):
        has = len(row.digest)
        return f"has a digest of {has} bytes; it must have {DIGEST_BYTES}" if has != DIGEST_BYTES else ""
    return "has a digest already; the storage makes them" if row.digest else ""


def _copy_problem(row: TensorRow, segments: Sequence[SegmentRow], *, new: int) -> str:
    if row.copied_from is None:
        return ""
    segment, offset = row.copied_from
    if not segments[row.segment].aside:
        return "is copied from another segment, but does not lie in one of copies"
    if not 0 <= segment < new or segments[segment].aside:
        return f"is copied from segment {segment}, which holds no originals"
    if offset < 0 or offset + row.nbytes > segments[segment].nbytes:
        return f"is copied from {offset} to {offset + row.nbytes} of {segments[segment].nbytes} bytes"
    return ""
