"""The result of one check."""

from __future__ import annotations

from pathlib import Path

import msgspec

OK, WARN, FAIL = "ok", "warn", "fail"


class Finding(msgspec.Struct, frozen=True):
    """`state` is "ok", "warn" (works, but worse than it could) or "fail" (something will not work). `value` is what was
    found; `fix`, where not ok, is a command or setting that mends it."""

    check: str
    state: str
    value: str
    fix: str = ""


def text_of(path: Path) -> str | None:
    """The stripped text of a file of /proc or /sys; None where it is not there or may not be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def number_of(path: Path) -> int | None:
    """The whole number in such a file; None where there is none."""
    text = text_of(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None
