"""Questions about the whole cluster, answered by the global store through a gateway: ids, aliases, workers.

Called by Session alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorcast.deadline import Deadline
from tensorcast.gateways import Gateways
from tensorcast.ids import checked_id, text
from tensorcast.records import UNSET, AliasRecord, ArtifactRecord, Unset
from tensorcast_bus.errors import Invalid, NotFound
from tensorcast_bus.ids import subject_token
from tensorcast_bus.messages import (
    AliasPage,
    AliasRow,
    ArtifactPage,
    Delete,
    DeleteAlias,
    DeletedRow,
    Expectation,
    GetAlias,
    ListAliases,
    ListArtifacts,
    ListWorkers,
    Resolve,
    Resolved,
    SetAlias,
    Worker,
    WorkerList,
)
from tensorcast_bus.subjects import Subjects

EVENT_TOPIC = "artifact"

Expected = AliasRecord | str | Unset | None


class Catalog:
    """Every call raises the global store's error, Timeout, Unavailable or NotConnected."""

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways

    def artifacts(self, prefix: str, *, deadline: Deadline) -> list[ArtifactRecord]:
        text(prefix, "a prefix of ids")
        found: list[ArtifactRecord] = []
        after = ""
        while True:
            page = self._gateways.link().ask(ListArtifacts(prefix, after), answer=ArtifactPage, deadline=deadline)
            for row, places in zip(page.rows, page.places, strict=True):
                found.append(
                    ArtifactRecord(
                        row.art_id, row.digest, row.nbytes, row.tensors, row.created_ms, places, row.ownership
                    )
                )
            if not page.more or not page.rows:
                return found
            after = page.rows[-1].art_id

    def resolve(self, art_id: str, *, deadline: Deadline) -> Resolved:
        """The record of an id or of what an alias points at, and who holds replicas."""
        return self._gateways.link().ask(Resolve(checked_id(art_id)), answer=Resolved, deadline=deadline)

    def delete(self, art_id: str, *, deadline: Deadline) -> None:
        self._gateways.link().ask(Delete(art_id), answer=DeletedRow, deadline=deadline)

    def workers(self, *, deadline: Deadline) -> Sequence[Worker]:
        return self._gateways.link().ask(ListWorkers(), answer=WorkerList, deadline=deadline).workers

    def set_alias(self, name: str, art_id: str, *, expect: Expected, deadline: Deadline) -> AliasRecord:
        wish = SetAlias(checked_id(name), checked_id(art_id), _expectation(name, expect))
        return _record(self._gateways.link().ask(wish, answer=AliasRow, deadline=deadline))

    def alias(self, name: str, *, deadline: Deadline) -> AliasRecord:
        return _record(self._gateways.link().ask(GetAlias(checked_id(name)), answer=AliasRow, deadline=deadline))

    def aliases(self, prefix: str, *, deadline: Deadline) -> list[AliasRecord]:
        text(prefix, "a prefix of aliases")
        found: list[AliasRecord] = []
        after = ""
        while True:
            page = self._gateways.link().ask(ListAliases(prefix, after), answer=AliasPage, deadline=deadline)
            found += map(_record, page.rows)
            if not page.more or not page.rows:
                return found
            after = page.rows[-1].name

    def delete_alias(self, name: str, *, expect: Expected, deadline: Deadline) -> None:
        wish = DeleteAlias(checked_id(name), _expectation(name, expect))
        self._gateways.link().ask(wish, answer=AliasRow, deadline=deadline)

    def wait_alias(self, name: str, *, after: AliasRecord | None, deadline: Deadline) -> AliasRecord:
        """The first setting that is not `after`'s. An event wakes, the record decides."""
        checked_id(name)
        if after is not None and not isinstance(after, AliasRecord):
            raise Invalid(f"{deadline.what}: after is {after!r:.80}; give a record that alias() returned, or None")
        if after is not None:
            _check_own(name, after)
        row = self._gateways.link().watch(
            Subjects.event(EVENT_TOPIC, subject_token(name)),
            GetAlias(name),
            answer=AliasRow,
            wanted=lambda row: after is None or row.revision != after.revision,
            absent=NotFound,
            deadline=deadline,
        )
        return _record(row)


def _record(row: AliasRow) -> AliasRecord:
    return AliasRecord(row.name, row.art_id, row.revision, row.set_ms)


def _expectation(name: str, expect: Expected) -> Expectation:
    if expect is UNSET:
        return Expectation()
    if expect is None:
        return Expectation("absent")
    if isinstance(expect, AliasRecord):
        _check_own(name, expect)
        return Expectation("revision", expect.art_id, expect.revision)
    if isinstance(expect, str):
        return Expectation("id", checked_id(expect))
    raise Invalid(
        f"expect is {expect!r:.80} of type {type(expect).__name__}; give an id, a record that alias() returned, "
        "None (the alias must not exist), or leave it out"
    )


def _check_own(name: str, record: AliasRecord) -> None:
    """A record of another alias is a mix-up: compared with this one it would only ever say "moved"."""
    if record.name != name:
        raise Invalid(f"the record given is of alias {record.name!r}, the call is about {name!r}", alias=name)
