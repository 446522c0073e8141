"""Writing an artifact as a plain safetensors file: checked first, then a temporary file beside it, then a rename.

What stands at the target is replaced only where it is a regular file. A symbolic link stays and its target is replaced;
a pipe, device, socket or folder is refused, since a rename would put a file in its place.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Sequence

from tensorcast.drafts.memory import image_header
from tensorcast.shortage import shortage
from tensorcast.tensors import FIRST_SEGMENT
from tensorcast_bus.dtypes import FILE_DTYPES, alignment
from tensorcast_bus.errors import FormatMismatch, Invalid, Unavailable
from tensorcast_bus.manifest import Manifest, TensorRow
from tensorcast_native import Attachment

# What the format's own readers take; a longer header would make a file that only we can open.
FILE_HEADER_BYTES_MAX = 100_000_000
_WRITE_BYTES = 64 << 20
_NAMES_SHOWN = 10


def check_target(path: str) -> str:
    """The path that a save to `path` replaces. Raises Invalid for what is there and is no regular file."""
    try:
        target = os.path.realpath(path)
        target.encode("utf-8", "surrogateescape")
    except FileNotFoundError:
        raise Invalid(f"{path!r} is relative and this process's working folder was deleted; give a full path") from None
    except ValueError as error:
        raise Invalid(f"{path!r} cannot be a path: {error}; give another") from None
    try:
        seen = os.stat(path)
    except OSError:
        return target  # not there yet, or out of reach, which the writing tells with its reason
    if not stat.S_ISREG(seen.st_mode):
        raise Invalid(
            f"{path} is {_kind(seen.st_mode)}, not a regular file, and would be destroyed: nothing was written; write "
            "to a path of its own and pipe that (`tensorcast get ID FILE && cat FILE | ...`)",
            path=path,
        )
    if not os.path.exists(target) or not os.path.samestat(seen, os.stat(target)):
        raise Invalid(f"{path} is a file that no path leads to any more; write to a path of its own", path=path)
    return target


def _kind(mode: int) -> str:
    for test, word in (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if test(mode):
            return word
    return "of an unknown kind"


def save_file(attachment: Attachment, manifest: Manifest, path: str) -> None:
    """Raises FormatMismatch and Invalid before anything is written, Unavailable when the disk is full or fails."""
    path = check_target(path)
    _check(manifest)
    rows = sorted(manifest.tensors, key=lambda t: (-alignment(t.dtype), t.name))
    header = image_header([(t.name, t.dtype, t.shape, t.nbytes) for t in rows], metadata=manifest.metadata)
    if len(header) - 8 > FILE_HEADER_BYTES_MAX:
        raise FormatMismatch(
            f"{manifest.art_id!r} needs a header of {len(header)} bytes; readers of safetensors take "
            f"{FILE_HEADER_BYTES_MAX}; nothing was written: put and save its parts as artifacts of their own"
        )
    folder, name = os.path.split(path)
    part = os.path.join(folder, f".{name[:100]}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        _write(part, header, attachment, rows)
        os.replace(part, path)
    except BaseException as error:
        try:
            os.unlink(part)
        except OSError:
            pass  # it was never made
        if isinstance(error, OSError):
            raise _refused(error, path) from error
        raise


def _refused(error: OSError, path: str) -> Invalid | Unavailable:
    text = f"{path} cannot be written: {error.strerror}; nothing of it was left"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
        return Unavailable(f"{text}: make room on its disk, or write to another", path=path)
    return shortage(error, f"writing {path}") or Invalid(f"{text}: check its folder and your rights there", path=path)


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
