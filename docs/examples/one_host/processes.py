"""The demo's child processes: readers that speak JSON lines, and the cluster's own processes seen from outside."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ANSWER_S_MAX = 300.0

Answer = dict[str, float | str | bool]


class ReaderProcess:
    """A reader in a process of its own. `ask` sends one task and waits for its answer; `tell` only sends."""

    def __init__(self, art_id: str, folder: Path, *, environment: dict[str, str], peer: bool = False) -> None:
        command = [
            sys.executable,
            str(HERE / "reader.py"),
            art_id,
            str(folder),
            *(["--peer"] if peer else []),
        ]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, bufsize=1
        )
        self.pid = int(self.answer()["pid"])

    def tell(self, task: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(task + "\n")
        self._child.stdin.flush()

    def answer(self) -> Answer:
        assert self._child.stdout is not None
        ready, _, _ = select.select([self._child.stdout], [], [], ANSWER_S_MAX)
        line = self._child.stdout.readline() if ready else ""
        if not line:
            raise SystemExit(f"a reader gave no answer within {ANSWER_S_MAX:.0f} s (exit code {self._child.poll()})")
        answer: Answer = json.loads(line)
        return answer

    def ask(self, task: str) -> Answer:
        self.tell(task)
        return self.answer()

    def kill(self) -> None:
        self._child.send_signal(signal.SIGKILL)
        self._child.wait(10)

    def end(self) -> None:
        self.tell("end")
        self._child.wait(30)


def tensorcast(*arguments: str, environment: dict[str, str], quiet: bool = False) -> str:
    """Runs the command line as its user would; SystemExit with its words when it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "tensorcast.cli", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if quiet else None,
        text=True,
        timeout=ANSWER_S_MAX,
        check=False,
    )
    if done.returncode:
        raise SystemExit(
            f"tensorcast {' '.join(arguments)} failed ({done.returncode}): {done.stdout}{done.stderr or ''}"
        )
    return done.stdout


def wait_for(what: str, seen: Callable[[], bool], *, seconds_max: float = 30.0) -> float:
    """Polls until `seen`; returns the seconds it took; SystemExit naming what did not happen."""
    started = time.monotonic()
    while not seen():
        if time.monotonic() - started > seconds_max:
            raise SystemExit(f"{what}: not seen within {seconds_max:.0f} s")
        time.sleep(0.01)
    return time.monotonic() - started


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
