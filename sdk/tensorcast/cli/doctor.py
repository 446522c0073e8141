"""`tensorcast doctor`: what would keep a cluster from working well on this host, and what to do about it.

Works with and without a cluster, and where the native module does not load: nothing here may import what needs it. Exit
code 1 where something will not work. This room only looks; what a finding means is said by the checks.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import resource
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tensorcast.cli import render
from tensorcast.cli.checks import bus, folders, memory, probes, software, system
from tensorcast.cli.checks.finding import FAIL, OK, WARN, Finding, text_of
from tensorcast.cli.words import Words
from tensorcast.cluster_room import folder_of, read_cluster
from tensorcast.settings import read_settings
from tensorcast_bus.cluster import SETTINGS_FILE, ClusterFile
from tensorcast_bus.errors import NotConnected, NotFound
from tensorcast_bus.nats.server import find_server

PROC = Path("/proc")
SYS = Path("/sys")
NODE_DEFAULT = "a"
# A clock that stands or jumps shows over some milliseconds.
_CLOCK_PAUSE_S = 0.01
_MARKS = {OK: "ok", WARN: "warn", FAIL: "FAIL"}


def doctor(words: Words) -> int:
    found = list(_findings(words))
    failed = [f for f in found if f.state == FAIL]
    if words.json:
        render.as_json({"findings": found, "well": not failed})
    elif not words.quiet:
        _show(found)
    elif failed:
        _show(failed)
    return 1 if failed else 0


def _show(found: list[Finding]) -> None:
    width = max(len(f.check) for f in found)
    for finding in found:
        print(f"{_MARKS[finding.state]:<4}  {finding.check:<{width}}  {finding.value}")
        if finding.fix:
            print(f"      {'':<{width}}  fix: {finding.fix}")


def _findings(words: Words) -> Iterator[Finding]:
    running = _running(words)
    yield from _host(running)
    yield from _software()
    yield from _folders(words, running)
    yield from _bus(words, running)


def _running(words: Words) -> ClusterFile | None:
    try:
        return read_cluster(_name(words), read_settings())
    except NotConnected:
        return None


def _name(words: Words) -> str:
    return words.cluster or read_settings().cluster


def _folder(words: Words) -> str:
    return folder_of(_name(words), read_settings())


def _host(running: ClusterFile | None) -> Iterator[Finding]:
    yield system.kernel(PROC)
    yield memory.memory(PROC)
    yield memory.cgroup(PROC, SYS)
    yield memory.huge_pages(SYS)
    yield memory.overcommit(PROC)
    yield memory.maps(PROC)
    yield system.locked_memory(*resource.getrlimit(resource.RLIMIT_MEMLOCK))
    yield system.open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield system.ptrace(PROC, probes.vm_read())
    before = _clocks()
    # A clock that steps, or runs off the others, shows only between two readings.
    time.sleep(_CLOCK_PAUSE_S)
    yield system.clock(before, _clocks(), started_ms=running.started_ms if running else None)


def _clocks() -> system.Clocks:
    return system.Clocks(
        time.clock_gettime_ns(time.CLOCK_MONOTONIC), time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time_ns()
    )


def _software() -> Iterator[Finding]:
    yield software.python(sys.version_info[:3])
    yield software.torch(_version("torch"))
    yield software.nats_client(_version("nats-py"))
    try:
        server = find_server()
        yield software.nats_server(f"{server.version} at {server.path}", "")
    except NotFound as error:
        yield software.nats_server(None, error.text)
    yield software.native(_native_trouble())
    yield software.stranger(_version("tensorcast"))


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _native_trouble() -> str:
    try:
        importlib.import_module("tensorcast_native")
    except ImportError as error:
        return str(error)
    return ""


def _folders(words: Words, running: ClusterFile | None) -> Iterator[Finding]:
    folder = _folder(words)
    yield folders.socket_folder(folder, uid=os.geteuid(), running=running is not None)
    for entry in running.nodes if running else ():
        yield folders.socket(entry.node, entry.socket, uid=os.geteuid())
    if _is_anothers(words, running):
        return
    nodes = [entry.node for entry in running.nodes] if running else [NODE_DEFAULT]
    for path in dict.fromkeys(_disk_path(folder, node) for node in nodes):
        yield folders.disk_tier(path, proc=PROC, free_bytes=_free_bytes)


def _is_anothers(words: Words, running: ClusterFile | None) -> bool:
    """Whether its owner shares it with us: then its disk and settings lie where we cannot look, and are not ours."""
    return running is not None and os.stat(_folder(words)).st_uid != os.geteuid()


def _disk_path(folder: str, node: str) -> str:
    """Where the storage of a node writes: as the cluster's settings say, else beside its other files."""
    own = os.path.join(folder, f"storage-{node}", "disk")
    try:
        tables = tomllib.loads(text_of(Path(folder, SETTINGS_FILE)) or "")
    except tomllib.TOMLDecodeError:
        return own  # `up` says what is wrong with it
    for table in (tables.get(f"storage-{node}"), tables.get("storage")):
        path = table.get("disk_path") if isinstance(table, dict) else None
        if isinstance(path, str) and path:
            return path
    return own


def _free_bytes(path: str) -> int:
    seen = os.statvfs(path)
    return seen.f_bavail * seen.f_frsize


def _bus(words: Words, running: ClusterFile | None) -> Iterator[Finding]:
    yield bus.ports(probes.listen(), text_of(PROC / "sys/net/ipv4/ip_local_port_range"))
    url = running.nats_url if running else read_settings().nats_url
    if not url:
        return  # `up` will start a server of its own, with settings of ours
    word, trouble = probes.ask_server(url)
    yield bus.server(url, word, trouble)
    if word is None or _is_anothers(words, running):
        return
    own = Path(_folder(words), "nats", "nats.conf")
    if running and any(p.process == "nats" for p in running.processes):
        yield bus.pings(bus.pings_of_config(text_of(own) or "", str(own)), f"{own} does not tell")
        return
    blob, silence = probes.ask_monitor(url)
    yield bus.pings(bus.pings_of_varz(blob, "/varz"), silence or "/varz does not tell")
