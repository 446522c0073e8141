"""How the command line shows things: sizes, ages, aligned columns, JSON, problems. Colour only on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import msgspec

from tensorcast.cli.words import Words
from tensorcast_bus.errors import TensorCastError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"


def size(nbytes: float) -> str:
    """ "1.5 GiB"."""
    unit = 0
    while nbytes >= 1024 and unit < len(_UNITS) - 1:
        nbytes /= 1024
        unit += 1
    return f"{nbytes:.0f} B" if unit == 0 else f"{nbytes:.1f} {_UNITS[unit]}"


def span(ms: float) -> str:
    """ "850 ms", "12 s", "3 min", "5 h", "2 d"."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    for limit, unit_ms, word in ((60, 1e3, "s"), (60, 6e4, "min"), (48, 3.6e6, "h")):
        if ms < limit * unit_ms:
            return f"{ms / unit_ms:.0f} {word}"
    return f"{ms / 8.64e7:.0f} d"


def since(epoch_ms: int) -> str:
    """How long ago a time of the wall clock was."""
    return span(max(0.0, time.time() * 1000 - epoch_ms))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> None:
    """Columns as wide as their widest cell; those in `right` flush right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        cells = (c.rjust(w) if n in right else c.ljust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True)))
        print("  ".join(cells).rstrip())


def as_json(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(plain(value)), indent=2).decode())


def plain(value: object) -> object:
    """Records as objects with named fields, also those that are rows on the wire."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def problem(words: Words, error: Exception) -> None:
    """One line on stderr; with --json the error's record."""
    if not isinstance(error, TensorCastError):
        error = TensorCastError(f"{type(error).__name__}: {error}")
    if words.json:
        record = {"code": error.code, "text": error.text, "context": dict(error.context)}
        print(msgspec.json.encode({"error": record}).decode(), file=sys.stderr)
        return
    head = "tensorcast:"
    print(f"{_RED}{head}{_PLAIN}" if sys.stderr.isatty() else head, f"{error.text} [{error.code}]", file=sys.stderr)
