"""B04: what an index promises is there, in both directions and for every kind of model, or nothing is taken at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

import tensorcast as tc
from tensorcast.errors import BadCheckpoint
from tests.support.cluster import Cluster
from tests.unit.sdk.checkpoint_files import Entries, image, sharded, write

PLAIN: Mapping[str, Entries] = {
    "model-00001-of-00003.safetensors": {"embed.weight": ("BF16", [4, 2], bytes(16))},
    "model-00002-of-00003.safetensors": {
        "layer.weight": ("BF16", [2, 2], bytes(8)),
        "layer.bias": ("F32", [2], bytes(8)),
    },
    "model-00003-of-00003.safetensors": {"head.weight": ("BF16", [4, 2], bytes(16))},
}
QUANTIZED: Mapping[str, Entries] = {
    "model-00001-of-00003.safetensors": {"embed.weight": ("F16", [4, 2], bytes(16))},
    "model-00002-of-00003.safetensors": {
        "layer.qweight": ("I32", [1, 2], bytes(8)),
        "layer.qzeros": ("I32", [1, 1], bytes(4)),
        "layer.scales": ("F8_E8M0", [4], bytes(4)),
    },
    "model-00003-of-00003.safetensors": {"head.weight": ("F4", [2, 4], bytes(4))},
}
MODELS = {"plain": PLAIN, "quantized": QUANTIZED}
SECOND = "model-00002-of-00003.safetensors"


def model(folder: Path, kind: str) -> Path:
    index = sharded(folder, MODELS[kind])
    config: dict[str, object] = {"model_type": "x"}
    if kind == "quantized":
        config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    write(folder / "config.json", json.dumps(config).encode())
    return index


def ways(index: Path) -> Iterator[tuple[str, Callable[[tc.Runtime], object]]]:
    for name, place in (("index", index), ("folder", index.parent)):
        yield f"put of {name}", partial(_put, place)
        yield f"register of {name}", partial(_register, place)
        yield f"load_file of {name}", partial(_load, place)


def _put(place: Path, rt: tc.Runtime) -> object:
    return rt.put(place, "b04/bad")


def _register(place: Path, rt: tc.Runtime) -> object:
    return rt.register(place, "b04/bad")


def _load(place: Path, rt: tc.Runtime) -> object:
    return tc.load_file(place)


def refused(rt: tc.Runtime, index: Path, *said: str) -> None:
    """By every way, in the same words, and nothing is published."""
    before = {record.art_id for record in rt.list_artifacts()}
    for way, take in ways(index):
        with pytest.raises(BadCheckpoint) as caught:
            take(rt)
        for word in (*said, "incomplete download?"):
            assert word in str(caught.value), way
    assert {record.art_id for record in rt.list_artifacts()} == before


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_b04_a_shard_that_is_not_there_is_named_with_its_tensors(rt: tc.Runtime, tmp_path: Path, kind: str) -> None:
    index = model(tmp_path, kind)
    (tmp_path / SECOND).unlink()
    refused(rt, index, SECOND, *MODELS[kind][SECOND])


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_b04_a_tensor_that_its_shard_lacks_is_named_with_it(rt: tc.Runtime, tmp_path: Path, kind: str) -> None:
    index = model(tmp_path, kind)
    *kept, lost = MODELS[kind][SECOND]
    write(tmp_path / SECOND, image({n: MODELS[kind][SECOND][n] for n in kept}))
    refused(rt, index, f"{lost} ({SECOND})")


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_b04_a_shard_that_was_cut_off_is_named(rt: tc.Runtime, tmp_path: Path, kind: str) -> None:
    index = model(tmp_path, kind)
    blob = (tmp_path / SECOND).read_bytes()
    for length in (len(blob) - 1, len(blob) - 12, len(blob) // 2):
        write(tmp_path / SECOND, blob[:length])
        refused(rt, index, SECOND)


def test_b04_the_command_line_refuses_it_too(cluster: Cluster, tmp_path: Path) -> None:
    model(tmp_path, "quantized")
    (tmp_path / SECOND).unlink()
    done = cluster.cli("put", str(tmp_path), "b04/cli", check=False)
    assert done.returncode == 1 and SECOND in done.stderr and "layer.scales" in done.stderr
    assert "incomplete download?" in done.stderr
    assert cluster.cli("ls", "b04/cli", "-q").stdout == ""


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_b04_once_it_is_complete_it_is_taken(rt: tc.Runtime, tmp_path: Path, kind: str) -> None:
    model(tmp_path, kind)
    shard = (tmp_path / SECOND).read_bytes()
    (tmp_path / SECOND).unlink()
    with pytest.raises(BadCheckpoint):
        rt.put(tmp_path, f"b04/{kind}")
    write(tmp_path / SECOND, shard)
    stored = rt.put(tmp_path, f"b04/{kind}")
    assert set(stored.tensor_meta()) == {name for shard in MODELS[kind].values() for name in shard}
