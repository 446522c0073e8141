"""Checks of memory: what is free, what the cgroup allows, huge pages, overcommit, maps. `proc`, `sys` are the roots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tensorcast.cli.checks.finding import FAIL, OK, WARN, Finding, number_of, text_of
from tensorcast.cli.render import size

# Below the first a storage has no room beside its reserve; below the second a pool is too small to be of use.
FREE_BYTES_MIN = 768 << 20
FREE_BYTES_WANTED = 2 << 30
MAPS_WANTED = 65_530
_NO_LIMIT = 1 << 62
_NEVER_OVERCOMMIT = 2


def memory(proc: Path) -> Finding:
    """What the host has free for a pool."""
    table = _meminfo(proc)
    total, free = table.get("MemTotal"), table.get("MemAvailable")
    if total is None or free is None:
        return Finding("memory", WARN, f"{proc}/meminfo does not tell", "mount /proc where TensorCast runs")
    value = f"{size(free)} of {size(total)} available"
    if free < FREE_BYTES_MIN:
        return Finding("memory", FAIL, value, f"free memory until {size(FREE_BYTES_MIN)} are available")
    if free < FREE_BYTES_WANTED:
        room = (free - FREE_BYTES_MIN // 2) >> 20
        return Finding("memory", WARN, value, f"tensorcast up --set storage.host_bytes_max={room}MiB")
    return Finding("memory", OK, value)


def cgroup(proc: Path, sys: Path) -> Finding:
    """The tightest limit on memory above this process: past it the kernel kills, it does not refuse."""
    tightest: tuple[int, int, Path] | None = None
    for limit, used, path in _limits(proc, sys):
        if tightest is None or limit - used < tightest[0] - tightest[1]:
            tightest = limit, used, path
    if tightest is None:
        return Finding("cgroup", OK, "no memory limit")
    limit, used, path = tightest
    value = f"limit {size(limit)}, {size(used)} used"
    fix = f"raise the container's memory limit, or write a larger one into {path}"
    if limit - used < FREE_BYTES_MIN:
        return Finding("cgroup", FAIL, value, fix)
    if limit - used < FREE_BYTES_WANTED:
        return Finding("cgroup", WARN, value, fix)
    return Finding("cgroup", OK, value)


def huge_pages(sys: Path) -> Finding:
    """Whether memfds may have them: faulting a pool in costs five times less, and so do its page tables."""
    path = sys / "kernel/mm/transparent_hugepage/shmem_enabled"
    text = text_of(path)
    fix = f"echo advise | sudo tee {path}"
    if text is None:
        return Finding("huge pages", WARN, "this kernel has none for shared memory", "use a kernel with THP for shmem")
    chosen = text.partition("[")[2].partition("]")[0] or text
    if chosen in ("never", "deny"):
        return Finding("huge pages", WARN, f"shmem_enabled is {chosen}", fix)
    return Finding("huge pages", OK, f"shmem_enabled is {chosen}")


def overcommit(proc: Path) -> Finding:
    """Readers map artifacts privately; a kernel that never overcommits charges every such map in full."""
    mode = number_of(proc / "sys/vm/overcommit_memory")
    if mode != _NEVER_OVERCOMMIT:
        return Finding("overcommit", OK, "unknown" if mode is None else f"vm.overcommit_memory is {mode}")
    table = _meminfo(proc)
    left = table.get("CommitLimit", 0) - table.get("Committed_AS", 0)
    return Finding(
        "overcommit",
        WARN,
        f"vm.overcommit_memory is 2, {size(max(0, left))} may still be promised",
        "sudo sysctl vm.overcommit_memory=0",
    )


def maps(proc: Path) -> Finding:
    """How many maps a process may have; every run of blocks of an attached artifact is one."""
    found = number_of(proc / "sys/vm/max_map_count")
    if found is not None and found < MAPS_WANTED:
        return Finding(
            "maps", WARN, f"vm.max_map_count is {found}", f"sudo sysctl vm.max_map_count={max(MAPS_WANTED, 262_144)}"
        )
    return Finding("maps", OK, "unknown" if found is None else f"vm.max_map_count is {found}")


def _meminfo(proc: Path) -> dict[str, int]:
    """Bytes by name."""
    found: dict[str, int] = {}
    for line in (text_of(proc / "meminfo") or "").splitlines():
        key, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[key] = int(words[0]) * 1024
    return found


def _limits(proc: Path, sys: Path) -> Iterator[tuple[int, int, Path]]:
    """(limit, used, file of the limit) of every group above this process, in versions 1 and 2."""
    root = sys / "fs/cgroup"
    for row in (text_of(proc / "self/cgroup") or "").splitlines():
        _, controllers, path = [*row.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        top = root / "memory" if controllers else root
        folder = top / path.lstrip("/")
        # A process in a container sees its own group at the top, under whatever path the host gives it.
        for place in (folder, *folder.parents):
            if place.is_relative_to(top):
                limit, used = number_of(place / names[0]), number_of(place / names[1])
                if limit is not None and limit < _NO_LIMIT:
                    yield limit, max(0, (used or 0) - _reclaimable(place)), place / names[0]


def _reclaimable(place: Path) -> int:
    """Page cache that the kernel takes back before it kills."""
    for line in (text_of(place / "memory.stat") or "").splitlines():
        key, _, number = line.partition(" ")
        if key in ("inactive_file", "total_inactive_file") and number.isdigit():
            return int(number)
    return 0
