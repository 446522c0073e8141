"""B16: a view is stored as the view: its own bytes, its own shape, not its base's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy
import pytest
import torch

import tensorcast as tc
from tests.cases.every_way import facts, facts_in_another_process
from tests.support.cluster import Cluster

BASE = torch.arange(24 * 32, dtype=torch.float32).reshape(24, 32)
COMPLEX = torch.view_as_complex(BASE.reshape(24, 16, 2).contiguous())
VIEWS: Mapping[str, torch.Tensor] = {
    "every other": BASE[::2],
    "transposed": BASE.T,
    "expanded": BASE[:1].expand(50, 32),
    "channels last": torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "narrow of a huge base": torch.arange(1 << 20)[1000:1003],
    "column": BASE[:, 3],
    "permuted": torch.arange(60.0).reshape(3, 4, 5).permute(2, 0, 1),
    "diagonal": BASE.diagonal(),
    "scalar of a base": BASE[3, 4],
    "empty of a base": BASE[:0],
    "conjugate": COMPLEX.conj(),
    "imaginary part of a conjugate": COMPLEX.conj().imag,
    "transposed conjugate": COMPLEX.T.conj(),
    "half as bytes": BASE.view(torch.uint8)[:, 1::4],
    "strided fp8": torch.randn(8, 8).to(torch.float8_e4m3fn)[:, ::2],
    "parameter": torch.nn.Parameter(BASE)[1:3],
}


@pytest.mark.parametrize("kind", sorted(VIEWS))
def test_b16_a_view_alone_comes_back_as_the_view(rt: tc.Runtime, cluster: Cluster, kind: str) -> None:
    view = VIEWS[kind]
    art_id = f"b16/{kind.replace(' ', '-')}"
    stored = rt.put(view, art_id)
    shown = view.detach().resolve_conj().resolve_neg()
    assert stored.stats is not None and stored.stats.bytes_total == view.numel() * view.itemsize
    assert facts({"tensor": stored.tensor()}) == facts({"tensor": shown})


def test_b16_all_views_in_one_put_come_back_in_another_process(rt: tc.Runtime, cluster: Cluster) -> None:
    stored = rt.put(VIEWS, "b16/all")
    assert stored.stats is not None
    assert stored.stats.bytes_total == sum(v.numel() * v.itemsize for v in VIEWS.values())
    shown = {n: v.detach().resolve_conj().resolve_neg() for n, v in VIEWS.items()}
    assert facts_in_another_process(cluster, "b16/all") == facts(shown)


def test_b16_numpy_views_with_negative_strides_come_back_as_the_view(rt: tc.Runtime, cluster: Cluster) -> None:
    base = numpy.arange(60, dtype=numpy.int16).reshape(3, 4, 5)
    views = {
        "reversed": base[::-1],
        "reversed inside": base[:, :, ::-2],
        "fortran": numpy.asfortranarray(base),
        "big-endian": base.astype(">i2"),
        "broadcast": numpy.broadcast_to(base[0], (7, 4, 5)),
        "scalar": base[1, 2, 3],
        "zero-dimensional": numpy.array(7, dtype=numpy.int16),
        "unaligned": numpy.frombuffer(b"\0" + base.tobytes(), dtype=numpy.uint8)[1:].view(numpy.int16),
    }
    stored = rt.put(views, "b16/numpy")
    wanted = {n: torch.from_numpy(numpy.array(v, dtype=numpy.int16)) for n, v in views.items()}
    assert facts_in_another_process(cluster, "b16/numpy") == facts(wanted)
    assert stored.stats is not None and stored.stats.bytes_total == sum(t.nbytes for t in wanted.values())


def test_b16_tied_names_are_stored_once_and_overlapping_views_apart(rt: tc.Runtime) -> None:
    tied = {"embed": BASE, "head": BASE, "transposed": BASE.T, "part": BASE[1:]}
    stored = rt.put(tied, "b16/tied")
    assert stored.stats is not None and stored.stats.bytes_total == BASE.nbytes * 2 + BASE[1:].nbytes
    found = stored.tensor_dict()
    assert facts(found) == facts(tied)
    found["embed"][0, 0] = -1
    assert found["head"][0, 0] == -1, "tied names share memory again"
    assert found["transposed"][0, 0] == 0 and found["part"][0, 0] == 32
