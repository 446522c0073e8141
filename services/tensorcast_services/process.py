"""The main of every service: arguments, logs, settings, bus, heartbeats, readiness, and a clean end.

A service's ``__main__`` calls ``run_service`` with its role, its settings type and a function that builds it. The
process ends cleanly on SIGTERM, SIGINT, or when its lifeline (a pipe end that the supervisor holds) reaches EOF, and
at the latest ``STOP_MS_MAX`` later. Exit codes: 0 stopped, 1 failed, 2 refused (settings or host cannot do it), 3 taken
over (another process has its place, and it must not come back).
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, TextIO, TypeVar, cast

import structlog
from msgspec import Struct

from tensorcast_bus.bus import Bus
from tensorcast_bus.nats.client import connect_bus
from tensorcast_services import VERSION
from tensorcast_services.heartbeat import Beats, HeartbeatThread, Identity
from tensorcast_services.log_sink import LogSink
from tensorcast_services.settings import load_bus_settings, load_settings, read_environment
from tensorcast_services.tables import Refusal, read_tables

try:
    import uvloop
except ImportError:  # Elsewhere than on Linux there is no uvloop.
    _new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    _new_loop = uvloop.new_event_loop

STOP_MS_MAX = 5_000
CONNECT_MS_MAX = 20_000
PRIVATE = 0o077
REFUSED_CODE = 2
TAKEN_OVER_CODE = 3
NODE = re.compile(r"[a-z0-9][a-z0-9_]{0,31}")
S = TypeVar("S", bound=Struct)


class TakenOver(Exception):
    """Another process serves in this one's place (its folder, or its name): starting again would take it back, and so
    on for ever."""


class Context(Struct, frozen=True):
    """What a service is built from. `folder` is the cluster folder. `beats.beat()` must be called by the main loop at
    least every second (the runtime's `on_turn`), or the heartbeats stop."""

    identity: Identity
    bus: Bus
    folder: Path
    beats: Beats


class Service(Protocol):
    """`run` sets `ready` once it serves, ends after `stop`, and raises when it cannot go on. `close` comes after `run`
    has ended. `figures` is called by the heartbeat thread: at most 32, bytes or counts."""

    @property
    def ready(self) -> asyncio.Event: ...

    async def run(self) -> None: ...

    def stop(self) -> None: ...

    async def close(self) -> None: ...

    def figures(self) -> dict[str, int]: ...


Build = Callable[[Context, S], Awaitable[Service]]


def run_service(role: str, settings: type[S], build: Build[S], arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one service until it ends, then exits. `build` raises Refusal for what trying again cannot mend."""
    options = _parse(role, arguments)
    configure_logs(options.process)
    os.umask(PRIVATE)
    faulthandler.enable()
    try:
        # Never closed: closing would wait for threads, and what must be closed the service has closed by then.
        code = asyncio.Runner(loop_factory=_new_loop).run(_serve(options, settings, build))
    except Refusal as refusal:
        print(f"{options.process}: {refusal}", file=sys.stderr, flush=True)
        code = REFUSED_CODE
    except TakenOver as taken:
        print(f"{options.process}: {taken}", file=sys.stderr, flush=True)
        code = TAKEN_OVER_CODE
    except Exception as error:
        structlog.get_logger("process").error("failed", error=str(error), exc_info=True)
        code = 1
    sys.stderr.flush()
    # A thread inside a native call must not keep a process that has ended in the process table.
    os._exit(code)


def configure_logs(process: str) -> None:
    """One JSON object a line on stderr, with the process's name."""

    def name_process(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["process"] = process
        return event

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            name_process,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, LogSink(sys.stderr))),
        cache_logger_on_first_use=True,
    )


class _Options(Struct, frozen=True):
    process: str
    role: str
    node: str
    config: Path | None
    folder: Path
    lifeline_fd: int | None
    ready_fd: int | None


