"""What a storage holds of a committed artifact: which tiers give its bytes, and under whose right it is here.

`tiers_of` is the one truth about tiers: for claims, commits, descriptions and eviction alike. Records only; the flows
change them.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tensorcast_services.storage.core.events import Identity
from tensorcast_services.storage.core.phases import PUBLISHED, Phase


class Lease(msgspec.Struct):
    """The right under which a registered artifact is here. `source` is what the native floor keeps of the registration;
    `readable` is False where the bytes were taken at once, since the owner's memory cannot give them back; `memory`:
    it is memory that gives them back, not files."""

    number: int
    source: int
    readable: bool
    due_ms: int
    memory: bool = False


class Holding(msgspec.Struct):
    """A committed artifact's replica here. `serial` tells two holdings of one id apart; `revision` is the catalog's
    at the commit (0 for one that survived a restart); `confirmed` once this incarnation's global store knows it;
    `disk_bytes` what it takes on our own disk, 0 when it is not there; `was` the pending digest that it had before its
    files were read."""

    serial: int
    digest: str
    nbytes: int
    tensors: int
    files: tuple[Identity, ...]
    in_file: bool
    revision: int
    confirmed: bool
    disk_bytes: int = 0
    lease: Lease | None = None
    was: str = ""

    @property
    def ownership(self) -> str:
        return "system" if self.lease is None else "lease"


class Claim(NamedTuple):
    """A row of a report, as in messages.ReplicaClaim, with the serial of its holding."""

    art_id: str
    serial: int
    digest: str
    tier: str
    nbytes: int
    tensors: int
    was: str = ""
    ownership: str = "system"


def away_tiers(here: Holding) -> tuple[str, ...]:
    """What can give the bytes back once they are not in the pool, the one that is read first first."""
    found = []
    if here.lease is not None and here.lease.readable:
        found.append("lease")
    if here.disk_bytes:
        found.append("disk")
    if here.in_file:
        found.append("file")
    return tuple(found)


def tiers_of(here: Holding, phase: Phase) -> tuple[str, ...]:
    return ("host", *away_tiers(here)) if phase in PUBLISHED else away_tiers(here)


def slices_are_sure(here: Holding) -> bool:
    """Whether a part of a tensor that is read alone can be trusted: files are what they were by their identity, while
    memory of an owner and bytes of our own disk are known to be right by the digest of the whole tensor only."""
    tier = away_tiers(here)[0]
    return tier == "file" or (tier == "lease" and here.lease is not None and not here.lease.memory)


def source_of(here: Holding) -> tuple[str, int]:
    """(tier, number of the kept source or 0) of what a load or a view reads. Only for what is away or may be."""
    tier = away_tiers(here)[0]
    return tier, here.lease.source if tier == "lease" and here.lease is not None else 0
