"""Delta drafts: only what changed is brought, everything reads back bit for bit, and a storage takes every one of them.

The storage's side here is its own checks over segments in a dict, filled by the draft's plan.
"""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorcast.deadline import DEADLINE_MS_MAX, Deadline
from tensorcast.drafts.delta import BORROWED_SEGMENTS_MAX, SHARE_MIN, delta_draft
from tensorcast.drafts.digests import SHARED_BYTES_MIN, digests_of
from tensorcast.drafts.draft import ROW, Draft
from tensorcast.drafts.intake import blocks_of
from tensorcast.drafts.memory import draft_from_tensors
from tensorcast.errors import BadCheckpoint, Invalid, Timeout
from tensorcast_bus.manifest import Manifest, SegmentRow, TensorRow, content_digest, decode_manifest
from tensorcast_bus.notes import PutDraft
from tensorcast_native import tensor_digest
from tensorcast_services.storage.borrowing import check_borrowed
from tensorcast_services.storage.drafts import read_draft
from tensorcast_services.storage.jobs import PutJob
from tensorcast_services.storage.sealing import finish_put
from tests.unit.sdk.test_drafts import segments as filled

UNHURRIED = Deadline(DEADLINE_MS_MAX, "test")


class Stored:
    """Sealed segments by key, and the manifests of what was put."""

    def __init__(self) -> None:
        self.segments: dict[str, bytes] = {}
        self.manifests: dict[str, Manifest] = {}

    def put(self, draft: Draft) -> Manifest:
        note = PutDraft(draft.manifest, base=draft.base, base_digest=draft.base_digest)
        art_id = draft.manifest.art_id
        checked = read_draft(
            note, art_id=art_id, segment_bytes=draft.segment_bytes, source="vm_read", tensors_max=1 << 20
        )
        if checked.borrowed:
            assert content_digest(self.manifests[draft.base]) == draft.base_digest
            checked = check_borrowed(checked, self.manifests[draft.base])
        assert checked.rows == draft.rows
        made = filled(draft)
        self.segments |= {row.key: part for row, part in zip(checked.manifest.segments, made, strict=False)}
        rows = ROW.iter_unpack(checked.rows)
        digests = b"".join(tensor_digest(made[number][at : at + n]) for number, _, at, n in rows)
        _, blob = finish_put(PutJob(art_id, checked, "vm_read"), digests)
        self.manifests[art_id] = decode_manifest(blob)
        return self.manifests[art_id]

    def bytes_of(self, art_id: str) -> dict[str, bytes]:
        manifest = self.manifests[art_id]
        return {
            row.name: self.segments[manifest.segments[row.segment].key][row.offset : row.offset + row.nbytes]
            for row in manifest.tensors
        }


def plain(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: t.contiguous().view(torch.uint8).numpy().tobytes() for name, t in tensors.items()}


def version(stored: Stored, art_id: str, x: object, base: str, *, changed: list[str] | None = None) -> Draft:
    whole = draft_from_tensors(x, art_id, deadline=UNHURRIED)
    names = None if changed is None else frozenset(changed)
    return delta_draft(whole, stored.manifests[base], changed=names, deadline=UNHURRIED)


def first() -> tuple[Stored, dict[str, torch.Tensor]]:
    stored = Stored()
    x = {"a": torch.arange(16.0), "b": torch.arange(8, dtype=torch.int16), "e": torch.empty(0, 3)}
    stored.put(draft_from_tensors(x, "m@1", deadline=UNHURRIED))
    return stored, x


def test_a_version_brings_only_what_changed() -> None:
    stored, x = first()
    two = {**x, "a": x["a"] + 1}
    draft = version(stored, "m@2", two, "m@1")
    assert [row.key != "" for row in draft.manifest.segments] == [False, True]
    assert len(draft.segment_bytes) == 1 and draft.segment_bytes[0] < 64 + 16 * 4 + 256
    stored.put(draft)
    assert stored.bytes_of("m@2") == plain(two)
    assert draft.digest(UNHURRIED) == content_digest(stored.manifests["m@2"])


def test_nothing_in_common_is_the_draft_itself() -> None:
    stored, x = first()
    whole = draft_from_tensors({"a": x["a"] + 1, "e": x["e"]}, "m@2", deadline=UNHURRIED)
    assert delta_draft(whole, stored.manifests["m@1"], changed=None, deadline=UNHURRIED) is whole


