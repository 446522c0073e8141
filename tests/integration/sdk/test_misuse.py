"""What callers do wrong, and what they run out of, comes back as an error of TensorCast that says so."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import msgspec
import pytest
import safetensors.torch
import torch

import tensorcast as tc
from tensorcast import local
from tensorcast.errors import BadCheckpoint, DeviceUnavailable, Invalid, TensorCastError
from tests.support.cluster import Cluster
from tests.unit.sdk.checkpoint_files import TWO, image


@pytest.mark.parametrize("given", [5, None, b"x", ["x"]])
def test_ids_and_names_that_are_no_strings_are_refused(rt: tc.Runtime, given: object) -> None:
    for call in (
        lambda: rt.artifact(given),  # type: ignore[arg-type]
        lambda: rt.delete(given),  # type: ignore[arg-type]
        lambda: rt.put(torch.ones(1), given),  # type: ignore[arg-type]
        lambda: rt.list_artifacts(given),  # type: ignore[arg-type]
    ):
        with pytest.raises(Invalid, match="is a string"):
            call()
    if given is not None:
        with pytest.raises(Invalid, match="the name of a tensor is a string"):
            rt.put(torch.ones(1), "misuse/name").tensor(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", [None, 1.5, [], ""])
def test_what_is_no_device_is_refused(rt: tc.Runtime, device: object) -> None:
    with pytest.raises(DeviceUnavailable, match="is no device"):
        rt.put(torch.ones(1), "misuse/device").tensor_dict(device)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/tmp/\0x", "/tmp/\ud800x"])
def test_what_is_no_path_is_refused(rt: tc.Runtime, path: str) -> None:
    with pytest.raises(BadCheckpoint):
        rt.put(path, "misuse/path")
    with pytest.raises(BadCheckpoint):
        tc.load_file(path)
    with pytest.raises(Invalid, match="cannot be a path"):
        rt.put(torch.ones(1), "misuse/save").save(path)


def test_a_file_whose_name_is_not_utf8_is_refused_with_what_to_do(rt: tc.Runtime, tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.safetensors")
    Path(name).write_bytes(image(TWO))
    for call in (lambda: rt.put(name, "misuse/name"), lambda: tc.load_file(name)):
        with pytest.raises(BadCheckpoint, match=r"not UTF-8.*rename"):
            call()
    with pytest.raises(BadCheckpoint, match="not UTF-8"):
        rt.put(tmp_path, "misuse/name")
    rt.put({"w": torch.ones(2)}, "misuse/saved").save(name)
    assert torch.equal(safetensors.torch.load(Path(name).read_bytes())["w"], torch.ones(2))


def test_a_deleted_working_folder_is_told(rt: tc.Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadCheckpoint, match="working folder was deleted"):
        rt.put("x.safetensors", "misuse/cwd")
    with pytest.raises(Invalid, match="working folder was deleted"):
        rt.put(torch.ones(1), "misuse/cwd").save("x.safetensors")


def test_a_manifest_beyond_the_limit_is_refused_with_both_figures(
    rt: tc.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert local.PART_BYTES_MAX == 64 << 20
    monkeypatch.setattr(local, "PART_BYTES_MAX", 10_000)
    tree = {f"{n:0100}": torch.ones(1) for n in range(200)}
    with pytest.raises(Invalid, match=r"manifest has \d{5} bytes for 200 tensors; the limit part_bytes_max is 10000"):
        rt.put(tree, "misuse/manifest")


SHORT = """
import resource, sys
import torch, tensorcast as tc
from tensorcast.errors import Unavailable
rt = tc.connect()
rt.artifact("misuse/short").tensor_meta()
tensor = torch.ones(1)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
for number, call in enumerate((
    lambda: rt.artifact("misuse/short").tensor(),
    lambda: rt.put(tensor, "misuse/short/2"),
    lambda: rt.put(sys.argv[1], "misuse/short/3"),
    lambda: rt.list_artifacts(),
    lambda: rt.artifact("misuse/short").save(sys.argv[1]),
    lambda: tc.connect(),
)):
    try:
        call()
    except Unavailable as error:
        assert "Too many open files" in str(error), error
    else:
        raise AssertionError(f"call {number} needed no descriptor")
"""


def test_a_process_without_descriptors_is_told_so(cluster: Cluster, rt: tc.Runtime, tmp_path: Path) -> None:
    rt.put(torch.ones(1 << 20), "misuse/short")
    path = tmp_path / "x.safetensors"
    path.write_bytes(image(TWO))
    cluster.python(SHORT, str(path))


SMALL = """
import os, resource
import torch, tensorcast as tc
from tensorcast.errors import Unavailable
rt = tc.connect()
handle = rt.artifact("misuse/memory")
handle.tensor_meta()
room = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + (8 << 20)
resource.setrlimit(resource.RLIMIT_AS, (room, room))
try:
    handle.tensor()
except Unavailable as error:
    assert "Cannot allocate memory" in str(error), error
else:
    raise AssertionError("it fitted")
"""


def test_a_process_without_room_to_map_is_told_so(cluster: Cluster, rt: tc.Runtime) -> None:
    rt.put(torch.ones(16 << 20), "misuse/memory")
    cluster.python(SMALL)
    rt.delete("misuse/memory")


class Held(msgspec.Struct, weakref=True):
    """Stands for a tensor in a caller's frame."""


def test_an_error_of_the_catalog_keeps_nothing_of_its_caller(rt: tc.Runtime) -> None:
    def caught(prefix: str) -> weakref.ref[Held]:
        held = Held()
        try:
            rt.list_artifacts(prefix)
        except TensorCastError:
            pass
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        assert caught("\ud800")() is None
    finally:
        gc.enable()
