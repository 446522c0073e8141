"""Tables of settings in a TOML file: reading them, naming what is wrong in them, and setting one value by text.

Called by ``settings`` and by the supervisor. A file is edited line by line, so that comments and order stay as the
reader left them.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

Setting = str | int | float | bool | list[str]
Table = Mapping[str, Setting]
_HEAD = re.compile(r"\s*\[\s*([A-Za-z0-9_-]+)\s*\]\s*(#.*)?")


class Refusal(Exception):
    """A process cannot run as asked, and trying again would not help. The main prints the text and exits with 2."""


def read_tables(path: Path | None) -> dict[str, Table]:
    """The tables of a TOML file; none when there is no such file. Refusal on a broken one, naming file and line."""
    if path is None:
        return {}
    try:
        return parse_tables(path.read_text(), where=str(path))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"{path} cannot be read: {error}") from error


def parse_tables(text: str, *, where: str) -> dict[str, Table]:
    """The tables of a TOML text. Refusal names `where` it stands."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Refusal(f"{where}: {error}") from error
    for name, table in found.items():
        if not isinstance(table, dict):
            raise Refusal(f"{where}: {name!r} stands outside of a table; write it under [storage] or another process")
    return found


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a refusal: "; did you mean X?", or all that is known when nothing is close."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there is {', '.join(known) or 'none'}"


def with_value(text: str, table: str, key: str, value: str) -> str:
    """The TOML text with ``key`` of ``[table]`` set. `value` stands as it is when it is a TOML number, boolean or
    string, else as a string."""
    entry = f"{key} = {_literal(value)}"
    lines = text.splitlines()
    heads = {i: head[1] for i, line in enumerate(lines) if (head := _HEAD.fullmatch(line))}
    start = next((i for i, name in heads.items() if name == table), None)
    if start is None:
        lines += [""] * bool(lines and lines[-1]) + [f"[{table}]", entry]
        return "\n".join(lines) + "\n"
    end = next((i for i in heads if i > start), len(lines))
    for i in range(start + 1, end):
        if re.match(rf"\s*{re.escape(key)}\s*=", lines[i]):
            lines[i] = entry
            return "\n".join(lines) + "\n"
    lines.insert(start + 1, entry)
    return "\n".join(lines) + "\n"


def _literal(value: str) -> str:
    try:
        tomllib.loads(f"x = {value}")
    except tomllib.TOMLDecodeError:
        # JSON's string escapes are TOML's, too.
        return json.dumps(value, ensure_ascii=False)
    return value
