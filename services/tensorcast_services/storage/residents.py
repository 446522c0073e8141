"""Which published artifact lies in which sealed segments: what a delta version may borrow, and who shares a region.

Kept by local.py in the same step in which the native floor publishes, republishes or withdraws; read by puts that
borrow and by the compactor. Pure, and on the loop's thread alone. A key names the content of a sealed region: two
segments of one key (a base was read from its file again while a delta version held the first) hold the same tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class Resident(msgspec.Struct, frozen=True):
    """One published artifact. `segments` (native numbers) and `keys` are in the order of its manifest's rows; a key is
    "" for a segment from before keys were given, which nobody can borrow. `manifest_segment` holds the encoded manifest
    in its first `manifest_bytes`. The first `brought` segments were filled for it alone and are in use from end to
    end, so that nobody need look how much of them lives. Two layouts of one artifact are two residents: compare with
    `is`."""

    art_id: str
    digest: str
    manifest_segment: int
    manifest_bytes: int
    segments: tuple[int, ...]
    keys: tuple[str, ...]
    brought: int = 0

    def lives_in_all_of(self, key: str) -> bool:
        return key in self.keys[: self.brought]


class Residents:
    """Every lookup is by a table; nothing walks over all artifacts."""

    def __init__(self) -> None:
        self._by_id: dict[str, Resident] = {}
        self._versions: dict[str, dict[str, None]] = {}  # name before "@" -> ids, the newest last
        self._users: dict[str, dict[int, dict[str, None]]] = {}  # key -> segment -> ids

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, resident: Resident) -> None:
        """After publish. ValueError when the id is here already, or segments and keys are not in pairs."""
        if resident.art_id in self._by_id:
            raise ValueError(f"{resident.art_id!r} is published already")
        self._put_in(resident)
        self._versions.setdefault(_name(resident.art_id), {})[resident.art_id] = None

    def replace(self, resident: Resident) -> None:
        """After republish: the same content from other segments. KeyError when the id is not here."""
        old = self._by_id[resident.art_id]
        self._put_in(resident)
        self._take_out(old, but=_places(resident))

    def remove(self, art_id: str) -> Resident | None:
        """After withdraw: what was published, whose keys others may still use. None when it was not here."""
        resident = self._by_id.pop(art_id, None)
        if resident is None:
            return None
        self._take_out(resident)
        name = _name(art_id)
        versions = self._versions[name]
        del versions[art_id]
        if not versions:
            del self._versions[name]
        return resident

    def find(self, art_id: str) -> Resident | None:
        return self._by_id.get(art_id)

    def base_for(self, art_id: str, base: str = "") -> Resident | None:
        """Whom a new version `art_id` may borrow from: `base` itself, or with "" the last published of its name."""
        if base:
            return self._by_id.get(base)
        versions = self._versions.get(_name(art_id))
        return self._by_id[next(reversed(versions))] if versions else None

    def segment_of(self, key: str) -> int | None:
        """A sealed segment of that key; its publisher keeps it alive for the rest of this step only: hold it."""
        lying = self._users.get(key)
        return next(iter(lying)) if lying else None

    def users(self, key: str) -> tuple[str, ...]:
        """Ids that use any segment of that key."""
        return tuple(dict.fromkeys(art_id for ids in self._users.get(key, {}).values() for art_id in ids))

    def lying(self, key: str) -> Iterator[tuple[int, tuple[Resident, ...]]]:
        """Every segment of that key with the residents that use it."""
        for segment, ids in self._users.get(key, {}).items():
            yield segment, tuple(self._by_id[art_id] for art_id in ids)

    def _put_in(self, resident: Resident) -> None:
        places = _places(resident)
        self._by_id[resident.art_id] = resident
        for segment, key in places:
            self._users.setdefault(key, {}).setdefault(segment, {})[resident.art_id] = None

    def _take_out(self, resident: Resident, but: frozenset[tuple[int, str]] = frozenset()) -> None:
        for segment, key in _places(resident) - but:
            lying = self._users[key]
            del lying[segment][resident.art_id]
            if not lying[segment]:
                del lying[segment]
            if not lying:
                del self._users[key]


def _places(resident: Resident) -> frozenset[tuple[int, str]]:
    return frozenset(pair for pair in zip(resident.segments, resident.keys, strict=True) if pair[1])


def _name(art_id: str) -> str:
    return art_id.partition("@")[0]
