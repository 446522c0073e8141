"""B11: two names for the same bytes are stored once and shared again; overlapping views are copied and counted."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch

import tensorcast as tc
from tensorcast.errors import BadCheckpoint, FormatMismatch
from tests.cases.every_way import facts, facts_in_another_process
from tests.support.cluster import Cluster
from tests.unit.sdk.checkpoint_files import with_header, write

# Below 256 KiB a reader copies the segment, above it maps it.
ROWS = {"small": 100, "large": 10_000}


def tied(size: str) -> dict[str, torch.Tensor]:
    embed = torch.arange(ROWS[size] * 16, dtype=torch.float32).reshape(-1, 16)
    return {"embed": embed, "lm_head": embed, "norm": torch.ones(16)}


@pytest.mark.parametrize("size", sorted(ROWS))
def test_b11_tied_tensors_are_stored_once_and_shared_again(rt: tc.Runtime, cluster: Cluster, size: str) -> None:
    given = tied(size)
    stored = rt.put(given, f"b11/{size}")
    assert stored.stats is not None
    assert stored.stats.bytes_total == given["embed"].nbytes + 64 and stored.stats.bytes_copied == 0
    assert stored.stats.bytes_moved < 1.5 * given["embed"].nbytes, "one of the two, and a header"
    found = stored.tensor_dict()
    assert found["embed"].data_ptr() == found["lm_head"].data_ptr()
    found["lm_head"][0, 0] = -1.0
    assert float(found["embed"][0, 0]) == -1.0, "tied as they were"
    assert facts_in_another_process(cluster, stored.art_id) == facts(given)
    meta = stored.tensor_meta()
    assert meta["embed"].digest == meta["lm_head"].digest
    assert rt.list_artifacts(stored.art_id)[0].nbytes == stored.stats.bytes_total


def test_b11_a_module_with_tied_weights_keeps_them(rt: tc.Runtime) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(64, 8)
            self.head = torch.nn.Linear(8, 64, bias=False)
            self.head.weight = self.embed.weight

    made = Tied()
    found = rt.put(made, "b11/module").tensor_dict()
    assert found["embed.weight"].data_ptr() == found["head.weight"].data_ptr()
    assert torch.equal(found["embed.weight"], made.embed.weight)


def test_b11_tied_numpy_arrays_are_stored_once(rt: tc.Runtime) -> None:
    array = numpy.arange(1000)
    stored = rt.put({"a": array, "b": array}, "b11/numpy")
    assert stored.stats is not None and stored.stats.bytes_total == array.nbytes


def test_b11_equal_bytes_in_two_places_are_two_tensors(rt: tc.Runtime) -> None:
    one = torch.arange(1000)
    stored = rt.put({"a": one, "b": one.clone()}, "b11/equal")
    found = stored.tensor_dict()
    assert stored.stats is not None and stored.stats.bytes_total == 2 * one.nbytes
    assert found["a"].data_ptr() != found["b"].data_ptr()


def test_b11_views_that_overlap_and_differ_are_copied_and_counted(rt: tc.Runtime) -> None:
    whole = torch.arange(20_000, dtype=torch.int32).reshape(100, 200)
    given = {"left": whole[:, :120], "right": whole[:, 80:], "rows": whole[10:60], "turned": whole.T}
    stored = rt.put(given, "b11/overlap")
    assert stored.stats is not None
    assert stored.stats.bytes_total == sum(t.nbytes for t in given.values())
    # Rows of a whole are dense where they lie; the three others have to be made so.
    assert stored.stats.bytes_copied == sum(given[n].nbytes for n in ("left", "right", "turned"))
    found = stored.tensor_dict()
    assert facts(found) == facts(given)
    found["left"].zero_()
    assert torch.equal(found["right"], given["right"]) and torch.equal(found["rows"], given["rows"])


@pytest.mark.parametrize("size", sorted(ROWS))
def test_b11_a_file_cannot_say_tied_so_saving_is_refused_with_both_names(
    rt: tc.Runtime, tmp_path: Path, size: str
) -> None:
    stored = rt.put(tied(size), f"b11/save/{size}")
    with pytest.raises(FormatMismatch, match=r"'embed' and 'lm_head' are tied.*nothing was written"):
        stored.save(tmp_path / "x.safetensors")
    assert list(tmp_path.iterdir()) == []
    stored.view(["embed", "norm"]).save(tmp_path / "x.safetensors")
    assert torch.equal(tc.load_file(tmp_path / "x.safetensors")["embed"], tied(size)["embed"])


def test_b11_overlapping_ranges_in_a_file_are_refused_with_both_names(rt: tc.Runtime, tmp_path: Path) -> None:
    for second in ("[0, 8]", "[4, 12]"):
        header = (
            '{"one": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},'
            f' "two": {{"dtype": "U8", "shape": [8], "data_offsets": {second}}}}}'
        )
        path = write(tmp_path / "x.safetensors", with_header(header, bytes(12)))
        with pytest.raises(BadCheckpoint, match=r"'one' and 'two' overlap"):
            rt.put(path, "b11/file")
