"""The safetensors header, read strictly and with bounded memory (format: github.com/huggingface/safetensors).

8 bytes little-endian header length N, N bytes of JSON, then the data. A header is taken only if its tensors tile the
data exactly: no overlap, no hole, nothing after the end, every size equal to dtype times shape. What passes here can
be mapped and handed out without another check; what does not is a BadCheckpoint that says what the file looks like.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tensorcast.checkpoint.looks import HEAD_BYTES, looks_of
from tensorcast.checkpoint.opened import OpenedFile
from tensorcast.checkpoint.strict_json import Json, parse
from tensorcast.deadline import Deadline
from tensorcast_bus.dtypes import DTYPE_BITS, FILE_DTYPES, tensor_bytes
from tensorcast_bus.errors import BadCheckpoint
from tensorcast_bus.manifest import SourceFile
from tensorcast_native import xxh3_128

HEADER_BYTES_MAX = 128 << 20
TENSORS_MAX = 200_000
RANK_MAX = 64
TENSOR_BITS_MAX = 1 << 63
METADATA = "__metadata__"
_FIELDS = frozenset({"dtype", "shape", "data_offsets"})


class Entry(msgspec.Struct, frozen=True):
    """One tensor; `begin` and `end` are offsets in the file, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class FileHeader(msgspec.Struct, frozen=True):
    """`entries` in the order of their bytes."""

    source: SourceFile
    entries: tuple[Entry, ...]
    metadata: dict[str, str]


def read_header(opened: OpenedFile, deadline: Deadline) -> FileHeader:
    """Raises Timeout, and BadCheckpoint naming the file, what is wrong, what it looks like, and the next step."""
    size = opened.source.size
    phase = f"reading the header of {opened.shown}"

    def look() -> object:
        return deadline.left_ms(phase)

    blob, start = _header_bytes(opened, look)
    try:
        entries, metadata = _parse(blob, start, look)
        _check_tiling(entries, start, size)
    except ValueError as error:
        raise bad(opened, str(error)) from None
    opened.check_unchanged()
    digest = xxh3_128((start - 8).to_bytes(8, "little") + blob)
    return FileHeader(msgspec.structs.replace(opened.source, header_digest=digest), entries, metadata)


def bad(opened: OpenedFile, problem: str) -> BadCheckpoint:
    """The verdict on a file, with what it looks like where that is known."""
    head = opened.read(HEAD_BYTES, 0)
    # A header length can spell another format's magic by chance; a brace right behind it settles what the file is.
    safetensors = head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= opened.source.size - 8
    looks = None if safetensors else looks_of(head)
    if looks is None:
        tail = "it is no whole safetensors file: download or write it again"
    else:
        tail = f"it looks like {looks.what}: {looks.next_step}"
    return BadCheckpoint(
        f"{opened.shown} {problem}; {tail}", path=opened.shown, looks_like=looks.what if looks else None
    )


def _header_bytes(opened: OpenedFile, look: Callable[[], object]) -> tuple[bytes, int]:
    size = opened.source.size
    if size == 0:
        raise BadCheckpoint(
            f"{opened.shown} is an empty file (0 bytes): its download or writer never ran to the end; fetch it again",
            path=opened.shown,
            looks_like="an empty file",
        )
    if size < 10:
        raise bad(opened, f"has {size} bytes, too few for any safetensors file")
    first = opened.read(9, 0)
    length = int.from_bytes(first[:8], "little")
    if length > size - 8:
        if first[8:] == b"{" and length <= HEADER_BYTES_MAX:
            raise BadCheckpoint(
                f"{opened.shown} has {size} bytes, its header alone takes {length + 8}; it looks like a safetensors "
                "file that was cut off (incomplete download?): fetch it again",
                path=opened.shown,
                looks_like="a cut-off safetensors file",
            )
        raise bad(opened, f"has {size} bytes, and read as safetensors its first 8 announce a header of {length}")
    if length > HEADER_BYTES_MAX:
        raise _long_header(opened, first, length)
    if first[8:] != b"{":
        raise bad(opened, "has no JSON object after the 8 bytes of header length")
    blob = opened.read(length, 8, look)
    if len(blob) != length:
        raise bad(opened, f"ended after {len(blob)} of {length} header bytes while it was read")
    return blob, 8 + length


def _long_header(opened: OpenedFile, first: bytes, length: int) -> BadCheckpoint:
    limit = f"has a header of {length} bytes; the limit header_bytes_max is {HEADER_BYTES_MAX}"
    if first[8:] != b"{":
        return bad(opened, limit)
    return BadCheckpoint(
        f"{opened.shown} {limit}, which no setting raises: write it as several files with an index, each below it, or "
        "give its tensors shorter names",
        path=opened.shown,
        header_bytes=length,
        header_bytes_max=HEADER_BYTES_MAX,
    )


