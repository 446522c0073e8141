"""Leases on files: opened by their owner, read when somebody asks, and never once they changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

import tensorcast as tc
from tensorcast.errors import BadCheckpoint
from tests.integration.one_host.leased import ELEMENTS, check, ends, owner
from tests.support.cluster import Cluster


def checkpoint(path: Path, *, value: int = 0) -> Path:
    safetensors.torch.save_file(
        {f"w{n}": torch.full((ELEMENTS,), n + value, dtype=torch.int32) for n in range(4)}, path
    )
    return path


def test_a_registered_file_is_read_when_it_is_asked_for(rt: tc.Runtime, cluster: Cluster, tmp_path: Path) -> None:
    before = cluster.storage_stats()
    with owner(cluster, "le/file", path=str(checkpoint(tmp_path / "x.safetensors"))) as mine:
        assert mine.first["path"] == "file" and str(mine.first["digest"]).startswith("pending:")
        assert cluster.storage_stats().loads == before.loads
        handle = rt.artifact("le/file")
        assert handle.tensor_meta()["w1"].shape == (ELEMENTS,) and cluster.storage_stats().loads == before.loads
        check(handle.tensor_dict())
        record = rt.list_artifacts("le/file")[0]
        assert not record.digest.startswith("pending:") and record.ownership == "lease"
        check(handle.tensor_dict())
        mine.tell("release")
        ends(rt, "le/file")


def test_a_registered_file_that_was_unlinked_is_still_the_callers(
    rt: tc.Runtime, cluster: Cluster, tmp_path: Path
) -> None:
    path = checkpoint(tmp_path / "x.safetensors")
    with owner(cluster, "le/unlinked", path=str(path)):
        path.unlink()
        check(rt.artifact("le/unlinked").tensor_dict())


@pytest.mark.parametrize("how", ["rewritten", "truncated", "touched"])
def test_a_registered_file_that_changed_is_named_and_never_read(
    rt: tc.Runtime, cluster: Cluster, tmp_path: Path, how: str
) -> None:
    path = checkpoint(tmp_path / "x.safetensors")
    art_id = f"le/file/{how}"
    with owner(cluster, art_id, path=str(path)) as mine:
        if how == "rewritten":
            with path.open("r+b") as file:
                file.seek(-4, os.SEEK_END)
                file.write(b"\xff" * 4)
        elif how == "truncated":
            os.truncate(path, path.stat().st_size - 4)
        else:
            os.utime(path, ns=(1, 1))
        with pytest.raises(BadCheckpoint, match="changed"):
            rt.artifact(art_id).tensor_dict()
        ends(rt, art_id)
        assert mine.tell("renew")["error"] == "LeaseLost"
