"""Which checkpoint a folder holds: an index, one file, or a model of the hub's cache. Where that is not clear, nothing
is guessed; the error lists what is there.

An index wins over `consolidated.safetensors`, which holds the same weights once more: they must not be read twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from tensorcast.checkpoint.hub_cache import models_in, snapshot_in, unfinished_in
from tensorcast.checkpoint.index import some
from tensorcast.checkpoint.opened import whose
from tensorcast.shortage import shortage
from tensorcast_bus.errors import BadCheckpoint

INDEX_NAME = "model.safetensors.index.json"
INDEX_SUFFIX = ".safetensors.index.json"
WHOLE_NAME = "model.safetensors"
# What some makers ship beside the same weights in the usual names.
_CONSOLIDATED = re.compile(r"consolidated([.-].*)?\.safetensors(\.index\.json)?")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def checkpoint_in(folder: str) -> str:
    """The path of the index, or of the one safetensors file. Raises BadCheckpoint where that is not clear."""
    folder = snapshot_in(folder) or folder
    names = _listed(folder)
    indexes = _usual([n for n in names if n.endswith(INDEX_SUFFIX)])
    if INDEX_NAME in indexes:
        indexes = [INDEX_NAME]
    shards = [n for n in names if n.endswith(".safetensors")]
    if len(indexes) == 1:
        if indexes[0] == INDEX_NAME and WHOLE_NAME in shards:
            raise BadCheckpoint(
                f"{folder} holds both {WHOLE_NAME} and {INDEX_NAME}: which one is meant is not said; "
                "give the path of one",
                path=folder,
            )
        return os.path.join(folder, indexes[0])
    whole = _usual(shards)
    if not indexes and len(whole) == 1:
        return os.path.join(folder, whole[0])
    raise _unclear(folder, names, indexes, shards)


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise shortage(error, f"listing {folder}") or BadCheckpoint(
            f"{folder} cannot be listed: {error.strerror}{whose(folder, error)}; check its rights", path=folder
        ) from error


def _usual(names: Sequence[str]) -> list[str]:
    """Without the consolidated ones, where there are others."""
    return [n for n in names if not _CONSOLIDATED.fullmatch(n)] or list(names)


def _unclear(folder: str, names: list[str], indexes: list[str], shards: list[str]) -> BadCheckpoint:
    if indexes:
        why = f"holds {len(indexes)} indexes ({some(indexes)}); give the path of the one that is meant"
    elif shards:
        why = (
            f"holds {len(shards)} safetensors files ({some(shards)}) and no {INDEX_NAME}, so which belong together is "
            "not said; incomplete download? fetch the index, or give the path of one file"
        )
    else:
        why = _nothing(folder, names)
    return BadCheckpoint(f"{folder} {why}", path=folder)


def _nothing(folder: str, names: list[str]) -> str:
    why = "holds no safetensors file and no index"
    pickles = [n for n in names if n.endswith(_PICKLES)]
    models = models_in(folder)
    unfinished = unfinished_in(folder)
    if pickles:
        return f"{why}, only pickles ({some(pickles)}), which are never opened; convert them to safetensors"
    if models:
        return f"{why}; it is a cache of {len(models)} models ({some(models)}): give the path of one"
    if unfinished:
        return (
            f"{why}; {len(unfinished)} downloads into its cache never ended ({some(unfinished)}): incomplete download? "
            "fetch the model again"
        )
    return f"{why}; give the path of a checkpoint"
