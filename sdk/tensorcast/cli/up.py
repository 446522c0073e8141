"""`tensorcast up`: runs the supervisor, in the foreground or as a session of its own."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tensorcast.cli import cluster, render
from tensorcast.cli.words import Words
from tensorcast_bus.cluster import ClusterFile
from tensorcast_bus.errors import NotConnected, TensorCastError, Unavailable

NODE_DEFAULT = "a"
READY_S_MAX = 60.0
STOP_S_MAX = 30.0
LOG_BYTES_MAX = 8 << 20
_POLL_S = 0.02
_TAIL_LINES = 20


def up(words: Words) -> int:
    folder = cluster.folder(words)
    command = [
        sys.executable,
        "-m",
        "tensorcast_services.supervisor",
        "--folder",
        folder,
        "--name",
        cluster.name_of(words),
    ]
    for node in words.nodes or (NODE_DEFAULT,):
        command += ["--node", node]
    for setting in words.settings:
        command += ["--set", setting]
    if not words.detach:
        # The supervisor takes this process's place: Ctrl-C, signals and the exit code are then its own.
        sys.stdout.flush()
        os.execv(command[0], command)
    return _detached(words, folder, command)


def _detached(words: Words, folder: str, command: list[str]) -> int:
    log = _log_path(folder)
    started = time.monotonic()
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with _noted_signals() as signals:
        try:
            seen = os.fstat(fd).st_size
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=fd, stderr=fd, start_new_session=True, cwd="/"
            )
        finally:
            os.close(fd)
        try:
            ready = _wait_ready(words, child, signals)
            if signals:
                raise KeyboardInterrupt
        except BaseException:
            _stop(child)
            raise
    if ready is not None:
        _show(words, ready, folder, time.monotonic() - started)
        return 0
    if child.returncode is not None:
        said = _tail(log, seen)
        # One line is the supervisor's own word for why; more are something that nobody foresaw.
        head = f"the cluster did not start (exit code {child.returncode}):\n" if "\n" in said else ""
        raise TensorCastError(f"{head}{said}")
    _stop(child)
    raise Unavailable(f"the cluster was not ready within {READY_S_MAX:.0f} s and was stopped:\n{_tail(log, seen)}")


def _wait_ready(words: Words, child: subprocess.Popen[bytes], signals: Sequence[int]) -> ClusterFile | None:
    """None where the supervisor ended, or was not ready in time. Raises KeyboardInterrupt after a signal."""
    until = time.monotonic() + READY_S_MAX
    while time.monotonic() < until and child.poll() is None:
        if signals:
            raise KeyboardInterrupt
        ready = _ready(words, child.pid)
        if ready is not None:
            return ready
        time.sleep(_POLL_S)
    return None


def _stop(child: subprocess.Popen[bytes]) -> None:
    """A cluster that its caller gave up waiting for must not live on unseen."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        child.kill()  # its processes end with it
        child.wait()


@contextmanager
def _noted_signals() -> Iterator[Sequence[int]]:
    """What came of the signals that end a command. Noted, not raised: one that came between the start of the supervisor
    and the wait for it would leave it running unseen."""
    told: list[int] = []
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.signal(n, lambda n, _: told.append(n)) for n in ends if signal.getsignal(n) != signal.SIG_IGN}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ready(words: Words, pid: int) -> ClusterFile | None:
    try:
        found = cluster.cluster_file(words)
    except NotConnected:
        return None
    return found if found.supervisor_pid == pid and found.state == "ready" else None


def _show(words: Words, found: ClusterFile, folder: str, seconds: float) -> None:
    if words.json:
        processes = [{"process": p.process, "pid": p.pid, "state": p.state, "log": p.log} for p in found.processes]
        render.as_json({"cluster": found.name, "folder": folder, "nats_url": found.nats_url, "processes": processes})
        return
    if words.quiet:
        return
    print(f"cluster {found.name} is ready in {seconds:.1f} s")
    render.table(
        ("PROCESS", "PID", "STATE", "LOG"),
        [(p.process, str(p.pid), p.state, p.log) for p in found.processes],
        right=frozenset({1}),
    )
    print(f"folder {folder}; stop it with `tensorcast {f'--cluster {found.name} ' if words.cluster else ''}down`")


def _log_path(folder: str) -> str:
    """The supervisor's own log, in folders that nobody else can write to."""
    logs = os.path.join(folder, "logs")
    for path in (os.path.dirname(folder), folder, logs):
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            seen = os.lstat(path)
        except OSError as error:
            raise TensorCastError(_no_folder(path, error)) from error
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o022:
            raise TensorCastError(
                f"{path} has uid {seen.st_uid} and mode {stat.S_IMODE(seen.st_mode):o}; a cluster's folders must be "
                f"yours (uid {os.getuid()}) and writable by nobody else: `chmod 700` it, or set another XDG_RUNTIME_DIR"
            )
    log = os.path.join(logs, "supervisor.log")
    if os.path.exists(log) and os.path.getsize(log) > LOG_BYTES_MAX:
        os.replace(log, f"{log}.1")
    return log


def _no_folder(path: str, error: OSError) -> str:
    place = path
    while not os.path.lexists(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    seen = os.lstat(place)
    return (
        f"{path} cannot be made a folder of the cluster: {error.strerror}; {place} belongs to uid {seen.st_uid} with "
        f"mode {stat.S_IMODE(seen.st_mode):04o}, you are uid {os.getuid()}: set XDG_RUNTIME_DIR to a folder you can "
        "write to"
    )


def _tail(log: str, offset: int) -> str:
    with open(log, "rb") as file:
        file.seek(offset)
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:]) or f"(it wrote nothing to {log})"
