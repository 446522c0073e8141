"""What the storage keeps of registrations: the checked plan of each, and its manifest once the bytes were read.

Owned by rooms.py, on the loop's thread; filled by requests.py, finished by finishing.py, read by opening.py. A source
is the native floor's number for what a caller's put named (LocalServer.keep); the core says when it is let go.
"""

from __future__ import annotations

import msgspec

from tensorcast_bus.manifest import Manifest, encode_manifest
from tensorcast_services.storage.drafts import LeasePlan
from tensorcast_services.storage.sidecars import Summary


class Finished(msgspec.Struct, frozen=True):
    """What the first load of all bytes found: later ones must find the same."""

    summary: Summary
    manifest: Manifest
    blob: bytes


class Kept(msgspec.Struct):
    """`pieces` are the put's own, packed, where the native floor tells them: views are read by them."""

    art_id: str
    plan: LeasePlan
    path: str
    pieces: bytes
    finished: Finished | None = None

    @property
    def digest(self) -> str:
        """May be pending."""
        return self.finished.summary.digest if self.finished else self.plan.digest

    @property
    def manifest(self) -> Manifest:
        return self.finished.manifest if self.finished else self.plan.draft.manifest

    def blob(self) -> bytes:
        return self.finished.blob if self.finished else encode_manifest(self.plan.draft.manifest)

    def is_called(self, digest: str) -> bool:
        """Also by the pending digest that it had."""
        return digest in (self.digest, self.plan.digest)


class KeptSources:
    """By source. An id may have several: one under its lease, and others that were asked for since and will be refused.
    The oldest of the content that is meant answers for it."""

    def __init__(self) -> None:
        self._by_source: dict[int, Kept] = {}
        self._by_id: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._by_source)

    def add(self, source: int, kept: Kept) -> None:
        self._by_source[source] = kept
        self._by_id.setdefault(kept.art_id, []).append(source)

    def find(self, source: int) -> Kept | None:
        return self._by_source.get(source)

    def source_of(self, art_id: str, digest: str) -> int:
        """0 when there is none of this content."""
        mine = self._by_id.get(art_id, ())
        return next((source for source in mine if self._by_source[source].is_called(digest)), 0)

    def remove(self, source: int) -> None:
        kept = self._by_source.pop(source, None)
        if kept is None:
            return
        mine = self._by_id[kept.art_id]
        mine.remove(source)
        if not mine:
            del self._by_id[kept.art_id]
