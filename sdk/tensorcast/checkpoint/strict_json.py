"""JSON as checkpoints need it: no duplicate names, no NaN, no fractions, bounded before it is parsed.

Python's own parser would keep the last of two equal names, take NaN, and build gigabytes from a bracket bomb.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

JSON_VALUES_MAX = 4_000_000
DIGITS_MAX = 20

Json = str | int | bool | None | list["Json"] | dict[str, "Json"]


def parse(
    blob: bytes,
    *,
    values_max: int = JSON_VALUES_MAX,
    fractions: bool = False,
    look: Callable[[], object] = lambda: None,
) -> Json:
    """Raises ValueError with what is wrong, in words. `fractions` lets numbers with a point pass as text; `look` is
    called at every object, and may end the parsing by what it raises."""
    # Every value but the first has a comma or an opening bracket before it, so this bounds what the parser can build.
    values = blob.count(b",") + blob.count(b"[") + blob.count(b"{")
    if values > values_max:
        raise ValueError(f"holds about {values} values; the limit is {values_max}")
    try:
        text = blob.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start}") from None
    fraction: Callable[[str], Json] = str if fractions else _no_fraction
    decoder = json.JSONDecoder(
        object_pairs_hook=lambda pairs: _unique(pairs, look),
        parse_float=fraction,
        parse_constant=_no_constant,
        parse_int=_small_int,
    )
    try:
        found: Json = decoder.decode(text)
    except RecursionError:
        raise ValueError("is nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    return found


def _unique(pairs: Sequence[tuple[str, Json]], look: Callable[[], object]) -> dict[str, Json]:
    look()
    found: dict[str, Json] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"has the name {name[:200]!r} twice")
        found[name] = value
    return found


def _no_fraction(text: str) -> Json:
    raise ValueError(f"has {text[:40]} where a whole number belongs")


def _no_constant(text: str) -> Json:
    raise ValueError(f"has {text} where a whole number belongs")


def _small_int(text: str) -> int:
    if len(text) > DIGITS_MAX:
        raise ValueError(f"has a number of {len(text)} digits, which does not fit 64 bits")
    return int(text)
