"""`tensorcast describe`: the catalog's record, the replicas, this node's word, the sources, and the tensors.

Describing loads nothing: the manifest is asked for alone. What this node cannot tell is left out, not guessed.
"""

from __future__ import annotations

import msgspec

from tensorcast.cli import cluster, render
from tensorcast.cli.words import Words
from tensorcast.deadline import Deadline
from tensorcast.records_local import Attached
from tensorcast.session import Session
from tensorcast_bus.errors import TensorCastError
from tensorcast_bus.manifest import Manifest, TensorRow, decode_manifest
from tensorcast_bus.messages import ArtifactRow, Resolved
from tensorcast_bus.notes import Described

TENSORS_SHOWN = 20


class Seen(msgspec.Struct, frozen=True):
    """`here` and `manifest` are None where this host has no storage, or none that knows the artifact; `silence` says
    why in its own words."""

    found: Resolved
    here: Described | None
    manifest: Manifest | None
    silence: str = ""


def describe(words: Words) -> int:
    session = cluster.session(words)
    try:
        seen = _look(session, words)
    finally:
        session.close()
    if words.json:
        render.as_json(_record(seen))
    else:
        _show(words, seen)
    return 0


def _look(session: Session, words: Words) -> Seen:
    found = session.resolve(words.art_id, deadline_ms=words.deadline_ms)
    art_id = found.artifact.art_id
    try:
        here = session.describe(art_id, deadline_ms=words.deadline_ms)
    except TensorCastError as error:
        return Seen(found, None, None, error.text)
    if here.state == "unknown":
        return Seen(found, here, None, "no storage of this node has it")
    try:
        return Seen(found, here, _manifest(session, art_id, words))
    except TensorCastError as error:
        # No replica, or a damaged one: what the catalog says of it is worth showing all the same.
        return Seen(found, here, None, error.text)


def _manifest(session: Session, art_id: str, words: Words) -> Manifest:
    deadline = Deadline(words.deadline_ms, f"describe of {art_id!r}")
    got = session.attach(art_id, deadline=deadline, manifest_only=True)
    if not isinstance(got, Attached):
        return decode_manifest(got.manifest)
    try:
        return decode_manifest(got.attachment.manifest)
    finally:
        got.attachment.release()


def _record(seen: Seen) -> dict[str, object]:
    manifest = seen.manifest
    return {
        "artifact": seen.found.artifact,
        "alias": seen.found.alias,
        "replicas": seen.found.replicas,
        "here": seen.here,
        "silence": seen.silence,
        "sources": _sources(manifest) if manifest else None,
        "metadata": manifest.metadata if manifest else None,
        "tensors": [_tensor(t) for t in manifest.tensors] if manifest else None,
    }


def _tensor(row: TensorRow) -> dict[str, object]:
    return {
        "name": row.name,
        "dtype": row.dtype,
        "shape": row.shape,
        "nbytes": row.nbytes,
        "digest": row.digest.hex(),
    }


def _sources(manifest: Manifest) -> list[str]:
    """The files that the bytes came from; empty for what was put from memory."""
    return [s.file.path for s in manifest.segments if s.file is not None]


def _show(words: Words, seen: Seen) -> None:
    row = seen.found.artifact
    if seen.found.alias is not None:
        alias = seen.found.alias
        print(f"{alias.name} -> {alias.art_id} (an alias, rev:{alias.revision}, set {render.since(alias.set_ms)} ago)")
    print(f"{row.art_id}: {render.size(row.nbytes)} in {row.tensors} tensors, made {render.since(row.created_ms)} ago")
    print(f"digest {row.digest}, revision {row.revision}")
    print(_owned(row, seen.here))
    if seen.here is not None:
        print(_here(seen.here))
    elif seen.silence:
        print(f"on this node: {seen.silence}")
    if seen.manifest is not None:
        for path in _sources(seen.manifest):
            print(f"from file {path}")
    if seen.found.replicas:
        _show_replicas(seen.found)
    if seen.manifest is not None and not words.quiet:
        _show_tensors(words, seen.manifest)
    elif seen.here is not None and seen.silence and not words.quiet:
        print(f"\nits tensors cannot be told: {seen.silence}")


def _owned(row: ArtifactRow, here: Described | None) -> str:
    if row.ownership != "lease":
        return "owned by the system"
    # Only the storage that holds the lease knows how long it lasts.
    left = f", {render.span(here.lease_left_ms)} left" if here is not None and here.lease_left_ms >= 0 else ""
    return f"leased by {row.owner or 'the process that registered it'}{left}"


def _here(here: Described) -> str:
    if here.state == "unknown":
        return "on this node: nothing of it"
    tiers = f" ({', '.join(here.tiers)})" if here.tiers else ""
    disk = f", {render.size(here.disk_bytes)} on disk" if here.disk_bytes else ""
    return f"on this node: {here.state}{tiers}, mapped {here.pins} times{disk}"


def _show_replicas(found: Resolved) -> None:
    render.table(
        ("NODE", "TIER", "PROCESS", "LIVING", "SINCE"),
        [(r.node, r.tier, r.process, "yes" if r.living else "no", render.since(r.since_ms)) for r in found.replicas],
    )


def _show_tensors(words: Words, manifest: Manifest) -> None:
    tensors = manifest.tensors
    shown = tensors if words.every else tensors[:TENSORS_SHOWN]
    if not shown:
        return
    digests = words.digests or words.every
    print()
    rows = [[t.name, t.dtype, "x".join(map(str, t.shape)) or "scalar", render.size(t.nbytes)] for t in shown]
    if digests:
        for row, tensor in zip(rows, shown, strict=True):
            row.append(tensor.digest.hex() or "pending")
    header = ["TENSOR", "DTYPE", "SHAPE", "SIZE", *(["DIGEST"] if digests else [])]
    render.table(header, rows, right=frozenset({3}))
    if len(shown) < len(tensors):
        print(f"and {len(tensors) - len(shown)} more (--all)")
