"""B08: bool, integers, complex and fp8 are stored, sliced and saved exactly; what a file cannot say is said first."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tensorcast as tc
from tensorcast.errors import FormatMismatch
from tests.cases.every_way import facts, facts_in_another_process
from tests.support.cluster import Cluster

GIVEN = {
    "flags": torch.tensor([[True, False, True], [False, False, True]]),
    "i8": torch.arange(-6, 6, dtype=torch.int8).reshape(4, 3),
    "i64": torch.tensor([[1 << 62, -(1 << 63)], [0, -1]]),
    "c64": torch.tensor([[1 + 2j, -3j], [0.5 + 0j, complex("nan")]], dtype=torch.complex64),
    "f8": torch.arange(12, dtype=torch.float32).reshape(4, 3).to(torch.float8_e4m3fn),
    "scalar": torch.tensor(7, dtype=torch.int16),
}
WIDE = torch.tensor([[1 + 2j, 1e300 + 1e-300j], [-1j, 0]], dtype=torch.complex128)
ALL = GIVEN | {"c128": WIDE}


def test_b08_a_state_dict_of_every_type_comes_back_exactly(rt: tc.Runtime, cluster: Cluster) -> None:
    stored = rt.put(ALL, "b08/all")
    assert facts(stored.tensor_dict()) == facts(ALL)
    assert facts_in_another_process(cluster, "b08/all") == facts(ALL)
    assert {n: m.dtype for n, m in stored.tensor_meta().items()} == {
        "flags": "BOOL",
        "i8": "I8",
        "i64": "I64",
        "c64": "C64",
        "f8": "F8_E4M3",
        "scalar": "I16",
        "c128": "C128",
    }


def test_b08_they_are_saved_and_loaded_exactly(rt: tc.Runtime, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    rt.put(GIVEN, "b08/saved").save(path)
    assert facts(tc.load_file(path)) == facts(GIVEN)
    assert facts(rt.put(path, "b08/again").tensor_dict()) == facts(GIVEN)


def test_b08_conjugated_and_negated_views_are_stored_as_what_they_show(rt: tc.Runtime) -> None:
    shown = {"conj": WIDE.conj(), "imaginary": WIDE.conj().imag, "turned": GIVEN["c64"].T.conj()}
    for name, tensor in rt.put(shown, "b08/conj").tensor_dict().items():
        assert torch.equal(tensor.nan_to_num(), shown[name].resolve_conj().resolve_neg().nan_to_num()), name


def test_b08_slices_of_every_type_are_exact(rt: tc.Runtime) -> None:
    stored = rt.put(ALL, "b08/slices")
    for name, tensor in ALL.items():
        if tensor.dim() != 2:
            continue
        part = stored.view({name: (slice(1, 2), slice(0, 1))}).tensor(name)
        assert facts({"x": part}) == facts({"x": tensor[1:2, 0:1]}), name


def test_b08_what_the_file_format_lacks_is_named_before_anything_is_written(
    rt: tc.Runtime, cluster: Cluster, tmp_path: Path
) -> None:
    stored = rt.put(ALL, "b08/refused")
    with pytest.raises(FormatMismatch, match=r"'c128' is C128.*nothing was written"):
        stored.save(tmp_path / "x.safetensors")
    done = cluster.cli("get", "b08/refused", str(tmp_path / "x.safetensors"), check=False)
    assert done.returncode == 1 and "'c128' is C128" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_b08_nothing_is_lost_when_a_file_is_saved_over_another(rt: tc.Runtime, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    rt.put(GIVEN, "b08/first").save(path)
    before = path.read_bytes()
    with pytest.raises(FormatMismatch):
        rt.put(ALL, "b08/second").save(path)
    assert path.read_bytes() == before
