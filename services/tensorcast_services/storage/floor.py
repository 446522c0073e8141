"""What every room of a storage stands on: the native floor, tables that rooms share, threads, and the way to the core.

Made by rooms.py, once.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tensorcast_native import LocalServer, Pool
from tensorcast_services.storage.core.events import Event
from tensorcast_services.storage.jobs import Jobs
from tensorcast_services.storage.kept import KeptSources
from tensorcast_services.storage.residents import Residents
from tensorcast_services.storage.settings import StorageSettings
from tensorcast_services.storage.workroom import Workroom


class Floor(msgspec.Struct, frozen=True):
    """`post` gives the core an event."""

    pool: Pool
    server: LocalServer
    jobs: Jobs
    kept: KeptSources
    residents: Residents
    work: Workroom
    settings: StorageSettings
    post: Callable[[Event], None]
