"""An artifact as a caller holds it: a lazy handle that resolves at its first I/O and then stands for that content.

Each call that makes tensors maps anew, so a write into one tensor is seen by nobody else, not even by the next call on
the same handle. The handle itself keeps no memory: a map ends with the last tensor made from it. An anonymous view is
such a handle too, with a chain of view steps over the content that it shares with its base.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tensorcast import tensors
from tensorcast.deadline import DEADLINE_MS_DEFAULT, Deadline
from tensorcast.ids import checked_id, text
from tensorcast.records import PutStats, TensorMeta
from tensorcast.records_local import Stored
from tensorcast.save import check_savable, check_target, save_file
from tensorcast.targets import check_targets
from tensorcast.views.content import Content, Reading, Viewed
from tensorcast.views.part import Part, boxes_of, distinct_bytes, whole_parts
from tensorcast.views.resolve import one_of, resolve
from tensorcast.views.spec import said
from tensorcast_bus.errors import StillBorrowed

if TYPE_CHECKING:
    import torch

    from tensorcast.session import Session

Slices: TypeAlias = slice | tuple[slice, ...]
Selection: TypeAlias = Sequence[str] | Mapping[str, Slices] | Slices

VIEW_READ = "read"


class Artifact:
    """`art_id` is what the name given resolved to, from the first I/O on. `outcome` ("stored" or "already_present") and
    `stats` tell of a put; on an anonymous view `stats` tells of its last read. Else None. Thread-safe."""

    def __init__(self, session: Session, art_id: str, stored: Stored | None = None, view: Viewed | None = None) -> None:
        self.outcome: str | None = stored.outcome if stored else None
        self.stats: PutStats | None = stored.stats if stored else None
        self._content = view.content if view else Content(session, art_id, stored.digest if stored else "")
        self._steps = view.steps if view else ()
        # Changed one key at a time, which needs no lock: a lock could be held by another thread at a fork.
        self._lent: dict[int, weakref.ReferenceType[torch.UntypedStorage]] = {}

    @property
    def art_id(self) -> str:
        """The id; of an anonymous view, its base's."""
        return self._content.art_id

    def view(
        self,
        select: Selection | None = None,
        name: str | None = None,
        *,
        rename: Mapping[str, str] | None = None,
        deadline_ms: int = DEADLINE_MS_DEFAULT,
    ) -> Artifact:
        """Part of this artifact, or of this view, as an artifact. `select`: a list of names; a dict from names to
        tuples of slices of step 1 (dimensions left out at the end are full, () is all of a tensor); for a lone tensor
        such a tuple alone; None is everything. Bounds count as Python's, but never beyond the size. `rename` (old to
        new) is applied after it. Without `name` nothing is asked of anybody until the first read; with `name` the view
        is committed as an artifact of its own. In the pool its tensors are strided ones over the map. Else only their
        bytes are read, dense; slices of what lies on our own disk or in a registered memory load all of it first.

        Raises what the words alone show at once, the rest (needing shapes) at the first I/O: SliceMismatch (tensor,
        dimension, bounds, size; F4 and F6 can be cut at whole bytes only), NotFound for an unknown name, Invalid for a
        selection or a rename that cannot be; with `name` what put() raises too."""
        steps = (*self._steps, said(select, rename))
        if name is None:
            return Artifact(self._content.session, self.art_id, view=Viewed(self._content, steps))
        deadline = Deadline(deadline_ms, f"view {name!r} of {self.art_id!r}")
        checked_id(name)
        digest, manifest = self._content.agreed(deadline)
        boxes = boxes_of(resolve(manifest.tensors, steps, self.art_id))
        session = self._content.session
        stored = session.commit_view(
            self.art_id, digest=digest, art_id=name, boxes=boxes, durable=False, deadline=deadline
        )
        return Artifact(session, name, stored)

    def tensor_meta(self, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> dict[str, TensorMeta]:
        """Name, dtype, shape, size and digest of every tensor; maps and loads nothing. The digest is "" where nobody
        has digested those bytes: slices, and registered files until they are read once. Raises NotFound, NoReplica,
        LeaseLost, StorageLost, Timeout, as every call here does, and what view() leaves to the first I/O."""
        manifest = self._content.about(Deadline(deadline_ms, f"tensor_meta of {self.art_id!r}"))
        found = {}
        for part in resolve(manifest.tensors, self._steps, self.art_id):
            digest = part.row.digest.hex() if part.whole else ""
            found[part.name] = TensorMeta(part.name, part.dtype, part.shape, part.nbytes, digest)
        return found

    def tensor_dict(
        self, device: str | torch.device = "cpu", *, deadline_ms: int = DEADLINE_MS_DEFAULT
    ) -> dict[str, torch.Tensor]:
        """All tensors, flat. On "cpu" zero-copy, private and writable; tied names share memory; memory lives as long as
        any of its tensors. On "cuda:N" copies. A dtype that this torch lacks comes as uint8: of the same shape where an
        element is one byte, else flat; F4 has pairs in its last dimension. Slices are strided where the artifact is in
        the pool, except of flat forms, which are gathered, and dense where it is not. Raises DeviceUnavailable too."""
        return self._tensors(device, tuple, Deadline(deadline_ms, f"tensor_dict of {self.art_id!r}"))

    def tensor(self, name: str | None = None, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> torch.Tensor:
        """One tensor, on "cpu", as in tensor_dict(); without a name, the only one there is. For many, tensor_dict()
        maps once. Raises NotFound for a name that is not there, Invalid without a name where there is not just one."""
        deadline = Deadline(deadline_ms, f"tensor {name!r} of {self.art_id!r}")
        if name is not None:
            text(name, "the name of a tensor")

        def one(parts: Sequence[Part]) -> tuple[Part]:
            return (one_of({p.name: p for p in parts}, name, f"artifact {self.art_id!r}"),)

        return next(iter(self._tensors("cpu", one, deadline).values()))

    def copy_into(self, targets: Mapping[str, torch.Tensor], *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        """Fills caller buffers, strided ones too, on any device, and nothing around them. Strict: raises
        FormatMismatch, before a byte is written, listing every missing, unexpected or misshapen name, every other
        dtype, targets that share memory, are expanded or may only be read. After a Timeout some may be filled."""
        deadline = Deadline(deadline_ms, f"copy_into from {self.art_id!r}")

        def checked(parts: Sequence[Part]) -> Sequence[Part]:
            check_targets(targets, parts, self.art_id, deadline=deadline)
            return parts

        reading = self._read(checked, deadline)
        cpu = tensors.check_device("cpu")
        sources = tensors.tensors_of(reading.attachment, reading.parts, device=cpu, deadline=deadline)
        tensors.fill(targets, sources, deadline=deadline)

    def save(self, path: str | os.PathLike[str], *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        """Writes a plain safetensors file, dense, by rename. Raises FormatMismatch, before writing, naming what the
        format cannot say: complex128 tensors and tied names; Invalid where a pipe, device or folder stands at the path
        or it cannot be written; Unavailable when the disk is full. A link stays, its target is replaced. The deadline
        covers the attach; writing is the disk's time."""
        deadline = Deadline(deadline_ms, f"save of {self.art_id!r}")
        target = check_target(os.fsdecode(path))

        def checked(parts: Sequence[Part]) -> Sequence[Part]:
            check_savable(parts, self.art_id)
            return parts

        reading = self._read(checked, deadline)
        save_file(reading.attachment, reading.parts, target, metadata=self._content.metadata)

    def release(self) -> None:
        """Says that this handle's tensors are done with. Raises StillBorrowed with their count while some live;
        nothing is unmapped under them. Memory goes with the last tensor, with or without this call."""
        living = self._living()
        if living:
            raise StillBorrowed(
                f"{living} tensors of {self.art_id!r} (or views of them) are alive in this process (pid "
                f"{os.getpid()}); drop them first, their memory goes with the last of them",
                art_id=self.art_id,
                tensors=living,
            )

    def __repr__(self) -> str:
        kind = "view of " if self._steps else ""
        return f"<Artifact {kind}{self.art_id!r}{f' {self.outcome}' if self.outcome else ''}>"

    def _tensors(
        self, device: str | torch.device, choose: Callable[[Sequence[Part]], Sequence[Part]], deadline: Deadline
    ) -> dict[str, torch.Tensor]:
        place = tensors.check_device(device)
        reading = self._read(choose, deadline)
        made = tensors.tensors_of(reading.attachment, reading.parts, device=place, deadline=deadline)
        if place.type == "cpu":
            self._living()
            for ref in tensors.watch(made.values()):
                self._lent[id(ref)] = ref
        return made

    def _read(self, choose: Callable[[Sequence[Part]], Sequence[Part]], deadline: Deadline) -> Reading:
        """`choose` looks at all there is, raises what it will, and returns what to read."""
        if not self._steps:
            attachment, manifest = self._content.whole(deadline)
            return Reading(attachment, tuple(choose(whole_parts(manifest.tensors))), 0)
        digest, manifest = self._content.agreed(deadline)
        parts = choose(resolve(manifest.tensors, self._steps, self.art_id))
        reading = self._content.read(parts, digest, deadline)
        path = VIEW_READ if reading.bytes_read else ""
        self.stats = PutStats(distinct_bytes(parts), reading.bytes_read, 0, path, deadline.passed_ms)
        return reading

    def _living(self) -> int:
        """How many storages of this handle's tensors are alive; forgets the others."""
        for key, ref in list(self._lent.items()):
            if ref() is None:
                self._lent.pop(key, None)
        return len(self._lent)