def _parse(blob: bytes, start: int, look: Callable[[], object]) -> tuple[tuple[Entry, ...], dict[str, str]]:
    try:
        tree = parse(blob, look=look)
    except ValueError as error:
        raise ValueError(f"has a header that {error}") from None
    if not isinstance(tree, dict):
        raise ValueError("has a header that is not a JSON object")
    metadata = _metadata(tree.pop(METADATA, {}))
    if len(tree) > TENSORS_MAX:
        raise ValueError(f"names {len(tree)} tensors; the limit tensors_max is {TENSORS_MAX}")
    entries: list[Entry] = []
    for name, value in tree.items():
        look()
        entries.append(_entry(name, value, start))
    # Zero-size tensors sort before the one that begins where they lie.
    return tuple(sorted(entries, key=lambda e: (e.begin, e.end, e.name))), metadata


def _metadata(value: Json) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"has a {METADATA} that is not an object of strings")
    found: dict[str, str] = {}
    for key, text in value.items():
        if not isinstance(text, str):
            raise ValueError(f"has a {METADATA} entry {key[:80]!r} that is not a string")
        found[_utf8(key)] = _utf8(text)
    return found


def _entry(name: str, value: Json, start: int) -> Entry:
    shown = repr(name[:200])
    _utf8(name)
    if not isinstance(value, dict) or set(value) != _FIELDS:
        got = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise ValueError(f"describes tensor {shown} by {str(got)[:200]} instead of {sorted(_FIELDS)}")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in FILE_DTYPES:
        raise ValueError(f"has tensor {shown} of dtype {str(dtype)[:40]!r}; known are {' '.join(sorted(FILE_DTYPES))}")
    dims = _whole(shape, f"shape of tensor {shown}")
    if len(dims) > RANK_MAX:
        raise ValueError(f"has tensor {shown} of {len(dims)} dimensions; the limit is {RANK_MAX}")
    span = _whole(offsets, f"data_offsets of tensor {shown}")
    if len(span) != 2 or span[0] > span[1]:
        raise ValueError(f"has data_offsets {str(list(span))[:80]} for tensor {shown}; they must be [begin, end]")
    want = _size(dtype, dims, shown)
    if span[1] - span[0] != want:
        raise ValueError(
            f"has tensor {shown}, {dtype} {list(dims)}, in {span[1] - span[0]} bytes; that shape takes {want} bytes"
        )
    return Entry(name, dtype, dims, start + span[0], start + span[1])


def _whole(value: Json, what: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError(f"has a {what} that is not a list")
    found: list[int] = []
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int):
            raise ValueError(f"has a {what} with {str(item)[:40]!r} in it, which is not a whole number")
        if not 0 <= item < 1 << 63:
            raise ValueError(f"has a {what} with {item} in it; allowed is 0 to 2^63-1")
        found.append(item)
    return tuple(found)


def _size(dtype: str, dims: tuple[int, ...], shown: str) -> int:
    if dtype == "F4" and (not dims or dims[-1] % 2):
        # Rows that share a byte could neither be cut apart nor be counted in pairs, as every framework does.
        raise ValueError(
            f"has tensor {shown}, F4 {list(dims)}: two F4 elements make one byte, so the last dimension must be even"
        )
    bits = DTYPE_BITS[dtype]
    # A zero must not hide an overflow: whoever multiplies in another order, in 64 bits, would wrap before meeting it.
    for dim in dims:
        bits *= dim or 1
        if bits >= TENSOR_BITS_MAX:
            raise ValueError(f"has tensor {shown}, {dtype} {list(dims)}, whose size overflows 64 bits")
    try:
        return tensor_bytes(dtype, dims)
    except ValueError as error:
        raise ValueError(f"has tensor {shown} that cannot be: {error}") from None


def _check_tiling(entries: tuple[Entry, ...], start: int, size: int) -> None:
    at, before = start, ""
    for entry in entries:
        if entry.begin < at:
            raise ValueError(f"has tensors {before!r} and {entry.name!r} overlap at byte {entry.begin}")
        if entry.begin > at:
            raise ValueError(f"has {entry.begin - at} bytes before tensor {entry.name!r} that belong to no tensor")
        if entry.end > at:
            at, before = entry.end, entry.name
    if at > size:
        raise ValueError(
            f"has {size} bytes and its tensors end at {at}: {at - size} bytes are missing, a cut-off safetensors file "
            "(incomplete download?)"
        )
    if at < size:
        raise ValueError(f"has {size - at} bytes after its last tensor; a safetensors file ends with its data")


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"has the name {text[:80]!r}, which is not valid Unicode (a lone surrogate)") from None
    return text
