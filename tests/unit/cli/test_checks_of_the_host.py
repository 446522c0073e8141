"""What doctor makes of a host, on made-up trees of /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorcast.cli.checks import memory, system
from tensorcast.cli.checks.finding import FAIL, OK, WARN, Finding
from tensorcast.cli.checks.system import UNLIMITED, Clocks
from tests.unit.sdk.checkpoint_files import write

GIB = 1 << 30
MIB = 1 << 20
DAY_NS = 86_400 * 10**9
WALL_NS = 1_800_000_000 * 10**9


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return tmp_path / "proc"


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    return tmp_path / "sys"


def put(root: Path, name: str, text: str) -> Path:
    return write(root / name, text.encode())


def meminfo(proc: Path, **kib: int) -> None:
    put(proc, "meminfo", "".join(f"{name}:    {number} kB\n" for name, number in kib.items()))


def well(finding: Finding) -> None:
    assert (finding.state, finding.fix) == (OK, ""), finding


def ill(finding: Finding, state: str, *said: str) -> None:
    assert finding.state == state and finding.fix, finding
    for word in said:
        assert word in f"{finding.value} {finding.fix}", finding


def test_memory_is_judged_by_what_is_available(proc: Path) -> None:
    meminfo(proc, MemTotal=24 << 20, MemFree=1, MemAvailable=20 << 20)
    well(memory.memory(proc))
    assert memory.memory(proc).value == "20.0 GiB of 24.0 GiB available"
    meminfo(proc, MemTotal=24 << 20, MemAvailable=1 << 20)
    ill(memory.memory(proc), WARN, "storage.host_bytes_max=640MiB")
    meminfo(proc, MemTotal=24 << 20, MemAvailable=100 << 10)
    ill(memory.memory(proc), FAIL, "100.0 MiB")
    (proc / "meminfo").unlink()
    ill(memory.memory(proc), WARN, "mount /proc")


@pytest.mark.parametrize(
    ("limit", "used", "state"),
    [("max", 0, OK), (8 * GIB, GIB, OK), (3 * GIB, 2 * GIB, WARN), (GIB, 900 * MIB, FAIL), (1 << 63, GIB, OK)],
)
def test_a_cgroup_is_judged_by_what_it_leaves(proc: Path, sys: Path, limit: object, used: int, state: str) -> None:
    put(proc, "self/cgroup", "0::/a/b\n")
    put(sys, "fs/cgroup/a/memory.max", f"{limit}\n")
    put(sys, "fs/cgroup/a/memory.current", f"{used}\n")
    put(sys, "fs/cgroup/a/b/memory.max", "max\n")
    found = memory.cgroup(proc, sys)
    assert found.state == state
    assert ("memory.max" in found.fix) == (state != OK)


def test_page_cache_of_a_cgroup_counts_as_free(proc: Path, sys: Path) -> None:
    put(proc, "self/cgroup", "0::/\n")
    put(sys, "fs/cgroup/memory.max", str(4 * GIB))
    put(sys, "fs/cgroup/memory.current", str(4 * GIB))
    ill(memory.cgroup(proc, sys), FAIL)
    put(sys, "fs/cgroup/memory.stat", f"anon 5\ninactive_file {3 * GIB}\n")
    well(memory.cgroup(proc, sys))


def test_a_cgroup_of_version_1_counts_too(proc: Path, sys: Path) -> None:
    put(proc, "self/cgroup", "3:cpu:/x\n5:memory:/docker/abc\n")
    put(sys, "fs/cgroup/memory/memory.limit_in_bytes", str(GIB))
    put(sys, "fs/cgroup/memory/memory.usage_in_bytes", str(800 * MIB))
    ill(memory.cgroup(proc, sys), FAIL, "memory.limit_in_bytes")
    put(sys, "fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    well(memory.cgroup(proc, sys))


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("always within_size advise [never] deny force", WARN),
        ("always within_size advise never [deny] force", WARN),
        ("always within_size [advise] never deny force", OK),
        ("[always] within_size advise never deny force", OK),
    ],
)
def test_huge_pages_are_for_shared_memory(sys: Path, text: str, state: str) -> None:
    path = put(sys, "kernel/mm/transparent_hugepage/shmem_enabled", text)
    found = memory.huge_pages(sys)
    assert found.state == state and (state == OK or str(path) in found.fix)


def test_a_kernel_without_huge_pages_is_said(sys: Path) -> None:
    ill(memory.huge_pages(sys), WARN, "has none")


def test_a_kernel_that_never_overcommits_is_warned_of(proc: Path) -> None:
    meminfo(proc, CommitLimit=4 << 20, Committed_AS=1 << 20)
    for mode in ("0", "1"):
        put(proc, "sys/vm/overcommit_memory", mode)
        well(memory.overcommit(proc))
    put(proc, "sys/vm/overcommit_memory", "2")
    ill(memory.overcommit(proc), WARN, "3.0 GiB", "vm.overcommit_memory=0")


def test_few_maps_are_warned_of(proc: Path) -> None:
    put(proc, "sys/vm/max_map_count", "65530")
    well(memory.maps(proc))
    put(proc, "sys/vm/max_map_count", "1000")
    ill(memory.maps(proc), WARN, "1000", "sysctl vm.max_map_count")


@pytest.mark.parametrize(
    ("release", "state"),
    [("6.18.44-fc", OK), ("5.14.0", OK), ("5.4.0-generic", FAIL), ("4.4.0", FAIL), ("4.19", FAIL), ("odd", FAIL)],
)
def test_the_kernel_is_new_enough(proc: Path, release: str, state: str) -> None:
    put(proc, "sys/kernel/osrelease", release + "\n")
    found = system.kernel(proc)
    assert found.state == state and release in found.value and (state == OK or "5.14" in found.fix)


@pytest.mark.parametrize(
    ("scope", "refusal", "state", "said"),
    [
        (None, "", OK, "no Yama"),
        ("1", "", OK, "ptrace_scope is 1"),
        ("2", "Operation not permitted", WARN, "kernel.yama.ptrace_scope=1"),
        ("3", "Operation not permitted", WARN, "kernel.yama.ptrace_scope=1"),
        (None, "Operation not permitted", WARN, "SYS_PTRACE"),
    ],
)
def test_reading_other_processes_is_tried_and_explained(
    proc: Path, scope: str | None, refusal: str, state: str, said: str
) -> None:
    if scope is not None:
        put(proc, "sys/kernel/yama/ptrace_scope", scope)
    found = system.ptrace(proc, refusal)
    assert found.state == state and said in f"{found.value} {found.fix}" and refusal in found.value


def test_limits_on_descriptors_and_locked_memory() -> None:
    well(system.open_files(1024, 1 << 20))
    well(system.open_files(UNLIMITED, UNLIMITED))
    ill(system.open_files(1024, 4096), WARN, "hard 4096", "LimitNOFILE")
    ill(system.open_files(256, 256), FAIL)
    well(system.locked_memory(UNLIMITED, UNLIMITED))
    ill(system.locked_memory(64 << 10, 64 << 10), WARN, "64.0 KiB", "memlock=-1")


def clocks(at_ns: int, *, slept: int = 0, wall: int = WALL_NS) -> Clocks:
    return Clocks(DAY_NS + at_ns, DAY_NS + slept + at_ns, wall + at_ns)


def test_clocks_that_go_together_are_well() -> None:
    well(system.clock(clocks(0, slept=DAY_NS), clocks(10**7, slept=DAY_NS), started_ms=WALL_NS // 10**6 - 5))
    assert "suspended 24 h" in system.clock(clocks(0, slept=DAY_NS), clocks(10**7, slept=DAY_NS), started_ms=None).value


def test_clocks_that_do_not_go_together_are_told() -> None:
    ill(system.clock(clocks(0), clocks(10**7, slept=-(10**9)), started_ms=None), FAIL, "do not agree")
    ill(system.clock(clocks(0), clocks(-(10**7)), started_ms=None), FAIL, "do not agree")
    ill(system.clock(clocks(0, slept=0), clocks(10**7, slept=2 * 10**9), started_ms=None), FAIL, "do not agree")
    ill(system.clock(clocks(0, wall=0), clocks(10**7, wall=0), started_ms=None), FAIL, "never set", "set-ntp")
    ill(system.clock(clocks(0), clocks(10**7, wall=WALL_NS + 10**10), started_ms=None), WARN, "was set just now")
    late = WALL_NS // 10**6 + 3_600_000
    ill(system.clock(clocks(0), clocks(10**7), started_ms=late), WARN, "went back", "60 min")
