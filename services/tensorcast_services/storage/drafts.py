"""The draft that a client sends with a put: untrusted until every number in it has been checked here.

Pure; run on a thread for large drafts. What passes has one row for each tensor, inside its segment, of the exact size
its dtype and shape ask for, under a name of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tensorcast_bus.dtypes import DTYPE_BITS, alignment, tensor_bytes
from tensorcast_bus.errors import Invalid, LocalProtocolError, MessageTooLarge
from tensorcast_bus.ids import check_art_id
from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, TensorRow, encode_manifest
from tensorcast_bus.notes import PutDraft
from tensorcast_services.storage.load_plan import pack_rows, plan_load, same_pieces
from tensorcast_services.storage.sources import files_of

SEGMENTS_MAX = 4096
NAME_CHARS_MAX = 4096
DIMS_MAX = 64
BYTES_MAX = 1 << 60
DIGEST_BYTES = 16
GAP_BYTES_MAX = 64  # between copies, which lie at multiples of it
SLOT_BYTES_MAX = 256 << 10
BLOCK_BYTES = 2 << 20


class Draft(msgspec.Struct, frozen=True):
    """`rows` are the manifest's own, packed for the native floor: what is digested is never the client's word.
    `manifest_bytes` is the exact size of the finished manifest: every digest adds the same. `from_files`: each
    segment is a file's image or an aside of one, by the client's word until `check_sources` has compared it."""

    manifest: Manifest
    rows: bytes
    manifest_bytes: int
    need_bytes: int
    from_files: bool


def read_draft(
    body: bytes, *, art_id: str, segment_bytes: Sequence[int], source: str, tensors_max: int, draft_bytes_max: int
) -> Draft:
    """Invalid, MessageTooLarge or LocalProtocolError naming the id and what is wrong."""
    if len(body) > draft_bytes_max:
        raise MessageTooLarge(
            f"the table of tensors for {art_id!r} has {len(body)} bytes; the limit is {draft_bytes_max} "
            "(storage.draft_bytes_max): split the artifact, or raise the limit",
            art_id=art_id,
        )
    check_art_id(art_id)
    put = _decode(body, art_id)
    if put.durable:
        raise Invalid(
            "durable=True needs the disk tier, which this version does not have; "
            "put a path: its file is the durable copy",
            art_id=art_id,
        )
    manifest = put.manifest
    _check_frame(manifest, art_id=art_id, segment_bytes=segment_bytes, tensors_max=tensors_max)
    names: set[str] = set()
    for row in manifest.tensors:
        problem = _row_problem(row, manifest.segments) or ("appears twice" if row.name in names else "")
        if problem:
            raise Invalid(f"tensor {row.name[:200]!r} of {art_id!r} {problem}", art_id=art_id, tensor=row.name[:200])
        names.add(row.name)
    _check_asides(manifest, art_id=art_id)
    manifest_bytes = len(encode_manifest(manifest)) + DIGEST_BYTES * len(manifest.tensors)
    need = sum(room_bytes(nbytes) for nbytes in segment_bytes) + room_bytes(manifest_bytes)
    return Draft(manifest, pack_rows(manifest), manifest_bytes, need, source == "file" and _from_files(manifest))


def check_sources(draft: Draft, *, files: Sequence[tuple[int, int, int, int]], pieces: bytes) -> None:
    """LocalProtocolError unless a put from files brings what its draft names: the very files, in order, and the plan
    by which they are read again later. `files` are (device, inode, size, mtime_ns), `pieces` is packed."""
    if not draft.from_files:
        return
    art_id = draft.manifest.art_id
    named = [identity for _, *identity in files_of(draft.manifest)]
    if named != [list(identity) for identity in files]:
        raise LocalProtocolError(
            f"the draft of {art_id!r} names {len(named)} source files, and its put sent {len(files)} that are not the "
            "same, in this order; client and storage must be of one version",
            art_id=art_id,
        )
    if not same_pieces(pieces, plan_load(draft.manifest).pieces):
        raise LocalProtocolError(
            f"the put of {art_id!r} reads its source files otherwise than its draft says; "
            "client and storage must be of one version",
            art_id=art_id,
        )


def _decode(body: bytes, art_id: str) -> PutDraft:
    try:
        return msgspec.msgpack.decode(body, type=PutDraft)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise LocalProtocolError(
            f"the draft of {art_id!r} is not one ({error}); client and storage must be of one version", art_id=art_id
        ) from error


def _check_frame(manifest: Manifest, *, art_id: str, segment_bytes: Sequence[int], tensors_max: int) -> None:
    if manifest.version != MANIFEST_VERSION:
        raise LocalProtocolError(
            f"{art_id!r} came with manifest version {manifest.version}; this storage has {MANIFEST_VERSION}",
            art_id=art_id,
        )
    if manifest.art_id != art_id:
        raise Invalid(f"the draft of {art_id!r} names {manifest.art_id[:80]!r}", art_id=art_id)
    if len(manifest.tensors) > tensors_max:
        raise Invalid(
            f"{art_id!r} has {len(manifest.tensors)} tensors; the limit is {tensors_max} (storage.tensors_max)",
            art_id=art_id,
        )
    if len(manifest.segments) > SEGMENTS_MAX:
        raise Invalid(f"{art_id!r} has {len(manifest.segments)} segments; the limit is {SEGMENTS_MAX}", art_id=art_id)
    if [row.nbytes for row in manifest.segments] != list(segment_bytes):
        raise Invalid(f"the draft of {art_id!r} and its put disagree about the sizes of segments", art_id=art_id)
    if any(not 0 <= nbytes <= BYTES_MAX for nbytes in segment_bytes) or sum(segment_bytes) > BYTES_MAX:
        raise Invalid(f"the segments of {art_id!r} have sizes out of bounds", art_id=art_id)
    for number, row in enumerate(manifest.segments):
        problem = _segment_problem(row)
        if problem:
            raise Invalid(f"segment {number} of {art_id!r} {problem}", art_id=art_id)


def _segment_problem(row: SegmentRow) -> str:
    if row.file is None:
        return ""
    if row.aside:
        return "cannot be a file's image and made of copies"
    path = row.file.path
    if not path.startswith("/") or "\0" in path or len(path.encode("utf-8", "surrogateescape")) > 4096:
        return f"names the file {path[:200]!r}, which is not an absolute path"
    return f"has {row.nbytes} bytes, its file {row.file.size}" if row.file.size != row.nbytes else ""


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
    if row.digest:
        return "has a digest already; the storage makes them"
    return _copy_problem(row, segments)


def _copy_problem(row: TensorRow, segments: Sequence[SegmentRow]) -> str:
    if row.copied_from is None:
        return ""
    segment, offset = row.copied_from
    if not segments[row.segment].aside:
        return "is copied from another segment, but does not lie in one of copies"
    if not 0 <= segment < len(segments) or segments[segment].aside:
        return f"is copied from segment {segment}, which holds no originals"
    if offset < 0 or offset + row.nbytes > segments[segment].nbytes:
        return f"is copied from {offset} to {offset + row.nbytes} of {segments[segment].nbytes} bytes"
    return ""


def _check_asides(manifest: Manifest, *, art_id: str) -> None:
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
                raise Invalid(f"segment {number} of {art_id!r}, of copies, has {what} at {end}", art_id=art_id)
            end = offset + nbytes


def _from_files(manifest: Manifest) -> bool:
    """Whether the files alone can give every tensor back."""
    if not manifest.segments or any(row.file is None and not row.aside for row in manifest.segments):
        return False
    in_aside = (row for row in manifest.tensors if manifest.segments[row.segment].aside and row.nbytes)
    return all(row.copied_from is not None for row in in_aside)


def room_bytes(nbytes: int) -> int:
    """What a segment takes of the pool: whole blocks, or a slot."""
    return nbytes if nbytes < SLOT_BYTES_MAX else -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
