"""`tensorcast logs`: the last lines of each process's log, and what comes after them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import msgspec

from tensorcast.cli import cluster
from tensorcast.cli.words import Words
from tensorcast_bus.errors import NotConnected, NotFound

_POLL_S = 0.2
_BLOCK_BYTES = 64 << 10


@dataclass
class _Log:
    """`at`: how far it has been shown. `inode` tells a rotated file from one that grew."""

    process: str
    path: str
    at: int = 0
    inode: int = 0


def logs(words: Words) -> int:
    """Works for a stopped cluster too."""
    folder = os.path.join(cluster.folder(words), "logs")
    try:
        names = sorted(n[: -len(".log")] for n in os.listdir(folder) if n.endswith(".log"))
    except FileNotFoundError:
        raise NotConnected(
            f"{folder} is not there: no cluster {cluster.name_of(words)!r} ever ran on this host"
        ) from None
    if words.process and words.process not in names:
        raise NotFound(f"no process {words.process!r} has a log in {folder}; there are: {', '.join(names) or 'none'}")
    chosen = [_Log(n, os.path.join(folder, f"{n}.log")) for n in ([words.process] if words.process else names)]
    show = _print_record if words.json else _print_labelled if len(chosen) > 1 else _print_plain
    for log in chosen:
        for line in _tail(log, words.lines):
            show(log, line)
    try:
        while words.follow:
            time.sleep(_POLL_S)
            for log in chosen:
                for line in _more(log):
                    show(log, line)
    except KeyboardInterrupt:
        pass  # the way to end following
    return 0


def _print_plain(log: _Log, line: str) -> None:
    print(line, flush=True)


def _print_labelled(log: _Log, line: str) -> None:
    print(f"{log.process:<14} {line}", flush=True)


def _print_record(log: _Log, line: str) -> None:
    """One JSON object a line: the fields of a structured line, `line` for what a process wrote in another form."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, object])
    except msgspec.DecodeError:
        fields = {"line": line}
    print(msgspec.json.encode({"process": log.process} | fields | {"process": log.process}).decode(), flush=True)


def _tail(log: _Log, count: int) -> list[str]:
    with open(log.path, "rb") as file:
        seen = os.fstat(file.fileno())
        log.inode, at, blob = seen.st_ino, seen.st_size, b""
        while at and blob.count(b"\n") <= count:
            step = min(_BLOCK_BYTES, at)
            at -= step
            file.seek(at)
            blob = file.read(step) + blob
        log.at = seen.st_size
    return blob.decode(errors="replace").splitlines()[-count:] if count else []


def _more(log: _Log) -> list[str]:
    try:
        with open(log.path, "rb") as file:
            seen = os.fstat(file.fileno())
            if seen.st_ino != log.inode or seen.st_size < log.at:
                log.at, log.inode = 0, seen.st_ino
            file.seek(log.at)
            blob = file.read(max(0, seen.st_size - log.at))
    except FileNotFoundError:
        return []
    # A line that is still being written is left for the next look.
    whole = blob[: blob.rfind(b"\n") + 1]
    log.at += len(whole)
    return whole.decode(errors="replace").splitlines()
