"""Answers that change nothing: one artifact with its replicas, and pages of the lists."""

from __future__ import annotations

from msgspec.structs import replace

from tensorcast_bus.errors import LeaseLost, NotFound, TensorCastError
from tensorcast_bus.messages import (
    PAGE_ROWS_MAX,
    AliasPage,
    AliasRow,
    ArtifactPage,
    ArtifactRow,
    ListAliases,
    ListArtifacts,
    ReplicaRow,
    Resolved,
)
from tensorcast_services.global_store.core.catalog import Catalog
from tensorcast_services.global_store.core.registry import Registry
from tensorcast_services.global_store.core.rows import LEASE, ReplicaRecord

# With its envelope a page stays under the message limit whatever the ids are; a row beyond it goes to the next page.
PAGE_BYTES_MAX = 384 << 10
ROW_FRAME_BYTES = 64


def resolve(catalog: Catalog, registry: Registry, name: str, now_ms: int) -> Resolved:
    """Living replicas first. `since_ms` of a replica that does not live is since when it is gone. An alias is followed.
    NotFound, and LeaseLost for an id whose lease ended."""
    alias = catalog.aliases.find(name)
    art_id = alias.art_id if alias is not None else name
    entry = catalog.entries.find(art_id)
    if entry is None:
        raise _gone(catalog, art_id, alias, now_ms)
    rows = [_replica(catalog, registry, claim) for claim in entry.claims.values()]
    return Resolved(entry.row, tuple(sorted(rows, key=lambda r: (not r.living, r.node, r.tier, r.process))), alias)


def page(catalog: Catalog, ask: ListArtifacts) -> ArtifactPage:
    """At least one row where there is one, so that asking again always gets on."""
    rows: list[ArtifactRow] = []
    places: list[tuple[str, ...]] = []
    rows_max = min(max(1, ask.rows_max), PAGE_ROWS_MAX)
    nbytes = 0
    for entry in catalog.entries.after(ask.prefix, ask.after):
        where = tuple(sorted({f"{c.node}:{c.tier}" for c in entry.claims.values() if catalog.is_living(c)}))
        row = entry.row
        nbytes += ROW_FRAME_BYTES + len(row.art_id.encode()) + len(row.digest) + len(row.owner.encode())
        nbytes += sum(len(place) + 3 for place in where)
        if len(rows) == rows_max or (rows and nbytes > PAGE_BYTES_MAX):
            return ArtifactPage(tuple(rows), tuple(places), more=True)
        rows.append(row)
        places.append(where)
    return ArtifactPage(tuple(rows), tuple(places), more=False)


def alias_page(catalog: Catalog, ask: ListAliases) -> AliasPage:
    """As `page`; of an alias whose artifact is gone too."""
    rows: list[AliasRow] = []
    nbytes = 0
    for row in catalog.aliases.after(ask.prefix, ask.after):
        nbytes += ROW_FRAME_BYTES + len(row.name.encode()) + len(row.art_id.encode())
        if len(rows) == PAGE_ROWS_MAX or (rows and nbytes > PAGE_BYTES_MAX):
            return AliasPage(tuple(rows), more=True)
        rows.append(row)
    return AliasPage(tuple(rows), more=False)


def _gone(catalog: Catalog, art_id: str, alias: AliasRow | None, now_ms: int) -> TensorCastError:
    stone = catalog.tombstones.find(art_id)
    whose = f"alias {alias.name!r} points at {art_id!r}: " if alias is not None else ""
    names = {"art_id": art_id} | ({"alias": alias.name} if alias is not None else {})
    if stone is not None and stone.reason == LEASE:
        return LeaseLost(
            f"{whose}the lease of {art_id!r} that {stone.process} held ended {now_ms - stone.deleted_ms} ms ago: its "
            "owner released it, changed its memory or is gone; register or put it again",
            process=stone.process,
            ended_ms=stone.deleted_ms,
            **names,
        )
    what = f"there is no artifact {art_id!r}" + (", it was deleted" if stone is not None else "")
    todo = "; set the alias anew or put the artifact again" if alias is not None else ""
    return NotFound(f"{whose}{what}{todo}", **names)


def _replica(catalog: Catalog, registry: Registry, claim: ReplicaRecord) -> ReplicaRow:
    row = ReplicaRow(
        claim.art_id,
        claim.node,
        claim.tier,
        claim.process,
        claim.incarnation,
        claim.digest,
        claim.since_ms,
        living=catalog.is_living(claim),
    )
    if row.living:
        return row
    gone_ms = claim.lost_ms or registry.gone_since(claim.process, claim.incarnation, claim.since_ms)
    return replace(row, since_ms=gone_ms)
