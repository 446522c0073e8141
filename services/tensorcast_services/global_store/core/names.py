"""Names in their order, for lists that are read page by page.

Insertion and removal move pointers only; nothing here walks over all names.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator


class Names:
    """Each name once; the caller sees to it."""

    def __init__(self, names: Iterable[str]) -> None:
        self._order = sorted(names)

    def add(self, name: str) -> None:
        insort(self._order, name)

    def remove(self, name: str) -> None:
        del self._order[bisect_left(self._order, name)]

    def after(self, prefix: str, after: str) -> Iterator[str]:
        """Names with the prefix, from the first one behind `after`."""
        start = max(bisect_left(self._order, prefix), bisect_right(self._order, after) if after else 0)
        for i in range(start, len(self._order)):
            if not self._order[i].startswith(prefix):
                return
            yield self._order[i]
