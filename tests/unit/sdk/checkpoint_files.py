"""Builders of checkpoint files, right ones and wrong ones, byte by byte: no library stands between test and bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

Entries = Mapping[str, tuple[str, list[int], bytes]]


def image(entries: Entries, *, metadata: Mapping[str, str] | None = None, header_multiple: int = 8) -> bytes:
    """A whole safetensors file; `header_multiple` 1 leaves the header's length as it falls."""
    table: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at, data = 0, b""
    for name, (dtype, shape, blob) in entries.items():
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(blob)]}
        at, data = at + len(blob), data + blob
    return with_header(json.dumps(table), data, header_multiple=header_multiple)


def with_header(header: str | bytes, data: bytes = b"", *, header_multiple: int = 1) -> bytes:
    text = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    text = text.ljust(-(-len(text) // header_multiple) * header_multiple)
    return len(text).to_bytes(8, "little") + text + data


def write(path: Path, blob: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(blob)
    return path


def sharded(folder: Path, shards: Mapping[str, Entries]) -> Path:
    """A directory with an index; returns the index's path."""
    places: dict[str, str] = {}
    for file, entries in shards.items():
        write(folder / file, image(entries))
        places |= dict.fromkeys(entries, file)
    index = {"metadata": {"total_size": 1.0}, "weight_map": places}
    return write(folder / "model.safetensors.index.json", json.dumps(index).encode())


TWO: Entries = {"a": ("F32", [2, 2], bytes(range(16))), "b": ("U8", [3], b"xyz")}

NOT_CHECKPOINTS: Mapping[str, tuple[bytes, str]] = {
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:"
        + b"4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
        + b"\nsize 12345\n",
        "Git LFS pointer",
    ),
    "html": (b"<!DOCTYPE html>\n<html><body>401 Unauthorized</body></html>\n", "HTML page"),
    "xml": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "XML"),
    "zip": (b"PK\x03\x04\x00\x00\x08\x08\x00\x00" + bytes(100), "zip archive"),
    "pickle": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02" + bytes(50), "pickle"),
    "gguf": (b"GGUF\x03\x00\x00\x00" + bytes(100), "GGUF"),
    "npy": (b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', }" + bytes(64), "numpy"),
    "gzip": (b"\x1f\x8b\x08\x00" + bytes(100), "gzip"),
    "zeros": (bytes(4096), "zeros"),
    "json": (b'{"error": "Repository not found", "code": 404}', "JSON"),
    "empty": (b"", "empty file"),
}


def damaged() -> dict[str, tuple[bytes, str]]:
    """Files that begin well: what is wrong with each must be named."""
    good = image(TWO)
    header = int.from_bytes(good[:8], "little")
    return {
        "tail": (good + bytes(4096), "4096 bytes after"),
        "cut in header": (good[: 8 + header // 2], "cut off"),
        "cut in data": (good[: 8 + header + 5], "14 bytes are missing"),
        "cut at the last byte": (good[:-1], "1 bytes are missing"),
        "cut in length": (good[:5], "too few"),
    }
