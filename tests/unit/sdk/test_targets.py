"""Caller buffers are judged before a byte is written: what is shared, folded or closed to writing is refused."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorcast.deadline import DEADLINE_MS_MAX, Deadline
from tensorcast.errors import FormatMismatch, Timeout
from tensorcast.targets import check_targets as judge
from tensorcast.tensors import fill
from tensorcast.views.part import Part, whole_parts
from tensorcast_bus.manifest import TensorRow

UNHURRIED = Deadline(DEADLINE_MS_MAX, "test")


def check_targets(targets: Mapping[str, torch.Tensor], parts: Iterable[Part], art_id: str) -> None:
    judge(targets, parts, art_id, deadline=UNHURRIED)


def parts(*shapes: tuple[int, ...], dtype: str = "F32") -> tuple[Part, ...]:
    rows = [TensorRow(n, dtype, s, 0, 4096 * at, 4) for at, (n, s) in enumerate(zip("abcdefgh", shapes, strict=False))]
    return whole_parts(rows)


def refused(targets: Mapping[str, object], *shapes: tuple[int, ...], dtype: str = "F32") -> str:
    with pytest.raises(FormatMismatch, match="nothing was written") as caught:
        check_targets(targets, parts(*shapes, dtype=dtype), "model@1")  # type: ignore[arg-type]
    assert "'model@1'" in caught.value.text
    return caught.value.text


def test_every_problem_is_told_at_once() -> None:
    text = refused({"b": torch.zeros(2), "c": torch.zeros(3, dtype=torch.int32), "x": torch.zeros(1)}, (1,), (3,), (3,))
    for word in (
        "1 tensors have no target: a",
        "1 targets are not in the artifact: x",
        "'b' is [2]",
        "'c' is torch.int32",
    ):
        assert word in text


@pytest.mark.parametrize(
    ("target", "word"),
    [
        (torch.zeros(1).expand(4), "expanded"),
        (torch.zeros(8).as_strided((4, 2), (1, 1)), "strides"),
        (torch.zeros(8).as_strided((2, 3), (2, 1)), "strides"),
        (torch.zeros(4, device="meta"), "meta"),
        (torch.zeros(4).to_sparse(), "layout"),
        (torch.zeros(4).numpy(), "ndarray"),
        (None, "NoneType"),
    ],
)
def test_what_cannot_be_filled_is_refused(target: object, word: str) -> None:
    shape = tuple(target.shape) if isinstance(target, torch.Tensor) else (4,)
    assert word in refused({"a": target}, shape)


def test_two_targets_over_the_same_memory_are_refused() -> None:
    buffer = torch.zeros(16)
    assert "'a' and 'b' share memory" in refused({"a": buffer[:8], "b": buffer[7:15]}, (8,), (8,))
    assert "share memory" in refused({"a": buffer, "b": buffer}, (16,), (16,))
    grid = buffer.view(4, 4)
    assert "'a' and 'b' share memory" in refused({"a": grid[:, 1], "b": grid[2]}, (4,), (4,))
    array = buffer.numpy()
    assert "share memory" in refused({"a": torch.from_numpy(array[:4]), "b": buffer[3:5]}, (4,), (2,))


def test_targets_side_by_side_in_one_buffer_are_taken() -> None:
    grid = torch.zeros(6, 8)
    check_targets({"a": grid[:, :3], "b": grid[:, 3:], "c": torch.zeros(0)}, parts((6, 3), (6, 5), (0,)), "x")
    check_targets({"a": grid[::2], "b": grid[1::2]}, parts((3, 8), (3, 8)), "x")
    check_targets({"a": grid.t()}, parts((8, 6)), "x")


def test_tied_tensors_may_go_to_one_target() -> None:
    row = TensorRow("a", "F32", (4,), 0, 64, 16)
    tied = whole_parts([row, TensorRow("b", "F32", (4,), 0, 64, 16)])
    target = torch.zeros(4)
    check_targets({"a": target, "b": target}, tied, "x")
    buffer = torch.zeros(5)
    with pytest.raises(FormatMismatch, match="share memory"):
        check_targets({"a": buffer[:4], "b": buffer[1:]}, tied, "x")


strided = st.tuples(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 12)), min_size=1, max_size=3), st.integers(0, 20)
)


@settings(max_examples=300, deadline=None)
@given(strided, strided)
def test_sharing_is_told_exactly(
    one: tuple[list[tuple[int, int]], int], other: tuple[list[tuple[int, int]], int]
) -> None:
    buffer = torch.arange(200.0)
    made = []
    for dims, offset in (one, other):
        made.append(buffer.as_strided([n for n, _ in dims], [s for _, s in dims], offset))
    places = [sorted(map(int, t.flatten())) for t in made]
    targets = dict(zip("ab", made, strict=True))
    folded = any(len(set(p)) < len(p) for p in places)
    shares = bool(set(places[0]) & set(places[1]))
    try:
        check_targets(targets, parts(*(tuple(t.shape) for t in made)), "x")
    except FormatMismatch as error:
        # Strides that interleave without meeting are refused too; nothing in use has them.
        assert folded or shares or "strides" in error.text
    else:
        assert not folded and not shares


def test_memory_that_may_only_be_read_is_refused_and_does_not_kill() -> None:
    with mmap.mmap(-1, 2 * mmap.PAGESIZE) as region:
        closed = torch.frombuffer(region, dtype=torch.float32)
        address = closed.data_ptr()
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(address + mmap.PAGESIZE), mmap.PAGESIZE, mmap.PROT_READ) == 0
        page = mmap.PAGESIZE // 4
        assert "only read" in refused({"a": closed}, (2 * page,))
        assert "only read" in refused({"a": closed[page - 1 : page + 1]}, (2,))
        check_targets({"a": closed[:page]}, parts((page,)), "x")
        del closed


def test_filling_writes_the_target_and_nothing_around_it() -> None:
    source = torch.arange(12.0).view(3, 4)
    buffer = torch.full((7, 9), -1.0)
    target = buffer[2:5, 3:7]
    check_targets({"a": target}, parts((3, 4)), "x")
    fill({"a": target}, {"a": source}, deadline=UNHURRIED)
    assert torch.equal(target, source)
    guard = torch.ones_like(buffer, dtype=torch.bool)
    guard[2:5, 3:7] = False
    assert bool((buffer[guard] == -1).all())


def test_leaves_that_require_grad_are_filled() -> None:
    leaf = torch.zeros(4, requires_grad=True)
    parameter = torch.nn.Parameter(torch.zeros(4))
    check_targets({"a": leaf, "b": parameter}, parts((4,), (4,)), "x")
    fill({"a": leaf, "b": parameter}, {"a": torch.ones(4), "b": torch.ones(4)}, deadline=UNHURRIED)
    assert leaf.requires_grad and leaf.is_leaf and torch.equal(leaf.detach(), torch.ones(4))
    assert torch.equal(parameter.detach(), torch.ones(4))


def test_targets_made_in_inference_mode_are_filled() -> None:
    with torch.inference_mode():
        target = torch.zeros(4)
    check_targets({"a": target}, parts((4,)), "x")
    fill({"a": target}, {"a": torch.ones(4)}, deadline=UNHURRIED)
    assert torch.equal(target, torch.ones(4))


def test_thousands_of_columns_of_one_buffer_are_told_apart_and_one_that_strays_is_found() -> None:
    grid = torch.zeros(8, 4 * 2000)
    shapes = {f"c{n}": TensorRow(f"c{n}", "F32", (8, 4), 0, 128 * n, 128) for n in range(2000)}
    columns = {f"c{n}": grid[:, 4 * n : 4 * n + 4] for n in range(2000)}
    check_targets(columns, whole_parts(shapes.values()), "x")
    columns["c7"] = grid[:, 4 * 1500 + 1 : 4 * 1500 + 5]
    with pytest.raises(FormatMismatch, match=r"'c1500' and 'c7' share memory; 'c7' and 'c1501' share memory"):
        check_targets(columns, whole_parts(shapes.values()), "x")


def test_the_look_at_the_targets_keeps_the_deadline() -> None:
    over = Deadline(1_000, "test")
    over.running.given_up = True
    with pytest.raises(Timeout, match="looking at the targets"):
        judge({"a": torch.zeros(4)}, parts((4,)), "x", deadline=over)
