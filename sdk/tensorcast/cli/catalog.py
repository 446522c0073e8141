"""`tensorcast ls` and `tensorcast rm`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tensorcast.cli import cluster, render
from tensorcast.cli.words import Words
from tensorcast.records import ArtifactRecord
from tensorcast.session import Session
from tensorcast_bus.errors import Conflict, NotFound, TensorCastError

# By id the first comes first; by a figure the largest, by age the newest.
_ORDERS: Mapping[str, Callable[[ArtifactRecord], tuple[int, str]]] = {
    "id": lambda r: (0, r.art_id),
    "size": lambda r: (-r.nbytes, r.art_id),
    "tensors": lambda r: (-r.tensors, r.art_id),
    "age": lambda r: (-r.created_ms, r.art_id),
}


def ls(words: Words) -> int:
    session = cluster.session(words)
    try:
        found = chosen(session.list_artifacts(words.prefix, deadline_ms=words.deadline_ms), words)
        names = _names(session, words)
    finally:
        session.close()
    if words.json:
        render.as_json([_named(r, names) for r in found] if words.aliases else found)
    elif words.quiet:
        for record in found:
            print(record.art_id)
    elif found:
        _show(found, names, words)
    else:
        print(f"no artifacts{_which(words)}")
    return 0


def chosen(records: Sequence[ArtifactRecord], words: Words) -> list[ArtifactRecord]:
    """Those that the words ask for, in their order. A tier and a node are met by one and the same replica."""
    kept = [
        r
        for r in records
        if r.nbytes >= words.min_bytes
        and words.ownership in ("", r.ownership)
        and (not (words.tier or words.on_node) or any(_meets(place, words) for place in r.places))
    ]
    return sorted(kept, key=_ORDERS[words.sort], reverse=words.reverse)


def _meets(place: str, words: Words) -> bool:
    node, _, tier = place.rpartition(":")
    return words.tier in ("", tier) and words.on_node in ("", node)


def _names(session: Session, words: Words) -> Mapping[str, list[str]]:
    """Which aliases point at an id."""
    found: dict[str, list[str]] = {}
    if words.aliases and not words.quiet:
        for record in session.list_aliases("", deadline_ms=words.deadline_ms):
            found.setdefault(record.art_id, []).append(record.name)
    return found


def _named(record: ArtifactRecord, names: Mapping[str, list[str]]) -> dict[str, object]:
    fields: dict[str, object] = {name: getattr(record, name) for name in record.__struct_fields__}
    return fields | {"aliases": names.get(record.art_id, [])}


def _show(found: Sequence[ArtifactRecord], names: Mapping[str, list[str]], words: Words) -> None:
    header = ["ID", "SIZE", "TENSORS", "AGE", "OWNER", "PLACES"]
    rows = [
        [
            r.art_id,
            render.size(r.nbytes),
            str(r.tensors),
            render.since(r.created_ms),
            r.ownership,
            " ".join(r.places) or "none",
        ]
        for r in found
    ]
    if words.aliases:
        header.append("ALIASES")
        for record, row in zip(found, rows, strict=True):
            row.append(" ".join(names.get(record.art_id, ())))
    render.table(header, rows, right=frozenset({1, 2, 3}))


def _which(words: Words) -> str:
    said = f" that begin with {words.prefix!r}" if words.prefix else ""
    narrowed = words.tier or words.on_node or words.min_bytes or words.ownership
    return f"{said} of those asked for" if narrowed else said


def rm(words: Words) -> int:
    session = cluster.session(words)
    try:
        session.delete(words.art_id, deadline_ms=words.deadline_ms)
    except (NotFound, Conflict) as error:
        raise _alias_instead(session, words, error) or error from None
    finally:
        session.close()
    if words.json:
        render.as_json({"deleted": words.art_id})
    elif not words.quiet:
        print(f"deleted {words.art_id}")
    return 0


def _alias_instead(session: Session, words: Words, error: TensorCastError) -> TensorCastError | None:
    """What to say where the id is only a name for one; removing the artifact behind it must be asked for by its id."""
    try:
        record = session.alias(words.art_id, deadline_ms=words.deadline_ms)
    except TensorCastError:
        return None
    return NotFound(
        f"{record.name!r} is no artifact but an alias of {record.art_id!r}; nothing was deleted: "
        f"`tensorcast alias --rm {record.name}` removes the name, `tensorcast rm {record.art_id}` the artifact",
        art_id=record.name,
        target=record.art_id,
    )
