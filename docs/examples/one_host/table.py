"""The demo's one table: what a load, an attach and a read cost, and what memory a reader adds."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

Answer = dict[str, float | str | bool]


@dataclass(frozen=True)
class Column:
    """One system's figures. `load_s`: cold file to usable bytes, once. `first`: connect, attach and read of a later
    process. `memory`: smaps of each reader while all of them hold the tensors. `storage_bytes`: the storage's share."""

    name: str
    load_s: float
    first: Answer
    memory: Sequence[Answer]
    storage_bytes: int = 0

    @property
    def pss_mib(self) -> float:
        return (sum(float(m["Pss"]) for m in self.memory) + self.storage_bytes) / 2**20

    def rows(self) -> list[tuple[str, str]]:
        mib = [{k: float(v) / 2**20 for k, v in m.items()} for m in self.memory]
        connect, attach, read = (float(self.first[k]) for k in ("connect_ms", "attach_ms", "read_ms"))
        return [
            ("cold load, file not in the page cache, once", f"{self.load_s:.2f} s"),
            ("a later process: connect, imports included", f"{connect:.1f} ms"),
            ("a later process: tensors in hand", f"{attach:.1f} ms"),
            ("a later process: every byte read once", f"{read:.0f} ms"),
            ("shared with the others, a reader", f"{max(m['shared'] for m in mib):.0f} MiB"),
            ("private memory that a reader adds", f"{max(m['Anonymous'] for m in mib):.1f} MiB"),
            (f"memory of {len(mib)} readers and the storage in all (Pss)", f"{self.pss_mib:.0f} MiB"),
        ]


def print_table(columns: Sequence[Column], *, bytes_total: int) -> None:
    grid = [c.rows() for c in columns]
    width = max(len(row[0]) for row in grid[0])
    print(f"\n{bytes_total / 2**30:.2f} GiB checkpoint, {_machine()}")
    print(" " * width + "".join(f"  {c.name:>14}" for c in columns))
    for number, (label, _) in enumerate(grid[0]):
        print(f"{label:{width}}" + "".join(f"  {rows[number][1]:>14}" for rows in grid))
    print()


def write_markdown(path: Path, columns: Sequence[Column], *, bytes_total: int) -> None:
    grid = [c.rows() for c in columns]
    lines = [
        f"| {bytes_total / 2**30:.2f} GiB, 4 shards, bf16 | " + " | ".join(c.name for c in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    lines += [f"| {row[0]} | " + " | ".join(g[n][1] for g in grid) + " |" for n, row in enumerate(grid[0])]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, "", f"Measured by `make demo` on {_machine()}.", ""]))


def _machine() -> str:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} CPUs ({model}), {memory:.0f} GiB, Linux {platform.release().split('-')[0]}"
