"""A log that cannot be written must not end the process that writes it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from typing import TextIO

import pytest

from tensorcast_services.log_sink import LogSink


class Disk(io.StringIO):
    """A stream that is full for a while."""

    full = False

    def write(self, text: str, /) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


@pytest.fixture
def full() -> Iterator[TextIO]:
    stream = open("/dev/full", "w")  # noqa: SIM115 - closing it fails, as it must
    yield stream
    with suppress(OSError):
        stream.close()


def test_a_full_disk_costs_lines_and_no_exception(full: TextIO) -> None:
    sink = LogSink(full)
    for _ in range(3):
        sink.write("line\n")
    assert sink.lost == 3


def test_lines_that_are_missing_are_told_once_there_is_room_again() -> None:
    disk = Disk()
    sink = LogSink(disk)
    sink.write("a\n")
    disk.full = True
    sink.write("b\n")
    sink.write("c\n")
    disk.full = False
    sink.write("d\n")
    assert disk.getvalue() == 'a\n{"event": "log_lines_lost", "lines": 2}\nd\n'


def test_a_closed_stream_is_no_trouble_either() -> None:
    closed = io.StringIO()
    closed.close()
    LogSink(closed).write("line\n")
