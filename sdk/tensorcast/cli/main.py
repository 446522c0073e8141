"""The entry point: reads the words, imports the one command that is meant, turns errors into exit codes.

0 ok, 1 failed, 2 usage, 3 not connected. `--help` imports nothing but argparse; torch and the bus are imported by the
commands that use them.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence

from tensorcast.cli.words import Words, parse

OK, FAILED, USAGE, NOT_CONNECTED = 0, 1, 2, 3

_ROOMS = {
    "up": "up",
    "down": "down",
    "status": "status",
    "doctor": "doctor",
    "ls": "catalog",
    "alias": "alias",
    "describe": "describe",
    "rm": "catalog",
    "put": "transfer",
    "get": "transfer",
    "logs": "logs",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    _mend_streams()
    words = parse(sys.argv[1:] if argv is None else argv)
    code = OK
    try:
        try:
            code = _command(words.command)(words)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            code = FAILED
            print("stopped", file=sys.stderr)
        except Exception as error:
            code = FAILED
            code = _failed(words, error)
        sys.stderr.flush()
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Point the streams elsewhere, or Python complains again at its exit.
        _to_nowhere()
    return code


def _mend_streams() -> None:
    """A caller may have closed our streams, or have them in an encoding that lacks a character of some artifact's id:
    neither may end a command."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            # Opened for the number too: the next file or socket would get it, and whoever prints would write there.
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", errors="backslashreplace", closefd=False))
        elif fd and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _to_nowhere() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _command(name: str) -> Callable[[Words], int]:
    room = importlib.import_module(f"tensorcast.cli.{_ROOMS[name]}")
    found: Callable[[Words], int] = getattr(room, name)
    return found


def _failed(words: Words, error: Exception) -> int:
    errors = importlib.import_module("tensorcast_bus.errors")
    render = importlib.import_module("tensorcast.cli.render")
    if not isinstance(error, errors.TensorCastError | OSError):
        raise error
    render.problem(words, error)
    return NOT_CONNECTED if isinstance(error, errors.NotConnected) else FAILED
