"""Sharded checkpoints: the index (`model.safetensors.index.json`), and whether it and its shards say the same.

An index is taken only if they do, in both directions: every shard there, every named tensor in the shard it is said to
be in, no tensor in a shard that the index does not know, none in two shards. There is no looser way, whatever kind of
model it is: a tensor that is left out would be random weights for whoever loads it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from tensorcast.checkpoint.looks import HEAD_BYTES, looks_of
from tensorcast.checkpoint.opened import OpenedFile
from tensorcast.checkpoint.strict_json import parse
from tensorcast.deadline import Deadline
from tensorcast_bus.errors import BadCheckpoint

INDEX_BYTES_MAX = 128 << 20
# Half of what one put may have in segments: each shard may need an aside one.
SHARDS_MAX = 2_048
_NAMES_SHOWN = 10


class Index(msgspec.Struct, frozen=True):
    """`places`: tensor name -> shard's file name, relative to `folder`."""

    path: str
    folder: str
    places: Mapping[str, str]

    @property
    def shards(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.places.values())))


def read_index(path: str, deadline: Deadline) -> Index:
    """Raises Timeout, and BadCheckpoint: unreadable, too big, no index, a shard outside the folder or not there."""
    opened = OpenedFile(path)
    try:
        size = opened.source.size
        if size > INDEX_BYTES_MAX:
            raise BadCheckpoint(f"{path} has {size} bytes; the limit index_bytes_max is {INDEX_BYTES_MAX}", path=path)
        blob = opened.read(size, 0)
        opened.check_unchanged()
    finally:
        opened.close()
    # The folder of the path as given, not of the file behind it: a cache links the index and its shards one by one.
    index = Index(path, os.path.dirname(os.path.abspath(path)), _places(path, blob, deadline))
    _check_shards_there(index)
    return index


def compare(index: Index, held: Mapping[str, Sequence[str]]) -> None:
    """`held`: shard's file name -> names of the tensors in it. Raises BadCheckpoint unless both say the same."""
    homes: dict[str, str] = {}
    for shard, names in held.items():
        for name in names:
            if name in homes:
                raise BadCheckpoint(
                    f"{index.path}: tensor {name!r} is in two shards, {homes[name]} and {shard}; "
                    "write the checkpoint again, each tensor once",
                    path=index.path,
                    tensor=name,
                )
            homes[name] = shard
    missing = [f"{n} ({s})" for n, s in index.places.items() if homes.get(n) != s]
    unknown = [f"{n} ({s})" for n, s in homes.items() if index.places.get(n) != s]
    if missing or unknown:
        parts = []
        if missing:
            parts.append(f"{len(missing)} tensors that the index names are not in their shard: {some(missing)}")
        if unknown:
            parts.append(f"{len(unknown)} tensors in the shards are not in the index: {some(unknown)}")
        raise BadCheckpoint(
            f"{index.path} and its shards do not fit: {'; '.join(parts)}; incomplete download? or files of two "
            "versions: fetch the checkpoint again",
            path=index.path,
            missing=missing[:_NAMES_SHOWN],
            unexpected=unknown[:_NAMES_SHOWN],
        )


def _places(path: str, blob: bytes, deadline: Deadline) -> dict[str, str]:
    try:
        # Indexes carry totals in their metadata that some writers spell with a point; nothing here depends on them.
        tree = parse(blob, fractions=True, look=lambda: deadline.left_ms(f"reading {path}"))
    except ValueError as error:
        looks = looks_of(blob[:HEAD_BYTES])
        # JSON that does not parse still looks like JSON; that word would not help.
        known = looks is not None and not blob.lstrip().startswith((b"{", b"["))
        said = f"it looks like {looks.what}: {looks.next_step}" if looks and known else "download it again"
        raise BadCheckpoint(
            f"{path} {error}; it is no index of a checkpoint: {said}",
            path=path,
            looks_like=looks.what if looks and known else None,
        ) from None
    table = tree.get("weight_map") if isinstance(tree, dict) else None
    if not isinstance(table, dict) or not table:
        raise BadCheckpoint(
            f"{path} has no `weight_map` of tensor names to files; it is no index of a checkpoint", path=path
        )
    places: dict[str, str] = {}
    for name, shard in table.items():
        if not isinstance(shard, str):
            raise BadCheckpoint(f"{path}: the file of tensor {name[:200]!r} is not a string", path=path)
        places[name] = _inside(path, shard)
    if len(set(places.values())) > SHARDS_MAX:
        raise BadCheckpoint(f"{path} names over {SHARDS_MAX} shards, the limit shards_max", path=path)
    return places


def _inside(path: str, shard: str) -> str:
    plain = os.path.normpath(shard)
    if not shard or os.path.isabs(shard) or plain in (".", "..") or plain.startswith("../") or "\0" in shard:
        raise BadCheckpoint(
            f"{path}: shard {shard[:200]!r} lies outside the index's folder; shards must be inside it",
            path=path,
            shard=shard[:200],
        )
    if not plain.endswith(".safetensors"):
        raise BadCheckpoint(
            f"{path}: shard {shard[:200]!r} is no safetensors file; convert the checkpoint to safetensors first",
            path=path,
            shard=shard[:200],
        )
    return plain


def _check_shards_there(index: Index) -> None:
    missing = [s for s in index.shards if not os.path.exists(os.path.join(index.folder, s))]
    if not missing:
        return
    lost = [n for n, s in index.places.items() if s in set(missing)]
    links = [s for s in missing if os.path.islink(os.path.join(index.folder, s))]
    dangling = [f"{s} -> {os.readlink(os.path.join(index.folder, s))}" for s in links]
    raise BadCheckpoint(
        f"{index.path}: {len(missing)} of {len(index.shards)} shards are not there: {some(missing)}"
        + (f" (dangling links: {some(dangling)})" if dangling else "")
        + f"; with them {len(lost)} tensors are missing: {some(lost)}; incomplete download? fetch the missing files",
        path=index.path,
        missing_files=missing[:_NAMES_SHOWN],
        missing=lost[:_NAMES_SHOWN],
    )


def some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(n[:200] for n in names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"
