"""B34: stored, already there with the same content, already there with other content: three results, never one "ok"."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import tensorcast as tc
from tensorcast.errors import AlreadyExists
from tests.support.cluster import Cluster
from tests.unit.sdk.checkpoint_files import image, write

A = {"w": torch.arange(1000), "b": torch.zeros(3)}
B = {"w": torch.arange(1000).flip(0), "b": torch.zeros(3)}


def test_b34_each_put_says_what_became_of_it(rt: tc.Runtime) -> None:
    first = rt.put(A, "b34/k")
    assert first.outcome == "stored" and first.stats is not None and first.stats.bytes_moved > 0
    with pytest.raises(AlreadyExists) as other:
        rt.put(B, "b34/k")
    again = rt.put({"b": A["b"].clone(), "w": A["w"].clone()}, "b34/k")
    assert again.outcome == "already_present" and again.stats is not None and again.stats.bytes_moved == 0
    with pytest.raises(AlreadyExists):
        rt.put(B, "b34/k")
    stored, given = str(other.value.context["stored"]), str(other.value.context["given"])
    assert stored != given and stored in str(other.value) and given in str(other.value)
    assert torch.equal(rt.artifact("b34/k").tensor("w"), A["w"])
    assert {r.digest for r in rt.list_artifacts("b34/k")} == {stored}


@pytest.mark.parametrize(
    "change",
    [
        {"w": A["w"].to(torch.int32)},  # dtype
        {"w": A["w"].reshape(10, 100)},  # shape, same bytes
        {"w": A["w"].view(torch.float64)},  # dtype, same bytes
        {"b": None},  # a name less
        {"c": torch.zeros(3)},  # a name more
        {"b": torch.tensor([0.0, -0.0, 0.0])},  # equal values, other bytes
    ],
)
def test_b34_any_difference_is_other_content(rt: tc.Runtime, change: dict[str, torch.Tensor | None]) -> None:
    art_id = "b34/difference"
    rt.put(A, art_id)
    other = {n: t for n, t in {**A, **change}.items() if t is not None}
    with pytest.raises(AlreadyExists):
        rt.put(other, art_id)
    assert torch.equal(rt.artifact(art_id).tensor("w"), A["w"])


def test_b34_content_decides_not_where_it_comes_from(rt: tc.Runtime, tmp_path: Path) -> None:
    entries = {"b": ("F32", [3], bytes(12)), "w": ("I64", [1000], A["w"].numpy().tobytes())}
    same = write(tmp_path / "same.safetensors", image(entries))
    other = write(tmp_path / "other.safetensors", image({**entries, "b": ("F32", [3], b"\1" + bytes(11))}))
    assert rt.put(A, "b34/memory-first").outcome == "stored"
    assert rt.put(same, "b34/memory-first").outcome == "already_present"
    with pytest.raises(AlreadyExists):
        rt.put(other, "b34/memory-first")
    assert rt.put(same, "b34/file-first").outcome == "stored"
    assert rt.put(same, "b34/file-first").outcome == "already_present"
    assert rt.put(A, "b34/file-first").outcome == "already_present"
    with pytest.raises(AlreadyExists):
        rt.put(B, "b34/file-first")
    with pytest.raises(AlreadyExists):
        rt.put(other, "b34/file-first")


def test_b34_a_file_rewritten_in_place_is_other_content(rt: tc.Runtime, tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", image({"w": ("U8", [4], b"abcd")}))
    rt.put(path, "b34/rewritten")
    write(path, image({"w": ("U8", [4], b"abcX")}))
    with pytest.raises(AlreadyExists):
        rt.put(path, "b34/rewritten")
    assert bytes(rt.artifact("b34/rewritten").tensor("w").tolist()) == b"abcd"


def test_b34_after_a_delete_the_id_may_have_other_content_and_old_handles_do_not_switch(rt: tc.Runtime) -> None:
    old = rt.put(A, "b34/again")
    kept = old.tensor("w")
    rt.delete("b34/again")
    assert rt.put(B, "b34/again").outcome == "stored"
    assert torch.equal(rt.artifact("b34/again").tensor("w"), B["w"])
    assert torch.equal(kept, A["w"])
    with pytest.raises(tc.errors.NotFound, match="other content"):
        old.tensor("w")


RACER = """
import sys, torch, tensorcast as tc
with tc.connect() as rt:
    try:
        print(rt.put({"w": torch.full((200_000,), int(sys.argv[2]))}, sys.argv[1]).outcome)
    except tc.errors.AlreadyExists:
        print("other")
"""


def test_b34_of_several_at_once_one_stores_and_the_others_are_told(cluster: Cluster, rt: tc.Runtime) -> None:
    with ThreadPoolExecutor(4) as pool:
        words = [1, 2, 1, 2]
        said = [d.stdout.strip() for d in pool.map(lambda w: cluster.python(RACER, "b34/race", str(w)), words)]
    winner = int(rt.artifact("b34/race").tensor("w")[0])
    assert said.count("stored") == 1
    assert [s for s, w in zip(said, words, strict=True) if w != winner] == ["other", "other"]
    assert sorted(s for s, w in zip(said, words, strict=True) if w == winner) == ["already_present", "stored"]
