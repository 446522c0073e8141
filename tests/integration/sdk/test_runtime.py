"""The runtime on a real cluster: handles, catalog, copies, saves and the async face."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

import tensorcast as tc
from tensorcast.errors import (
    BadCheckpoint,
    CapacityExceeded,
    DeviceUnavailable,
    FormatMismatch,
    Invalid,
    NoLocalStorage,
    NotConnected,
    NotFound,
)
from tests.support.cluster import Cluster
from tests.unit.sdk.checkpoint_files import image


def test_a_lone_tensor_needs_no_name_and_several_do(rt: tc.Runtime) -> None:
    assert torch.equal(rt.put(torch.arange(5), "rt/lone").tensor(), torch.arange(5))
    several = rt.put({"left": torch.zeros(1), "right": torch.ones(1)}, "rt/several")
    assert float(several.tensor("right")) == 1
    with pytest.raises(Invalid, match="2 tensors"):
        several.tensor()
    with pytest.raises(NotFound, match="nearest: right"):
        several.tensor("rigth")


def test_a_handle_of_nothing_says_so_at_its_first_use(rt: tc.Runtime) -> None:
    handle = rt.artifact("rt/never")
    for call in (handle.tensor_meta, handle.tensor_dict, handle.tensor):
        with pytest.raises(NotFound, match="rt/never"):
            call()
    with pytest.raises(NotFound, match="rt/never"):
        rt.delete("rt/never")
    with pytest.raises(Invalid, match="has spaces"):
        rt.artifact("has spaces")


def test_every_dtype_comes_back_as_it_was(rt: tc.Runtime) -> None:
    raw = torch.arange(64, dtype=torch.uint8)
    wanted = {
        str(d).removeprefix("torch."): raw.view(d) if d is not torch.bool else raw > 3
        for d in (
            *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64),
            *(torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
            *(torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
            *(torch.float8_e8m0fnu, torch.float4_e2m1fn_x2),
        )
    }
    stored = rt.put(wanted, "rt/dtypes")
    found, meta = stored.tensor_dict(), stored.tensor_meta()
    targets = {n: torch.zeros(t.nbytes, dtype=torch.uint8).view(t.dtype).view(t.shape) for n, t in wanted.items()}
    stored.copy_into(targets)
    for name, tensor in wanted.items():
        for got in (found[name], targets[name]):
            assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape), name
            assert torch.equal(got.view(torch.uint8), tensor.view(torch.uint8)), name
        assert meta[name].torch_dtype == tensor.dtype
    assert (meta["float4_e2m1fn_x2"].dtype, meta["float4_e2m1fn_x2"].shape) == ("F4", (128,))


def test_types_that_torch_lacks_travel_as_raw_bytes_with_their_name(rt: tc.Runtime, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(image({"six": ("F6_E3M2", [2, 4], b"abcdef")}))
    stored = rt.put(path, "rt/raw")
    meta, found = stored.tensor_meta(), stored.tensor_dict()
    assert (meta["six"].dtype, meta["six"].shape, meta["six"].torch_dtype) == ("F6_E3M2", (2, 4), None)
    assert bytes(found["six"].tolist()) == b"abcdef"
    stored.save(tmp_path / "again.safetensors")
    assert rt.put(tmp_path / "again.safetensors", "rt/raw").outcome == "already_present"


def test_copy_into_fills_strided_targets_and_leaves_what_lies_between(rt: tc.Runtime) -> None:
    wanted = torch.arange(12.0).reshape(3, 4)
    base = torch.full((6, 8), -1.0)
    rt.put({"w": wanted}, "rt/strided").copy_into({"w": base[::2, ::2]})
    assert torch.equal(base[::2, ::2], wanted)
    assert int((base == -1).sum()) == 36
    parameter = torch.nn.Parameter(torch.zeros(3, 4))
    rt.artifact("rt/strided").copy_into({"w": parameter})
    assert torch.equal(parameter, wanted) and parameter.grad_fn is None


def test_copy_into_is_strict_before_it_writes(rt: tc.Runtime) -> None:
    stored = rt.put({"a": torch.ones(2), "b": torch.ones(3), "c": torch.ones(4), "d": torch.ones(2, 2)}, "rt/strict")
    targets = {
        "a": torch.zeros(2),
        "b": torch.zeros(4),
        "c": torch.zeros(4, dtype=torch.int32),
        "d": torch.zeros(1, 2).expand(2, 2),
        "x": torch.zeros(1),
    }
    with pytest.raises(FormatMismatch) as caught:
        stored.copy_into(targets)
    for said in ("'b' is [4]", "torch.int32", "1 targets are not in the artifact: x", "'d' is expanded"):
        assert said in str(caught.value)
    with pytest.raises(FormatMismatch, match="1 tensors have no target: b"):
        stored.copy_into({n: torch.zeros_like(t) for n, t in stored.tensor_dict().items() if n != "b"})
    assert not any(int(t.count_nonzero()) for t in targets.values())


def test_copy_into_the_meta_device_is_refused(rt: tc.Runtime) -> None:
    with pytest.raises(FormatMismatch, match="meta device"):
        rt.put(torch.ones(2), "rt/meta").copy_into({"tensor": torch.empty(2, device="meta")})


def test_save_writes_a_file_that_others_read_and_keeps_metadata(rt: tc.Runtime, tmp_path: Path) -> None:
    source = tmp_path / "source.safetensors"
    wanted = {"w": torch.randn(300, 300), "e": torch.empty(0, 2), "u": torch.arange(3, dtype=torch.uint8)}
    safetensors.torch.save_file(wanted, source, metadata={"format": "pt", "made by": "a test"})
    rt.put(source, "rt/save").save(tmp_path / "saved.safetensors")
    found = safetensors.torch.load_file(tmp_path / "saved.safetensors")
    assert {n: (t.dtype, t.shape) for n, t in found.items()} == {n: (t.dtype, t.shape) for n, t in wanted.items()}
    assert all(torch.equal(found[n], wanted[n]) for n in wanted)
    with safetensors.safe_open(tmp_path / "saved.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "made by": "a test"}


def test_save_refuses_what_the_format_cannot_say_before_it_writes(rt: tc.Runtime, tmp_path: Path) -> None:
    base = torch.ones(3)
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"precious")
    for art_id, tree, said in (
        ("rt/c128", {"z": torch.ones(2, dtype=torch.complex128)}, "'z' is C128"),
        ("rt/tied", {"embed": base, "head": base}, "'embed' and 'head' are tied"),
    ):
        with pytest.raises(FormatMismatch, match=said):
            rt.put(tree, art_id).save(path)
    assert path.read_bytes() == b"precious" and os.listdir(tmp_path) == ["x.safetensors"]


def test_a_save_that_fails_leaves_nothing_behind(rt: tc.Runtime, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(Invalid, match="is a directory"):
        rt.put(torch.ones(3), "rt/save-fails").save(tmp_path / "folder")
    with pytest.raises(Invalid, match="No such file or directory"):
        rt.artifact("rt/save-fails").save(tmp_path / "nowhere" / "x")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_save_leaves_alone_what_is_no_regular_file(rt: tc.Runtime, tmp_path: Path) -> None:
    stored = rt.put(torch.ones(3), "rt/save-over")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link to pipe").symlink_to("pipe")
    # A terminal of our own: no file can be made in its folder, so that a failure here destroys no device of the host.
    main, terminal = os.openpty()
    device = os.ttyname(terminal)
    for target, kind in (("pipe", "a pipe"), ("link to pipe", "a pipe"), (device, "a character device")):
        with pytest.raises(Invalid, match=f"{kind}, not a regular file.*pipe that"):
            stored.save(tmp_path / target)
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link to pipe").is_symlink()
    assert Path(device).is_char_device()
    os.close(main)
    os.close(terminal)
    assert sorted(os.listdir(tmp_path)) == ["link to pipe", "pipe"]


def test_a_save_over_a_link_keeps_the_link_and_replaces_its_target(rt: tc.Runtime, tmp_path: Path) -> None:
    stored = rt.put({"w": torch.ones(3)}, "rt/save-link")
    (tmp_path / "there").mkdir()
    for name, before in (("old", b"old"), ("new", None)):
        target, link = tmp_path / "there" / name, tmp_path / name
        if before is not None:
            target.write_bytes(before)
        link.symlink_to(target)
        stored.save(link)
        assert link.is_symlink() and not target.is_symlink()
        assert torch.equal(safetensors.torch.load_file(target)["w"], torch.ones(3))
    assert sorted(os.listdir(tmp_path / "there")) == ["new", "old"]


def test_the_catalog_is_listed_by_prefix_in_order(rt: tc.Runtime) -> None:
    for name in ("b", "a", "c/d"):
        rt.put(torch.ones(8), f"rt/list/{name}")
    found = rt.list_artifacts("rt/list/")
    assert [r.art_id for r in found] == ["rt/list/a", "rt/list/b", "rt/list/c/d"]
    assert all((r.nbytes, r.tensors, r.places) == (32, 1, ("a:host",)) for r in found)
    rt.delete("rt/list/b")
    assert [r.art_id for r in rt.list_artifacts("rt/list/")] == ["rt/list/a", "rt/list/c/d"]
    assert rt.list_artifacts("rt/none") == []


def test_a_put_that_does_not_fit_says_how_much_is_free(rt: tc.Runtime) -> None:
    with pytest.raises(CapacityExceeded, match="free"):
        rt.put(torch.zeros(600 << 20, dtype=torch.uint8), "rt/too-big")
    assert rt.list_artifacts("rt/too-big") == []
    assert rt.put(torch.zeros(1), "rt/too-big").outcome == "stored"


def test_a_durable_put_is_on_disk_when_it_returns(rt: tc.Runtime) -> None:
    for given, art_id in ((torch.arange(1 << 18), "rt/durable"), (torch.zeros(1), "rt/durable/small")):
        assert rt.put(given, art_id, durable=True).outcome == "stored"
        places = {place.rpartition(":")[2] for place in rt.list_artifacts(art_id)[0].places}
        assert places == {"disk", "host"}, art_id


@pytest.mark.parametrize("device", ["cuda:99", "mps", "meta", "nonsense"])
def test_a_device_that_is_not_there_is_refused(rt: tc.Runtime, device: str) -> None:
    stored = rt.put(torch.zeros(1), "rt/device")
    with pytest.raises(DeviceUnavailable, match=r"cpu"):
        stored.tensor_dict(device)


def test_a_file_put_twice_and_by_another_link_is_recognised_without_reading(rt: tc.Runtime, tmp_path: Path) -> None:
    source = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"w": torch.randn(100)}, source)
    (tmp_path / "link").symlink_to(source)
    first = rt.put(source, "rt/file")
    assert first.outcome == "stored" and first.stats is not None and first.stats.path == "file"
    for again in (source, tmp_path / "link", str(source)):
        assert rt.put(again, "rt/file").outcome == "already_present"
    (record,) = rt.list_artifacts("rt/file")
    assert set(record.places) == {"a:host", "a:file"}


def test_load_file_imports_once_and_sees_a_rewritten_file(rt: tc.Runtime, tmp_path: Path) -> None:
    source = tmp_path / "x.safetensors"
    for value in (1.0, 2.0):
        safetensors.torch.save_file({"w": torch.full((100,), value)}, source)
        for _ in range(2):
            assert torch.equal(tc.load_file(source)["w"], torch.full((100,), value))
    with pytest.raises(BadCheckpoint, match="No such file"):
        tc.load_file(tmp_path / "nothing.safetensors")


async def test_the_async_face_does_the_same(cluster: Cluster, tmp_path: Path) -> None:
    async with await tc.aconnect(name=cluster.name) as rt:
        stored = await rt.put({"w": torch.arange(10)}, "rt/async")
        assert stored.outcome == "stored" and stored.stats is not None
        handle = rt.artifact("rt/async")
        assert torch.equal((await handle.tensor_dict())["w"], torch.arange(10))
        assert (await handle.tensor_meta())["w"].dtype == "I64"
        target = torch.zeros(10, dtype=torch.int64)
        await handle.copy_into({"w": target})
        assert torch.equal(target, await handle.tensor())
        await handle.save(tmp_path / "x.safetensors")
        await handle.release()
        assert [r.art_id for r in await rt.list_artifacts("rt/async")] == ["rt/async"]
        await rt.delete("rt/async")
        with pytest.raises(NotFound):
            await handle.tensor_dict()


def test_a_closed_runtime_says_so_and_its_tensors_stay(cluster: Cluster) -> None:
    rt = cluster.connect()
    stored = rt.put(torch.arange(1 << 18), "rt/closed")
    mine = stored.tensor()
    rt.list_artifacts("rt/closed")
    rt.close()
    rt.close()
    for call in (stored.tensor, lambda: rt.list_artifacts(), lambda: rt.put(torch.ones(1), "rt/closed/2")):
        with pytest.raises(NotConnected, match="closed"):
            call()
    assert torch.equal(mine, torch.arange(1 << 18))


def test_a_runtime_by_url_finds_the_storage_of_this_host(cluster: Cluster) -> None:
    state = cluster.state()
    with tc.connect(state.nats_url) as rt:
        assert torch.equal(rt.put(torch.ones(2), "rt/by-url").tensor(), torch.ones(2))
    with pytest.raises(NotFound, match="its nodes: a"):
        tc.connect(name=cluster.name, node="elsewhere")


def test_on_a_host_without_a_storage_the_catalog_works_and_tensors_are_refused(
    cluster: Cluster, rt: tc.Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt.put(torch.ones(2), "rt/remote")
    state = cluster.state()
    url = state.nats_url.replace("nats://", f"nats://{state.nats_token}@")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with tc.connect(url) as remote:
        assert [r.art_id for r in remote.list_artifacts("rt/remote")] == ["rt/remote"]
        with pytest.raises(NoLocalStorage, match="no storage"):
            remote.artifact("rt/remote").tensor()
        with pytest.raises(NoLocalStorage):
            remote.put(torch.ones(1), "rt/remote/2")
        remote.delete("rt/remote")
        assert remote.list_artifacts("rt/remote") == []
    with pytest.raises(NoLocalStorage, match="no node 'a'"):
        tc.connect(url, node="a")


def test_an_address_where_nothing_listens_is_not_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotConnected, match=r"127\.0\.0\.1:1\b"):
        tc.connect("nats://127.0.0.1:1")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("TENSORCAST_CLUSTER", raising=False)
    with pytest.raises(NotConnected, match="tensorcast up"):
        tc.connect()
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    with pytest.raises(NotConnected, match=r"127\.0\.0\.1:1\b"):
        tc.connect()
