"""Views on a real cluster: over the map where the base is in the pool, and else only their own bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tensorcast as tc
from tensorcast.errors import (
    AlreadyExists,
    BadCheckpoint,
    FormatMismatch,
    LeaseLost,
    NoReplica,
    NotFound,
    SliceMismatch,
)
from tests.support.cluster import Cluster, running_cluster, smaps_of

MIB = 1 << 20
CUT = {"w": (slice(100, 300), slice(8, 24)), "b": (slice(-16, None),)}
CUT_BYTES = 200 * 16 * 2 + 16 * 4


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A pool that two big artifacts do not fit into."""
    settings = {"storage.host_bytes_max": "96MiB", "storage.prefault_ahead_bytes": "8MiB"}
    with running_cluster(tmp_path_factory.mktemp("small"), name="small", settings=settings) as started:
        yield started


@pytest.fixture
def small_rt(small: Cluster) -> Iterator[tc.Runtime]:
    with small.connect() as runtime:
        yield runtime


@pytest.fixture
def truth() -> dict[str, torch.Tensor]:
    """33 MiB, of which a view wants a few KiB."""
    generator = torch.Generator().manual_seed(5)
    return {
        "w": torch.randn(4096, 4096, generator=generator).to(torch.bfloat16),
        "b": torch.arange(4096, dtype=torch.int32),
        "big": torch.randint(0, 255, (MIB,), dtype=torch.uint8, generator=generator),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 7),
    }


def cut(truth: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: truth[name][slices] for name, slices in CUT.items()}


def check(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        assert tensor.dtype == wanted[name].dtype and torch.equal(tensor, wanted[name]), name


def bytes_read(cluster: Cluster) -> int:
    """What the storage's process has read by system calls, from files or elsewhere."""
    lines = Path(f"/proc/{cluster.pid('storage-a')}/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar:")))


def away(runtime: tc.Runtime, art_id: str) -> bool:
    return runtime._session.describe(art_id).state == "away"


def push_out(runtime: tc.Runtime, art_id: str) -> None:
    """Puts others until the artifact has left the pool."""
    for number in range(8):
        if away(runtime, art_id):
            break
        runtime.put(torch.full((24 * MIB,), number, dtype=torch.uint8), f"views/filler@{number}")
    assert away(runtime, art_id)
    for row in runtime.list_artifacts("views/filler@"):
        runtime.delete(row.art_id)


def test_a_view_of_what_is_in_the_pool_is_strided_and_copies_nothing(
    rt: tc.Runtime, cluster: Cluster, truth: dict[str, torch.Tensor]
) -> None:
    rt.put(truth, "views/local@1")
    views = cluster.storage_stats().views
    view = rt.artifact("views/local@1").view({**CUT, "scalar": (), "empty": ()})
    found = view.tensor_dict()
    check(found, {**cut(truth), "scalar": truth["scalar"], "empty": truth["empty"]})
    assert found["w"].stride() == (4096, 1) and not found["w"].is_contiguous()
    assert view.stats is not None and view.stats.bytes_moved == 0
    assert cluster.storage_stats().views == views
    assert smaps_of(os.getpid(), needle="/memfd:")["Anonymous"] < MIB
    found["w"].zero_()
    check(view.tensor_dict(), {**cut(truth), "scalar": truth["scalar"], "empty": truth["empty"]})
    rt.delete("views/local@1")


def test_a_view_of_a_view_is_one_view(rt: tc.Runtime, truth: dict[str, torch.Tensor]) -> None:
    rt.put(truth, "views/chain@1")
    first = rt.artifact("views/chain@1").view(CUT, rename={"w": "x"})
    second = first.view({"x": (slice(50, -50), slice(4, None))}, rename={"x": "y"})
    check(second.tensor_dict(), {"y": truth["w"][150:250, 12:24]})
    meta = second.tensor_meta()["y"]
    assert (meta.shape, meta.nbytes, meta.dtype, meta.digest) == ((100, 12), 2400, "BF16", "")
    rt.delete("views/chain@1")


