"""The entry point: reads the words, imports the one command that is meant, turns errors into exit codes.

0 ok, 1 failed, 2 usage, 3 not connected. `--help` imports nothing but argparse; torch and the bus are imported by the
commands that use them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence

from tensorcast.cli.words import Words, parse

OK, FAILED, USAGE, NOT_CONNECTED = 0, 1, 2, 3

_ROOMS = {
    "up": "up",
    "down": "down",
    "status": "status",
    "ls": "catalog",
    "describe": "describe",
    "rm": "catalog",
    "put": "transfer",
    "get": "transfer",
    "logs": "logs",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    words = parse(sys.argv[1:] if argv is None else argv)
    try:
        code = _command(words.command)(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Point stdout elsewhere, or Python complains once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        return _failed(words, error)
    return code


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
