"""`tensorcast describe`: the catalog's record, the replicas, this node's state, and the tensors."""

from __future__ import annotations

from tensorcast.artifact import Artifact
from tensorcast.cli import cluster, render
from tensorcast.cli.words import Words
from tensorcast.records import TensorMeta
from tensorcast.session import Session
from tensorcast_bus.errors import NoLocalStorage, NoReplica, NotFound
from tensorcast_bus.messages import Resolved
from tensorcast_bus.notes import Described

TENSORS_SHOWN = 20


def describe(words: Words) -> int:
    session = cluster.session(words)
    try:
        found = session.resolve(words.art_id, deadline_ms=words.deadline_ms)
        here = _here(session, words)
        tensors = _tensors(session, words, here)
    finally:
        session.close()
    if words.json:
        render.as_json(
            {"artifact": found.artifact, "replicas": found.replicas, "here": here, "tensors": tensors},
        )
    else:
        _show(words, found, here, tensors)
    return 0


def _here(session: Session, words: Words) -> Described | None:
    try:
        return session.describe(words.art_id, deadline_ms=words.deadline_ms)
    except NoLocalStorage:
        return None


def _tensors(session: Session, words: Words, here: Described | None) -> list[TensorMeta] | None:
    """None where this node has no bytes; describing does not load what was evicted."""
    if here is None or here.state != "resident":
        return None
    try:
        meta = Artifact(session, words.art_id).tensor_meta(deadline_ms=words.deadline_ms)
    except (NotFound, NoReplica):
        return None
    return list(meta.values())


def _show(words: Words, found: Resolved, here: Described | None, tensors: list[TensorMeta] | None) -> None:
    row = found.artifact
    print(f"{row.art_id}: {render.size(row.nbytes)} in {row.tensors} tensors, made {render.since(row.created_ms)} ago")
    print(f"digest {row.digest}, revision {row.revision}")
    if here is not None:
        print(f"on this node: {here.state}, mapped {here.pins} times")
    if found.replicas:
        render.table(
            ("NODE", "TIER", "PROCESS", "LIVING", "SINCE"),
            [
                (r.node, r.tier, r.process, "yes" if r.living else "no", render.since(r.since_ms))
                for r in found.replicas
            ],
        )
    if not tensors or words.quiet:
        return
    shown = tensors if words.every else tensors[:TENSORS_SHOWN]
    print()
    render.table(
        ("TENSOR", "DTYPE", "SHAPE", "SIZE"),
        [(t.name, t.dtype, "x".join(map(str, t.shape)) or "scalar", render.size(t.nbytes)) for t in shown],
        right=frozenset({3}),
    )
    if len(shown) < len(tensors):
        print(f"and {len(tensors) - len(shown)} more (--all)")
