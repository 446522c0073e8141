"""`tensorcast ls` and `tensorcast rm`."""

from __future__ import annotations

from tensorcast.cli import cluster, render
from tensorcast.cli.words import Words


def ls(words: Words) -> int:
    session = cluster.session(words)
    try:
        found = session.list_artifacts(words.prefix, deadline_ms=words.deadline_ms)
    finally:
        session.close()
    if words.json:
        render.as_json(found)
    elif words.quiet:
        for record in found:
            print(record.art_id)
    elif found:
        render.table(
            ("ID", "SIZE", "TENSORS", "AGE", "PLACES"),
            [
                (
                    r.art_id,
                    render.size(r.nbytes),
                    str(r.tensors),
                    render.since(r.created_ms),
                    " ".join(r.places) or "none",
                )
                for r in found
            ],
            right=frozenset({1, 2, 3}),
        )
    else:
        print(f"no artifacts{f' that begin with {words.prefix!r}' if words.prefix else ''}")
    return 0


def rm(words: Words) -> int:
    session = cluster.session(words)
    try:
        session.delete(words.art_id, deadline_ms=words.deadline_ms)
    finally:
        session.close()
    if words.json:
        render.as_json({"deleted": words.art_id})
    elif not words.quiet:
        print(f"deleted {words.art_id}")
    return 0
