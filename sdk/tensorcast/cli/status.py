"""`tensorcast status`: what the supervisor runs, what the registry hears, and how full each storage is.

Exit code 1 where something is not as it should be: a process that is not ready or not heard of, or no registry.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensorcast.cli import cluster, render
from tensorcast.cli.words import Words
from tensorcast.cluster_room import command_up, runs
from tensorcast.session import Session
from tensorcast.settings import read_settings
from tensorcast_bus.cluster import ClusterFile
from tensorcast_bus.errors import NotConnected, TensorCastError
from tensorcast_bus.messages import Worker

REGISTRY_MS_MAX = 5_000
# The figures that say how full a storage is; `--json` has all of them.
_FIGURES = (
    ("ARTIFACTS", "artifacts"),
    ("CAPACITY", "capacity_bytes"),
    ("USED", "used_bytes"),
    ("RESERVED", "reserved_bytes"),
    ("PINNED", "pinned_bytes"),
    ("EVICTABLE", "evictable_bytes"),
    ("FREE", "free_bytes"),
    ("DISK", "disk_bytes"),
    ("DISK MAX", "disk_bytes_max"),
    ("LEASES", "leases"),
    ("SESSIONS", "sessions"),
    ("EVICTIONS", "evictions"),
)


def status(words: Words) -> int:
    found = cluster.cluster_file(words)
    if not runs(found.supervisor_pid):
        raise NotConnected(
            f"cluster {found.name!r} is not running: its supervisor (pid {found.supervisor_pid}) is gone; start it "
            f"again with `{command_up(found.name)}`"
        )
    workers, silence = _workers(found)
    well = found.state == "ready" and not silence and all(p.state == "ready" for p in found.processes)
    if words.json:
        record = {name: getattr(found, name) for name in found.__struct_fields__ if name != "nats_token"}
        render.as_json(record | {"workers": list(workers.values()), "well": well})
    elif not words.quiet:
        _show(found, workers, silence)
    return 0 if well else 1


def _workers(found: ClusterFile) -> tuple[Mapping[str, Worker], str]:
    session = Session(read_settings(), cluster=found.name, url=found.nats_url, node=None)
    try:
        return {w.process: w for w in session.workers(deadline_ms=REGISTRY_MS_MAX)}, ""
    except TensorCastError as error:
        return {}, error.text
    finally:
        session.close()


def _show(found: ClusterFile, workers: Mapping[str, Worker], silence: str) -> None:
    print(
        f"cluster {found.name}: {found.state} for {render.since(found.started_ms)}, version {found.version}, "
        f"{found.nats_url}"
    )
    render.table(
        ("PROCESS", "PID", "STATE", "RESTARTS", "UPTIME", "HEARD"),
        [
            (
                p.process,
                str(p.pid),
                p.state,
                str(p.restarts),
                render.span(w.uptime_ms) if (w := workers.get(p.process)) else "-",
                f"{render.span(w.age_ms)} ago" if w else "-",
            )
            for p in found.processes
        ],
        right=frozenset({1, 3, 4, 5}),
    )
    storages = [w for w in workers.values() if w.role == "storage" and w.living]
    if storages:
        print()
        _show_storages(storages)
    if silence:
        print(f"\nthe registry does not answer: {silence}")


def _show_storages(storages: list[Worker]) -> None:
    render.table(
        ("STORAGE", *(title for title, _ in _FIGURES)),
        [(w.process, *(_figure(name, w.figures.get(name)) for _, name in _FIGURES)) for w in storages],
        right=frozenset(range(1, len(_FIGURES) + 1)),
    )


def _figure(name: str, value: int | None) -> str:
    if value is None:
        return "-"
    return render.size(value) if "bytes" in name.split("_") else str(value)
