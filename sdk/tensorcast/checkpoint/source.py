"""From a path to a checkpoint: one file, a folder (also of the hub's cache) or an index becomes open files with checked
headers."""

from __future__ import annotations

import os
from types import TracebackType

from tensorcast.checkpoint.folder import checkpoint_in
from tensorcast.checkpoint.header import TENSORS_MAX, FileHeader, read_header
from tensorcast.checkpoint.index import Index, compare, read_index
from tensorcast.checkpoint.opened import OpenedFile
from tensorcast.deadline import Deadline
from tensorcast_bus.errors import BadCheckpoint
from tensorcast_bus.manifest import SourceFile


class Checkpoint:
    """Open files and their headers, in the same order. A context manager; leaving it closes the files."""

    def __init__(self, opened: tuple[OpenedFile, ...], headers: tuple[FileHeader, ...]) -> None:
        self.opened = opened
        self.headers = headers

    @property
    def metadata(self) -> dict[str, str]:
        """Of all files; where two carry one key, the first file's word stands."""
        found: dict[str, str] = {}
        for header in reversed(self.headers):
            found |= header.metadata
        return found

    def close(self) -> None:
        for opened in self.opened:
            opened.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_checkpoint(path: str, deadline: Deadline) -> Checkpoint:
    """Opens and checks everything before anything is moved. Raises BadCheckpoint and Timeout."""
    paths, index = _files(path, deadline)
    opened: list[OpenedFile] = []
    try:
        headers: list[FileHeader] = []
        for file in paths:
            opened.append(OpenedFile(file))
            headers.append(read_header(opened[-1], deadline))
        if index is not None:
            compare(index, {s: [e.name for e in h.entries] for s, h in zip(index.shards, headers, strict=True)})
        if sum(len(h.entries) for h in headers) > TENSORS_MAX:
            raise BadCheckpoint(f"{path} names over {TENSORS_MAX} tensors, the limit tensors_max", path=path)
    except BaseException:
        for file_open in opened:
            file_open.close()
        raise
    return Checkpoint(tuple(opened), tuple(headers))


def identities(path: str, deadline: Deadline) -> tuple[SourceFile, ...]:
    """Which files a path stands for, as they are now; no header is read. Raises BadCheckpoint and Timeout."""
    found: list[SourceFile] = []
    paths, index = _files(path, deadline)
    for file in (*paths, *([index.path] if index else [])):
        opened = OpenedFile(file)
        found.append(opened.source)
        opened.close()
    return tuple(found)


def _files(path: str, deadline: Deadline) -> tuple[tuple[str, ...], Index | None]:
    if os.path.isdir(path):
        path = checkpoint_in(path)
    if path.endswith(".json"):
        index = read_index(path, deadline)
        return tuple(os.path.join(index.folder, shard) for shard in index.shards), index
    return (path,), None
