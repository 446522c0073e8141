"""Where a storage keeps things beside its memory: sidecars of source files in its process's folder, and its disk tier.

Made by build.py, once, with the claims on both folders; owned by the service.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tensorcast_services.storage.disk_folder import DiskFolder
from tensorcast_services.storage.disk_place import claim, disk_folder
from tensorcast_services.storage.settings import StorageSettings
from tensorcast_services.storage.sidecars import Sidecars
from tensorcast_services.tables import Refusal

DISK = "disk"


class Places(msgspec.Struct, frozen=True):
    """`locks` are held as long as this process lives; `disk` is None where there is no disk tier."""

    sidecars: Sidecars
    disk: DiskFolder | None
    locks: tuple[int, ...]


def take_places(folder: Path, *, settings: StorageSettings) -> Places:
    """`folder` is the process's. Refusal where another storage has one of them."""
    disk = Path(settings.disk_path) if settings.disk_path else folder / DISK
    if not disk.is_absolute() or disk.resolve() == folder.resolve():
        raise Refusal(f"storage.disk_path {disk}: it must be absolute, and not {folder} itself; take a folder below it")
    locks = [claim(folder, setting="the storage's folder")]
    try:
        locks.append(claim(disk, setting="storage.disk_path"))
        return Places(Sidecars(folder), disk_folder(disk, bytes_max=settings.disk_bytes_max), tuple(locks))
    except OSError as error:
        raise Refusal(f"storage.disk_path {disk}: {error}; make it writable, or choose another folder") from error
