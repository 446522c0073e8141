"""Writing an artifact as a plain safetensors file: checked first, then a temporary file beside it, then a rename."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

from tensorcast.drafts.memory import image_header
from tensorcast.tensors import FIRST_SEGMENT
from tensorcast_bus.dtypes import FILE_DTYPES, alignment
from tensorcast_bus.errors import FormatMismatch
from tensorcast_bus.manifest import Manifest, TensorRow
from tensorcast_native import Attachment

# What the format's own readers take; a longer header would make a file that only we can open.
FILE_HEADER_BYTES_MAX = 100_000_000
_WRITE_BYTES = 64 << 20
_NAMES_SHOWN = 10


def save_file(attachment: Attachment, manifest: Manifest, path: str) -> None:
    """Raises FormatMismatch before anything is written, OSError when the disk refuses."""
    _check(manifest)
    rows = sorted(manifest.tensors, key=lambda t: (-alignment(t.dtype), t.name))
    header = image_header([(t.name, t.dtype, t.shape, t.nbytes) for t in rows], metadata=manifest.metadata)
    if len(header) - 8 > FILE_HEADER_BYTES_MAX:
        raise FormatMismatch(
            f"{manifest.art_id!r} needs a header of {len(header)} bytes; readers of safetensors take "
            f"{FILE_HEADER_BYTES_MAX}; nothing was written: put and save its parts as artifacts of their own"
        )
    folder, name = os.path.split(os.path.abspath(path))
    part = os.path.join(folder, f".{name[:100]}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        _write(part, header, attachment, rows)
        os.replace(part, path)
    except BaseException:
        try:
            os.unlink(part)
        except FileNotFoundError:
            pass
        raise


def _check(manifest: Manifest) -> None:
    problems: list[str] = []
    at: dict[tuple[int, int], str] = {}
    for row in manifest.tensors:
        if row.dtype not in FILE_DTYPES:
            problems.append(f"{row.name!r} is {row.dtype}, for which the format has no word")
        if row.nbytes:
            first = at.setdefault((row.segment, row.offset), row.name)
            if first != row.name:
                problems.append(f"{first!r} and {row.name!r} are tied (one tensor under two names)")
    if problems:
        shown = "; ".join(problems[:_NAMES_SHOWN])
        rest = f" and {len(problems) - _NAMES_SHOWN} more" if len(problems) > _NAMES_SHOWN else ""
        raise FormatMismatch(
            f"{manifest.art_id!r} cannot be a safetensors file: {shown}{rest}; nothing was written: put a dict without "
            "these (view complex128 as float64, leave out or clone a tied name) and save that",
            problems=problems[:_NAMES_SHOWN],
        )


def _write(path: str, header: bytes, attachment: Attachment, rows: Sequence[TensorRow]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        _write_all(fd, memoryview(header))
        for row in rows:
            if row.nbytes:
                _write_all(fd, memoryview(attachment.view(row.segment + FIRST_SEGMENT, row.offset, row.nbytes)))
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, view: memoryview) -> None:
    while len(view):
        # One call writes at most 2 GiB - 4 KiB on Linux; smaller ones also let a signal through.
        view = view[os.write(fd, view[:_WRITE_BYTES]) :]
