"""A handle and its views: resolved once, one content, and no more asked of the storage than must be."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from tensorcast.artifact import Artifact
from tensorcast.errors import FormatMismatch, Invalid, LocalProtocolError, NotFound, SliceMismatch
from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, SourceFile, encode_manifest
from tensorcast_bus.notes import Box, ViewWish
from tests.unit.sdk.views.told import Content, Mapped, Told

TENSORS = (("a", "F32", (6, 4)), ("b", "BF16", (8,)), ("s", "F32", ()), ("e", "I8", (0, 3)))
CUT = {"a": (slice(1, 3), slice(0, 2)), "b": (slice(2, 8),)}


def handle(told: Told, name: str = "x") -> Artifact:
    return Artifact(told.session, name)


def same(tensor: torch.Tensor, content: Content, name: str, starts: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    blob = content.memory.cut(content.memory.rows[name], starts, shape)
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) == blob and tuple(tensor.shape) == shape


@pytest.mark.parametrize("away", [False, True])
def test_a_view_shows_its_slices_wherever_the_base_is(away: bool) -> None:
    told = Told()
    content = told.lay("x", *TENSORS, away=away)
    view = handle(told).view(CUT, rename={"b": "z"})
    found = view.tensor_dict()
    assert list(found) == ["a", "z"]
    assert same(found["a"], content, "a", (1, 0), (2, 2)) and same(found["z"], content, "b", (2,), (6,))
    assert found["a"].is_contiguous() == away
    assert view.stats is not None
    assert (view.stats.bytes_moved, view.stats.bytes_total) == (28 if away else 0, 28)
    assert view.outcome is None and repr(view) == "<Artifact view of 'x'>"


def test_only_the_bytes_asked_for_are_wished_for() -> None:
    told = Told()
    told.lay("x", *TENSORS, away=True)
    view = handle(told).view({**CUT, "e": (), "s": ()}, rename={"a": "y"}).view(["s", "y", "e"])
    found = view.tensor_dict()
    assert list(found) == ["s", "y", "e"] and found["e"].shape == (0, 3)
    wish = told.asked[-1][1]
    assert wish is not None and wish.boxes == (Box("s", "s", (), ()), Box("y", "a", (1, 0), (2, 2)))
    view.tensor("y")
    assert told.asked[-1][1] == ViewWish(wish.digest, (wish.boxes[1],))
    assert view.stats is not None and view.stats.bytes_moved == 16


def test_tied_names_that_are_cut_alike_are_read_once_and_stay_tied() -> None:
    told = Told()
    content = told.lay("x", ("a", "F32", (6, 4)), away=True)
    twin = msgspec.structs.replace(content.manifest.tensors[0], name="twin")
    content.manifest = msgspec.structs.replace(content.manifest, tensors=(*content.manifest.tensors, twin))
    content.memory.rows["twin"] = twin
    view = handle(told).view({"a": (slice(0, 2),), "twin": (slice(0, 2),)})
    found = view.tensor_dict()
    assert told.asked[-1][1] is not None and len(told.asked[-1][1].boxes) == 1
    found["a"].zero_()
    assert not found["twin"].any()
    other = handle(told).view({"a": (slice(0, 2),), "twin": (slice(1, 3),)}).tensor_dict()
    assert same(other["a"], content, "a", (0, 0), (2, 4)) and same(other["twin"], content, "a", (1, 0), (2, 4))


def test_the_manifest_is_asked_for_once_and_nothing_at_all_when_a_view_is_made() -> None:
    told = Told()
    told.lay("x", *TENSORS, away=True)
    view = handle(told).view(CUT).view(["a"])
    assert told.asked == []
    view.tensor_dict()
    view.tensor_dict()
    assert [wish is None for _, wish in told.asked] == [True, False, False]


def test_metadata_loads_nothing_and_knows_digests_of_whole_tensors_only() -> None:
    told = Told()
    content = told.lay("x", *TENSORS, away=True)
    meta = handle(told).view({**CUT, "s": ()}).tensor_meta()
    assert [wish for _, wish in told.asked] == [None]
    assert (meta["a"].shape, meta["a"].nbytes, meta["a"].dtype, meta["a"].digest) == ((2, 2), 16, "F32", "")
    assert meta["s"].digest == content.manifest.tensors[2].digest.hex()
    assert {n: m.digest for n, m in handle(told).tensor_meta().items()} == {
        t.name: t.digest.hex() for t in content.manifest.tensors
    }


def test_faults_that_need_shapes_are_raised_by_the_first_read_before_any_byte_is_wished_for() -> None:
    told = Told()
    told.lay("x", *TENSORS, away=True)
    for view, error in (
        (handle(told).view({"a": (slice(0, 7),)}), SliceMismatch),
        (handle(told).view(["nope"]), NotFound),
        (handle(told).view((slice(0, 1),)), Invalid),
        (handle(told).view(rename={"a": "b"}), Invalid),
    ):
        for call in (view.tensor_dict, view.tensor_meta, view.tensor, lambda v=view: v.view(name="y")):
            with pytest.raises(error):
                call()
    assert all(wish is None for _, wish in told.asked) and not told.committed


def test_a_misfit_target_is_refused_before_anything_is_read() -> None:
    told = Told()
    content = told.lay("x", *TENSORS, away=True)
    view = handle(told).view({"a": (slice(1, 3),)})
    with pytest.raises(FormatMismatch, match="nothing was written"):
        view.copy_into({"a": torch.zeros(6, 4)})
    assert all(wish is None for _, wish in told.asked)
    buffer = torch.full((4, 8), 7.0)
    view.copy_into({"a": buffer[1:3, 2:6]})
    assert same(buffer[1:3, 2:6], content, "a", (1, 0), (2, 4))
    buffer[1:3, 2:6] = 7
    assert bool((buffer == 7).all())


def test_a_view_is_saved_dense_with_the_bases_metadata(tmp_path: Path) -> None:
    blobs = []
    for away in (False, True):
        told = Told()
        told.lay("x", *TENSORS, away=away)
        path = tmp_path / f"{away}.safetensors"
        handle(told).view({**CUT, "e": ()}).save(path)
        blobs.append(path.read_bytes())
    assert blobs[0] == blobs[1] and b"made by" in blobs[0]


def test_a_committed_view_is_boxes_of_the_base_whatever_chain_made_them() -> None:
    told = Told()
    content = told.lay("x", *TENSORS)
    made = handle(told).view(CUT).view({"a": (slice(1, 2),), "b": ()}, "y@1", rename={"a": "c"})
    assert told.committed == [
        ("x", content.told_digest, "y@1", (Box("c", "a", (2, 0), (1, 2)), Box("b", "b", (2,), (6,))))
    ]
    assert (made.art_id, made.outcome) == ("y@1", "stored") and made.stats is not None and made.stats.path == "pool"
    with pytest.raises(Invalid, match="artifact id"):
        handle(told).view(CUT, "no id")


def test_an_alias_is_resolved_once_for_a_handle_and_all_its_views() -> None:
    told = Told(aliases={"latest": "x@1"})
    content = told.lay("x@1", *TENSORS)
    told.lay("x@2", *TENSORS[:2])
    artifact = handle(told, "latest")
    view = artifact.view(CUT)
    assert artifact.art_id == view.art_id == "latest"
    artifact.tensor_meta()
    assert artifact.art_id == view.art_id == "x@1"
    told.aliases["latest"] = "x@2"
    assert same(view.tensor("a"), content, "a", (1, 0), (2, 2))
    assert set(artifact.tensor_dict()) == {"a", "b", "s", "e"}
    assert {name for name, _ in told.asked[1:]} == {"x@1"}
    assert handle(told, "latest").tensor_meta().keys() == {"a", "b"}


def test_an_alias_that_moves_between_two_threads_first_questions_means_one_id() -> None:
    told = Told(aliases={"latest": "x@2"})
    told.lay("x@1", *TENSORS)
    told.lay("x@2", *TENSORS[:2])
    artifact = handle(told, "latest")

    def the_other_thread() -> None:
        told.before = lambda: None
        told.aliases["latest"] = "x@1"
        artifact.tensor_meta()
        assert artifact.art_id == "x@1"

    told.before = the_other_thread
    assert artifact.tensor_meta().keys() == {"a", "b", "s", "e"} and artifact.art_id == "x@1"


@pytest.mark.parametrize("away", [False, True])
def test_a_view_never_shows_another_content_under_the_same_id(away: bool) -> None:
    told = Told()
    told.lay("x", *TENSORS, away=away)
    artifact = handle(told)
    view = artifact.view(CUT)
    view.tensor_dict()
    told.lay("x", ("b", "BF16", (8,)), *TENSORS[:1])
    for call in (view.tensor_dict, artifact.tensor_meta, artifact.tensor_dict):
        with pytest.raises(NotFound, match="was deleted"):
            call()


def pending(told: Told, *, mtime_ns: int = 1, digest: str = "pending:" + "0" * 32) -> None:
    content = told.lay("f", ("a", "F32", (6, 4)), away=True)
    file = SourceFile("/models/f.safetensors", 1, 2, 3, mtime_ns)
    rows = tuple(msgspec.structs.replace(t, digest=b"") for t in content.manifest.tensors)
    content.manifest = msgspec.structs.replace(content.manifest, segments=(SegmentRow(96, file),), tensors=rows)
    content.digest = digest


def loaded(told: Told) -> None:
    content = told.contents["f"]
    rows = tuple(msgspec.structs.replace(t, digest=b"d" * 16) for t in content.manifest.tensors)
    content.manifest = msgspec.structs.replace(content.manifest, tensors=rows)
    content.digest, content.away = "", False


def test_registered_files_get_their_digests_under_the_same_handle() -> None:
    told = Told()
    pending(told)
    artifact = handle(told, "f")
    view = artifact.view({"a": (slice(0, 1),)})
    assert artifact.tensor_meta()["a"].digest == ""
    first = view.tensor("a").clone()
    wish = told.asked[-1][1]
    assert wish is not None and wish.digest.startswith("pending:")
    loaded(told)
    assert torch.equal(view.tensor("a").view(torch.uint8), first.view(torch.uint8))
    assert artifact.tensor_meta()["a"].digest == (b"d" * 16).hex()
    told.contents["f"].away = True  # evicted again: the wish names what it is now
    view.tensor("a")
    wish = told.asked[-1][1]
    assert wish is not None and not wish.digest.startswith("pending:")


def test_other_files_under_a_registered_id_are_another_content() -> None:
    told = Told()
    pending(told)
    artifact = handle(told, "f")
    artifact.tensor_meta()
    pending(told, mtime_ns=2, digest="pending:" + "1" * 32)
    with pytest.raises(NotFound, match="was deleted"):
        artifact.tensor_meta()
    loaded(told)
    with pytest.raises(NotFound, match="was deleted"):
        artifact.view({"a": (slice(0, 1),)}).tensor_dict()


def test_an_answer_that_is_not_the_slices_asked_for_is_not_shown() -> None:
    told = Told()
    content = told.lay("x", *TENSORS, away=True)
    view = handle(told).view(CUT)

    def wrong(found: Content, wish: ViewWish) -> object:
        dense = Mapped()
        rows = tuple(dense.lay(box.name, "F32", (1,)) for box in wish.boxes)
        dense.manifest = encode_manifest(Manifest(MANIFEST_VERSION, "x", (SegmentRow(1),), rows, view=True))
        return dense.attachment

    told._dense = wrong  # type: ignore[method-assign,assignment]
    with pytest.raises(LocalProtocolError, match="not the 2 slices"):
        view.tensor_dict()
    assert content.away


def test_an_empty_view_still_asks_whether_its_base_is_there() -> None:
    told = Told()
    told.lay("x", *TENSORS, away=True)
    view = handle(told).view(["e"])
    assert view.tensor().shape == (0, 3)
    assert handle(told).view([]).tensor_dict() == {}
    assert all(wish is None for _, wish in told.asked)
    del told.contents["x"]
    with pytest.raises(NotFound):
        view.tensor_dict()
