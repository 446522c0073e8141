"""A process that a test tells what to do, line by line: `python local_actor.py` runs each line of its input and
answers with one line, the value of `out` or the exception. It can fork; the child takes orders from two FIFOs.
"""

from __future__ import annotations

import ast
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

ANSWER_S = 60.0


class Actor:
    """The test's end."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
        )
        assert self.process.stdin and self.process.stdout
        self._orders: IO[bytes] = self.process.stdin
        self._answers: IO[bytes] = self.process.stdout
        self.pid = self.process.pid

    def start(self, line: str) -> None:
        self._orders.write(line.encode() + b"\n")
        self._orders.flush()

    def answer(self) -> object:
        ready, _, _ = select.select([self._answers], [], [], ANSWER_S)
        assert ready, f"process {self.pid} gave no answer within {ANSWER_S} s"
        line = self._answers.readline().decode()
        assert line, f"process {self.pid} ended without an answer"
        return ast.literal_eval(line)

    def do(self, line: str) -> object:
        """Runs `line` there; what it assigns to `out` is the answer, an exception is (its type's name, its text)."""
        self.start(line)
        return self.answer()

    def fork(self) -> Forked:
        return Forked(self)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        """Lets the process exit as any Python does, and returns once it has."""
        self._orders.close()
        self.process.wait(ANSWER_S)
        self._answers.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(ANSWER_S)
        self._orders.close()
        self._answers.close()


class Forked(Actor):
    """A child that an actor forked; it is not ours to wait for."""

    def __init__(self, parent: Actor) -> None:
        folder = tempfile.mkdtemp()
        orders, answers = f"{folder}/orders", f"{folder}/answers"
        os.mkfifo(orders)
        os.mkfifo(answers)
        self.pid = int(str(parent.do(f"out = fork({orders!r}, {answers!r})")))
        self._orders = open(orders, "wb")  # noqa: SIM115
        self._answers = open(answers, "rb")  # noqa: SIM115

    def end(self) -> None:
        self._orders.close()
        assert self._answers.read() == b""
        self._answers.close()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._orders.close()
        assert self._answers.read() == b""
        self._answers.close()


def _fork(orders: str, answers: str) -> int:
    pid = os.fork()
    if pid == 0:
        source, sink = os.open(orders, os.O_RDONLY), os.open(answers, os.O_WRONLY)
        os.dup2(source, 0)
        os.dup2(sink, 1)
        os.close(source)
        os.close(sink)
    return pid


def _obey() -> None:
    names: dict[str, object] = {"fork": _fork}
    exec("import ctypes, gc, os, signal, threading, time\nfrom tests.native.local_storage import *", names)
    exec("from tensorcast_native import *\nimport tensorcast_native as tn", names)
    pending = b""
    while True:
        while b"\n" not in pending:
            chunk = os.read(0, 65536)
            if not chunk:
                return
            pending += chunk
        line, pending = pending.split(b"\n", 1)
        names["out"] = None
        try:
            exec(line.decode(), names)
            answer = names["out"]
        except BaseException as error:
            answer = (type(error).__name__, str(error))
        if answer == 0 and line.startswith(b"out = fork("):
            continue  # the child: the parent answered, with its pid
        os.write(1, repr(answer).encode() + b"\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    _obey()
