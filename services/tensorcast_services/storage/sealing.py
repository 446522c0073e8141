"""What digests decide: the manifest of a put or of registered files is finished with them, and every load of what was
digested before must have the very same ones.

Pure; runs on a thread for tables.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorcast_bus.errors import LeaseLost, LocalProtocolError
from tensorcast_bus.manifest import Manifest, TensorRow, content_digest, encode_manifest, with_digests
from tensorcast_native import xxh3_128
from tensorcast_services.storage.draft_rows import DIGEST_BYTES
from tensorcast_services.storage.drafts import Draft, LeasePlan
from tensorcast_services.storage.jobs import LoadJob, PutJob
from tensorcast_services.storage.sidecars import Summary
from tensorcast_services.storage.sources import SourceTrouble, changed_file, files_of


def finish_put(job: PutJob, digests: bytes) -> tuple[Summary, bytes]:
    """The summary and the manifest's bytes, as many as the draft foretold. `digests` are of the rows in the segments
    that the put brought, in order; borrowed rows have the base's already."""
    assert job.draft.base_checked or not job.draft.borrowed, "borrowed rows are compared with the base's first"
    manifest = _with_digests(job.draft, digests)
    return _finished(job.art_id, job.draft, manifest)


def finish_lease(plan: LeasePlan, digests: bytes) -> tuple[Summary, Manifest, bytes]:
    """The end of a load of what a caller registered: summary, manifest and its bytes. SourceTrouble (lost, LeaseLost)
    when memory has other bytes than it had at the registration. Files are digested here for the first time: keep the
    manifest, for `check_load` holds later loads to it."""
    draft = plan.draft
    art_id = draft.manifest.art_id
    if draft.from_files:
        manifest = _with_digests(draft, digests)
    elif (row := other_row(draft.manifest, digests)) is None:
        manifest = draft.manifest
    else:
        what = f"tensor {row.name[:200]!r} has other bytes than when it was registered"
        raise SourceTrouble(owner_wrote(art_id, what), lost=True)
    summary, blob = _finished(art_id, draft, manifest)
    return summary, manifest, blob


def check_load(job: LoadJob, digests: bytes) -> Summary:
    """SourceTrouble when the file gave other bytes than it once had, whatever its size and time say."""
    if (row := other_row(job.manifest, digests)) is not None:
        what = f"tensor {row.name!r} has other bytes, though size and time of the file are the same"
        raise SourceTrouble(changed_file(job.art_id, what), lost=True)
    return job.summary


def check_headers(art_id: str, manifest: Manifest, read: Callable[[int, int], bytes]) -> None:
    """SourceTrouble when a file's image begins with another header than its tensors were named by: the file
    was rewritten between the two. `read` gives the first bytes of a segment, by its number."""
    for number, segment in enumerate(manifest.segments):
        if segment.file is None or not segment.file.header_digest:
            continue
        nbytes = 8 + int.from_bytes(read(number, 8), "little")
        if nbytes > segment.nbytes or xxh3_128(read(number, nbytes)) != segment.file.header_digest:
            what = f"{segment.file.path} has another header than when its tensors were named"
            raise SourceTrouble(changed_file(art_id, what), lost=True)


def owner_wrote(art_id: str, what: str) -> LeaseLost:
    return LeaseLost(
        f"the lease on {art_id!r} has ended: {what}; owners must not write to what they registered: register it again, "
        "or put it",
        art_id=art_id,
    )


def _finished(art_id: str, draft: Draft, manifest: Manifest) -> tuple[Summary, bytes]:
    blob = encode_manifest(manifest)
    assert len(blob) == draft.manifest_bytes
    # A draft that is not from files may name any: nobody compared them.
    files = files_of(manifest) if draft.from_files else ()
    return Summary(art_id, content_digest(manifest), manifest.nbytes, len(manifest.tensors), files), blob


def _with_digests(draft: Draft, digests: bytes) -> Manifest:
    """Fills in the rows that have none, in order."""
    manifest, split = draft.manifest, split_digests(digests)
    wanted = sum(1 for row in manifest.tensors if not row.digest)
    if len(split) != wanted:
        raise LocalProtocolError(
            f"{manifest.art_id!r} has {wanted} tensors to digest, and {len(split)} were; "
            "client and storage must be of one version",
            art_id=manifest.art_id,
        )
    found = iter(split)
    return with_digests(manifest, [row.digest or next(found) for row in manifest.tensors])


def split_digests(digests: bytes) -> list[bytes]:
    """As the native floor packs them, one a row."""
    return [digests[i : i + DIGEST_BYTES] for i in range(0, len(digests), DIGEST_BYTES)]


def other_row(manifest: Manifest, digests: bytes) -> TensorRow | None:
    """The first row that has another digest than was found; None where all are the same."""
    found = split_digests(digests)
    assert len(found) == len(manifest.tensors), "the native floor digests the very rows that it was given"
    return next((row for row, digest in zip(manifest.tensors, found, strict=True) if row.digest != digest), None)
