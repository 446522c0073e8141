"""Taking apart what a caller puts: names, ties, views, and every kind of tensor that must be refused by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch

from tensorcast.deadline import DEADLINE_MS_MAX, Deadline
from tensorcast.drafts.draft import memory_at
from tensorcast.drafts.intake import NAME_BYTES_MAX, Block, blocks_of
from tensorcast.errors import BadCheckpoint


def taken_apart(x: object) -> list[Block]:
    return blocks_of(x, Deadline(DEADLINE_MS_MAX, "test"))


def block(x: object) -> Block:
    (found,) = taken_apart(x)
    return found


def content(found: Block) -> bytes:
    return bytes(memory_at(found.address, found.nbytes)) if found.nbytes else b""


def test_a_lone_tensor_is_called_tensor() -> None:
    assert block(torch.zeros(2)).name == block(numpy.zeros(2)).name == "tensor"


def test_nested_keys_join_with_points() -> None:
    found = taken_apart({"a": {"b": {"c": torch.zeros(1)}, "d": torch.zeros(1)}, "e": torch.zeros(1)})
    assert [b.name for b in found] == ["a.b.c", "a.d", "e"]


def test_two_paths_to_one_name_are_refused_with_both() -> None:
    with pytest.raises(BadCheckpoint) as caught:
        taken_apart({"a.b": torch.zeros(1), "a": {"b": torch.zeros(1)}})
    assert "'a.b'" in str(caught.value) and "'a' / 'b'" in str(caught.value)


def test_a_module_is_its_state_dict_with_its_ties() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    module[1].weight = module[0].weight
    found = {b.name: b for b in taken_apart(module)}
    assert set(found) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert found["0.weight"].tie == found["1.weight"].tie
    assert found["0.bias"].tie != found["1.bias"].tie


def test_tied_tensors_that_need_a_copy_are_copied_once() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    first, second = taken_apart({"a": base.T, "b": base.T})
    assert first.tie == second.tie and first.address == second.address
    assert (first.copied, second.copied) == (48, 0)


def test_the_same_memory_shown_differently_is_not_tied() -> None:
    base = torch.arange(16, dtype=torch.float32).reshape(4, 4)
    shown = {
        "plain": base,
        "transposed": base.T,
        "flat": base.reshape(-1),
        "part": base[:2],
        "as int": base.view(torch.int32),
    }
    assert len({b.tie for b in taken_apart(shown)}) == len(shown)


def test_a_conjugate_and_its_original_are_not_tied() -> None:
    value = torch.tensor([1 + 2j, 3 - 4j])
    plain, conj = taken_apart({"plain": value, "conj": value.conj()})
    assert plain.tie != conj.tie
    assert content(conj) == numpy.array([1 - 2j, 3 + 4j], dtype=numpy.complex64).tobytes()


def test_a_contiguous_view_of_a_base_is_taken_without_a_copy() -> None:
    base = torch.arange(1000)
    found = block(base[10:20])
    assert (found.copied, found.nbytes) == (0, 80)
    assert found.address == base.data_ptr() + 80


def test_empty_tensors_are_never_tied() -> None:
    first, second = taken_apart({"a": torch.empty(0), "b": torch.empty(0, 3)})
    assert (first.shape, second.shape) == ((0,), (0, 3))


def test_f4_pairs_have_their_logical_shape() -> None:
    pairs = torch.arange(6, dtype=torch.uint8).reshape(2, 3).view(torch.float4_e2m1fn_x2)
    found = block(pairs)
    assert (found.dtype, found.shape, found.nbytes) == ("F4", (2, 6), 6)
    with pytest.raises(BadCheckpoint, match="0-d"):
        taken_apart(pairs[0, 0])


@pytest.mark.parametrize("order", ["<", ">", "="])
def test_arrays_of_either_byte_order_are_stored_little_endian(order: str) -> None:
    found = block(numpy.arange(5).astype(f"{order}i4"))
    assert (found.dtype, content(found)) == ("I32", numpy.arange(5, dtype="<i4").tobytes())
    assert found.copied == (20 if order == ">" else 0)


def test_numpy_scalars_and_zero_dimensional_arrays_keep_their_shape() -> None:
    for value in (numpy.float32(1.5), numpy.array(1.5, dtype=numpy.float32)):
        found = block(value)
        assert (found.dtype, found.shape, content(found)) == ("F32", (), numpy.float32(1.5).tobytes())


class Wrapper(torch.Tensor):
    """As sharded, fake and quantizing libraries make them: it has a shape, and bytes only elsewhere."""

    @classmethod
    def __torch_dispatch__(cls, *asked: object) -> object:
        raise AssertionError("nothing may be computed with it")


def _wrapper() -> torch.Tensor:
    made: torch.Tensor = torch.Tensor._make_wrapper_subclass(Wrapper, (3,), dtype=torch.float32)
    return made


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "quantized": (lambda: torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8), "quantized"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "layout"),
    "compressed": (lambda: torch.eye(3).to_sparse_csr(), "layout"),
    "meta": (lambda: torch.empty(3, device="meta"), "meta device"),
    "wrapper": (_wrapper, "Wrapper"),
    "mkldnn": (lambda: torch.zeros(3).to_mkldnn(), "layout"),
    "nested": (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "nested"),
    "not initialised": (lambda: torch.nn.LazyLinear(3).weight, "not initialised"),
    "complex32": (lambda: torch.zeros(3, dtype=torch.complex32), "complex32"),
    "masked": (lambda: numpy.ma.masked_array([1, 2], [True, False]), "masked"),
    "objects": (lambda: numpy.array([object()]), "object"),
    "text": (lambda: numpy.array(["a"]), "<U1"),
    "records": (lambda: numpy.zeros(2, dtype=[("a", "i4")]), "a"),
    "dates": (lambda: numpy.array(["2020-01-01"], dtype="datetime64[D]"), "datetime64"),
    "number": (lambda: 3, "int"),
    "list": (lambda: [torch.zeros(1)], "list"),
    "none": (lambda: None, "NoneType"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_what_has_no_plain_bytes_is_refused_by_name(kind: str) -> None:
    make, said = REFUSED[kind]
    with pytest.raises(BadCheckpoint, match=r"layer\.w") as caught:
        taken_apart({"layer": {"w": make()}, "fine": torch.zeros(1)})
    assert said in str(caught.value)


def test_tensors_inside_a_function_transform_are_refused_by_name() -> None:
    def refused(value: torch.Tensor) -> torch.Tensor:
        with pytest.raises(BadCheckpoint, match=r"'layer\.w'.*function transform"):
            taken_apart({"layer": {"w": value}})
        return value.sum()

    torch.vmap(refused)(torch.ones(3, 2))
    torch.func.grad(refused)(torch.ones(3))


def test_names_that_cannot_be_are_refused() -> None:
    for tree, said in (
        ({1: torch.zeros(1)}, "int"),
        ({"__metadata__": torch.zeros(1)}, "__metadata__"),
        ({"\ud800": torch.zeros(1)}, "surrogate"),
        ({"x" * (NAME_BYTES_MAX + 1): torch.zeros(1)}, "name_bytes_max"),
    ):
        with pytest.raises(BadCheckpoint, match=said):
            taken_apart(tree)


def test_a_dict_that_holds_itself_is_refused() -> None:
    tree: dict[str, object] = {}
    tree["again"] = tree
    with pytest.raises(BadCheckpoint, match="nested deeper"):
        taken_apart(tree)
