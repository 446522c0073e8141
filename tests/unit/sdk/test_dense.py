"""Contiguous copies made in steps: the same bytes as in one go, and a look at the deadline before each."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch

from tensorcast.checkpoint.header import read_header
from tensorcast.checkpoint.opened import OpenedFile
from tensorcast.deadline import DEADLINE_MS_MAX, Deadline
from tensorcast.drafts import dense
from tensorcast.drafts.dense import dense_array, dense_tensor
from tensorcast.drafts.intake import blocks_of
from tensorcast.errors import Timeout
from tensorcast.tensors import check_device, fill, tensors_of
from tensorcast.views.part import whole_parts
from tensorcast_bus.manifest import TensorRow
from tests.unit.sdk.checkpoint_files import TWO, image, write

UNHURRIED = Deadline(DEADLINE_MS_MAX, "test")


class Looks(Deadline):
    """Is over at the look after `looks_max`."""

    def __init__(self, looks_max: int) -> None:
        super().__init__(DEADLINE_MS_MAX, "test")
        self.left = looks_max

    def left_ms(self, phase: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise self.timeout(phase)
        return super().left_ms(phase)


def over() -> Deadline:
    made = Deadline(1_000, "test")
    made.running.given_up = True
    return made


BASE = torch.arange(24.0).reshape(2, 3, 4)
COMPLEX = torch.complex(BASE, BASE + 1)
STRIDED = {
    "transposed": BASE[0].t(),
    "permuted": BASE.permute(2, 0, 1),
    "every other": BASE[..., ::2],
    "expanded": BASE[:, :1].expand(2, 5, 4),
    "conjugate": COMPLEX.conj(),
    "negative": COMPLEX.conj().imag,
    "conjugate and transposed": COMPLEX[1].conj().t(),
    "shorts": BASE.to(torch.uint16).transpose(0, 1),
    "empty": torch.empty(3, 0).t(),
}


@pytest.mark.parametrize("step", [8, 20, 1 << 20])
@pytest.mark.parametrize("kind", sorted(STRIDED))
def test_steps_of_any_size_make_the_same_bytes(kind: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "STEP_BYTES_MAX", step)
    shown = STRIDED[kind]
    wanted = shown.resolve_conj().resolve_neg().contiguous()
    made = dense_tensor(shown, torch=torch, deadline=UNHURRIED)
    assert made.is_contiguous() and not made.is_conj() and not made.is_neg()
    assert (made.dtype, made.shape) == (wanted.dtype, wanted.shape) and torch.equal(made, wanted)
    if shown.dtype != torch.uint16 and kind not in ("conjugate", "negative", "conjugate and transposed"):
        array = shown.numpy()
        for given in (array, array.astype(array.dtype.newbyteorder(">"))[::-1]):
            copy = dense_array(given, numpy=numpy, deadline=UNHURRIED)
            assert copy.flags.c_contiguous and numpy.array_equal(copy, given)
            assert copy.tobytes() == given.astype(given.dtype.newbyteorder("<")).tobytes()


def test_what_is_dense_already_is_not_copied() -> None:
    array = numpy.arange(6).reshape(2, 3)
    assert dense_tensor(BASE, torch=torch, deadline=UNHURRIED) is BASE
    assert dense_array(array, numpy=numpy, deadline=UNHURRIED) is array


def test_a_deadline_ends_a_copy_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "STEP_BYTES_MAX", 80)
    for looks_max in (0, 1, 5):
        looks = Looks(looks_max)
        with pytest.raises(Timeout, match="contiguous"):
            dense_tensor(torch.zeros(10, 100).t(), torch=torch, deadline=looks)
        with pytest.raises(Timeout, match="contiguous"):
            dense_array(numpy.zeros((10, 100)).T, numpy=numpy, deadline=Looks(looks_max))


def test_a_deadline_ends_a_put_between_two_tensors() -> None:
    tree = {f"w{n}": torch.zeros(2) for n in range(100)}
    with pytest.raises(Timeout, match="taking apart"):
        blocks_of(tree, Looks(150))
    with pytest.raises(Timeout):
        blocks_of(torch.zeros(2), over())


def test_a_deadline_ends_the_reading_of_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", image(TWO))
    for looks_max in range(4):
        opened = OpenedFile(str(path))
        with pytest.raises(Timeout, match="reading the header"):
            read_header(opened, Looks(looks_max))
        opened.close()


def test_a_deadline_ends_the_making_and_filling_of_tensors() -> None:
    parts = whole_parts([TensorRow("e", "F32", (0,), 0, 0, 0)])
    with pytest.raises(Timeout, match="making the tensors"):
        tensors_of(None, parts, device=check_device("cpu"), deadline=over())
    target = torch.zeros(2)
    with pytest.raises(Timeout, match="filling"):
        fill({"w": target}, {"w": torch.ones(2)}, deadline=over())
    assert not target.any()
