"""Where artifacts that are not in the pool lie: unchanged source files of others, and copies that we wrote to our disk.

Called by opening.py and finishing.py, and by service.py for what the core wants of sidecars. An artifact may have both;
the core says which is read. Every piece of work ends in one event or in one answer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import structlog

from tensorcast_bus.errors import NoReplica, Unavailable
from tensorcast_bus.manifest import Manifest, encode_manifest
from tensorcast_services.storage import sources
from tensorcast_services.storage.core.events import FilesChecked, Identity, Restored
from tensorcast_services.storage.disk import Disk
from tensorcast_services.storage.draft_rows import new_key
from tensorcast_services.storage.file_threads import Place, place_of
from tensorcast_services.storage.floor import Floor
from tensorcast_services.storage.reading import FileHandle
from tensorcast_services.storage.sidecars import Sidecars, Summary, TornSidecar
from tensorcast_services.storage.sources import Look, SourceTrouble

SCAN_LOOKS_S_MAX = 2.0  # a start waits no longer for file systems that may be dead
_UNANSWERED = Look(f"not seen within {SCAN_LOOKS_S_MAX} s", sure=False)


class Origin(msgspec.Struct, frozen=True):
    """`where` is "disk" (ours) or "file" (others'); `blob` is the encoded manifest."""

    where: str
    summary: Summary
    manifest: Manifest
    blob: bytes


class Origins:
    """On the loop's thread but for the pieces of work themselves."""

    def __init__(self, floor: Floor, sidecars: Sidecars, disk: Disk) -> None:
        self._work = floor.work
        self._post = floor.post
        self._sidecars = sidecars
        self._disk = disk
        self._log = structlog.get_logger("origins")

    async def find(self, art_id: str, tier: str = "") -> Origin:
        """At `tier` "disk" or "file", or at either. SourceTrouble when there is no whole sidecar of the id."""
        return await self._work.read(lambda: self._find(art_id, tier))

    async def open(self, origin: Origin, images: Sequence[int]) -> list[FileHandle]:
        """Open files of these segments, in order. SourceTrouble; nothing stays open then."""
        art_id, rows = origin.summary.art_id, [origin.manifest.segments[n] for n in images]
        folder = self._disk.folder
        if origin.where == "disk":
            assert folder is not None
            return await self._work.read(lambda: folder.open_all(art_id, [(row.key, row.nbytes) for row in rows]))
        files = [(f.path, f.device, f.inode, f.size, f.mtime_ns) for row in rows if (f := row.file) is not None]
        fds = await self._work.touch(files, lambda: sources.open_all(art_id, files))
        return [(fd, dev, ino, size, mtime) for fd, (_, dev, ino, size, mtime) in zip(fds, files, strict=True)]

    def remove(self, art_id: str, tier: str = "") -> None:
        """What would bring it back from `tier`, or at all."""
        if tier != "disk":
            self._work.spawn(self._remove_beside_files(art_id))
        if tier != "file":
            self._disk.remove(art_id)

    def check_files(self, ticket: int, files: tuple[Identity, ...]) -> None:
        """FilesChecked follows."""

        async def work() -> None:
            try:
                found = await self._work.touch(files, lambda: sources.look(files))
            except Exception as error:
                self._log.error("look_failed", files=[path for path, *_ in files[:4]], exc_info=error)
                found = Look(f"nobody could look: {type(error).__name__}: {error}", sure=False)
            self._post(FilesChecked(ticket, found.changed, found.sure))

        self._work.spawn(work())

    async def keep_beside_files(self, summary: Summary, blob: bytes) -> bool:
        """Writes the sidecar. False where this process itself cannot read the very files: they are no replica then."""
        try:
            opened = await self._work.touch(summary.files, lambda: sources.open_all(summary.art_id, summary.files))
            sources.close_all(opened)
            await self._work.write(lambda: self._sidecars.write(summary, blob))
        except (SourceTrouble, Unavailable, OSError) as error:
            self._log.warning("file_is_no_replica", art_id=summary.art_id, why=str(error))
            self.remove(summary.art_id, "file")
            return False
        return True

    async def scan(self) -> list[Restored]:
        """What earlier incarnations left; both, our own copy first, for an id that has both. Files that do not answer
        in time count as unchanged: whoever reads them compares."""
        found: list[Restored] = []
        ours: dict[str, str] = {}
        for head in await self._disk.scan():
            ours[head.art_id] = head.digest
            nbytes = max(1, sum(size for _, size in head.disk))
            found.append(Restored(head.art_id, head.digest, head.nbytes, head.tensors, (), nbytes))
        for head, now in await self._scan_files():
            why = now.changed if now.sure else ""
            if ours.get(head.art_id, head.digest) != head.digest:
                why = "its copy on disk has other content"
            if why:
                self._log.warning("sidecar_dropped", art_id=head.art_id, why=why)
                self.remove(head.art_id, "file")
            else:
                found.append(Restored(head.art_id, head.digest, head.nbytes, head.tensors, head.files))
        return found

    async def _scan_files(self) -> list[tuple[Summary, Look]]:
        def skipped(why: str) -> None:
            self._log.warning("sidecar_skipped", why=why)

        heads = await self._work.read(lambda: list(self._sidecars.scan(skipped)))
        by_place: dict[Place, list[Summary]] = defaultdict(list)
        for head in heads:
            by_place[place_of(head.files)].append(head)
        seen: dict[str, Look] = {}
        looks = [self._work.spawn(self._look_at(some, seen)) for some in by_place.values()]
        if looks:
            await asyncio.wait(looks, timeout=SCAN_LOOKS_S_MAX)
        found = [(head, seen.get(head.art_id, _UNANSWERED)) for head in heads]
        if unanswered := [head.art_id for head, now in found if now is _UNANSWERED]:
            self._log.warning("sources_not_seen", artifacts=len(unanswered), first=unanswered[0])
        return found

    async def _look_at(self, heads: list[Summary], seen: dict[str, Look]) -> None:
        """Fills in `seen`, one after the other, for artifacts of one file system."""

        def work() -> None:
            for head in heads:
                seen[head.art_id] = sources.look(head.files)

        await self._work.touch(heads[0].files, work)

    async def _remove_beside_files(self, art_id: str) -> None:
        try:
            await self._work.write(lambda: self._sidecars.remove(art_id))
        except OSError as error:
            # The next start reports it, and the global store refuses it again.
            self._log.error("sidecar_not_removed", art_id=art_id, error=str(error))

    def _find(self, art_id: str, tier: str) -> Origin:
        folder = self._disk.folder
        places = {"disk": folder.sidecars} if folder is not None else {}
        places["file"] = self._sidecars
        trouble: Exception = FileNotFoundError(f"it has none at {tier or 'any tier'}")
        for where, sidecars in places.items():
            if tier and where != tier:
                continue
            try:
                summary, blob, manifest = sidecars.read(art_id)
            except (FileNotFoundError, TornSidecar) as error:
                trouble = error
                continue
            named = _with_keys(manifest)
            return Origin(where, summary, named, blob if named is manifest else encode_manifest(named))
        lost = NoReplica(f"the sidecar of {art_id!r} is lost ({trouble}); put it again", art_id=art_id)
        raise SourceTrouble(lost, lost=True) from trouble


def _with_keys(manifest: Manifest) -> Manifest:
    """Sidecars from before segments had names: they get theirs now."""
    if all(row.key for row in manifest.segments):
        return manifest
    rows = (row if row.key else msgspec.structs.replace(row, key=new_key()) for row in manifest.segments)
    return msgspec.structs.replace(manifest, segments=tuple(rows))
