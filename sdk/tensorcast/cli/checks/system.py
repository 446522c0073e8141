"""Checks of the kernel and of this process's limits."""

from __future__ import annotations

import re
import time
from pathlib import Path

import msgspec

from tensorcast.cli.checks.finding import FAIL, OK, WARN, Finding, number_of, text_of
from tensorcast.cli.render import size, span

KERNEL_MIN = (5, 14)
FILES_MIN = 1_024
FILES_WANTED = 16_384
LOCKED_BYTES_WANTED = 64 << 20
# The first of 2024: no host that runs this is older.
WALL_NS_MIN = 1_704_067_200 * 10**9
DRIFT_NS_MAX = 500_000_000
UNLIMITED = -1


class Clocks(msgspec.Struct, frozen=True):
    """The three clocks in ns, read right after one another."""

    monotonic: int
    boottime: int
    wall: int


def kernel(proc: Path) -> Finding:
    """5.14 brought MADV_POPULATE_READ, without which a reader cannot fault in its maps."""
    release = text_of(proc / "sys/kernel/osrelease") or "unknown"
    found = re.match(r"(\d+)\.(\d+)", release)
    wanted = ".".join(map(str, KERNEL_MIN))
    if found is None or (int(found[1]), int(found[2])) < KERNEL_MIN:
        return Finding("kernel", FAIL, f"Linux {release}", f"boot Linux {wanted} or newer (gVisor cannot run this)")
    return Finding("kernel", OK, f"Linux {release}")


def ptrace(proc: Path, refusal: str) -> Finding:
    """`refusal`: why one process could not read another one's memory here, "" where it could. Refused, a put from
    memory is streamed over the socket, at about half the speed."""
    scope = number_of(proc / "sys/kernel/yama/ptrace_scope")
    value = "no Yama" if scope is None else f"ptrace_scope is {scope}"
    if not refusal:
        return Finding("process_vm_readv", OK, f"works, {value}")
    fix = "give the container `--cap-add SYS_PTRACE`"
    if scope is not None and scope >= 2:
        fix = "sudo sysctl kernel.yama.ptrace_scope=1"
    return Finding("process_vm_readv", WARN, f"refused ({refusal}), {value}: puts are streamed", fix)


def open_files(soft: int, hard: int) -> Finding:
    """Descriptors: a storage raises its soft limit to the hard one."""
    value = f"soft {_count(soft)}, hard {_count(hard)}"
    if hard == UNLIMITED or hard >= FILES_WANTED:
        return Finding("open files", OK, value)
    state = FAIL if hard < FILES_MIN else WARN
    fix = f"`ulimit -Hn {FILES_WANTED}` as root, LimitNOFILE={FILES_WANTED} of a unit, `--ulimit nofile={FILES_WANTED}`"
    return Finding("open files", state, value, fix)


def locked_memory(soft: int, hard: int) -> Finding:
    """Memory that a process may lock: copies to devices and RDMA lock what they touch."""
    value = " ".join(("soft", _bytes(soft) + ",", "hard", _bytes(hard)))
    if hard == UNLIMITED or hard >= LOCKED_BYTES_WANTED:
        return Finding("locked memory", OK, value)
    fix = "`ulimit -Hl unlimited` as root, LimitMEMLOCK=infinity of a unit, `--ulimit memlock=-1`"
    return Finding("locked memory", WARN, value, fix)


def clock(before: Clocks, after: Clocks, *, started_ms: int | None) -> Finding:
    """Leases run on the boot clock, ages on the wall's. `started_ms`: when the cluster says it started, by the wall."""
    slept = after.boottime - after.monotonic
    value = f"{_shown(after.wall)}, up {span(after.boottime / 1e6)}, suspended {span(max(0, slept) / 1e6)}"
    moved = [b - a for a, b in zip(_three(before), _three(after), strict=True)]
    set_it = "sudo timedatectl set-ntp true"
    if slept < -DRIFT_NS_MAX or min(moved[:2]) < 0 or abs(moved[0] - moved[1]) > DRIFT_NS_MAX:
        fix = "look for a broken clock source: cat /sys/devices/system/clocksource/clocksource0/current_clocksource"
        return Finding("clock", FAIL, f"{value}: CLOCK_MONOTONIC and CLOCK_BOOTTIME do not agree", fix)
    if after.wall < WALL_NS_MIN:
        return Finding("clock", FAIL, f"{value}: the wall clock was never set", set_it)
    if abs(moved[2] - moved[1]) > DRIFT_NS_MAX:
        return Finding("clock", WARN, f"{value}: the wall clock was set just now", set_it)
    if started_ms is not None and started_ms * 10**6 > after.wall + DRIFT_NS_MAX:
        ahead = span(started_ms - after.wall / 1e6)
        return Finding("clock", WARN, f"{value}: it went back, the cluster started {ahead} from now", set_it)
    return Finding("clock", OK, value)


def _shown(wall_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wall_ns // 10**9))


def _three(clocks: Clocks) -> tuple[int, int, int]:
    return clocks.monotonic, clocks.boottime, clocks.wall


def _count(limit: int) -> str:
    return "unlimited" if limit == UNLIMITED else str(limit)


def _bytes(limit: int) -> str:
    return "unlimited" if limit == UNLIMITED else size(limit)
