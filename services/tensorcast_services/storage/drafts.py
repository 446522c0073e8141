"""The draft that a client sends with a put: untrusted until every number in it has been checked here.

Pure; run on a thread for large drafts. What passes has one row for each tensor, inside its segment, of the exact size
its dtype and shape ask for, under a name of its own. Every segment that the put brings gets its key here, so that the
size of the finished manifest is known before room is looked for. Segments of a delta version that have a key already
are borrowed: borrowing.py compares them with the base's manifest, and whoever starts the put holds them by that key.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tensorcast_bus.errors import Invalid, LocalProtocolError, MessageTooLarge
from tensorcast_bus.ids import check_art_id
from tensorcast_bus.manifest import (
    MANIFEST_VERSION,
    PENDING,
    Manifest,
    content_digest,
    encode_manifest,
    is_pending,
)
from tensorcast_bus.notes import Draft as Note
from tensorcast_bus.notes import LeaseDraft, PutDraft
from tensorcast_services.storage.draft_rows import (
    BYTES_MAX,
    DIGEST_BYTES,
    KEY_CHARS,
    check_asides,
    check_rows,
    check_segments,
    is_hex,
    new_key,
)
from tensorcast_services.storage.load_plan import pack_rows, plan_load, same_pieces
from tensorcast_services.storage.sources import files_of

SEGMENTS_MAX = 4096
TTL_MS_MIN = 1_000
TTL_MS_MAX = 7 * 24 * 3_600_000
SLOT_BYTES_MAX = 256 << 10
BLOCK_BYTES = 2 << 20


class Draft(msgspec.Struct, frozen=True):
    """`rows` are the manifest's own in the segments that the put brings, packed for the native floor: what is digested
    is never the client's word. `manifest_bytes` is the exact size of the finished manifest: every digest adds the same.
    `from_files`: each segment is a file's image or an aside of one, by the client's word until `check_sources` has
    compared it. `borrowed` are keys of the base's segments in the manifest's order (its last segments); they are the
    client's word until `borrowing.check_borrowed` returned a draft with `base_checked`."""

    manifest: Manifest
    rows: bytes
    manifest_bytes: int
    need_bytes: int
    from_files: bool
    durable: bool = False
    base: str = ""
    base_digest: str = ""
    borrowed: tuple[str, ...] = ()
    base_checked: bool = False


class LeasePlan(msgspec.Struct, frozen=True):
    """A checked registration. `digest` is the content digest, and then every row of `draft.manifest` has its digest; or
    it is pending, and then none has and all bytes come from files (`draft.from_files`). `draft.need_bytes` is what a
    load of all of it takes; keys are given as in a put."""

    draft: Draft
    ttl_ms: int
    digest: str


def decode_note(body: bytes, *, art_id: str, draft_bytes_max: int) -> Note:
    """What came with a put: a PutDraft for `read_draft` or a LeaseDraft for `read_lease`. MessageTooLarge, Invalid or
    LocalProtocolError naming the id."""
    if len(body) > draft_bytes_max:
        raise MessageTooLarge(
            f"the table of tensors for {art_id!r} has {len(body)} bytes; the limit is {draft_bytes_max} "
            "(storage.draft_bytes_max): put it in several, or raise the limit with `tensorcast up --set "
            "storage.draft_bytes_max=SIZE`",
            art_id=art_id,
        )
    check_art_id(art_id)
    try:
        return msgspec.msgpack.decode(body, type=Note)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise LocalProtocolError(
            f"the draft of {art_id!r} is not one ({error}); client and storage must be of one version", art_id=art_id
        ) from error


def read_draft(note: PutDraft, *, art_id: str, segment_bytes: Sequence[int], source: str, tensors_max: int) -> Draft:
    """Invalid or LocalProtocolError naming the id and what is wrong. `segment_bytes` and `source` are the put's own."""
    draft = _read(note.manifest, art_id, segment_bytes, source=source, tensors_max=tensors_max, digested=False)
    if draft.borrowed and not (note.base and is_hex(note.base_digest)):
        raise Invalid(
            f"{art_id!r} borrows {len(draft.borrowed)} segments, and names no base with its digest", art_id=art_id
        )
    if note.base:
        check_art_id(note.base)
    return msgspec.structs.replace(draft, durable=note.durable, base=note.base, base_digest=note.base_digest)