def test_a_view_of_a_registered_file_reads_only_its_bytes(
    rt: tc.Runtime, cluster: Cluster, truth: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    file = tmp_path / "model.safetensors"
    save_file(truth, file)
    with rt.register(file, "views/file@1"):
        artifact = rt.artifact("views/file@1")
        view = artifact.view({**CUT, "scalar": (), "empty": ()})
        assert view.tensor_meta()["w"].shape == (200, 16) and away(rt, "views/file@1")
        before = bytes_read(cluster)
        found = view.tensor_dict()
        assert bytes_read(cluster) - before < MIB
        check(found, {**cut(truth), "scalar": truth["scalar"], "empty": truth["empty"]})
        assert all(t.is_contiguous() for t in found.values())
        assert view.stats is not None and view.stats.bytes_moved == CUT_BYTES + 4
        assert view.tensor("b").shape == (16,) and view.stats.bytes_moved == 64
        assert away(rt, "views/file@1") and cluster.storage_stats().views >= 2
        check(view.view(["b"]).tensor_dict(), {"b": truth["b"][-16:]})
        check(artifact.tensor_dict(), truth)  # now it is loaded, and the same handle's view is strided
        assert not view.tensor("w").is_contiguous() and view.stats.bytes_moved == 0
        assert artifact.tensor_meta()["w"].digest != ""


def test_a_view_of_registered_memory_shows_what_was_registered(rt: tc.Runtime, truth: dict[str, torch.Tensor]) -> None:
    with rt.register(truth, "views/memory@1"):
        check(rt.artifact("views/memory@1").view(CUT).tensor_dict(), cut(truth))


def test_a_view_of_registered_memory_never_shows_what_its_owner_wrote_later(
    rt: tc.Runtime, truth: dict[str, torch.Tensor]
) -> None:
    with rt.register(truth, "views/written@1"):
        truth["w"][100:300] = 7
        with pytest.raises(LeaseLost, match="views/written@1"):
            rt.artifact("views/written@1").view(CUT).tensor_dict()


def test_whole_tensors_of_what_lies_on_our_disk_are_read_alone(
    small_rt: tc.Runtime, small: Cluster, truth: dict[str, torch.Tensor]
) -> None:
    small_rt.put(truth, "views/parts@1", durable=True)
    push_out(small_rt, "views/parts@1")
    view = small_rt.artifact("views/parts@1").view(["big", "scalar", "empty"])
    before = bytes_read(small)
    check(view.tensor_dict(), {name: truth[name] for name in ("big", "scalar", "empty")})
    assert bytes_read(small) - before < 2 * MIB
    assert view.stats is not None and view.stats.bytes_moved == MIB + 4 and away(small_rt, "views/parts@1")
    small_rt.delete("views/parts@1")


@pytest.mark.parametrize("commit", [False, True])
def test_a_slice_of_what_lies_on_our_disk_is_right_or_an_error(
    small_rt: tc.Runtime, small: Cluster, truth: dict[str, torch.Tensor], commit: bool
) -> None:
    art_id = f"views/flipped-{commit}@1"
    small_rt.put(truth, art_id, durable=True)
    push_out(small_rt, art_id)
    view = small_rt.artifact(art_id).view(CUT, art_id.replace("@", "-part@") if commit else None)
    check(view.tensor_dict(), cut(truth))
    push_out(small_rt, art_id)
    for file in (small.folder / "storage-a" / "disk").glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            names = set(opened.keys())
            mine = "w" in names and opened.get_slice("w").get_shape() == [4096, 4096]
        if mine:
            flip(file, file.read_bytes().index(truth["w"][200, 8:24].view(torch.uint8).numpy().tobytes()))
    with pytest.raises((BadCheckpoint, NoReplica), match=art_id):
        again = small_rt.artifact(art_id).view(CUT, art_id.replace("@", "-more@") if commit else None)
        again.tensor_dict()
    small_rt.delete(art_id)


def flip(file: Path, offset: int) -> None:
    with file.open("r+b") as out:
        out.seek(offset)
        byte = out.read(1)[0]
        out.seek(offset)
        out.write(bytes([byte ^ 1]))


def test_a_view_of_what_was_evicted_reads_only_its_bytes(
    small_rt: tc.Runtime, small: Cluster, truth: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    file = tmp_path / "model.safetensors"
    save_file(truth, file)
    art_id = "views/evicted@1"
    small_rt.put(file, art_id)
    view = small_rt.artifact(art_id).view(CUT)
    check(view.tensor_dict(), cut(truth))
    assert view.stats is not None and view.stats.bytes_moved == 0
    push_out(small_rt, art_id)
    before = bytes_read(small)
    check(view.tensor_dict(), cut(truth))
    assert bytes_read(small) - before < MIB and view.stats.bytes_moved == CUT_BYTES
    assert away(small_rt, art_id)
    target = torch.full((210, 20), -1.0, dtype=torch.bfloat16)
    view.view(["w"]).copy_into({"w": target[5:205, 2:18]})
    assert torch.equal(target[5:205, 2:18], cut(truth)["w"])
    target[5:205, 2:18] = -1
    assert bool((target == -1).all())
    view.save(tmp_path / "part.safetensors")
    check(load_file(tmp_path / "part.safetensors"), cut(truth))
    assert away(small_rt, art_id)
    small_rt.delete(art_id)


def test_a_view_of_what_was_put_anew_is_not_found(
    rt: tc.Runtime, truth: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    file = tmp_path / "model.safetensors"
    save_file(truth, file)
    with rt.register(file, "views/anew@1"):
        stale = rt.artifact("views/anew@1").view(CUT)
        stale.tensor_meta()
    rt.put({**truth, "w": truth["w"] + 1}, "views/anew@1")
    with pytest.raises(NotFound, match="views/anew@1"):
        stale.tensor_dict()
    rt.delete("views/anew@1")


@pytest.mark.parametrize("source", ["pool", "file"])
def test_a_committed_view_is_an_artifact_of_its_own(
    rt: tc.Runtime, truth: dict[str, torch.Tensor], tmp_path: Path, source: str
) -> None:
    base, name = f"views/base-{source}@1", f"views/part-{source}@1"
    file = tmp_path / "model.safetensors"
    save_file(truth, file)
    lease = rt.register(file, base) if source == "file" else None
    if lease is None:
        rt.put(truth, base)
    wanted = {"x": truth["w"][100:300, 8:24], "big": truth["big"], "b": truth["b"][-16:], "scalar": truth["scalar"]}
    made = rt.artifact(base).view({**CUT, "big": (), "scalar": ()}, name, rename={"w": "x"})
    assert (made.art_id, made.outcome) == (name, "stored")
    check(made.tensor_dict(), wanted)
    again = rt.artifact(base).view({**CUT, "big": (), "scalar": ()}, name, rename={"w": "x"})
    assert again.outcome == "already_present"
    with pytest.raises(AlreadyExists):
        rt.artifact(base).view(["scalar"], name)
    assert all(meta.digest for meta in made.tensor_meta().values())
    if lease is not None:
        lease.release()
    else:
        rt.delete(base)
    check(rt.artifact(name).view({"x": (slice(0, 2),)}).tensor_dict(), {"x": wanted["x"][:2]})
    check(rt.artifact(name).tensor_dict(), wanted)
    rt.delete(name)


def test_a_view_through_an_alias_stays_with_what_it_first_meant(rt: tc.Runtime, truth: dict[str, torch.Tensor]) -> None:
    rt.put(truth, "views/aliased@1")
    rt.put({"b": torch.zeros(4096, dtype=torch.int32)}, "views/aliased@2")
    rt.set_alias("views/latest", "views/aliased@1")
    artifact = rt.artifact("views/latest")
    view = artifact.view({"b": (slice(5, 9),)})
    check(view.tensor_dict(), {"b": truth["b"][5:9]})
    rt.set_alias("views/latest", "views/aliased@2")
    check(view.tensor_dict(), {"b": truth["b"][5:9]})
    assert artifact.art_id == view.art_id == "views/aliased@1"
    assert rt.artifact("views/latest").view({"b": (slice(5, 9),)}).tensor().tolist() == [0] * 4
    rt.delete_alias("views/latest")
    rt.delete("views/aliased@1")
    rt.delete("views/aliased@2")


def test_faults_name_tensor_dimension_bounds_and_size(rt: tc.Runtime, truth: dict[str, torch.Tensor]) -> None:
    rt.put(truth, "views/faults@1")
    artifact = rt.artifact("views/faults@1")
    with pytest.raises(SliceMismatch, match=r"'w', dimension 1 of size 4096: 0:4097"):
        artifact.view({"w": (slice(None), slice(0, 4097))}).tensor_dict()
    with pytest.raises(SliceMismatch, match=r"slice\(3, 4\)"):
        artifact.view({"w": (3,)})  # type: ignore[dict-item]
    with pytest.raises(NotFound, match="nearest: scalar"):
        artifact.view(["scaler"]).tensor_dict()
    with pytest.raises(FormatMismatch, match="nothing was written"):
        artifact.view(["b"]).copy_into({"b": truth["b"][:5]})
    rt.delete("views/faults@1")
