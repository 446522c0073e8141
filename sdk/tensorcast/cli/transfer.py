"""`tensorcast put` and `tensorcast get`."""

from __future__ import annotations

import sys
import threading
import time

from tensorcast.artifact import Artifact
from tensorcast.cli import cluster, render
from tensorcast.cli.words import Words
from tensorcast_bus.errors import TensorCastError

_LOOK_S = 0.2


def put(words: Words) -> int:
    session = cluster.session(words)
    shows = words.progress or (sys.stderr.isatty() and not words.quiet and not words.json)
    progress = _Progress(words) if shows else None
    try:
        stored = session.put(words.path, words.art_id, durable=words.durable, deadline_ms=words.deadline_ms)
    finally:
        if progress is not None:
            progress.stop()
        session.close()
    stats = stored.stats
    if words.json:
        render.as_json({"art_id": words.art_id, "outcome": stored.outcome, "digest": stored.digest, "stats": stats})
    elif not words.quiet:
        rate = f", {render.size(stats.bytes_moved / stats.ms * 1000)}/s" if stats.bytes_moved and stats.ms else ""
        print(f"{stored.outcome} {words.art_id}: {render.size(stats.bytes_total)} in {render.span(stats.ms)}{rate}")
    return 0


def get(words: Words) -> int:
    session = cluster.session(words)
    started = time.monotonic()
    try:
        Artifact(session, words.art_id).save(words.path, deadline_ms=words.deadline_ms)
    finally:
        session.close()
    ms = (time.monotonic() - started) * 1000
    if words.json:
        render.as_json({"art_id": words.art_id, "path": words.path, "ms": ms})
    elif not words.quiet:
        print(f"wrote {words.art_id} to {words.path} in {render.span(ms)}")
    return 0


class _Progress:
    """Asks over a connection of its own, since the put keeps the other one busy, and writes one line on stderr."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        started = time.monotonic()
        wrote = False
        try:
            session = cluster.session(self._words)
        except TensorCastError:
            return
        while not self._over.wait(_LOOK_S):
            try:
                seen = session.progress(self._words.art_id, deadline_ms=2_000)
            except TensorCastError:
                continue  # the put itself says what is wrong
            if seen.bytes_total:
                self._write(line(seen.bytes_done, seen.bytes_total, time.monotonic() - started))
                wrote = True
        session.close()
        if wrote:
            self._write("\n" if sys.stderr.isatty() else "")

    def _write(self, text: str) -> None:
        end = "" if sys.stderr.isatty() or not text else "\n"
        start = "\r\x1b[K" if sys.stderr.isatty() and text != "\n" else ""
        print(f"{start}{text}", end=end, file=sys.stderr, flush=True)


def line(done: int, total: int, seconds: float) -> str:
    """ "1.0 GiB of 2.0 GiB (50 %), 1.5 GiB/s, 1 s left"."""
    rate = done / seconds if seconds > 0 else 0.0
    left = f", {render.span((total - done) / rate * 1000)} left" if rate else ""
    return f"{render.size(done)} of {render.size(total)} ({100 * done // total} %), {render.size(rate)}/s{left}"