def read_lease(
    note: LeaseDraft, *, art_id: str, segment_bytes: Sequence[int], source: str, tensors_max: int
) -> LeasePlan:
    """Invalid or LocalProtocolError naming the id and what is wrong."""
    if not TTL_MS_MIN <= note.ttl_ms <= TTL_MS_MAX:
        raise Invalid(
            f"the lease of {art_id!r} would last {note.ttl_ms} ms; allowed is {TTL_MS_MIN} to {TTL_MS_MAX} (a week)",
            art_id=art_id,
        )
    draft = _read(note.manifest, art_id, segment_bytes, source=source, tensors_max=tensors_max, digested=True)
    if draft.borrowed:
        raise Invalid(f"the lease of {art_id!r} borrows segments; only a put can", art_id=art_id)
    if draft.from_files:
        good = is_pending(note.digest) and is_hex(note.digest[len(PENDING) :])
        wanted = f"{PENDING!r} and {KEY_CHARS} hex digits, as for files that nobody has read"
    else:
        if any(segment.file is not None or segment.aside for segment in draft.manifest.segments):
            raise Invalid(f"the lease of {art_id!r} names files, and not all of it comes from them", art_id=art_id)
        wanted = content_digest(draft.manifest)
        good = note.digest == wanted
    if not good:
        raise Invalid(
            f"the lease of {art_id!r} has the digest {note.digest[:80]!r}, and it must be {wanted}", art_id=art_id
        )
    return LeasePlan(draft, note.ttl_ms, note.digest)


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


def _read(
    manifest: Manifest, art_id: str, segment_bytes: Sequence[int], *, source: str, tensors_max: int, digested: bool
) -> Draft:
    new = next((n for n, row in enumerate(manifest.segments) if row.key), len(manifest.segments))
    _check_frame(manifest, art_id=art_id, segment_bytes=segment_bytes, tensors_max=tensors_max, new=new)
    check_segments(manifest, new=new)
    check_rows(manifest, new=new, digested=digested)
    check_asides(manifest)
    used = {row.segment for row in manifest.tensors if row.nbytes}
    if not used.issuperset(range(new, len(manifest.segments))):
        raise Invalid(f"{art_id!r} borrows segments in which none of its tensors lies", art_id=art_id)
    brought = tuple(msgspec.structs.replace(row, key=new_key()) for row in manifest.segments[:new])
    manifest = msgspec.structs.replace(manifest, segments=brought + manifest.segments[new:])
    undigested = sum(1 for row in manifest.tensors if not row.digest)
    manifest_bytes = len(encode_manifest(manifest)) + DIGEST_BYTES * undigested
    need = sum(room_bytes(nbytes) for nbytes in segment_bytes) + room_bytes(manifest_bytes)
    return Draft(
        manifest,
        pack_rows(msgspec.structs.replace(manifest, tensors=tuple(t for t in manifest.tensors if t.segment < new))),
        manifest_bytes,
        need,
        source == "file" and _from_files(manifest),
        borrowed=tuple(row.key for row in manifest.segments[new:]),
    )


def _check_frame(manifest: Manifest, *, art_id: str, segment_bytes: Sequence[int], tensors_max: int, new: int) -> None:
    if manifest.version != MANIFEST_VERSION:
        raise LocalProtocolError(
            f"{art_id!r} came with manifest version {manifest.version}; this storage has {MANIFEST_VERSION}",
            art_id=art_id,
        )
    if manifest.art_id != art_id:
        raise Invalid(f"the draft of {art_id!r} names {manifest.art_id[:80]!r}", art_id=art_id)
    if len(manifest.tensors) > tensors_max:
        raise Invalid(
            f"{art_id!r} has {len(manifest.tensors)} tensors; the limit is {tensors_max}: put it in several, or "
            "raise the limit with `tensorcast up --set storage.tensors_max=N`",
            art_id=art_id,
        )
    if len(manifest.segments) > SEGMENTS_MAX:
        raise Invalid(f"{art_id!r} has {len(manifest.segments)} segments; the limit is {SEGMENTS_MAX}", art_id=art_id)
    sizes = [row.nbytes for row in manifest.segments]
    if sizes[:new] != list(segment_bytes):
        raise Invalid(f"the draft of {art_id!r} and its put disagree about the sizes of segments", art_id=art_id)
    if any(not 0 <= nbytes <= BYTES_MAX for nbytes in sizes) or sum(sizes) > BYTES_MAX:
        raise Invalid(f"the segments of {art_id!r} have sizes out of bounds", art_id=art_id)
    if manifest.view:
        raise Invalid(f"the draft of {art_id!r} calls itself a view; only a storage makes those", art_id=art_id)


def _from_files(manifest: Manifest) -> bool:
    """Whether the files alone can give every tensor back."""
    if not manifest.segments or any(row.file is None and not row.aside for row in manifest.segments):
        return False
    in_aside = (row for row in manifest.tensors if manifest.segments[row.segment].aside and row.nbytes)
    return all(row.copied_from is not None for row in in_aside)


def room_bytes(nbytes: int) -> int:
    """What a segment takes of the pool: whole blocks, or a slot."""
    return nbytes if nbytes < SLOT_BYTES_MAX else -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
