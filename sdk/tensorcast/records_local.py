"""What the rooms of the SDK hand each other: answers of a storage, before a caller's face is put on them.

Made by Session and the rooms behind it, read by artifact, views and the command line. None of it is public.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tensorcast.records import PutStats
from tensorcast_native import Attachment


class Stored(msgspec.Struct, frozen=True):
    """The end of a put. `outcome` is "stored" or "already_present"; `digest` of the content."""

    outcome: str
    digest: str
    stats: PutStats


@dataclass(frozen=True)
class Attached:
    """Maps of an artifact, or its manifest alone. `art_id` is what the name asked for resolved to."""

    art_id: str
    attachment: Attachment


@dataclass(frozen=True)
class About:
    """The answer to an attach of the manifest only, where the artifact is not in the pool: nothing was loaded for it.
    `digest` is the content digest or pending; digests of the encoded `manifest` may be empty."""

    art_id: str
    digest: str
    manifest: bytes
