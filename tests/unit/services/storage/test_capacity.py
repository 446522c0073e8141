"""How much memory a storage takes by itself."""

from __future__ import annotations

from pathlib import Path

from tensorcast_services.storage.capacity import default_host_bytes

GIB = 1 << 30


def host(folder: Path, *, membership: str, limits: dict[str, str]) -> int:
    proc, sys = folder / "proc", folder / "sys"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: {16 * GIB // 1024} kB\nMemFree: 1 kB\n")
    (proc / "self/cgroup").write_text(membership)
    for name, text in limits.items():
        path = sys / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return default_host_bytes(proc=proc, sys=sys)


def test_half_of_the_host_without_limits(tmp_path: Path) -> None:
    assert host(tmp_path, membership="0::/\n", limits={"memory.max": "max"}) == 8 * GIB


def test_half_of_the_lowest_limit_above_the_process(tmp_path: Path) -> None:
    limits = {"a/memory.max": str(2 * GIB), "a/b/memory.max": str(4 * GIB), "other/memory.max": str(GIB)}
    assert host(tmp_path, membership="0::/a/b\n", limits=limits) == GIB


def test_version_1_and_containers_are_seen(tmp_path: Path) -> None:
    limits = {"memory/memory.limit_in_bytes": str(6 * GIB)}
    membership = "3:cpu,memory:/docker/abc\n1:name=systemd:/x\n"
    assert host(tmp_path, membership=membership, limits=limits) == 3 * GIB


def test_no_limit_in_version_1_is_a_huge_number(tmp_path: Path) -> None:
    limits = {"memory/memory.limit_in_bytes": "9223372036854771712"}
    assert host(tmp_path, membership="3:memory:/\n", limits=limits) == 8 * GIB
