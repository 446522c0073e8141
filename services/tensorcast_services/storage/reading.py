"""Where the bytes of a load come from, until the native floor has taken that over; and what a fill brought.

Part of a job (jobs.py), which closes what is still open when it ends.
"""

from __future__ import annotations

import os

import msgspec

from tensorcast_services.storage.load_plan import LoadPlan

FileHandle = tuple[int, int, int, int, int]  # fd, device, inode, size, mtime_ns


class Fill(msgspec.Struct, frozen=True):
    """What a fill brought: its segments, and the packed digests of the rows in them."""

    segments: tuple[int, ...] = ()
    digests: bytes = b""


class Reading(msgspec.Struct):
    """Where the bytes of a load come from: open `files`, a `kept` source (0: none), sealed segments of the pool
    (`sources`, one user each that is this job's), until the native floor has taken them over. `where`: "file" (of
    others), "disk" (ours), "lease" or "pool". `own_plan`: all of what the kept source named, by its own pieces;
    `memory`: that is the owner's memory."""

    plan: LoadPlan
    where: str
    files: list[FileHandle] = msgspec.field(default_factory=list)
    kept: int = 0
    own_plan: bool = False
    memory: bool = False
    sources: list[int] = msgspec.field(default_factory=list)

    def close_files(self) -> None:
        while self.files:
            os.close(self.files.pop()[0])
