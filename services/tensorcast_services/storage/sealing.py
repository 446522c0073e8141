"""What digests decide: a put's manifest is finished with them, and a load must have the very same ones.

Pure; runs on a thread for tables.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorcast_bus.errors import LocalProtocolError
from tensorcast_bus.manifest import Manifest, content_digest, encode_manifest, with_digests
from tensorcast_native import xxh3_128
from tensorcast_services.storage.drafts import DIGEST_BYTES
from tensorcast_services.storage.jobs import LoadJob, PutJob
from tensorcast_services.storage.sidecars import Summary
from tensorcast_services.storage.sources import SourceTrouble, changed_file, files_of


def finish_put(job: PutJob, digests: bytes) -> tuple[Summary, bytes]:
    """The summary and the manifest's bytes, as many as the draft foretold."""
    draft, split = job.draft, _split(digests)
    if len(split) != len(draft.manifest.tensors):
        raise LocalProtocolError(
            f"{job.art_id!r} has {len(draft.manifest.tensors)} tensors, and {len(split)} were digested; "
            "client and storage must be of one version",
            art_id=job.art_id,
        )
    manifest = with_digests(draft.manifest, split)
    blob = encode_manifest(manifest)
    assert len(blob) == draft.manifest_bytes
    # A draft that is not from files may name any: nobody compared them.
    files = files_of(manifest) if draft.from_files else ()
    summary = Summary(job.art_id, content_digest(manifest), manifest.nbytes, len(manifest.tensors), files)
    return summary, blob


def check_load(job: LoadJob, digests: bytes) -> Summary:
    """SourceTrouble when the file gave other bytes than it once had, whatever its size and time say."""
    if digests != b"".join(row.digest for row in job.manifest.tensors):
        what = _first_difference(job.manifest, digests)
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


def _split(digests: bytes) -> list[bytes]:
    return [digests[i : i + DIGEST_BYTES] for i in range(0, len(digests), DIGEST_BYTES)]


def _first_difference(manifest: Manifest, digests: bytes) -> str:
    for row, digest in zip(manifest.tensors, _split(digests), strict=False):
        if row.digest != digest:
            return f"tensor {row.name!r} has other bytes, though size and time of the file are the same"
    return "the number of its tensors differs"
