"""Artifacts with very many tensors or very long names: they work inside bounds, or are refused in words that help."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

import tensorcast as tc
from tensorcast.errors import BadCheckpoint, Invalid, TensorCastError
from tests.support.cluster import Cluster, running_cluster
from tests.unit.sdk.checkpoint_files import with_header, write

TENSORS = 100_000
DEADLINE_MS = 120_000
# Peak of memory of its own that the storage may take for such a table beyond what it had.
STORAGE_PEAK_BYTES_MAX = 600 << 20
# What a header over 100 MB may take of the process that reads it, and of the storage, before it is taken or refused.
READER_PEAK_BYTES_MAX = 768 << 20


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("wide"), name="wide") as started:
        yield started


@pytest.fixture
def wide_rt(wide: Cluster) -> Iterator[tc.Runtime]:
    with wide.connect() as rt:
        yield rt


def peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no VmHWM for {pid}")


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no VmRSS for {pid}")


def forget_peak(pid: int) -> int:
    """Starts a new peak; returns what is resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return resident_bytes(pid)


def test_a_hundred_thousand_tensors_are_put_attached_and_described(wide: Cluster, wide_rt: tc.Runtime) -> None:
    pid = wide.pid("storage-a")
    whole = numpy.arange(TENSORS * 4, dtype=numpy.int32).reshape(TENSORS, 4)
    given = {f"layer.{n // 100}.part.{n % 100}.weight": whole[n] for n in range(TENSORS)}
    before = forget_peak(pid)
    stored = wide_rt.put(given, "tables/many", deadline_ms=DEADLINE_MS)
    assert stored.outcome == "stored"
    meta = wide_rt.artifact("tables/many").tensor_meta(deadline_ms=DEADLINE_MS)
    assert len(meta) == TENSORS and {m.dtype for m in meta.values()} == {"I32"}
    found = wide_rt.artifact("tables/many").tensor_dict(deadline_ms=DEADLINE_MS)
    assert len(found) == TENSORS
    assert all(int(found[name][0]) == int(row[0]) for name, row in given.items())
    assert peak_bytes(pid) - before <= STORAGE_PEAK_BYTES_MAX


def test_a_file_of_a_hundred_thousand_tensors_is_taken(wide_rt: tc.Runtime, tmp_path: Path) -> None:
    table: dict[str, object] = {}
    for n in range(TENSORS):
        table[f"t{n}"] = {"dtype": "U8", "shape": [8], "data_offsets": [8 * n, 8 * n + 8]}
    path = write(tmp_path / "x.safetensors", with_header(json.dumps(table), bytes(8 * TENSORS), header_multiple=8))
    stored = wide_rt.put(path, "tables/file", deadline_ms=DEADLINE_MS)
    assert len(stored.tensor_meta(deadline_ms=DEADLINE_MS)) == TENSORS


def long_names(path: Path, *, header_bytes: int, tensors: int) -> Path:
    """A right file whose header is that long, by the length of its names."""
    width = header_bytes // tensors - 64
    table: dict[str, object] = {
        f"{n:08}" + "n" * (width - 8): {"dtype": "U8", "shape": [1], "data_offsets": [n, n + 1]} for n in range(tensors)
    }
    blob = with_header(json.dumps(table), bytes(tensors))
    assert int.from_bytes(blob[:8], "little") > 100_000_000
    return write(path, blob)


# Puts the file, says what came of it, and by how much its own memory grew at most.
PUT_LONG = """
import sys
import tensorcast as tc
def status(field):
    return next(int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith(field))
with tc.connect() as rt:
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS")
    try:
        rt.put(sys.argv[1], "tables/long", deadline_ms=120_000)
        print("taken")
    except tc.errors.TensorCastError as error:
        print(type(error).__name__, str(error)[:2000].replace(sys.argv[1], "PATH"))
    print(status("VmHWM") - before)
"""


@pytest.mark.parametrize("header_bytes", [104_000_000, 140_000_000])
def test_a_header_over_100_mb_is_taken_inside_a_bound_or_refused_with_what_helps(
    wide: Cluster, wide_rt: tc.Runtime, tmp_path: Path, header_bytes: int
) -> None:
    path = long_names(tmp_path / "long.safetensors", header_bytes=header_bytes, tensors=50_000)
    pid = wide.pid("storage-a")
    before = forget_peak(pid)
    said, taken = wide.python(PUT_LONG, str(path)).stdout.splitlines()
    assert int(taken) <= READER_PEAK_BYTES_MAX
    assert peak_bytes(pid) - before <= STORAGE_PEAK_BYTES_MAX
    print(said[:400], "reader", int(taken) >> 20, "MiB, storage", (peak_bytes(pid) - before) >> 20, "MiB")
    if said != "taken":
        # How large it is, which limit it met, and what to do about it.
        assert said.startswith(("BadCheckpoint ", "Invalid "))
        assert "_bytes_max" in said and "shorter names" in said
        assert any(word in said for word in ("no setting raises", "several artifacts", "several files"))
        assert [r.art_id for r in wide_rt.list_artifacts("tables/long")] == []


def test_a_limit_on_names_and_tensors_is_named(wide_rt: tc.Runtime, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"name_bytes_max is 4096"):
        wide_rt.put({"n" * 5_000: numpy.zeros(1)}, "tables/name")
    table = {f"t{n}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for n in range(200_001)}
    path = write(tmp_path / "x.safetensors", with_header(json.dumps(table)))
    with pytest.raises(BadCheckpoint, match=r"names 200001 tensors; the limit tensors_max is 200000"):
        wide_rt.put(path, "tables/tensors", deadline_ms=DEADLINE_MS)


def test_a_storage_that_takes_fewer_says_which_setting_raises_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {"storage.tensors_max": "100", "storage.draft_bytes_max": "64KiB"}
    with running_cluster(tmp_path_factory.mktemp("strict"), name="strict", settings=settings) as strict:
        with strict.connect() as rt:
            for given, limit in (
                ({f"t{n}": numpy.zeros(1) for n in range(101)}, "tensors_max"),
                ({f"{'n' * 3000}{n}": numpy.zeros(1) for n in range(50)}, "draft_bytes_max"),
            ):
                with pytest.raises((Invalid, BadCheckpoint)) as caught:
                    rt.put(given, "tables/strict")
                assert f"storage.{limit}" in str(caught.value) and "--set" in str(caught.value)
        assert isinstance(caught.value, TensorCastError)
