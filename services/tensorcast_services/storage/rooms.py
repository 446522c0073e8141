"""The rooms of a storage, put together: who keeps what, who opens, who seals, who writes.

Made by service.py, which performs the core's effects in them. Nothing here acts by itself.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorcast_native import LocalServer, Pool
from tensorcast_services.storage.calls import Calls
from tensorcast_services.storage.committed_views import CommittedViews
from tensorcast_services.storage.compaction import Compactor
from tensorcast_services.storage.core.artifacts import Artifacts
from tensorcast_services.storage.core.events import Event
from tensorcast_services.storage.disk import Disk
from tensorcast_services.storage.finishing import Finishing
from tensorcast_services.storage.floor import Floor
from tensorcast_services.storage.jobs import Jobs
from tensorcast_services.storage.kept import KeptSources
from tensorcast_services.storage.local import Local
from tensorcast_services.storage.opening import Opening
from tensorcast_services.storage.origins import Origins
from tensorcast_services.storage.places import Places
from tensorcast_services.storage.requests import Requests
from tensorcast_services.storage.residents import Residents
from tensorcast_services.storage.settings import StorageSettings
from tensorcast_services.storage.workroom import Workroom


class Rooms:
    """`post` takes the core's events."""

    def __init__(
        self,
        artifacts: Artifacts,
        pool: Pool,
        server: LocalServer,
        places: Places,
        settings: StorageSettings,
        *,
        post: Callable[[Event], None],
    ) -> None:
        self.jobs, self.kept, self.residents = Jobs(pool), KeptSources(), Residents()
        self.work = Workroom(file_threads=settings.file_threads)
        floor = Floor(pool, server, self.jobs, self.kept, self.residents, self.work, settings, post)
        self.compactor = Compactor(
            pool, server, self.residents, compute=self.work.compute, load_ms_max=settings.load_ms_max
        )
        self.local = Local(floor, self.compactor, on_request=lambda request: self.requests.take(request))
        reply = self.local.reply
        self.disk = Disk(floor, places.disk)
        self.origins = Origins(floor, places.sidecars, self.disk)
        self.opening = Opening(floor, self.origins)
        self.finishing = Finishing(floor, self.origins, self.disk, sealed=self.local.sealed)
        views = CommittedViews(floor, self.opening, self.disk, reply=reply, new_ticket=artifacts.new_ticket)
        self.calls = Calls(floor, artifacts, self.compactor, self.disk, views, reply=reply, uses=self.local.uses)
        self.requests = Requests(floor, self.calls, reply=reply, wishes=self.opening.wishes, disk_off=self.disk.off_why)
