"""What a put borrows, and what it says where the id is taken: bases by id and by alias, durable, committed views."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import tensorcast as tc
from tensorcast.errors import AlreadyExists, Invalid, NotFound

ELEMENTS = 1 << 19  # 2 MiB a tensor
STATE = {f"w{n}": torch.full((ELEMENTS,), n, dtype=torch.int32) for n in range(8)}
TENSOR_BYTES = 4 * ELEMENTS


@pytest.fixture(autouse=True)
def _clean(rt: tc.Runtime) -> Iterator[None]:
    yield
    for record in rt.list_artifacts("ve/"):
        rt.delete(record.art_id)


def moved(artifact: tc.Artifact) -> int:
    assert artifact.stats is not None and artifact.stats.bytes_total >= 8 * TENSOR_BYTES
    return artifact.stats.bytes_moved


def check(artifact: tc.Artifact, wanted: dict[str, torch.Tensor]) -> None:
    found = artifact.tensor_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[n], wanted[n]) for n in wanted)


def test_a_new_version_moves_what_changed_and_nothing_else(rt: tc.Runtime) -> None:
    assert moved(rt.put(STATE, "ve/auto@1")) >= 8 * TENSOR_BYTES
    second = STATE | {"w3": STATE["w3"] + 100}
    made = rt.put(second, "ve/auto@2")
    assert TENSOR_BYTES <= moved(made) < 2 * TENSOR_BYTES
    check(made, second)
    rt.delete("ve/auto@1")
    check(rt.artifact("ve/auto@2"), second)


def test_a_name_without_a_version_has_no_base_of_its_own_accord(rt: tc.Runtime) -> None:
    rt.put(STATE, "ve/plain@1")
    assert moved(rt.put(STATE, "ve/plain")) >= 8 * TENSOR_BYTES
    assert moved(rt.put(STATE | {"w0": STATE["w0"] + 9}, "ve/other", base="ve/plain")) < 2 * TENSOR_BYTES


def test_what_a_caller_says_has_changed_is_taken_from_it_and_the_rest_from_the_base(rt: tc.Runtime) -> None:
    rt.put(STATE, "ve/said@1")
    given = STATE | {"w1": STATE["w1"] + 5, "w2": STATE["w2"] + 5}
    check(rt.put(given, "ve/said@2", base="ve/said@1", changed=["w1", "w2"]), given)
    check(rt.put(given, "ve/said@3", base="ve/said@1", changed=("w2",)), given | {"w1": STATE["w1"]})
    with pytest.raises(Invalid, match="not given: w9"):
        rt.put(given, "ve/said@4", base="ve/said@1", changed=["w9"])


def test_a_base_that_nobody_knows_is_a_mistake_and_one_that_is_gone_is_none(rt: tc.Runtime) -> None:
    with pytest.raises(NotFound, match="ve/never"):
        rt.put(STATE, "ve/x@1", base="ve/never")
    rt.put(STATE, "ve/x@1")
    rt.delete("ve/x@1")
    assert moved(rt.put(STATE, "ve/x@2")) >= 8 * TENSOR_BYTES


def test_equal_content_is_already_present_with_and_without_a_base(rt: tc.Runtime) -> None:
    rt.put(STATE, "ve/same@1")
    rt.put(STATE, "ve/same@2")
    again = rt.put(STATE, "ve/same@2")
    assert (again.outcome, again.stats and again.stats.bytes_moved) == ("already_present", 0)
    with pytest.raises(AlreadyExists, match="ve/same@2"):
        rt.put(STATE | {"w0": STATE["w1"]}, "ve/same@2")


def test_durable_holds_also_for_what_is_there_already(rt: tc.Runtime) -> None:
    rt.put(STATE, "ve/durable")
    places = {place.rpartition(":")[2] for place in rt.list_artifacts("ve/durable")[0].places}
    assert "disk" not in places
    assert rt.put(STATE, "ve/durable", durable=True).outcome == "already_present"
    places = {place.rpartition(":")[2] for place in rt.list_artifacts("ve/durable")[0].places}
    assert {"disk", "host"} <= places
    check(rt.artifact("ve/durable"), STATE)


def test_a_view_whose_id_is_taken_is_compared_by_content(rt: tc.Runtime) -> None:
    grid = torch.arange(64 * 1024).reshape(64, 1024)
    base = rt.put({"grid": grid, "whole": grid + 1, "packed": torch.arange(16, dtype=torch.uint8)}, "ve/base")
    cut = (slice(8, 16), slice(100, 200))
    chosen = {"grid": cut, "whole": (), "packed": (slice(4, 12),)}
    view = base.view(chosen, "ve/view")
    assert view.outcome == "stored"
    assert torch.equal(view.tensor("grid"), grid[cut]) and torch.equal(view.tensor("whole"), grid + 1)
    assert base.view(chosen, "ve/view").outcome == "already_present"
    assert base.view(chosen).view(name="ve/view").outcome == "already_present"
    for other in ({"grid": cut}, chosen | {"grid": (slice(8, 16), slice(101, 201))}):
        with pytest.raises(AlreadyExists, match="ve/view"):
            base.view(other, "ve/view")
    with pytest.raises(AlreadyExists, match="ve/view"):
        base.view(chosen, "ve/view", rename={"grid": "mesh"})


async def test_the_async_face_views_and_puts_versions(rt: tc.Runtime) -> None:
    async with await tc.aconnect() as own:
        first = await own.put(STATE, "ve/async@1")
        second = await own.put(STATE | {"w0": STATE["w1"]}, "ve/async@2", base="ve/async@1", changed=["w0"])
        assert second.stats is not None and second.stats.bytes_moved < 2 * TENSOR_BYTES
        part = await first.view({"w5": (slice(0, 10),)})
        assert torch.equal(await part.tensor("w5"), STATE["w5"][:10])
        named = await part.view(name="ve/async/part")
        assert (named.outcome, named.art_id) == ("stored", "ve/async/part")
