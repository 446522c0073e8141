"""Aliases: movable names, each pointing at one artifact's id.

Ids and aliases share one namespace; an alias never points at an alias. A change may say what it expects to find: two
settings differ in their revision even where they name the same id, so a compare by revision is not fooled by A-B-A.
An alias stays when its artifact goes; it points into the void then, and may be set anew.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorcast_bus.errors import CapacityExceeded, Conflict, NotFound
from tensorcast_bus.messages import AliasRow, DeleteAlias, Expectation, SetAlias
from tensorcast_services.effect import Save
from tensorcast_services.global_store.core.entries import Entries
from tensorcast_services.global_store.core.journal import Change, Journal
from tensorcast_services.global_store.core.names import Names
from tensorcast_services.global_store.core.rows import ALIASES, SavedRows

ALIASES_MAX = 200_000


class Aliases:
    def __init__(self, entries: Entries, saved: SavedRows, journal: Journal) -> None:
        self._entries = entries
        self._journal = journal
        self._rows = {row.name: row for row in saved.aliases}
        self._order = Names(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, name: str) -> AliasRow | None:
        return self._rows.get(name)

    def get(self, name: str) -> AliasRow:
        """NotFound."""
        row = self._rows.get(name)
        if row is None:
            what = "it is an artifact's id" if self._entries.find(name) is not None else "set it first"
            raise NotFound(f"there is no alias {name!r}: {what}", name=name)
        return row

    def set(self, ask: SetAlias, now_ms: int) -> AliasRow:
        """Conflict, NotFound and CapacityExceeded as SetAlias says, nothing changed then."""
        self._check_names(ask)
        present = self._rows.get(ask.name)
        _check_expected(ask.name, present, ask.expect)
        if present is None and len(self._rows) >= ALIASES_MAX:
            raise CapacityExceeded(
                f"the catalog holds {len(self._rows)} aliases, its limit; delete some before {ask.name!r} is set",
                name=ask.name,
                aliases_max=ALIASES_MAX,
            )
        row = AliasRow(ask.name, ask.art_id, self._journal.next_revision(), now_ms)
        if present is None:
            self._order.add(ask.name)
        self._rows[ask.name] = row
        self._journal.save(Save(ALIASES, (ask.name,), row, new=present is None))
        self._journal.tell(Change("alias", row.name, "", row.revision, row.art_id))
        return row

    def delete(self, ask: DeleteAlias) -> AliasRow:
        """The row as it was. NotFound where there is none, whatever was expected; Conflict."""
        row = self.get(ask.name)
        _check_expected(ask.name, row, ask.expect)
        del self._rows[ask.name]
        self._order.remove(ask.name)
        self._journal.save(Save(ALIASES, (ask.name,), None))
        self._journal.tell(Change("unalias", ask.name, "", self._journal.next_revision()))
        # The revisions of the setting and of its end are in no row now, and must not be given to a later setting.
        self._journal.keep_revision()
        return row

    def after(self, prefix: str, after: str) -> Iterator[AliasRow]:
        """In the order of names, from the first one behind `after`."""
        return (self._rows[name] for name in self._order.after(prefix, after))

    def _check_names(self, ask: SetAlias) -> None:
        if self._entries.find(ask.name) is not None:
            raise Conflict(
                f"{ask.name!r} is an artifact's id and cannot be an alias too; choose another name, or delete the "
                "artifact first",
                name=ask.name,
            )
        if self._entries.find(ask.art_id) is None:
            other = self._rows.get(ask.art_id)
            what = f"it is an alias itself; point at {other.art_id!r}" if other is not None else "put it first"
            raise NotFound(
                f"there is no artifact {ask.art_id!r} that {ask.name!r} could name: {what}",
                name=ask.name,
                art_id=ask.art_id,
            )


def _check_expected(name: str, present: AliasRow | None, expect: Expectation) -> None:
    match expect.kind:
        case "any":
            holds, wanted = True, ""
        case "absent":
            holds, wanted = present is None, "not to exist"
        case "id":
            holds, wanted = present is not None and present.art_id == expect.art_id, f"to name {expect.art_id!r}"
        case _:
            holds = present is not None and present.revision == expect.revision
            wanted = f"to be as set at revision {expect.revision}"
    if holds:
        return
    row = present or AliasRow(name, "", 0, 0)
    now = f"names {row.art_id!r} as of revision {row.revision}" if present is not None else "does not exist"
    raise Conflict(
        f"alias {name!r} was expected {wanted}, but {now}; look again and decide anew",
        name=name,
        art_id=row.art_id,
        revision=row.revision,
        set_ms=row.set_ms,
    )