def test_nothing_changed_brings_no_segment_at_all() -> None:
    stored, x = first()
    draft = version(stored, "m@2", x, "m@1")
    assert draft.segment_bytes == () and draft.pieces == draft.inline == draft.rows == b""
    assert stored.put(draft).nbytes == stored.manifests["m@1"].nbytes
    assert stored.bytes_of("m@2") == plain(x)


def test_a_tensor_is_found_under_another_name_and_shape_but_not_as_another_type() -> None:
    stored, x = first()
    two = {"renamed": x["a"].view(4, 4), "as_int": x["a"].view(torch.int32)}
    draft = version(stored, "m@2", two, "m@1")
    stored.put(draft)
    assert stored.bytes_of("m@2") == plain(two)
    homes = {row.name: draft.manifest.segments[row.segment].key != "" for row in draft.manifest.tensors}
    assert homes == {"renamed": True, "as_int": False}


def test_tied_tensors_stay_tied_whether_they_changed_or_not() -> None:
    stored, x = first()
    two = {"a": x["a"], "a_tied": x["a"], "n": (new := torch.ones(5)), "n_tied": new}
    stored.put(version(stored, "m@2", two, "m@1"))
    rows = {row.name: (row.segment, row.offset) for row in stored.manifests["m@2"].tensors}
    assert rows["a"] == rows["a_tied"] and rows["n"] == rows["n_tied"] and rows["a"] != rows["n"]
    assert stored.bytes_of("m@2") == plain(two)


def test_names_in_changed_are_digested_and_all_others_are_believed() -> None:
    stored, x = first()
    x["b"][0] = 99  # which the caller forgot to say: the base's bytes stay
    draft = version(stored, "m@2", {**x, "a": x["a"] + 1}, "m@1", changed=["a"])
    stored.put(draft)
    assert stored.bytes_of("m@2")["a"] == plain({"a": x["a"] + 1})["a"]
    assert stored.bytes_of("m@2")["b"] == stored.bytes_of("m@1")["b"]
    unchanged = version(stored, "m@3", {**x, "a": x["a"] + 1}, "m@2", changed=["a"])
    assert unchanged.segment_bytes == ()  # what did not change after all is not brought


def test_what_is_tied_to_a_changed_tensor_has_changed() -> None:
    stored = Stored()
    weight = torch.arange(6.0)
    stored.put(draft_from_tensors({"w": weight, "tied": weight}, "m@1", deadline=UNHURRIED))
    weight += 1
    stored.put(version(stored, "m@2", {"w": weight, "tied": weight}, "m@1", changed=["w"]))
    assert stored.bytes_of("m@2") == plain({"w": weight, "tied": weight})


@pytest.mark.parametrize(
    ("tensors", "changed", "names"),
    [
        ({"a": torch.arange(16.0)}, ["a", "z"], "'z'"),
        ({"a": torch.arange(16.0), "new": torch.ones(1)}, ["a"], "'new'"),
        ({"a": torch.arange(16.0).view(4, 4)}, [], "'a'"),
        ({"a": torch.arange(16, dtype=torch.int32)}, [], "'a'"),
        ({"e": torch.empty(0, 4)}, [], "'e'"),
    ],
)
def test_a_word_about_changes_that_cannot_be_true_is_refused(
    tensors: dict[str, torch.Tensor], changed: list[str], names: str
) -> None:
    stored, _ = first()
    with pytest.raises(BadCheckpoint, match=names):
        version(stored, "m@2", tensors, "m@1", changed=changed)


def test_two_tensors_of_the_base_that_are_one_now_must_be_named() -> None:
    stored = Stored()
    stored.put(draft_from_tensors({"a": torch.ones(3), "b": torch.zeros(3)}, "m@1", deadline=UNHURRIED))
    both = torch.ones(3)
    with pytest.raises(BadCheckpoint, match="'a', 'b' are one tensor now and two in 'm@1'"):
        version(stored, "m@2", {"a": both, "b": both}, "m@1", changed=[])


def test_many_strange_names_are_shortened() -> None:
    stored, _ = first()
    with pytest.raises(BadCheckpoint, match="and 12 more"):
        version(stored, "m@2", {f"t{i}": torch.ones(1) for i in range(20)}, "m@1", changed=[])


