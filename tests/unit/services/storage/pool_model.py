"""The native floor as plain records: segments with their users, what is published, sources that are kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tensorcast_services.storage.core import events as ev

CAPACITY = 6 << 20
UNIT = 2 << 20


@dataclass
class Wish:
    """What a run brings. `tier` is "" for a put, else where a load or view reads; `base` what a delta borrows from."""

    art_id: str
    digest: str
    path: str = ""
    tier: str = ""
    source: int = 0
    base: str = ""
    view: bool = False


@dataclass
class Segment:
    wish: Wish
    users: int = 1


@dataclass
class Published:
    digest: str
    segments: tuple[int, ...]
    pins: int = 0
    used: int = 0


@dataclass
class Kept:
    """A kept source: what its owner's memory has now, and what was registered ("pending:..." until it was read)."""

    art_id: str
    content: str
    digest: str
    alive: bool = True


@dataclass
class PoolModel:
    segments: dict[int, Segment] = field(default_factory=dict)
    small: dict[int, Segment] = field(default_factory=dict)  # manifests: they take no room here
    published: dict[str, Published] = field(default_factory=dict)
    fills: dict[int, Wish] = field(default_factory=dict)
    borrowed: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by ticket of a fill
    kept: dict[int, Kept] = field(default_factory=dict)
    let_gone: set[int] = field(default_factory=set)
    numbers: int = 0
    clock: int = 0

    def free_bytes(self) -> int:
        return CAPACITY - UNIT * (len(self.segments) + len(self.fills))

    def uses(self) -> tuple[ev.Use, ...]:
        return tuple(ev.Use(a, p.used, p.pins, UNIT) for a, p in self.published.items())

    def data_of(self, art_id: str) -> tuple[int, ...]:
        """Segments of what is published, without the manifest's."""
        return self.published[art_id].segments[1:]

    def hold(self, segment: int) -> None:
        (self.segments.get(segment) or self.small[segment]).users += 1

    def drop(self, segment: int) -> None:
        shelf = self.segments if segment in self.segments else self.small
        assert segment in shelf, "freed twice"
        shelf[segment].users -= 1
        if not shelf[segment].users:
            del shelf[segment]

    def reserve(self, wish: Wish, *, counted: bool = True) -> int:
        self.numbers += 1
        (self.segments if counted else self.small)[self.numbers] = Segment(wish)
        return self.numbers

    def publish(self, art_id: str, manifest_segment: int, segments: tuple[int, ...]) -> str:
        """Its digest: the first segment is the one that was filled for it."""
        assert art_id not in self.published, "published twice"
        digest = self.segments[segments[0]].wish.digest
        held = (manifest_segment, *segments)
        for segment in held:
            self.hold(segment)
        self.published[art_id] = Published(digest, held)
        return digest

    def withdraw(self, art_id: str) -> None:
        here = self.published.pop(art_id, None)
        for segment in here.segments if here else ():
            self.drop(segment)

    def let_go(self, source: int) -> None:
        assert source not in self.let_gone, "let go twice"
        self.let_gone.add(source)
        del self.kept[source]

    def check_users(self) -> None:
        """Every byte that is held is published, and counted once for each artifact that names it."""
        held = Counter(s for p in self.published.values() for s in p.segments)
        counted = {n: s.users for n, s in (*self.segments.items(), *self.small.items())}
        assert dict(held) == counted, "segments leaked"
