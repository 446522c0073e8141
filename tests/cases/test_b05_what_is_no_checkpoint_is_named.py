"""B05: what is no whole safetensors file has the same verdict by every way, in words that help, and leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensorcast as tc
from tensorcast.errors import BadCheckpoint
from tests.cases.every_way import ways_in
from tests.support.cluster import Cluster
from tests.unit.sdk.checkpoint_files import NOT_CHECKPOINTS, damaged, write

BAD = {**NOT_CHECKPOINTS, **damaged()}


@pytest.mark.parametrize("kind", sorted(BAD))
def test_b05_every_way_has_the_same_verdict(rt: tc.Runtime, tmp_path: Path, kind: str) -> None:
    blob, wrong = BAD[kind]
    path = write(tmp_path / "model.safetensors", blob)
    before = {record.art_id for record in rt.list_artifacts()}
    verdicts = set()
    for way, take in ways_in(path):
        with pytest.raises(BadCheckpoint) as caught:
            take(rt, "b05/bad")
        text = str(caught.value)
        assert wrong in text and ".safetensors" in text, way
        linked = str(tmp_path / "indexed" / "model-00001-of-00001.safetensors")
        verdicts.add(text.replace(linked, str(path)))
    assert len(verdicts) == 1, verdicts
    assert {record.art_id for record in rt.list_artifacts()} == before


@pytest.mark.parametrize("kind", ["lfs", "html", "zip", "tail", "cut in data"])
def test_b05_the_command_line_has_that_verdict_too(cluster: Cluster, tmp_path: Path, kind: str) -> None:
    blob, wrong = BAD[kind]
    path = write(tmp_path / "model.safetensors", blob)
    done = cluster.cli("put", str(path), "b05/cli", check=False)
    assert done.returncode == 1
    assert wrong in done.stderr and str(path) in done.stderr and "BadCheckpoint" in done.stderr


def test_b05_a_renamed_pickle_is_named_in_a_folder_without_safetensors(rt: tc.Runtime, tmp_path: Path) -> None:
    write(tmp_path / "pytorch_model.bin", NOT_CHECKPOINTS["zip"][0])
    with pytest.raises(BadCheckpoint, match=r"pytorch_model\.bin.*convert"):
        rt.put(tmp_path, "b05/bin")
    with pytest.raises(BadCheckpoint, match="zip archive"):
        rt.put(tmp_path / "pytorch_model.bin", "b05/bin")
