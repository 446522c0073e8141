"""How much memory a storage takes when nobody said: half of what this host or its memory cgroup has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_NO_LIMIT = 1 << 62
_BLOCK = 2 << 20


def default_host_bytes(*, proc: Path = Path("/proc"), sys: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes, in whole 2 MiB blocks."""
    total = _meminfo(proc / "meminfo")
    limit = min([total, *_cgroup_limits(proc / "self/cgroup", sys)])
    return max(_BLOCK, limit // 2 // _BLOCK * _BLOCK)


def _meminfo(path: Path) -> int:
    for line in path.read_text().splitlines():
        key, _, rest = line.partition(":")
        if key == "MemTotal":
            return int(rest.split()[0]) * 1024
    raise ValueError(f"{path} has no MemTotal")


def _cgroup_limits(membership: Path, root: Path) -> Iterator[int]:
    """Every limit above this process: version 2 where it is mounted, and version 1."""
    try:
        rows = membership.read_text().splitlines()
    except OSError:
        return
    for row in rows:
        _, controllers, path = row.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        folder = top / path.lstrip("/")
        # A process in a container sees its own group at the top, under whatever path the host gives it.
        for place in (folder, *folder.parents):
            if place.is_relative_to(top):
                yield from _limit(place / name)


def _limit(path: Path) -> Iterator[int]:
    try:
        text = path.read_text().strip()
    except OSError:
        return
    if text.isdigit() and int(text) < _NO_LIMIT:
        yield int(text)
