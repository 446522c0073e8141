"""B07: types of fewer than 8 bits, packed ones and those that torch lacks keep bytes, shape and name."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
import safetensors
import torch

import tensorcast as tc
from tensorcast.errors import BadCheckpoint, SliceMismatch
from tests.support.cluster import Cluster
from tests.unit.sdk.checkpoint_files import Entries, image, write

SHAPES = {
    "F8_E4M3": [4, 6],
    "F8_E5M2": [4, 6],
    "F8_E8M0": [4, 6],
    "F4": [4, 6],
    "U8": [4, 3],  # int4, two a byte
    "U16": [4, 6],
    "U32": [4, 6],
    "U64": [4, 6],
    "F6_E2M3": [4, 8],
}
BITS = {"F4": 4, "F6_E2M3": 6, "U16": 16, "U32": 32, "U64": 64}


def bits(dtype: str) -> int:
    return BITS.get(dtype, 8)


def entries() -> Entries:
    rng = random.Random(7)
    return {d: (d, s, rng.randbytes(s[0] * s[1] * bits(d) // 8)) for d, s in SHAPES.items()}


WANTED = entries()


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture
def stored(rt: tc.Runtime, tmp_path: Path) -> tc.Artifact:
    return rt.put(write(tmp_path / "x.safetensors", image(WANTED)), "b07/types")


def test_b07_bytes_shape_and_name_of_each_type_are_kept(stored: tc.Artifact) -> None:
    meta, tensors = stored.tensor_meta(), stored.tensor_dict()
    for name, (dtype, shape, blob) in WANTED.items():
        assert (meta[name].dtype, list(meta[name].shape), meta[name].nbytes) == (dtype, shape, len(blob))
        assert hashlib.sha256(raw(tensors[name])).digest() == hashlib.sha256(blob).digest(), name


def test_b07_a_type_that_torch_lacks_comes_as_raw_bytes_under_its_name(stored: tc.Artifact) -> None:
    meta = stored.tensor_meta()["F6_E2M3"]
    assert meta.torch_dtype is None and meta.dtype == "F6_E2M3"
    assert stored.tensor("F6_E2M3").dtype == torch.uint8
    assert stored.tensor("F8_E8M0").dtype == torch.float8_e8m0fnu


def test_b07_f4_has_its_logical_shape_and_pairs_in_torch(stored: tc.Artifact) -> None:
    assert stored.tensor_meta()["F4"].shape == (4, 6)
    assert tuple(stored.tensor("F4").shape) == (4, 3)


def test_b07_a_file_written_again_is_the_same_for_any_reader(
    stored: tc.Artifact, tmp_path: Path, rt: tc.Runtime
) -> None:
    again = tmp_path / "again.safetensors"
    stored.save(again)
    with safetensors.safe_open(again, framework="np") as file:
        assert set(file.keys()) == set(WANTED)
    assert {n: m.digest for n, m in rt.put(again, "b07/again").tensor_meta().items()} == {
        n: m.digest for n, m in stored.tensor_meta().items()
    }


@pytest.mark.parametrize("dtype", sorted(SHAPES))
def test_b07_slices_on_both_dimensions_are_those_bytes(stored: tc.Artifact, dtype: str) -> None:
    rows, columns = SHAPES[dtype]
    width = columns * bits(dtype) // 8
    blob = WANTED[dtype][2]
    table = [blob[r * width : (r + 1) * width] for r in range(rows)]
    top = stored.view({dtype: (slice(1, 3),)})
    assert raw(top.tensor(dtype)) == b"".join(table[1:3]) and top.tensor_meta()[dtype].shape == (2, columns)
    half = columns // 2
    if half * bits(dtype) % 8:
        half += 1
    left = stored.view({dtype: (slice(None), slice(0, half))})
    cut = half * bits(dtype) // 8
    assert raw(left.tensor(dtype)) == b"".join(row[:cut] for row in table)
    assert left.tensor_meta()[dtype].shape == (rows, half)
    right = stored.view({dtype: (slice(None), slice(half, columns))})
    assert raw(right.tensor(dtype)) == b"".join(row[cut:] for row in table)


def test_b07_a_slice_inside_a_byte_is_refused(stored: tc.Artifact) -> None:
    with pytest.raises(SliceMismatch, match="F4"):
        stored.view({"F4": (slice(None), slice(0, 3))}).tensor("F4")


@pytest.mark.parametrize("shape", [[3], [2, 3], [4, 1], [3, 5], []])
def test_b07_an_odd_f4_is_refused_in_words(rt: tc.Runtime, cluster: Cluster, tmp_path: Path, shape: list[int]) -> None:
    count = 1
    for dim in shape:
        count *= dim
    path = write(tmp_path / "odd.safetensors", image({"odd": ("F4", shape, bytes((count + 1) // 2))}))
    with pytest.raises(BadCheckpoint, match=r"'odd', F4 .*last dimension must be even"):
        rt.put(path, "b07/odd")
    assert "last dimension must be even" in cluster.cli("put", str(path), "b07/odd", check=False).stderr


def test_b07_a_state_dict_of_these_types_comes_back_exactly(rt: tc.Runtime) -> None:
    given = {
        name: torch.frombuffer(bytearray(WANTED[name][2]), dtype=torch.uint8).view(dtype).reshape(shape)
        for name, dtype, shape in (
            ("F8_E4M3", torch.float8_e4m3fn, (4, 6)),
            ("F8_E5M2", torch.float8_e5m2, (4, 6)),
            ("F8_E8M0", torch.float8_e8m0fnu, (4, 6)),
            ("F4", torch.float4_e2m1fn_x2, (4, 3)),
            ("U16", torch.uint16, (4, 6)),
            ("U32", torch.uint32, (4, 6)),
            ("U64", torch.uint64, (4, 6)),
        )
    }
    put = rt.put(given, "b07/memory")
    for name, tensor in put.tensor_dict().items():
        assert (tensor.dtype, tensor.shape) == (given[name].dtype, given[name].shape)
        assert raw(tensor) == WANTED[name][2]
    assert put.tensor_meta()["F4"].shape == (4, 6)