def test_a_draft_from_files_has_no_delta() -> None:
    stored, _ = first()
    whole = Draft(stored.manifests["m@1"], pieces=(), digester=lambda _: [])
    with pytest.raises(Invalid, match="tensors in memory"):
        delta_draft(whole, stored.manifests["m@1"], changed=None, deadline=UNHURRIED)


def test_segments_without_a_key_are_not_borrowed() -> None:
    stored, x = first()
    base = stored.manifests["m@1"]
    old = msgspec.structs.replace(base, segments=tuple(SegmentRow(row.nbytes) for row in base.segments))
    whole = draft_from_tensors(x, "m@2", deadline=UNHURRIED)
    assert delta_draft(whole, old, changed=None, deadline=UNHURRIED) is whole


def test_a_long_line_of_versions_does_not_fall_to_pieces() -> None:
    count = BORROWED_SEGMENTS_MAX + 10
    x = {f"t{n:04}": torch.full((n % 7 + 1,), float(n)) for n in range(count)}
    rows, segments = [], []
    for n, (name, data) in enumerate(plain(x).items()):
        segments.append(SegmentRow(len(data), key=f"{n:032x}"))
        rows.append(TensorRow(name, "F32", (len(data) // 4,), n, 0, len(data), tensor_digest(data)))
    base = Manifest(1, "m@1", tuple(segments), tuple(rows))
    stored = Stored()
    stored.manifests["m@1"] = base
    stored.segments = {row.key: data for row, data in zip(segments, plain(x).values(), strict=True)}
    draft = version(stored, "m@2", x, "m@1")
    assert len(draft.manifest.segments) == BORROWED_SEGMENTS_MAX + 1
    stored.put(draft)
    assert stored.bytes_of("m@2") == plain(x)


def test_a_trifle_of_a_large_segment_is_brought_again() -> None:
    stored = Stored()
    x = {"step": torch.tensor(7), "w": torch.zeros(8 * SHARE_MIN + 1)}
    stored.put(draft_from_tensors(x, "m@1", deadline=UNHURRIED))
    whole = draft_from_tensors({"step": x["step"], "w": x["w"] + 1}, "m@2", deadline=UNHURRIED)
    assert delta_draft(whole, stored.manifests["m@1"], changed=None, deadline=UNHURRIED) is whole


def test_digests_of_many_large_tensors_are_those_of_one_thread() -> None:
    x = {f"t{n}": torch.randint(0, 255, (SHARED_BYTES_MIN // 6 + n,), dtype=torch.uint8) for n in range(8)}
    blocks = blocks_of({**x, "e": torch.empty(0), "tied": x["t0"]}, UNHURRIED)
    wanted = [tensor_digest(plain(x)["t0" if b.name == "tied" else b.name] if b.nbytes else b"") for b in blocks]
    assert digests_of(blocks, UNHURRIED) == wanted


def test_digesting_keeps_the_deadline() -> None:
    late = Deadline(DEADLINE_MS_MAX, "put of 'm@2'")
    blocks = blocks_of({f"t{n}": torch.ones(SHARED_BYTES_MIN // 8) for n in range(4)}, late)
    late.running.given_up = True
    with pytest.raises(Timeout, match="digesting the caller's tensors"):
        digests_of(blocks, late)


NAMES = st.sampled_from("abcdef")
VALUES = st.integers(0, 3)
DTYPES = st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.float64])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.dictionaries(NAMES, st.tuples(VALUES, DTYPES, st.integers(0, 9)), max_size=6), min_size=1, max_size=6)
)
def test_every_version_of_any_line_reads_back_bit_for_bit(line: list[dict[str, tuple[int, torch.dtype, int]]]) -> None:
    stored = Stored()
    wanted: dict[str, dict[str, bytes]] = {}
    for number, spec in enumerate(line):
        x = {name: torch.full((length,), value, dtype=dtype) for name, (value, dtype, length) in spec.items()}
        art_id = f"m@{number}"
        whole = draft_from_tensors(x, art_id, deadline=UNHURRIED)
        draft = version(stored, art_id, x, f"m@{number - 1}") if number else whole
        manifest = stored.put(draft)
        assert content_digest(manifest) == whole.digest(UNHURRIED)
        wanted[art_id] = plain(x)
    assert {art_id: stored.bytes_of(art_id) for art_id in wanted} == wanted
