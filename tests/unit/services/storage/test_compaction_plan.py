"""Plans of compactions, carried out in plain Python: every living byte lies where the new manifests say."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import msgspec
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from tensorcast_bus.dtypes import alignment
from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, TensorRow, content_digest
from tensorcast_native import tensor_digest
from tensorcast_services.storage.compaction_plan import CompactionPlan, plan_compaction
from tensorcast_services.storage.images import Stretch, image_head

KEY, NEW = "0a" * 16, "0b" * 16
NBYTES = 1000
OLD = bytes(i * 7 % 251 for i in range(NBYTES))


def row(name: str, dtype: str, offset: int, nbytes: int, **more: object) -> TensorRow:
    shape = (nbytes // alignment(dtype),)
    digest = tensor_digest(OLD[offset : offset + nbytes])
    return TensorRow(name, dtype, shape, 0, offset, nbytes, digest, **more)  # type: ignore[arg-type]


def user(*rows: TensorRow, art_id: str = "m@1", others: tuple[SegmentRow, ...] = ()) -> Manifest:
    return Manifest(MANIFEST_VERSION, art_id, (SegmentRow(NBYTES, key=KEY), *others), rows)


def carried_out(plan: CompactionPlan) -> bytes:
    made = bytearray()
    for segment, kind, dst, nbytes, src, src_index, zero in struct.iter_unpack("<IIQQQII", plan.pieces):
        assert (segment, src_index, zero) == (0, 0, 0) and dst == len(made)
        source = {1: plan.inline, 5: OLD}[kind]
        assert nbytes and src + nbytes <= len(source)
        made += source[src : src + nbytes]
    assert len(made) == plan.nbytes
    return bytes(made)


def check(users: list[Manifest], plan: CompactionPlan) -> bytes:
    made = carried_out(plan)
    digests = [tensor_digest(made[at : at + n]) for _, _, at, n in struct.iter_unpack("<IIQQ", plan.rows)]
    assert b"".join(digests) == plan.digests
    for old, new in zip(users, plan.manifests, strict=True):
        assert content_digest(new) == content_digest(old) and new.art_id == old.art_id
        number = [segment.key for segment in old.segments].index(KEY)
        assert new.segments[number] == SegmentRow(plan.nbytes, key=NEW)
        for was, now in zip(old.tensors, new.tensors, strict=True):
            if was.segment == number and was.nbytes:
                assert made[now.offset : now.offset + now.nbytes] == OLD[was.offset : was.offset + was.nbytes]
                assert now.offset % alignment(now.dtype) == 0
    return made


def test_only_what_somebody_uses_moves_and_every_user_gets_it() -> None:
    kept = [row("half", "F16", 102, 6), row("double", "F64", 400, 16)]
    users = [user(kept[0]), user(*kept, art_id="m@2"), user(kept[1], art_id="m@3")]
    plan = plan_compaction(KEY, users, new_key=NEW)
    assert plan is not None and plan.nbytes < 200
    check(users, plan)


def test_the_new_segment_is_a_safetensors_image(tmp_path: Path) -> None:
    rows = [row("bytes", "U8", 33, 31), row("doubles", "F64", 200, 64), row("floats", "F32", 600, 128)]
    big = [msgspec.structs.replace(r, name=f"{r.name}-as-{n}") for r in rows for n in range(3)]
    users = [user(*rows, *big)]
    plan = plan_compaction(KEY, users, new_key=NEW)
    assert plan is not None
    path = tmp_path / "image.safetensors"
    path.write_bytes(check(users, plan))
    assert sum(array.nbytes for array in safetensors.numpy.load_file(path).values()) == 31 + 64 + 128


def test_half_alive_is_left_alone_and_so_is_what_would_not_get_smaller() -> None:
    assert plan_compaction(KEY, [user(row("t", "U8", 0, NBYTES // 2))], new_key=NEW) is None
    assert plan_compaction(KEY, [], new_key=NEW) is None
    head = SegmentRow(128, key=KEY)
    tiny = msgspec.structs.replace(user(row("t", "U8", 64, 60)), segments=(head,))
    assert plan_compaction(KEY, [tiny], new_key=NEW) is None
    block, quarter = 2 << 20, 512 << 10
    in_one_block = msgspec.structs.replace(
        user(TensorRow("u", "U8", (quarter,), 0, 0, quarter, b"d" * 16)), segments=(SegmentRow(block, key=KEY),)
    )
    assert plan_compaction(KEY, [in_one_block], new_key=NEW) is None


def test_overlapping_tensors_move_together() -> None:
    users = [user(row("words", "F32", 100, 20), row("bytes", "U8", 115, 30), row("after", "F64", 160, 8))]
    plan = plan_compaction(KEY, users, new_key=NEW)
    assert plan is not None
    check(users, plan)


def test_two_digests_of_one_place_are_a_bug_and_no_plan() -> None:
    one = row("t", "U8", 8, 8)
    with pytest.raises(ValueError, match="one place and two digests"):
        plan_compaction(KEY, [user(one), user(msgspec.structs.replace(one, digest=b"x" * 16))], new_key=NEW)


def test_the_misaligned_original_of_a_copy_lives_and_moves_along() -> None:
    digest = tensor_digest(OLD[501:509])
    copied = TensorRow("odd", "F32", (2,), 1, 0, 8, digest, (0, 501))
    users = [user(row("t", "U8", 8, 80), copied, others=(SegmentRow(8, aside=True, key="0c" * 16),))]
    plan = plan_compaction(KEY, users, new_key=NEW)
    assert plan is not None
    (moved,) = plan.manifests
    assert moved.segments[1] == users[0].segments[1] and moved.tensors[1].offset == 0
    assert moved.tensors[1].copied_from is not None
    number, at = moved.tensors[1].copied_from
    assert number == 0 and check(users, plan)[at : at + 8] == OLD[501:509]


def test_a_file_of_misaligned_tensors_is_as_alive_as_its_copies() -> None:
    half = NBYTES // 2
    copied = TensorRow("odd", "F32", (half // 4,), 1, 0, half, tensor_digest(OLD[501:]), (0, NBYTES - half))
    users = [user(row("t", "U8", 8, 80), copied, others=(SegmentRow(half, aside=True, key="0c" * 16),))]
    assert plan_compaction(KEY, users, new_key=NEW) is None


def test_a_segment_of_copies_is_compacted_to_a_plain_one() -> None:
    rows = (row("odd", "F32", 64, 8, copied_from=(1, 3)), row("empty", "F32", 0, 0))
    users = [
        msgspec.structs.replace(
            user(*rows), segments=(SegmentRow(NBYTES, aside=True, key=KEY), SegmentRow(99, key="0c" * 16))
        )
    ]
    plan = plan_compaction(KEY, users, new_key=NEW)
    assert plan is not None and plan.manifests[0].tensors[0].copied_from is None
    check(users, plan)


def test_a_segment_that_only_empty_tensors_name_shrinks_to_a_head() -> None:
    users = [user(row("empty", "F32", 0, 0))]
    plan = plan_compaction(KEY, users, new_key=NEW)
    assert plan is not None and plan.nbytes == 64
    check(users, plan)


def test_long_names_of_small_tensors_do_not_outgrow_them() -> None:
    users = [user(*(row("n" * 300 + str(i), "U8", i * 20, 4) for i in range(20)))]
    plan = plan_compaction(KEY, users, new_key=NEW)
    assert plan is not None and plan.nbytes <= 80 + 192
    check(users, plan)


def test_a_name_that_is_taken_or_reserved_gets_a_number() -> None:
    head = image_head(Stretch(name, "C128", (1,), 16) for name in ("t", "t", "__metadata__", "t"))
    table = json.loads(head[8:])
    assert list(table) == ["t", "t#2", "__metadata__#2", "t#3"]
    assert table["t#3"] == {"dtype": "U8", "shape": [16], "data_offsets": [48, 64]}
    assert len(head) % 64 == 0 and int.from_bytes(head[:8], "little") == len(head) - 8


DTYPES = st.sampled_from(["U8", "F16", "F32", "F64", "C128", "F4"])


@given(st.lists(st.tuples(DTYPES, st.integers(0, 55), st.integers(0, 6)), max_size=12), st.integers(1, 3))
def test_any_rows_of_any_users_keep_their_bytes(drawn: list[tuple[str, int, int]], count: int) -> None:
    rows = [
        row(f"t{n}", dtype, item * max(1, alignment(dtype)), length * alignment(dtype))
        for n, (dtype, item, length) in enumerate(drawn)
    ]
    users = [user(*rows[n::count], art_id=f"m@{n}") for n in range(count)]
    plan = plan_compaction(KEY, users, new_key=NEW)
    if plan is not None:
        check(users, plan)
