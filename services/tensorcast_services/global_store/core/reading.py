"""Answers that change nothing: one artifact with its replicas, and pages of the list."""

from __future__ import annotations

from msgspec.structs import replace

from tensorcast_bus.errors import NotFound
from tensorcast_bus.messages import (
    PAGE_ROWS_MAX,
    ArtifactPage,
    ArtifactRow,
    ListArtifacts,
    ReplicaRow,
    Resolved,
)
from tensorcast_services.global_store.core.catalog import Catalog
from tensorcast_services.global_store.core.registry import Registry
from tensorcast_services.global_store.core.rows import ReplicaRecord

# With its envelope a page stays under the message limit whatever the ids are; a row beyond it goes to the next page.
PAGE_BYTES_MAX = 384 << 10
ROW_FRAME_BYTES = 64


def resolve(catalog: Catalog, registry: Registry, art_id: str) -> Resolved:
    """Living replicas first. `since_ms` of a replica that does not live is since when it is gone. NotFound."""
    entry = catalog.entries.find(art_id)
    if entry is None:
        raise NotFound(f"there is no artifact {art_id!r}", art_id=art_id)
    rows = [_replica(catalog, registry, claim) for claim in entry.claims.values()]
    return Resolved(entry.row, tuple(sorted(rows, key=lambda r: (not r.living, r.node, r.tier, r.process))))


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
