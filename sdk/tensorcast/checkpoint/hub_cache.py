"""The layout in which the Hugging Face hub keeps what it downloaded.

`models--ORG--NAME` holds `blobs` (the bytes), `refs` (name -> revision) and `snapshots/REVISION` (relative links into
the blobs). Callers give a snapshot, or the folder of the repository, which then means the revision of `refs/main`. Only
read: the hub's own library locks and writes here, and a cache may be another user's or on a read-only mount.
"""

from __future__ import annotations

import os

from tensorcast.shortage import shortage
from tensorcast_bus.errors import BadCheckpoint

REF_BYTES_MAX = 256
_SHOWN = 10


def snapshot_in(folder: str) -> str | None:
    """The snapshot that a repository's folder stands for; None where `folder` is no such folder. Raises BadCheckpoint
    where it is one and has no snapshot, several without a `refs/main`, or not the one that `refs/main` names."""
    snapshots = os.path.join(folder, "snapshots")
    beside = any(os.path.isdir(os.path.join(folder, name)) for name in ("blobs", "refs"))
    if not os.path.isdir(snapshots) or not (beside or _is_repository(folder)):
        return None
    revision = _main(folder)
    held = _names(snapshots)
    if revision is not None:
        if revision in held:
            return os.path.join(snapshots, revision)
        raise BadCheckpoint(
            f"{folder}: refs/main names revision {revision}, which is not among its snapshots ({_some(held)}); "
            "incomplete download? fetch the model again, or give the path of one snapshot",
            path=folder,
            snapshots=held[:_SHOWN],
        )
    if len(held) == 1:
        return os.path.join(snapshots, held[0])
    if not held:
        raise BadCheckpoint(
            f"{folder} is a cached model without any snapshot; incomplete download? fetch the model again", path=folder
        )
    raise BadCheckpoint(
        f"{folder} holds {len(held)} snapshots and no refs/main that says which is meant: {_some(held)}; give the path "
        "of one",
        path=folder,
        snapshots=held[:_SHOWN],
    )


def unfinished_in(folder: str) -> list[str]:
    """Names of downloads that never ended, in the repository whose snapshot `folder` is, or is in."""
    place = os.path.abspath(folder)
    while os.path.dirname(place) != place:
        above = os.path.dirname(place)
        if os.path.basename(above) == "snapshots":
            return [n for n in _names(os.path.join(os.path.dirname(above), "blobs")) if n.endswith(".incomplete")]
        place = above
    return []


def models_in(folder: str) -> list[str]:
    """Names of the cached models of a folder that is a whole cache."""
    return [n for n in _names(folder) if _is_repository(n)]


def _is_repository(path: str) -> bool:
    return os.path.basename(os.path.abspath(path)).startswith(("models--", "datasets--", "spaces--"))


def _main(folder: str) -> str | None:
    path = os.path.join(folder, "refs", "main")
    try:
        # A pipe of that name must not hold up the caller.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            blob = os.read(fd, REF_BYTES_MAX + 1)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise shortage(error, f"reading {path}") or BadCheckpoint(
            f"{path} cannot be read: {error.strerror}; check its rights, or give the path of one snapshot", path=path
        ) from error
    revision = blob.decode("utf-8", "backslashreplace").strip()
    if not revision or len(blob) > REF_BYTES_MAX or "/" in revision or "\0" in revision or revision in (".", ".."):
        raise BadCheckpoint(
            f"{path} holds {revision[:80]!r}, which is no revision; fetch the model again, or give the path of one "
            "snapshot",
            path=path,
        )
    return revision


def _names(folder: str) -> list[str]:
    try:
        return sorted(n for n in os.listdir(folder) if not n.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise shortage(error, f"listing {folder}") or BadCheckpoint(
            f"{folder} cannot be listed: {error.strerror}; check its rights", path=folder
        ) from error


def _some(names: list[str]) -> str:
    shown = ", ".join(n[:100] for n in names[:_SHOWN]) or "there are none"
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
