"""The safetensors header parser: what it takes, and every kind of header that it must not take."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.checkpoint import header as header_room
from tensorcast.checkpoint.header import FileHeader, read_header
from tensorcast.checkpoint.opened import OpenedFile
from tensorcast.deadline import DEADLINE_MS_MAX, Deadline
from tensorcast_bus.dtypes import FILE_DTYPES, alignment
from tensorcast_bus.errors import BadCheckpoint
from tests.unit.sdk.checkpoint_files import NOT_CHECKPOINTS, TWO, damaged, image, with_header, write

# A deadline that no test reaches.
UNHURRIED = Deadline(DEADLINE_MS_MAX, "test")


def read(path: Path) -> FileHeader:
    opened = OpenedFile(str(path))
    try:
        return read_header(opened, UNHURRIED)
    finally:
        opened.close()


def read_bytes(tmp_path: Path, blob: bytes) -> FileHeader:
    return read(write(tmp_path / "x.safetensors", blob))


def refusal(tmp_path: Path, blob: bytes) -> str:
    with pytest.raises(BadCheckpoint) as caught:
        read_bytes(tmp_path, blob)
    assert "x.safetensors" in str(caught.value)
    return str(caught.value)


def entry(dtype: object = "U8", shape: object = (4,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_good_file_gives_its_tensors_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    blob = image({"z": ("F32", [2, 2], bytes(16)), "a": ("U8", [3], b"xyz")}, metadata={"format": "pt"})
    found = read_bytes(tmp_path, blob)
    assert [(e.name, e.dtype, e.shape) for e in found.entries] == [("z", "F32", (2, 2)), ("a", "U8", (3,))]
    assert found.entries[0].begin == len(blob) - 19 and found.entries[1].end == len(blob)
    assert found.metadata == {"format": "pt"}


def test_the_order_of_keys_in_the_header_does_not_matter(tmp_path: Path) -> None:
    table = {"late": entry(offsets=[4, 8]), "early": entry(offsets=[0, 4])}
    found = read_bytes(tmp_path, with_header(json.dumps(table), bytes(8)))
    assert [e.name for e in found.entries] == ["early", "late"]


def test_a_file_without_tensors_is_whole(tmp_path: Path) -> None:
    assert read_bytes(tmp_path, with_header("{}")).entries == ()


def test_scalars_and_empty_tensors_are_whole(tmp_path: Path) -> None:
    blob = image({"s": ("F64", [], bytes(8)), "e": ("BF16", [2, 0, 3], b""), "t": ("U8", [1], b"x")})
    assert [e.name for e in read_bytes(tmp_path, blob).entries] == ["s", "e", "t"]


@pytest.mark.parametrize("dtype", sorted(FILE_DTYPES))
def test_every_dtype_of_the_format_is_known(tmp_path: Path, dtype: str) -> None:
    shape = [4] if dtype in ("F4", "F6_E2M3", "F6_E3M2") else [1]
    nbytes = {"F4": 2, "F6_E2M3": 3, "F6_E3M2": 3}.get(dtype, alignment(dtype))
    assert read_bytes(tmp_path, image({"t": (dtype, shape, bytes(nbytes))})).entries[0].dtype == dtype


@pytest.mark.parametrize("name", sorted(NOT_CHECKPOINTS))
def test_a_file_of_another_kind_is_named_for_what_it_looks_like(tmp_path: Path, name: str) -> None:
    blob, looks = NOT_CHECKPOINTS[name]
    assert looks in refusal(tmp_path, blob)


@pytest.mark.parametrize("name", sorted(damaged()))
def test_a_damaged_file_is_refused_with_what_is_wrong(tmp_path: Path, name: str) -> None:
    blob, wrong = damaged()[name]
    assert wrong in refusal(tmp_path, blob)


@pytest.mark.parametrize("length", [640, 0x0380, 0x8B1F, 0x4B50])
def test_a_header_length_that_spells_another_formats_magic_is_no_other_format(tmp_path: Path, length: int) -> None:
    text = json.dumps({"t": entry()}).encode().ljust(length)
    assert read_bytes(tmp_path, with_header(text, bytes(4))).entries[0].name == "t"
    assert "looks like" not in refusal(tmp_path, with_header(text, bytes(5)))


WRONG_TABLES: dict[str, tuple[object, str]] = {
    "unknown dtype": ({"t": entry("F128")}, "F128"),
    "dtype that is no string": ({"t": entry(7)}, "dtype"),
    "negative dimension": ({"t": entry(shape=[-4])}, "-4"),
    "fraction in shape": ({"t": entry(shape=[4.0])}, "whole number"),
    "boolean in shape": ({"t": entry(shape=[True])}, "whole number"),
    "text in shape": ({"t": entry(shape=["4"])}, "whole number"),
    "shape that is no list": ({"t": entry(shape=4)}, "not a list"),
    "dimension beyond 64 bits": ({"t": entry(shape=[1 << 63])}, "2^63"),
    "dimension of 5000 digits": ({"t": entry(shape=[int("9" * 4000)])}, "digits"),
    "product beyond 64 bits": ({"t": entry(shape=[1 << 40, 1 << 40])}, "overflows"),
    "product that wraps to the right size": ({"t": entry(shape=[1 << 32, 1 << 32, 4])}, "overflows"),
    "overflow hidden by a zero": ({"t": entry(shape=[0, 1 << 40, 1 << 40], offsets=[0, 0])}, "overflows"),
    "too many dimensions": ({"t": entry(shape=[1] * 65)}, "65 dimensions"),
    "offsets in the wrong order": ({"t": entry(offsets=[4, 0])}, "[begin, end]"),
    "three offsets": ({"t": entry(offsets=[0, 4, 4])}, "[begin, end]"),
    "negative offset": ({"t": entry(offsets=[-4, 0])}, "-4"),
    "offsets beyond the file": ({"t": entry(shape=[400], offsets=[0, 400])}, "missing"),
    "size that does not fit the shape": ({"t": entry("F32", [4], [0, 4])}, "takes 16 bytes"),
    "hole before": ({"t": entry(shape=[3], offsets=[1, 4])}, "belong to no tensor"),
    "hole between": ({"a": entry(shape=[1], offsets=[0, 1]), "b": entry(shape=[2], offsets=[2, 4])}, "no tensor"),
    "overlap": ({"a": entry(shape=[3], offsets=[0, 3]), "b": entry(shape=[2], offsets=[2, 4])}, "overlap"),
    "same bytes under two names": ({"a": entry(), "b": entry()}, "overlap"),
    "zero-size tensor inside another": ({"a": entry(), "b": entry(shape=[0], offsets=[2, 2])}, "overlap"),
    "half a byte": ({"t": entry("F4", [7], [0, 4])}, "must be even"),
    "metadata that is no object": ({"__metadata__": [], "t": entry()}, "__metadata__"),
    "metadata that is no string": ({"__metadata__": {"a": 1}, "t": entry()}, "'a'"),
    "entry that is no object": ({"t": [1]}, "'t'"),
    "entry without offsets": ({"t": {"dtype": "U8", "shape": [4]}}, "data_offsets"),
    "entry with a field unknown": ({"t": {**entry(), "order": "big"}}, "order"),
    "list": ([1], "no JSON object"),
}


@pytest.mark.parametrize("name", sorted(WRONG_TABLES))
def test_a_table_that_cannot_be_is_refused_with_what_is_wrong(tmp_path: Path, name: str) -> None:
    table, wrong = WRONG_TABLES[name]
    text = (
        json.dumps(table) if name != "dimension of 5000 digits" else json.dumps(table).replace("9" * 4000, "9" * 5000)
    )
    assert wrong in refusal(tmp_path, with_header(text, bytes(4)))


ENTRY = json.dumps(entry())
WRONG_TEXTS: dict[str, tuple[str | bytes, str]] = {
    "name twice": (f'{{"t":{ENTRY},"t":{ENTRY}}}', "'t' twice"),
    "field twice": ('{"t":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}}', "'dtype' twice"),
    "NaN": ('{"t":{"dtype":"U8","shape":[NaN],"data_offsets":[0,4]}}', "NaN"),
    "Infinity": ('{"t":{"dtype":"U8","shape":[Infinity],"data_offsets":[0,4]}}', "Infinity"),
    "exponent": ('{"t":{"dtype":"U8","shape":[4e0],"data_offsets":[0,4]}}', "4e0"),
    "depth bomb of objects": ('{"a":' * 100_000, "too deep"),
    "depth bomb of lists": ('{"a":' + "[" * 100_000, "too deep"),
    "not UTF-8": (b'{"\xff":1}', "UTF-8"),
    "lone surrogate": (f'{{"\\ud800":{ENTRY}}}', "surrogate"),
    "text behind the object": ("{} x", "not JSON"),
    "cut object": ('{"t":{"dtype":"U8"', "not JSON"),
}


@pytest.mark.parametrize("name", sorted(WRONG_TEXTS))
def test_a_header_that_is_no_plain_json_is_refused(tmp_path: Path, name: str) -> None:
    text, wrong = WRONG_TEXTS[name]
    assert wrong in refusal(tmp_path, with_header(text, bytes(4)))


def test_a_header_over_the_limit_tells_its_size_and_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_room, "HEADER_BYTES_MAX", 100)
    said = refusal(tmp_path, with_header(b"{}".ljust(101)))
    assert "101" in said and "header_bytes_max is 100" in said


def test_a_header_with_too_many_values_is_refused_before_it_is_built(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = refusal(tmp_path, with_header('{"t":[' + "0," * 8_000_000 + "0]}"))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert "limit" in said
    assert grown < 100 << 20, "the list of 8 million numbers was built"


def test_a_bogus_header_length_allocates_nothing(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for length in (1 << 33, 1 << 62, (1 << 64) - 1):
        refusal(tmp_path, length.to_bytes(8, "little") + b"{" + bytes(100))
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 64 << 20


def test_a_directory_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="not a regular file"):
        OpenedFile(str(tmp_path))
    with pytest.raises(BadCheckpoint, match="No such file"):
        OpenedFile(str(tmp_path / "nothing"))


def test_a_dangling_link_is_named_with_its_target(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("../blobs/abc")
    with pytest.raises(BadCheckpoint, match=r"dangling.*\.\./blobs/abc"):
        OpenedFile(str(tmp_path / "x"))


def test_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadCheckpoint, match="not a regular file"):
        OpenedFile(str(tmp_path / "pipe"))


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", image(TWO))
    opened = OpenedFile(str(path))
    path.write_bytes(image(TWO) + b"!")
    with pytest.raises(BadCheckpoint, match="changed"):
        read_header(opened, UNHURRIED)
    opened.close()


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, blob: bytes) -> None:
    path = write(tmp_path_factory.mktemp("fuzz") / "x.safetensors", blob)
    try:
        read(path)
    except BadCheckpoint:
        pass


@given(st.data())
def test_a_good_file_with_one_byte_changed_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    blob = bytearray(image(TWO))
    place = data.draw(st.integers(0, len(blob) - 1))
    blob[place] = data.draw(st.integers(0, 255))
    try:
        found = read(write(tmp_path_factory.mktemp("fuzz") / "x.safetensors", bytes(blob)))
    except BadCheckpoint:
        return
    assert all(0 <= e.begin <= e.end <= len(blob) for e in found.entries)
