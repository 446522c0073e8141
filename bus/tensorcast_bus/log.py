"""The bus's events for people. A process that configured structlog gets them there; anywhere else they go to the
standard logger `tensorcast.bus`, so that a library user's stdout stays the user's."""

from __future__ import annotations

import logging
from typing import Protocol

import structlog


class BusLog(Protocol):
    """What the bus asks of a logger: an event and its facts."""

    def debug(self, event: str, **facts: object) -> None: ...

    def info(self, event: str, **facts: object) -> None: ...

    def warning(self, event: str, **facts: object) -> None: ...

    def exception(self, event: str, **facts: object) -> None: ...


def bus_log(*, process: str) -> BusLog:
    """Chosen when a bus is made: configure structlog before."""
    if structlog.is_configured():
        chosen: BusLog = structlog.get_logger("tensorcast.bus").bind(process=process)
        return chosen
    return _StandardLog(process)


class _StandardLog:
    def __init__(self, process: str) -> None:
        self._log = logging.getLogger("tensorcast.bus")
        self._process = process

    def debug(self, event: str, **facts: object) -> None:
        self._log.debug("%s", self._line(event, facts))

    def info(self, event: str, **facts: object) -> None:
        self._log.info("%s", self._line(event, facts))

    def warning(self, event: str, **facts: object) -> None:
        self._log.warning("%s", self._line(event, facts))

    def exception(self, event: str, **facts: object) -> None:
        self._log.exception("%s", self._line(event, facts))

    def _line(self, event: str, facts: dict[str, object]) -> str:
        return " ".join([f"{self._process}: {event}", *(f"{key}={value!r}" for key, value in facts.items())])
