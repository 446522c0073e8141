"""Every way into TensorCast and every way out, for cases that must hold on all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch

import tensorcast as tc
from tests.support.cluster import Cluster

Facts = Mapping[str, tuple[str, list[int], str]]

# What a fresh process prints: the facts of each tensor of an artifact.
CHILD = """
import hashlib, json, sys
import torch
import tensorcast as tc
with tc.connect() as rt:
    found = rt.artifact(sys.argv[1]).tensor_dict()
    print(json.dumps({n: (str(t.dtype), list(t.shape), hashlib.sha256(bytes(
        t.contiguous().reshape(-1).view(torch.uint8).tolist() if t.numel() else b"")).hexdigest())
        for n, t in found.items()}))
"""


def facts(tensors: Mapping[str, torch.Tensor]) -> Facts:
    """dtype, shape and digest of the bytes of each tensor."""
    return {
        name: (
            str(t.dtype),
            list(t.shape),
            hashlib.sha256(
                t.resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
            ).hexdigest(),
        )
        for name, t in tensors.items()
    }


def facts_in_another_process(cluster: Cluster, art_id: str) -> Facts:
    found: Facts = json.loads(cluster.python(CHILD, art_id).stdout)
    return {name: (dtype, shape, digest) for name, (dtype, shape, digest) in found.items()}


def ways_in(path: Path) -> Iterator[tuple[str, Callable[[tc.Runtime, str], object]]]:
    """By file, by its folder, by an index beside it in a folder of its own, and by load_file for each of these."""
    folder = path.parent
    indexed = folder / "indexed"
    indexed.mkdir(exist_ok=True)
    link = indexed / "model-00001-of-00001.safetensors"
    if not link.exists():
        link.hardlink_to(path)
    index = indexed / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": _places(path, link.name)}))
    for name, place in (("file", path), ("folder", folder), ("index", index), ("indexed folder", indexed)):
        yield f"put of {name}", partial(_put, place)
        yield f"load_file of {name}", partial(_load, place)


def _put(place: Path, rt: tc.Runtime, art_id: str) -> object:
    return rt.put(place, art_id)


def _load(place: Path, rt: tc.Runtime, art_id: str) -> object:
    return tc.load_file(place)


def _places(path: Path, shard: str) -> dict[str, str]:
    blob = path.read_bytes()
    try:
        table = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
    except ValueError:
        table = {"any": None}
    return {name: shard for name in table if name != "__metadata__"}
