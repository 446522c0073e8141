"""Where a process's log lines go: a stream that may be full, closed or broken, which must never end the process.

A line that cannot be written is counted, and the next one that can be is preceded by how many are missing.
"""

from __future__ import annotations

from typing import TextIO


class LogSink:
    """Takes the place of a text stream for structlog. Not for anything that must be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = 0

    def write(self, text: str) -> int:
        try:
            if self.lost:
                self._stream.write(f'{{"event": "log_lines_lost", "lines": {self.lost}}}\n')
                self._stream.flush()
                self.lost = 0
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self.lost += 1
        return len(text)

    def flush(self) -> None:
        """Every line is flushed as it is written."""
