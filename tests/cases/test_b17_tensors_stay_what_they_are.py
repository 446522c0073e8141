"""B17: a tensor that is kept stays exact, whatever the pool does meanwhile: owning is what a caller gets."""

from __future__ import annotations

import gc
import random
import threading
from pathlib import Path

import pytest
import torch

import tensorcast as tc
from tensorcast.errors import NotFound, StillBorrowed
from tests.cases.every_way import facts
from tests.support.cluster import Cluster

FILLER_BYTES = 64 << 20


def hundred(seed: int) -> dict[str, torch.Tensor]:
    dice = random.Random(seed)
    return {
        f"t{n}": torch.full((dice.randint(1, 60_000),), n, dtype=dice.choice([torch.uint8, torch.int32, torch.int64]))
        for n in range(100)
    }


def churn(rt: tc.Runtime, round_: int) -> None:
    """Fills most of the pool with other bytes, so that a block handed out too early would be seen."""
    names = [f"b17/filler/{round_}/{n}" for n in range(5)]
    for name in names:
        rt.put(torch.full((FILLER_BYTES,), 0xEE, dtype=torch.uint8), name)
    for name in names:
        rt.delete(name)


def test_b17_tensors_collected_and_kept_are_exact_after_delete_and_refill(rt: tc.Runtime) -> None:
    wanted = hundred(1)
    stored = rt.put(wanted, "b17/kept")
    kept = stored.tensor_dict()
    one_by_one = {n: rt.artifact("b17/kept").tensor(n) for n in random.Random(2).sample(sorted(wanted), 20)}
    del stored
    rt.delete("b17/kept")
    with pytest.raises(NotFound):
        rt.artifact("b17/kept").tensor_dict()
    for round_ in range(3):
        churn(rt, round_)
    assert facts(kept) == facts(wanted)
    assert facts(one_by_one) == facts({n: wanted[n] for n in one_by_one})


def test_b17_a_slow_consumer_thread_finds_what_it_was_given(rt: tc.Runtime) -> None:
    wanted = hundred(3)
    found = rt.put(wanted, "b17/slow").tensor_dict()
    rt.delete("b17/slow")
    go = threading.Event()
    seen: dict[str, torch.Tensor] = {}

    def consume() -> None:
        go.wait(60)
        for name in list(found):
            seen[name] = found.pop(name)

    consumer = threading.Thread(target=consume)
    consumer.start()
    churn(rt, 10)
    go.set()
    consumer.join(60)
    assert facts(seen) == facts(wanted)


def test_b17_a_view_of_a_tensor_keeps_its_memory(rt: tc.Runtime) -> None:
    stored = rt.put(torch.arange(1 << 20), "b17/view")
    part = stored.tensor()[1000:2000].reshape(10, 100)[3]
    rt.delete("b17/view")
    gc.collect()
    churn(rt, 20)
    assert torch.equal(part, torch.arange(1300, 1400))


def test_b17_release_is_refused_while_tensors_live(rt: tc.Runtime) -> None:
    stored = rt.put(hundred(4), "b17/release")
    found = stored.tensor_dict()
    with pytest.raises(StillBorrowed, match="100 tensors"):
        stored.release()
    assert int(found["t7"][0]) == 7
    part = found["t8"][:1]
    found.clear()
    with pytest.raises(StillBorrowed, match="1 tensors"):
        stored.release()
    assert int(part[0]) == 8
    del part
    stored.release()


def test_b17_writing_to_a_tensor_is_seen_by_nobody_else(rt: tc.Runtime, cluster: Cluster, tmp_path: Path) -> None:
    for name, count in (("small", 100), ("large", 1 << 20)):
        wanted = torch.arange(count)
        stored = rt.put(wanted, f"b17/private/{name}")
        mine = stored.tensor()
        mine.zero_()
        assert torch.equal(stored.tensor(), wanted), "the next call on the same handle"
        with cluster.connect() as other:
            assert torch.equal(other.artifact(stored.art_id).tensor(), wanted)
        stored.save(tmp_path / "x.safetensors")
        assert torch.equal(tc.load_file(tmp_path / "x.safetensors")["tensor"], wanted)
        assert int(mine.sum()) == 0
