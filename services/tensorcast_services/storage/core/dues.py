"""Deadlines by number, with the earliest at hand: those of open requests, and those of leases."""

from __future__ import annotations

import heapq

_SLACK = 1024


class Dues:
    """A key has one deadline at a time; setting it again moves it."""

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # with entries of deadlines that were moved or dropped

    def set(self, key: int, due_ms: int) -> None:
        self._due[key] = due_ms
        heapq.heappush(self._heap, (due_ms, key))
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            # Most were dropped long before their time.
            self._heap = sorted((due, number) for number, due in self._due.items())

    def drop(self, key: int) -> None:
        self._due.pop(key, None)

    def next_ms(self) -> int | None:
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def over(self, now_ms: int) -> list[int]:
        """Keys whose time has come, earliest first; they stay until they are dropped."""
        return [key for due, key in sorted((due, key) for key, due in self._due.items() if due <= now_ms)]
