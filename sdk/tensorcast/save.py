"""Writing an artifact as a plain safetensors file: checked first, then a temporary file beside it, then a rename.

What stands at the target is replaced only where it is a regular file. A symbolic link stays and its target is replaced;
a pipe, device, socket or folder is refused, since a rename would put a file in its place.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence

from tensorcast.drafts.memory import image_header
from tensorcast.shortage import shortage
from tensorcast.views.gather import dense_steps, flat_bytes, runs_in
from tensorcast.views.part import FIRST_SEGMENT, Part
from tensorcast_bus.dtypes import FILE_DTYPES, alignment
from tensorcast_bus.errors import FormatMismatch, Invalid, Unavailable
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


def save_file(attachment: Attachment | None, parts: Sequence[Part], path: str, *, metadata: dict[str, str]) -> None:
    """`parts` have passed check_savable(); without an attachment none of them has bytes. Raises FormatMismatch and
    Invalid before anything is written, Unavailable when the disk is full or fails."""
    path = check_target(path)
    parts = sorted(parts, key=lambda t: (-alignment(t.dtype), t.name))
    header = image_header([(t.name, t.dtype, t.shape, t.nbytes) for t in parts], metadata=metadata)
    if len(header) - 8 > FILE_HEADER_BYTES_MAX:
        raise FormatMismatch(
            f"{path} would need a header of {len(header)} bytes; readers of safetensors take "
            f"{FILE_HEADER_BYTES_MAX}; nothing was written: save views of its parts one by one"
        )
    folder, name = os.path.split(path)
    unfinished = os.path.join(folder, f".{name[:100]}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        _write(unfinished, header, attachment, parts)
        os.replace(unfinished, path)
    except BaseException as error:
        try:
            os.unlink(unfinished)
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


def check_savable(parts: Sequence[Part], art_id: str) -> None:
    """Raises FormatMismatch naming what the format cannot say."""
    problems: list[str] = []
    at: dict[object, str] = {}
    for part in parts:
        if part.dtype not in FILE_DTYPES:
            problems.append(f"{part.name!r} is {part.dtype}, for which the format has no word")
        if part.nbytes:
            first = at.setdefault((part.row.segment, part.row.offset) if part.whole else part.tie, part.name)
            if first != part.name:
                problems.append(f"{first!r} and {part.name!r} are tied (one tensor under two names)")
    if problems:
        shown = "; ".join(problems[:_NAMES_SHOWN])
        rest = f" and {len(problems) - _NAMES_SHOWN} more" if len(problems) > _NAMES_SHOWN else ""
        raise FormatMismatch(
            f"{art_id!r} cannot be a safetensors file: {shown}{rest}; nothing was written: save a view() without "
            "these, or put a dict with complex128 seen as float64 and tied names cloned, and save that",
            problems=problems[:_NAMES_SHOWN],
        )


def _write(path: str, header: bytes, attachment: Attachment | None, parts: Sequence[Part]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        _write_all(fd, memoryview(header))
        for part in parts:
            if part.nbytes and attachment is not None:
                for view in _bytes_of(attachment, part):
                    _write_all(fd, view)
        os.fsync(fd)
    finally:
        os.close(fd)


def _bytes_of(attachment: Attachment, part: Part) -> Iterator[memoryview]:
    if part.whole:
        yield memoryview(attachment.view(part.row.segment + FIRST_SEGMENT, part.row.offset, part.nbytes))
    else:
        yield from dense_steps(runs_in(flat_bytes(attachment, part.row), part))


def _write_all(fd: int, view: memoryview) -> None:
    while len(view):
        # One call writes at most 2 GiB - 4 KiB on Linux; smaller ones also let a signal through.
        view = view[os.write(fd, view[:_WRITE_BYTES]) :]
