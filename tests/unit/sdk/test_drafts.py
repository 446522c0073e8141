"""Drafts: the plan tiles its segments, the image is a file that others read, and every row is where its bytes are."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.checkpoint.header import read_header
from tensorcast.checkpoint.opened import OpenedFile
from tensorcast.deadline import DEADLINE_MS_MAX, Deadline
from tensorcast.drafts.draft import FILE, INLINE, MEMORY, PIECE, ROW, SEGMENT, Draft, memory_at
from tensorcast.drafts.files import draft_from_path
from tensorcast.drafts.memory import draft_from_tensors
from tensorcast.errors import BadCheckpoint
from tensorcast_bus.dtypes import alignment
from tensorcast_bus.manifest import content_digest, with_digests
from tensorcast_native import tensor_digest
from tests.unit.sdk.checkpoint_files import TWO, image, write

# A deadline that no test reaches.
UNHURRIED = Deadline(DEADLINE_MS_MAX, "test")


def segments(draft: Draft, paths: tuple[Path, ...] = ()) -> list[bytes]:
    """Carries out the plan in plain Python. Fails on a hole, an overlap or a wrong size."""
    filled = [bytearray() for _ in draft.segment_bytes]
    pieces = sorted(PIECE.iter_unpack(draft.pieces), key=lambda p: (p[1] == SEGMENT, p[0], p[2]))
    parts: dict[tuple[int, int], bytes] = {}
    for number, kind, dst, nbytes, src, src_index, zero in pieces:
        assert zero == 0 and nbytes > 0
        if kind == INLINE:
            parts[number, dst] = draft.inline[src : src + nbytes]
        elif kind == MEMORY:
            parts[number, dst] = bytes(memory_at(src, nbytes))
        elif kind == FILE:
            parts[number, dst] = paths[src_index].read_bytes()[src : src + nbytes]
        else:
            whole = b"".join(parts[key] for key in sorted(parts) if key[0] == src_index)
            parts[number, dst] = whole[src : src + nbytes]
        assert len(parts[number, dst]) == nbytes
    for number, dst in sorted(parts):
        assert dst == len(filled[number])
        filled[number] += parts[number, dst]
    assert [len(f) for f in filled] == list(draft.segment_bytes)
    return [bytes(f) for f in filled]


def check_rows(draft: Draft, made: list[bytes]) -> str:
    """Every row inside its segment, aligned, and packed as it stands; returns the content digest of what was made."""
    rows = draft.manifest.tensors
    assert [(s, o, n) for s, _, o, n in ROW.iter_unpack(draft.rows)] == [(r.segment, r.offset, r.nbytes) for r in rows]
    assert all(r.offset % alignment(r.dtype) == 0 for r in rows)
    digests = [tensor_digest(made[r.segment][r.offset : r.offset + r.nbytes]) for r in rows]
    return content_digest(with_digests(draft.manifest, digests))


TENSORS = {
    "bytes": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "doubles": torch.arange(5, dtype=torch.float64),
    "halves": torch.arange(7, dtype=torch.bfloat16),
    "floats": torch.arange(3, dtype=torch.float32),
    "empty": torch.empty(0, 4),
    "scalar": torch.tensor(7, dtype=torch.int16),
    "complex": torch.arange(3.0).to(torch.complex64),
    "bool": torch.tensor([True, False]),
}


def test_a_put_segment_is_a_safetensors_file_that_others_read(tmp_path: Path) -> None:
    draft = draft_from_tensors(TENSORS, "x", deadline=UNHURRIED)
    (made,) = segments(draft)
    found = safetensors.torch.load_file(write(tmp_path / "image.safetensors", made))
    assert set(found) == set(TENSORS)
    assert all(torch.equal(found[n], t) and found[n].dtype == t.dtype for n, t in TENSORS.items())
    assert check_rows(draft, [made]) == draft.digest(Deadline(10_000, "test"))
    assert draft.manifest.nbytes == sum(t.nbytes for t in TENSORS.values())


def test_the_data_of_a_put_segment_starts_at_a_multiple_of_64() -> None:
    for count in range(1, 40):
        draft = draft_from_tensors({"n" * count: torch.zeros(3)}, "x", deadline=UNHURRIED)
        header = int.from_bytes(draft.inline[:8], "little")
        assert (8 + header) % 64 == 0 and len(draft.inline) == 8 + header


def test_tied_names_are_stored_once_and_named_in_the_manifest_only(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    draft = draft_from_tensors({"a": base, "b": base, "c": base + 1}, "x", deadline=UNHURRIED)
    (made,) = segments(draft)
    rows = {r.name: r for r in draft.manifest.tensors}
    assert rows["a"].offset == rows["b"].offset != rows["c"].offset
    assert set(safetensors.torch.load_file(write(tmp_path / "image.safetensors", made))) == {"a", "c"}
    assert draft.manifest.nbytes == 48
    assert check_rows(draft, [made]) == draft.digest(Deadline(10_000, "test"))


def test_a_dtype_that_the_format_lacks_is_u8_in_the_image_and_itself_in_the_manifest(tmp_path: Path) -> None:
    value = torch.arange(3.0).to(torch.complex128)
    draft = draft_from_tensors({"c": value, "f": torch.zeros(1)}, "x", deadline=UNHURRIED)
    (made,) = segments(draft)
    opened = OpenedFile(str(write(tmp_path / "image.safetensors", made)))
    header = read_header(opened, UNHURRIED)
    opened.close()
    assert {(e.name, e.dtype, e.shape) for e in header.entries} == {("c", "U8", (48,)), ("f", "F32", (1,))}
    assert header.metadata == {"tensorcast.dtypes": '{"c": ["C128", [3]]}'}
    row = next(r for r in draft.manifest.tensors if r.name == "c")
    assert (row.dtype, row.shape) == ("C128", (3,)) and row.offset % 16 == 0


def test_nothing_at_all_can_be_put() -> None:
    draft = draft_from_tensors({}, "x", deadline=UNHURRIED)
    assert segments(draft) == [draft.inline] and draft.manifest.tensors == ()


def test_content_has_one_digest_from_memory_and_from_files(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", image(TWO))
    tensors = {
        "a": torch.frombuffer(bytearray(TWO["a"][2]), dtype=torch.float32).reshape(2, 2),
        "b": torch.frombuffer(bytearray(TWO["b"][2]), dtype=torch.uint8),
    }
    with draft_from_path(str(path), "x", deadline=UNHURRIED) as draft:
        deadline = Deadline(10_000, "test")
        assert draft.digest(deadline) == draft_from_tensors(tensors, "y", deadline=UNHURRIED).digest(deadline)


def test_a_file_is_a_segment_as_it_is_and_misaligned_tensors_lie_aside(tmp_path: Path) -> None:
    entries = {
        "one": ("U8", [3], b"abc"),
        "wide": ("F32", [2], bytes(range(8))),
        "half": ("BF16", [1], b"zz"),
        "none": ("F64", [0], b""),
    }
    path = write(tmp_path / "x.safetensors", image(entries, header_multiple=8))
    with draft_from_path(str(path), "x", deadline=UNHURRIED) as draft:
        made = segments(draft, (path,))
        rows = {r.name: r for r in draft.manifest.tensors}
        assert made[0] == path.read_bytes()
        assert [s.aside for s in draft.manifest.segments] == [False, True]
        assert rows["one"].segment == 0 and rows["one"].copied_from is None
        for name in ("wide", "half"):
            row, (_, _, blob) = rows[name], entries[name]
            assert row.segment == 1 and row.offset % 64 == 0
            assert made[1][row.offset : row.offset + row.nbytes] == blob
            assert row.copied_from is not None
            assert made[0][row.copied_from[1] : row.copied_from[1] + row.nbytes] == blob
        assert check_rows(draft, made) == draft.digest(Deadline(10_000, "test"))
        assert draft.manifest.nbytes == 13


def test_a_file_that_changes_under_the_digest_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", image(TWO))
    with draft_from_path(str(path), "x", deadline=UNHURRIED) as draft:
        write(path, image({**TWO, "b": ("U8", [3], b"XYZ")}))
        with pytest.raises(BadCheckpoint, match="changed"):
            draft.digest(Deadline(10_000, "test"))


def test_the_files_of_a_draft_are_closed_with_it(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", image(TWO))
    with draft_from_path(str(path), "x", deadline=UNHURRIED) as draft:
        (fd, *_), *_ = draft.files
        assert Path(f"/proc/self/fd/{fd}").resolve() == path.resolve()
    assert not Path(f"/proc/self/fd/{fd}").exists()


DTYPES = (torch.uint8, torch.int16, torch.bfloat16, torch.float32, torch.int64, torch.complex64, torch.complex128)


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=12).filter(lambda n: n.isprintable() and n != "__metadata__"),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)),
        max_size=12,
    )
)
def test_any_state_dict_gives_a_plan_that_tiles_and_aligned_rows(
    wanted: dict[str, tuple[torch.dtype, list[int]]],
) -> None:
    tensors = {n: torch.ones(shape, dtype=dtype) for n, (dtype, shape) in wanted.items()}
    draft = draft_from_tensors(tensors, "x", deadline=UNHURRIED)
    made = segments(draft)
    assert check_rows(draft, made) == draft.digest(Deadline(10_000, "test"))
    assert draft.manifest.nbytes == sum(t.nbytes for t in tensors.values())
    assert {r.name for r in draft.manifest.tensors} == set(tensors)


def test_pieces_and_rows_are_packed_as_the_native_floor_reads_them() -> None:
    assert (PIECE.size, ROW.size) == (40, 24)
    assert PIECE.pack(1, 2, 3, 4, 5, 6, 0) == struct.pack("<II", 1, 2) + struct.pack("<QQQII", 3, 4, 5, 6, 0)
