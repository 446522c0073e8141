"""Building a storage from its settings: its folders, the pool, its socket. What cannot work is refused here, once,
with one line that names the setting."""

from __future__ import annotations

import grp
import os
import resource
from pathlib import Path

import msgspec
import structlog

from tensorcast_bus.notes import Greeting
from tensorcast_native import LocalServer, Pool
from tensorcast_services.process import Context
from tensorcast_services.storage.capacity import default_host_bytes
from tensorcast_services.storage.places import take_places
from tensorcast_services.storage.service import StorageService
from tensorcast_services.storage.settings import StorageSettings
from tensorcast_services.tables import Refusal


async def build(context: Context, settings: StorageSettings) -> StorageService:
    """Refusal for a capacity, mode, group or path that cannot be."""
    me = context.identity
    if not me.node:
        raise Refusal("a storage belongs to a node: start it with --node NAME")
    _raise_open_files()
    mode = _mode(settings.socket_mode)
    group = _group(str(settings.socket_group))
    if not 0 < settings.spill_percent <= 100:
        raise Refusal(f"storage.spill_percent {settings.spill_percent}: it must be 1 to 100; 100 never spills ahead")
    if settings.disk_bytes_max < 0:
        raise Refusal(f"storage.disk_bytes_max {settings.disk_bytes_max}: it must be at least 0")
    places = take_places(context.folder / me.process, settings=settings)
    pool = _pool(settings)
    path = Path(settings.socket_path) if settings.socket_path else context.folder / f"{me.process}.sock"
    greeting = msgspec.msgpack.encode(Greeting(me.node, me.process, me.incarnation, me.version))
    try:
        server = LocalServer(pool, str(path), greeting=greeting, mode=mode, pull_threads=settings.pull_threads)
        if group is not None:
            os.chown(path, -1, group)
    except OSError as error:
        pool.stop()
        raise Refusal(f"storage.socket_path {path}: {error}") from error
    structlog.get_logger("storage").info("pool", socket=str(path), **pool.stats())
    return StorageService(context, pool, server, places, settings)


def _pool(settings: StorageSettings) -> Pool:
    capacity = settings.host_bytes_max or default_host_bytes()
    if settings.pull_threads < 1 or settings.file_threads < 1:
        raise Refusal("storage.pull_threads and storage.file_threads must be at least 1")
    try:
        return Pool(
            capacity_bytes=capacity,
            extent_bytes_max=settings.extent_bytes_max,
            prefault_ahead_bytes=settings.prefault_ahead_bytes,
            memory_reserve_bytes=settings.memory_reserve_bytes,
        )
    except (ValueError, TypeError) as error:
        raise Refusal(f"storage.host_bytes_max {capacity}: {error}") from error


def _raise_open_files() -> None:
    """Sharded checkpoints and many clients take many descriptors; the soft limit is often 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise Refusal(
            f"storage.socket_mode {text!r} is no file mode; write three or four octal digits, as 0600 or 0660"
        )
    return mode


def _group(name: str) -> int | None:
    if not name:
        return None
    try:
        return int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise Refusal(f"storage.socket_group {name!r}: this host has no such group") from None
