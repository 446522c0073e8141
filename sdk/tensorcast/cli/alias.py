"""`tensorcast alias`: sets, shows, lists and removes movable names for artifacts."""

from __future__ import annotations

from tensorcast.cli import cluster, render
from tensorcast.cli.words import Words
from tensorcast.records import UNSET, AliasRecord, Unset
from tensorcast.session import Session

ABSENT = "none"
REVISION = "rev:"


def alias(words: Words) -> int:
    session = cluster.session(words)
    try:
        if words.remove:
            _remove(session, words)
        elif words.art_id:
            _set(session, words)
        elif words.alias:
            _show(session.alias(words.alias, deadline_ms=words.deadline_ms), words)
        else:
            _list(session.list_aliases("", deadline_ms=words.deadline_ms), words)
    finally:
        session.close()
    return 0


def _set(session: Session, words: Words) -> None:
    record = session.set_alias(
        words.alias, words.art_id, expect=expectation(words.alias, words.expect), deadline_ms=words.deadline_ms
    )
    if words.json:
        render.as_json(record)
    elif not words.quiet:
        print(f"{record.name} -> {record.art_id}, {REVISION}{record.revision}")


def _remove(session: Session, words: Words) -> None:
    session.delete_alias(words.alias, expect=expectation(words.alias, words.expect), deadline_ms=words.deadline_ms)
    if words.json:
        render.as_json({"removed": words.alias})
    elif not words.quiet:
        print(f"removed alias {words.alias}")


def expectation(name: str, said: str | None) -> AliasRecord | str | Unset | None:
    """What `--expect` means; a revision alone says which setting is meant, whatever it points at."""
    if said is None:
        return UNSET
    if said == ABSENT:
        return None
    if said.startswith(REVISION):
        return AliasRecord(name, "", int(said.removeprefix(REVISION)), 0)
    return said


def _show(record: AliasRecord, words: Words) -> None:
    if words.json:
        render.as_json(record)
    elif words.quiet:
        print(record.art_id)
    else:
        print(f"{record.name} -> {record.art_id}, {REVISION}{record.revision}, set {render.since(record.set_ms)} ago")


def _list(records: list[AliasRecord], words: Words) -> None:
    if words.json:
        render.as_json(records)
    elif words.quiet:
        for record in records:
            print(record.name)
    elif records:
        render.table(
            ("ALIAS", "ID", "REVISION", "SET"),
            [(r.name, r.art_id, str(r.revision), f"{render.since(r.set_ms)} ago") for r in records],
            right=frozenset({2, 3}),
        )
    else:
        print("no aliases")
