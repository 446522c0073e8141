"""What a file looks like from its first bytes, and what to do about it. For error texts only, never for decisions."""

from __future__ import annotations

import msgspec

HEAD_BYTES = 512


class Looks(msgspec.Struct, frozen=True):
    """`what` completes "it looks like ..."; `next_step` is an order to the reader."""

    what: str
    next_step: str


_LFS = Looks("a Git LFS pointer, not the file it stands for", "fetch the real file with `git lfs pull` and put that")
_HTML = Looks(
    "an HTML page, probably a login or error page saved by a download",
    "download the file again and look at the download's status",
)
_XML = Looks("an XML document, probably an error answer saved by a download", "download the file again")
_JSON = Looks("a JSON text, an index or an error answer", "give the .safetensors file, or an index ending in .json")
_ZIP = Looks(
    "a zip archive, as torch.save() writes .bin, .pt and .pth files (pickle inside)",
    "load it with torch.load(weights_only=True) and put the state dict, or convert it to safetensors",
)
_PICKLE = Looks(
    "a pickle, as old .bin, .pt and .pth files are (it is never opened here: a pickle runs code)",
    "load it with torch.load(weights_only=True) and put the state dict, or convert it to safetensors",
)
_GGUF = Looks("a GGUF file", "convert it to safetensors; its block-quantized types are not in that format")
_MAGIC: tuple[tuple[bytes, Looks], ...] = (
    (b"version https://git-lfs", _LFS),
    (b"PK\x03\x04", _ZIP),
    (b"PK\x05\x06", _ZIP),
    (b"GGUF", _GGUF),
    (b"ggml", _GGUF),
    (b"ggjt", _GGUF),
    (b"\x89HDF\r\n", Looks("an HDF5 file", "load its arrays and put them as a dict")),
    (b"\x93NUMPY", Looks("a numpy .npy file", "load it with numpy.load() and put the array")),
    (b"\x1f\x8b", Looks("a gzip archive", "unpack it first")),
    (b"\x28\xb5\x2f\xfd", Looks("a zstd archive", "unpack it first")),
    (b"BZh", Looks("a bzip2 archive", "unpack it first")),
    (b"\xfd7zXZ", Looks("an xz archive", "unpack it first")),
    (b"\x7fELF", Looks("a program or library (ELF)", "give the path of a safetensors file")),
)


def looks_of(head: bytes) -> Looks | None:
    """None where nothing is recognised. `head` is the first HEAD_BYTES of the file, or all of it."""
    for magic, looks in _MAGIC:
        if head.startswith(magic):
            return looks
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<!-- ")):
        return _HTML
    if text.startswith((b"<?xml", b"<error")):
        return _XML
    if text.startswith((b'{"', b"{\n", b"{\r\n", b"[")):
        return _JSON
    if len(head) >= 2 and head[0] == 0x80 and 2 <= head[1] <= 5:
        return _PICKLE
    if head[257:262] == b"ustar":
        return Looks("a tar archive", "unpack it first")
    if head and not any(head):
        return Looks("zeros, as a sparse or unfinished download leaves them", "download the file again")
    return None
