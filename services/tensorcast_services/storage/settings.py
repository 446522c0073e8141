"""What an operator can set about a storage: table ``[storage]`` for all of them, ``[storage-a]`` for one."""

from __future__ import annotations

import msgspec

MIB = 1 << 20
GIB = 1 << 30


class StorageSettings(msgspec.Struct, frozen=True):
    """Sizes in bytes, times in ms. `host_bytes_max` 0 means: half of the host's memory, or of the cgroup's limit where
    that is lower. `socket_path` empty means the cluster folder's, where local clients look; another is for storages
    started by hand. `socket_mode` is octal; `socket_group`, where given, is a name or a number. `load_ms_max` bounds
    one load from source files, whoever waits for it. `file_threads` open and look at these files, so many for each
    file system: a dead one holds up nobody else. `disk_path` empty means ``disk`` in the process's own folder;
    `disk_bytes_max` 0 means half of what its file system has free at start. Above `spill_percent` of the pool what has
    no other replica is written out to it ahead of need, until 10 points below."""

    host_bytes_max: int = 0
    extent_bytes_max: int = GIB
    prefault_ahead_bytes: int = GIB
    memory_reserve_bytes: int = 512 * MIB
    socket_path: str = ""
    socket_mode: str = "0600"
    socket_group: str | int = ""
    pull_threads: int = 4
    file_threads: int = 4
    tensors_max: int = 200_000
    draft_bytes_max: int = 64 * MIB
    load_ms_max: int = 600_000
    disk_path: str = ""
    disk_bytes_max: int = 0
    spill_percent: int = 90
