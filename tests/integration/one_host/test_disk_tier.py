"""The disk tier as a user meets it: durable puts, files that other tools open, and what a view of them reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.cluster import Cluster, running_cluster

MIB = 1 << 20


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of its own: its storage is killed, and its folder is looked into."""
    settings = {"storage.host_bytes_max": "96MiB", "storage.prefault_ahead_bytes": "8MiB"}
    with running_cluster(tmp_path_factory.mktemp("hurt"), name="hurt", settings=settings) as started:
        yield started


def states(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(512, 1024, generator=generator)
    return {
        "layer.weight": weight.to(torch.bfloat16),
        "layer.bias": torch.arange(7, dtype=torch.int64),
        "wide": torch.randn(300, 500, generator=generator, dtype=torch.float64),
        "empty": torch.empty(0, 4),
    }


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor) for name, tensor in wanted.items()
    )


def data_of(cluster: Cluster) -> set[Path]:
    return set((cluster.folder / "storage-a" / "disk").glob("*.safetensors"))


def killed(cluster: Cluster) -> None:
    cluster.wait_restarted("storage-a", cluster.kill("storage-a"))


def test_what_is_on_disk_opens_with_safetensors_and_survives_the_storage(hurt: Cluster, tmp_path: Path) -> None:
    truth, of_file = states(1), states(2)
    save_file(of_file, tmp_path / "model.safetensors")
    before = data_of(hurt)
    with hurt.connect() as rt:
        rt.put(truth, "disk/memory@1", durable=True)
        (written,) = data_of(hurt) - before
        assert same(load_file(written), truth)
        rt.put(tmp_path / "model.safetensors", "disk/file@1", durable=True)
        (copied,) = data_of(hurt) - before - {written}
        assert copied.read_bytes() == (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").unlink()
    killed(hurt)
    with hurt.connect() as rt:
        assert same(rt.artifact("disk/memory@1").tensor_dict(), truth)
        assert same(rt.artifact("disk/file@1").tensor_dict(), of_file)


def test_a_committed_view_on_disk_opens_with_safetensors(hurt: Cluster) -> None:
    truth = states(3)
    before = data_of(hurt)
    with hurt.connect() as rt:
        base = rt.put(truth, "disk/base@1")
        base.view({"layer.weight": (slice(10, 20), slice(0, 3)), "wide": ()}, "disk/view@1")
        rt.delete("disk/base@1")
        wanted = {"layer.weight": truth["layer.weight"][10:20, :3].contiguous(), "wide": truth["wide"]}
        # The id has this content already: what is added is the copy on disk.
        assert rt.put(wanted, "disk/view@1", durable=True).outcome == "already_present"
    files = [load_file(path) for path in data_of(hurt) - before]
    for name, tensor in wanted.items():
        assert any(name in file and torch.equal(file[name], tensor) for file in files), name
    killed(hurt)
    with hurt.connect() as rt:
        assert same(rt.artifact("disk/view@1").tensor_dict(), wanted)


def test_delta_versions_are_on_disk_once_and_come_back_from_there(hurt: Cluster) -> None:
    first = {f"layer.{i}": torch.full((MIB,), i, dtype=torch.uint8) for i in range(8)}
    second = first | {"layer.3": torch.full((MIB,), 33, dtype=torch.uint8)}
    before = hurt.storage_stats().disk_bytes
    with hurt.connect() as rt:
        rt.put(first, "disk/policy@1", durable=True)
        rt.put(second, "disk/policy@2", durable=True)
    assert hurt.storage_stats().disk_bytes - before < 10 * MIB, "what both have is there once"
    killed(hurt)
    with hurt.connect() as rt:
        assert same(rt.artifact("disk/policy@2").tensor_dict(), second)
        rt.delete("disk/policy@1")
        assert same(rt.artifact("disk/policy@2").tensor_dict(), second)
    killed(hurt)
    with hurt.connect() as rt:
        assert same(rt.artifact("disk/policy@2").tensor_dict(), second)


def test_three_times_the_pool_is_put_and_read_back_bit_for_bit(hurt: Cluster) -> None:
    with hurt.connect() as rt:
        for number in range(18):
            generator = torch.Generator().manual_seed(number)
            content = torch.randint(0, 255, (16 * MIB,), dtype=torch.uint8, generator=generator)
            rt.put(content, f"disk/big@{number}")
        for number in range(18):
            generator = torch.Generator().manual_seed(number)
            wanted = torch.randint(0, 255, (16 * MIB,), dtype=torch.uint8, generator=generator)
            assert torch.equal(rt.artifact(f"disk/big@{number}").tensor("tensor"), wanted)
        for number in range(18):
            rt.delete(f"disk/big@{number}")
    assert hurt.storage_stats().spills > 0
