"""One child process: started in a group of its own, tied to us by a lifeline pipe, watched through a pidfd.

A child of ours ends when its lifeline reaches EOF. The NATS server knows no lifelines and gets PDEATHSIG instead, which
fires when the thread that started it ends: the supervisor starts it from its main thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

PR_SET_PDEATHSIG = 1
LAST_LINES = 15
LAST_BYTES = 16 << 10
_libc = ctypes.CDLL(None, use_errno=True)


class Spec(Struct, frozen=True):
    """How to start a process. `native` programs get PDEATHSIG and have no lifeline and no ready pipe; `command` of all
    others is completed with ``--lifeline-fd`` and ``--ready-fd``."""

    process: str
    role: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    native: bool = False


class Child:
    """A running process. Made by `spawn` only; `close` once it has exited."""

    def __init__(self, spec: Spec, popen: subprocess.Popen[bytes], lifeline: int, ready: int, log_start: int) -> None:
        self.pid = popen.pid
        self._spec = spec
        self._popen = popen
        self._lifeline = lifeline
        self._ready = ready
        self._log_start = log_start
        self._started_s = time.monotonic()
        self._pidfd = os.pidfd_open(popen.pid)
        # One look at the pidfd for all who wait: a loop has one reader a descriptor.
        self._exited = asyncio.create_task(_readable(self._pidfd), name=f"exit {spec.process}")

    @property
    def lived_ms(self) -> int:
        return int((time.monotonic() - self._started_s) * 1000)

    async def exit(self) -> int:
        """Its exit code, negative for a signal. The process is reaped then."""
        await asyncio.shield(self._exited)
        return self._popen.wait()

    async def ready(self) -> bool:
        """True once it said that it serves; False when it ended (or closed the pipe) without."""
        said = b""
        while True:
            await _readable(self._ready)
            part = os.read(self._ready, 16)
            said += part
            if b"\n" in said or not part:
                return said.startswith(b"ready\n")

    def signal_group(self, sig: signal.Signals) -> None:
        """To the process and all that it started. Only before `exit` has returned: the number is ours till then."""
        if self._popen.returncode is None:
            try:
                os.killpg(self.pid, sig)
            except ProcessLookupError:
                pass

    def last_words(self) -> str:
        """The last lines that this start of it wrote to its log."""
        with self._spec.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - LAST_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-LAST_LINES:])

    def close(self) -> None:
        self._exited.cancel()
        asyncio.get_running_loop().remove_reader(self._pidfd)
        for fd in (self._pidfd, self._lifeline, self._ready):
            if fd >= 0:
                os.close(fd)


def spawn(spec: Spec, *, log_bytes_max: int) -> Child:
    """Starts it; OSError when it cannot be started."""
    log = _open_log(spec.log, log_bytes_max)
    try:
        log_start = os.lseek(log, 0, os.SEEK_END)
        if spec.native:
            parent = os.getpid()
            popen = _popen(spec, spec.command, log, (), lambda: _die_with(parent))
            return _adopt(spec, popen, -1, -1, log_start)
        return _spawn_on_lifeline(spec, log, log_start)
    finally:
        os.close(log)


def _spawn_on_lifeline(spec: Spec, log: int, log_start: int) -> Child:
    theirs_end, our_lifeline = os.pipe()
    our_ready, theirs_ready = os.pipe()
    try:
        command = (*spec.command, "--lifeline-fd", str(theirs_end), "--ready-fd", str(theirs_ready))
        popen = _popen(spec, command, log, (theirs_end, theirs_ready), None)
    except BaseException:
        os.close(our_lifeline)
        os.close(our_ready)
        raise
    finally:
        os.close(theirs_end)
        os.close(theirs_ready)
    return _adopt(spec, popen, our_lifeline, our_ready, log_start)


def _adopt(spec: Spec, popen: subprocess.Popen[bytes], lifeline: int, ready: int, log_start: int) -> Child:
    """Nobody would watch or end a process without its Child (no descriptor left for a pidfd, no loop)."""
    try:
        return Child(spec, popen, lifeline, ready, log_start)
    except BaseException:
        popen.kill()
        popen.wait()
        for fd in (lifeline, ready):
            if fd >= 0:
                os.close(fd)
        raise


def _popen(
    spec: Spec,
    command: Sequence[str],
    log: int,
    pass_fds: Sequence[int],
    before_exec: Callable[[], None] | None,
) -> subprocess.Popen[bytes]:
    # A group of its own keeps the terminal's Ctrl-C for the supervisor, which ends the children in order.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=dict(spec.environment),
        pass_fds=pass_fds,
        process_group=0,
        preexec_fn=before_exec,
    )


def _die_with(parent: int) -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # the parent died between fork and prctl


def _open_log(path: Path, bytes_max: int) -> int:
    try:
        if path.stat().st_size > bytes_max:
            path.replace(path.with_suffix(".log.1"))
    except FileNotFoundError:
        pass
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[None] = loop.create_future()

    def mark() -> None:
        if not seen.done():
            seen.set_result(None)

    loop.add_reader(fd, mark)
    try:
        await seen
    finally:
        loop.remove_reader(fd)
