"""The ids and names that callers give, checked before anything is asked with them."""

from __future__ import annotations

from tensorcast_bus.errors import Invalid
from tensorcast_bus.ids import check_art_id


def checked_id(art_id: object) -> str:
    """Raises Invalid for what is no string or no artifact id."""
    return check_art_id(text(art_id, "an artifact id"))


def text(given: object, what: str) -> str:
    """`given` where it is a string; else Invalid."""
    if isinstance(given, str):
        return given
    raise Invalid(f"{str(given)[:80]!r} is of type {type(given).__name__}; {what} is a string")
