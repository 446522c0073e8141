"""An artifact as a caller holds it: a lazy handle that resolves at its first I/O and then stands for that content.

Each call that makes tensors maps anew, so a write into one tensor is seen by nobody else, not even by the next call on
the same handle. The handle itself keeps no memory: a map ends with the last tensor made from it.
"""

from __future__ import annotations

import difflib
import os
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from tensorcast import tensors
from tensorcast.deadline import DEADLINE_MS_DEFAULT, Deadline
from tensorcast.ids import text
from tensorcast.records import PutStats, TensorMeta
from tensorcast.save import check_target, save_file
from tensorcast.session import Session, Stored
from tensorcast_bus.errors import FormatMismatch, Invalid, NotFound, ProtocolError, StillBorrowed
from tensorcast_bus.manifest import Manifest, TensorRow, content_digest, decode_manifest
from tensorcast_native import Attachment

if TYPE_CHECKING:
    import torch

_NAMES_SHOWN = 10


class Artifact:
    """`art_id`; after a put also `outcome` ("stored" or "already_present") and `stats`, None otherwise. Thread-safe."""

    def __init__(self, session: Session, art_id: str, stored: Stored | None = None) -> None:
        self.art_id = art_id
        self.outcome: str | None = stored.outcome if stored else None
        self.stats: PutStats | None = stored.stats if stored else None
        self._session = session
        self._digest = stored.digest if stored else ""
        self._blob = b""
        # Changed one key at a time, which needs no lock: a lock could be held by another thread at a fork.
        self._lent: dict[int, weakref.ReferenceType[torch.UntypedStorage]] = {}

    def tensor_meta(self, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> dict[str, TensorMeta]:
        """Name, dtype, shape, size and digest of every tensor; maps nothing. Raises NotFound, NoReplica, StorageLost,
        Timeout, as every call here does."""
        _, manifest = self._attach(Deadline(deadline_ms, f"tensor_meta of {self.art_id!r}"), manifest_only=True)
        return {t.name: TensorMeta(t.name, t.dtype, t.shape, t.nbytes, t.digest.hex()) for t in manifest.tensors}

    def tensor_dict(
        self, device: str | torch.device = "cpu", *, deadline_ms: int = DEADLINE_MS_DEFAULT
    ) -> dict[str, torch.Tensor]:
        """All tensors, flat. On "cpu" zero-copy, private and writable; tied names share memory; memory lives as long as
        any of its tensors. On "cuda:N" copies. A dtype that this torch lacks comes as uint8: of the same shape where an
        element is one byte, else flat; F4 has pairs in its last dimension. Raises DeviceUnavailable too."""
        return self._tensors(device, None, Deadline(deadline_ms, f"tensor_dict of {self.art_id!r}"))

    def tensor(self, name: str | None = None, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> torch.Tensor:
        """One tensor, on "cpu", as in tensor_dict(); without a name, the only one there is. For many, tensor_dict()
        maps once. Raises NotFound for a name that is not there, Invalid without a name where there is not just one."""
        found = self._tensors("cpu", (name,), Deadline(deadline_ms, f"tensor {name!r} of {self.art_id!r}"))
        return next(iter(found.values()))

    def copy_into(self, targets: Mapping[str, torch.Tensor], *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        """Fills caller buffers, strided ones too, on any device. Strict: raises FormatMismatch, before a byte is
        written, listing every missing, unexpected or misshapen name and every other dtype. After a Timeout some targets
        may be filled."""
        deadline = Deadline(deadline_ms, f"copy_into from {self.art_id!r}")
        attachment, manifest = self._attach(deadline)
        cpu = tensors.check_device("cpu")
        sources = tensors.tensors_of(attachment, manifest.tensors, device=cpu, deadline=deadline)
        self._check_targets(targets, sources)
        tensors.fill(targets, sources, deadline=deadline)

    def save(self, path: str | os.PathLike[str], *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        """Writes a plain safetensors file, by rename. Raises FormatMismatch, before writing, naming what the format
        cannot say: complex128 tensors and tied names; Invalid where a pipe, device or folder stands at the path or it
        cannot be written; Unavailable when the disk is full. A link stays, its target is replaced. The deadline covers
        the attach; writing is the disk's time."""
        deadline = Deadline(deadline_ms, f"save of {self.art_id!r}")
        target = check_target(os.fsdecode(path))
        attachment, manifest = self._attach(deadline)
        save_file(attachment, manifest, target)

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
        return f"<Artifact {self.art_id!r}{f' {self.outcome}' if self.outcome else ''}>"

    def _tensors(
        self, device: str | torch.device, names: tuple[str | None] | None, deadline: Deadline
    ) -> dict[str, torch.Tensor]:
        place = tensors.check_device(device)
        attachment, manifest = self._attach(deadline)
        rows = manifest.tensors if names is None else (self._row(manifest, names[0]),)
        made = tensors.tensors_of(attachment, rows, device=place, deadline=deadline)
        if place.type == "cpu":
            self._living()
            for ref in tensors.watch(made.values()):
                self._lent[id(ref)] = ref
        return made

    def _living(self) -> int:
        """How many storages of this handle's tensors are alive; forgets the others."""
        for key, ref in list(self._lent.items()):
            if ref() is None:
                self._lent.pop(key, None)
        return len(self._lent)

    def _row(self, manifest: Manifest, name: str | None) -> TensorRow:
        if name is None:
            if len(manifest.tensors) == 1:
                return manifest.tensors[0]
            names = [t.name for t in manifest.tensors]
            raise Invalid(
                f"artifact {self.art_id!r} has {len(names)} tensors ({_some(names)}); name the one you want",
                art_id=self.art_id,
            )
        text(name, "the name of a tensor")
        for row in manifest.tensors:
            if row.name == name:
                return row
        near = difflib.get_close_matches(name, [t.name for t in manifest.tensors], n=3) or ["none is near"]
        raise NotFound(
            f"artifact {self.art_id!r} has no tensor {name!r} among its {len(manifest.tensors)}; "
            f"nearest: {', '.join(near)}",
            art_id=self.art_id,
            tensor=name,
        )

    def _attach(self, deadline: Deadline, *, manifest_only: bool = False) -> tuple[Attachment, Manifest]:
        attachment = self._session.attach(self.art_id, deadline=deadline, manifest_only=manifest_only)
        blob = attachment.manifest
        try:
            manifest = decode_manifest(blob)
        except msgspec.DecodeError as error:
            raise ProtocolError(
                f"{deadline.what}: its manifest ({len(blob)} bytes) is not understood: {error}; install one version of "
                "tensorcast in caller and cluster"
            ) from error
        if blob != self._blob:
            self._check_same(manifest)
            self._blob = blob
        return attachment, manifest

    def _check_same(self, manifest: Manifest) -> None:
        """An id may be deleted and put again with other content; a handle never switches under its holder."""
        if not self._digest and not self._blob:
            return
        known = self._digest or content_digest(decode_manifest(self._blob))
        now = content_digest(manifest)
        if now != known:
            raise NotFound(
                f"the content of {self.art_id!r} that this handle stands for ({known}) was deleted; the id has "
                f"other content now ({now}): take a new handle with artifact()",
                art_id=self.art_id,
            )
        self._digest = known

    def _check_targets(self, targets: Mapping[str, torch.Tensor], sources: Mapping[str, torch.Tensor]) -> None:
        problems = []
        if missing := sorted(set(sources) - set(targets)):
            problems.append(f"{len(missing)} tensors have no target: {_some(missing)}")
        if unexpected := sorted(set(targets) - set(sources)):
            problems.append(f"{len(unexpected)} targets are not in the artifact: {_some(unexpected)}")
        for name in sorted(set(sources) & set(targets)):
            target, source = targets[name], sources[name]
            if target.shape != source.shape:
                problems.append(f"{name!r} is {list(target.shape)}, in the artifact {list(source.shape)}")
            elif target.dtype != source.dtype:
                problems.append(f"{name!r} is {target.dtype}, in the artifact {source.dtype}")
            elif target.device.type == "meta":
                problems.append(f"{name!r} is on the meta device and has no memory to fill")
            elif any(s == 0 and d > 1 for s, d in zip(target.stride(), target.shape, strict=True)):
                problems.append(f"{name!r} is expanded: several of its elements share one place in memory")
        if problems:
            raise FormatMismatch(
                f"copy_into from {self.art_id!r}: nothing was written; {_some(problems)}; give a target of equal shape "
                "and dtype for every tensor",
                art_id=self.art_id,
                problems=problems[:_NAMES_SHOWN],
            )


def _some(names: list[str]) -> str:
    shown = "; ".join(n[:200] for n in names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"
