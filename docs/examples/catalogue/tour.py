"""A tour of the catalogue on the cluster that runs: versions, aliases, views, a lease, the disk.

tensorcast up --detach --set storage.disk_path="$HOME/tensorcast-disk"  # any folder on a disk
python docs/examples/catalogue/tour.py
"""

from __future__ import annotations

import secrets

import torch

import tensorcast as tc

LAYERS = 8
WIDTH = 1024


def weights(generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {f"layer.{n}.weight": torch.randn(WIDTH, WIDTH, generator=generator) for n in range(LAYERS)}


def moved(artifact: tc.Artifact) -> int:
    """Bytes that a put brought into the pool."""
    assert artifact.stats is not None
    return artifact.stats.bytes_moved


def main() -> None:
    name = f"tour/{secrets.token_hex(4)}"
    generator = torch.Generator().manual_seed(7)
    with tc.connect() as rt:
        state = weights(generator)
        first = moved(rt.put(state, f"{name}@1", durable=True))
        rt.set_alias(f"{name}/latest", f"{name}@1", expect=None)
        print(f"version 1: {first >> 20} MiB moved, on disk as well")

        state["layer.3.weight"] = state["layer.3.weight"] + 1
        second = moved(rt.put(state, f"{name}@2"))
        rt.set_alias(f"{name}/latest", f"{name}@2", expect=f"{name}@1")
        print(f"version 2: {second >> 20} MiB of {first >> 20} MiB moved")
        assert second < first / 4

        latest = rt.artifact(f"{name}/latest")
        rank = latest.view({"layer.3.weight": (slice(256, 512), slice(0, 128))}, rename={"layer.3.weight": "mine"})
        assert torch.equal(rank.tensor("mine"), state["layer.3.weight"][256:512, 0:128])
        print(f"a view of {latest.art_id}: {list(rank.tensor_meta()['mine'].shape)}, strided over the pool")

        rt.delete(f"{name}@1")
        assert torch.equal(rt.artifact(f"{name}@2").tensor("layer.0.weight"), state["layer.0.weight"])
        print("version 1 deleted; version 2 keeps what it borrowed")

        with rt.register(state, f"{name}/buffer", ttl_s=60) as lease:
            read = rt.artifact(lease.art_id).tensor("layer.3.weight")
        assert torch.equal(read, state["layer.3.weight"])
        try:
            rt.artifact(f"{name}/buffer").tensor("layer.3.weight")
        except tc.errors.LeaseLost as lost:
            print(f"the lease is over: {lost.text}")
        rt.delete_alias(f"{name}/latest")
        rt.delete(f"{name}@2")


if __name__ == "__main__":
    main()
