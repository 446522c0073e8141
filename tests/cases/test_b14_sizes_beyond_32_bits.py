"""B14: tensors beyond 2 and 4 GiB come back whole; sizes that overflow are refused, never wrapped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tensorcast as tc
from tensorcast.errors import BadCheckpoint
from tests.support.cluster import Cluster, running_cluster
from tests.unit.sdk.checkpoint_files import with_header, write

NEEDED_BYTES = 10 << 30
DEADLINE_MS = 300_000


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if available_bytes() < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES >> 30} GiB of free memory, {available_bytes() >> 30} are there")
    settings = {"storage.host_bytes_max": "5GiB"}
    with running_cluster(tmp_path_factory.mktemp("wide"), name="wide", settings=settings) as started:
        yield started


@pytest.fixture
def wide_rt(wide: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[tc.Runtime]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(wide.runtime_folder))
    with wide.connect() as runtime:
        yield runtime


def test_b14_a_file_with_a_tensor_over_4_gib_comes_back_whole(wide_rt: tc.Runtime, tmp_path: Path) -> None:
    sizes = {"over4": (1 << 32) + 1, "after": 16}
    table: dict[str, dict[str, object]] = {}
    begins: dict[str, int] = {}
    at = 0
    for name, size in sizes.items():
        begins[name] = at
        table[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    path = write(tmp_path / "sparse.safetensors", with_header(json.dumps(table)))
    start = path.stat().st_size
    marks: dict[tuple[str, int], int] = {}
    with path.open("r+b") as file:
        file.truncate(start + at)
        for name, size in sizes.items():
            for place in {p for p in (0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, size - 1) if p < size}:
                marks[name, place] = 1 + (place * 7 + len(name)) % 255
                file.seek(start + begins[name] + place)
                file.write(bytes([marks[name, place]]))
    stored = wide_rt.put(path, "b14/file", deadline_ms=DEADLINE_MS)
    assert stored.stats is not None and stored.stats.bytes_total == at
    found = stored.tensor_dict(deadline_ms=DEADLINE_MS)
    for name, size in sizes.items():
        tensor = found[name]
        assert tensor.shape == (size,)
        assert tensor.data_ptr() % tensor.itemsize == 0
        expected = {place: value for (n, place), value in marks.items() if n == name}
        # Everything but the marks is a hole; a wrap-around would show a mark twice or lose one.
        assert int(torch.count_nonzero(tensor)) == len(expected)
        assert {place: int(tensor[place]) for place in expected} == expected
    del found, tensor
    wide_rt.delete("b14/file")


def test_b14_a_put_of_one_byte_over_2_gib_comes_back_whole(wide_rt: tc.Runtime) -> None:
    tensor = torch.zeros((1 << 31) + 1, dtype=torch.uint8)
    for place in (0, (1 << 31) - 1, 1 << 31):
        tensor[place] = 1 + place % 251
    stored = wide_rt.put(tensor, "b14/memory", deadline_ms=DEADLINE_MS)
    assert stored.tensor_meta()["tensor"].nbytes == (1 << 31) + 1
    assert torch.equal(stored.tensor(), tensor)
    wide_rt.delete("b14/memory")


@pytest.mark.parametrize(
    "shape",
    [
        [1 << 32, 1 << 32],  # 2^64 wraps to 0
        [(1 << 62) + 1, 4],  # wraps to 4
        [0, 1 << 33, 1 << 33],  # 0 for who multiplies in another order
        [1 << 63],
        [-1, -4],
    ],
)
def test_b14_a_size_that_overflows_is_refused_and_never_wraps(rt: tc.Runtime, tmp_path: Path, shape: list[int]) -> None:
    for data in (b"", bytes(4)):
        entry = {"dtype": "U8", "shape": shape, "data_offsets": [0, len(data)]}
        path = write(tmp_path / "x.safetensors", with_header(json.dumps({"t": entry}), data))
        with pytest.raises(BadCheckpoint, match="'t'"):
            rt.put(path, "b14/overflow")
        with pytest.raises(BadCheckpoint, match="'t'"):
            tc.load_file(path)