def _parse(role: str, arguments: Sequence[str] | None) -> _Options:
    parser = argparse.ArgumentParser(prog=f"tensorcast_services.{role}", description=f"The {role} process.")
    parser.add_argument("--config", type=Path, help="the cluster's tensorcast.toml")
    parser.add_argument("--folder", type=Path, help="the cluster folder (default: where --config lies)")
    parser.add_argument("--node", default="", help="storage: its node; gateway: its number")
    parser.add_argument("--lifeline-fd", type=int, help="end when this pipe end reaches EOF")
    parser.add_argument("--ready-fd", type=int, help='gets "ready\\n" once the process serves')
    found = parser.parse_args(arguments)
    if found.node and not NODE.fullmatch(found.node):
        parser.error(f"--node {found.node!r}: a node's name is {NODE.pattern}")
    folder = found.folder or (found.config.parent if found.config else Path.cwd())
    name = f"{role}-{found.node}" if found.node else role
    return _Options(name, role, found.node, found.config, folder.absolute(), found.lifeline_fd, found.ready_fd)


async def _serve(options: _Options, kind: type[S], build: Build[S]) -> int:
    stopping = _watch_for_end(options.lifeline_fd)
    building = asyncio.create_task(_build(options, kind, build), name="build")
    await _first_of(building, stopping)
    if not building.done():
        building.cancel()
        structlog.get_logger("process").info("stopped_before_ready", why=stopping.result())
        return 0
    context, service, heartbeats = building.result()
    heartbeats.start()
    ready = asyncio.create_task(_tell_ready(service, options.ready_fd), name="ready")
    try:
        return await _run_until_end(context, service, stopping)
    finally:
        ready.cancel()
        heartbeats.stop()


async def _build(options: _Options, kind: type[S], build: Build[S]) -> tuple[Context, Service, HeartbeatThread]:
    tables, environment = read_tables(options.config), read_environment()
    settings = load_settings(kind, process=options.process, role=options.role, tables=tables, environment=environment)
    at_bus = load_bus_settings(tables, environment)
    identity = Identity(options.process, options.role, options.node, time.time_ns(), os.getpid(), VERSION)
    bus = await connect_bus(at_bus.url, name=identity.token, token=at_bus.token, deadline_ms=CONNECT_MS_MAX)
    context = Context(identity, bus, options.folder, Beats())
    service = await build(context, settings)
    return context, service, HeartbeatThread(identity, at_bus, context.beats, service.figures)


async def _run_until_end(context: Context, service: Service, stopping: asyncio.Future[str]) -> int:
    log = structlog.get_logger("process")
    log.info("started", incarnation=context.identity.incarnation, version=VERSION)
    running = asyncio.create_task(service.run(), name="run")
    await _first_of(running, stopping)
    asked = stopping.done()
    if asked:
        log.info("stopping", why=stopping.result())
        service.stop()
    try:
        async with asyncio.timeout(STOP_MS_MAX / 1000):
            await running
            await service.close()
            await context.bus.close()
    except TimeoutError:
        log.error("stop_took_too_long", deadline_ms=STOP_MS_MAX)
        return 1
    log.info("stopped")
    return 0 if asked else 1


async def _first_of(*ends: asyncio.Future[Any]) -> None:
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)


async def _tell_ready(service: Service, ready_fd: int | None) -> None:
    await service.ready.wait()
    structlog.get_logger("process").info("ready")
    if ready_fd is not None:
        os.write(ready_fd, b"ready\n")
        os.close(ready_fd)


def _watch_for_end(lifeline_fd: int | None) -> asyncio.Future[str]:
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[str] = loop.create_future()

    def stop(why: str) -> None:
        if not stopping.done():
            stopping.set_result(why)

    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, stop, sig.name)
    if lifeline_fd is not None:
        threading.Thread(
            target=_follow_lifeline,
            args=(lifeline_fd, lambda: loop.call_soon_threadsafe(stop, "the supervisor is gone")),
            name="lifeline",
            daemon=True,
        ).start()
    return stopping


def _follow_lifeline(lifeline_fd: int, stop: Callable[[], object]) -> None:
    """A thread of its own, so that a main loop that hangs cannot outlive its supervisor either."""
    while os.read(lifeline_fd, 1):
        pass
    try:
        stop()
    except RuntimeError:
        return  # the loop has ended, so the process is about to
    time.sleep(STOP_MS_MAX / 1000 + 1)
    os._exit(1)
