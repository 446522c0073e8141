"""What every service process has: heartbeats that stop with its main loop, and an end that nothing can hold up."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tensorcast_bus.bus import Caller
from tensorcast_bus.messages import Heartbeat
from tensorcast_bus.nats.client import connect_bus
from tensorcast_bus.subjects import Subjects
from tensorcast_services.heartbeat import STALL_MS_MAX, Beats, HeartbeatThread, Identity
from tensorcast_services.process import STOP_MS_MAX
from tensorcast_services.settings import BusSettings
from tests.integration.services.running import WAIT_S_MAX
from tests.support.nats_server import NatsServer, running_nats
from tests.support.slack import SLACK_S

SERVICE = """
import asyncio, sys, time
from msgspec import Struct
from tensorcast_services.process import run_service

class Settings(Struct, frozen=True):
    pass

class Service:
    def __init__(self):
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
    async def run(self):
        self.ready.set()
        if sys.argv[1] == "hangs":
            await asyncio.sleep(0.01)
            print("hangs", flush=True)
            time.sleep(1000)
        await self.ended.wait()
    def stop(self):
        if sys.argv[1] != "does not stop":
            self.ended.set()
    async def close(self): pass
    def figures(self): return {}

async def build(context, settings):
    return Service()

run_service("gateway", Settings, build, sys.argv[2:])
"""


class StillClock:
    """A clock that tests move; counts how often it is looked at."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._looks = threading.Semaphore(0)

    def __call__(self) -> float:
        self._looks.release()
        return self.now_s

    def wait_looks(self, count: int) -> None:
        for _ in range(count):
            assert self._looks.acquire(timeout=WAIT_S_MAX), "the heartbeat thread does not look at its main loop"


async def test_heartbeats_stop_while_the_main_loop_stands_still_and_then_go_on() -> None:
    clock = StillClock()
    beats = Beats(clock)
    clock.now_s = STALL_MS_MAX / 1000 + 1
    identity = Identity("gateway-0", "gateway", "0", 7, os.getpid(), "0.1.0")
    heard: asyncio.Queue[Heartbeat] = asyncio.Queue()

    def on_beat(beat: Heartbeat, _caller: Caller) -> None:
        heard.put_nowait(beat)

    with running_nats() as server:
        bus = await connect_bus(server.url, name="test", token=server.token)
        await bus.subscribe(Subjects.heartbeats(), Heartbeat, on_beat)
        thread = HeartbeatThread(identity, BusSettings(server.url, server.token), beats, lambda: {"bytes": 5})
        thread.start()
        try:
            # Three looks at a main loop that stands still, after the one of Beats itself: nothing may be said.
            await asyncio.to_thread(clock.wait_looks, 4)
            assert heard.empty()
            beats.beat()
            async with asyncio.timeout(WAIT_S_MAX):
                beat = await heard.get()
            assert (beat.process, beat.sequence, beat.figures) == ("gateway-0", 1, {"bytes": 5})
        finally:
            thread.stop()
            await bus.close()


class Running:
    """The service above, with the ends of its pipes."""

    def __init__(self, server: NatsServer, way: str, folder: Path) -> None:
        their_end, self.lifeline = os.pipe()
        self.ready, their_ready = os.pipe()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                SERVICE,
                way,
                f"--folder={folder}",
                f"--lifeline-fd={their_end}",
                f"--ready-fd={their_ready}",
            ],
            env={**os.environ, "TENSORCAST_BUS__URL": server.url, "TENSORCAST_BUS__TOKEN": server.token},
            pass_fds=(their_end, their_ready),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_end)
        os.close(their_ready)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self.ready)


@pytest.mark.parametrize(("way", "code"), [("stops", 0), ("does not stop", 1), ("hangs", 1)])
def test_a_process_ends_with_its_lifeline_whatever_it_does(tmp_path: Path, way: str, code: int) -> None:
    with running_nats() as server:
        running = Running(server, way, tmp_path)
        try:
            if way == "hangs":
                assert running.process.stdout is not None
                assert running.process.stdout.readline() == b"hangs\n"
            else:
                assert os.read(running.ready, 16) == b"ready\n"
            os.close(running.lifeline)
            assert running.process.wait(timeout=STOP_MS_MAX / 1000 + 1 + SLACK_S) == code
        finally:
            running.close()


def test_a_process_ends_on_sigterm(tmp_path: Path) -> None:
    with running_nats() as server:
        running = Running(server, "stops", tmp_path)
        try:
            assert os.read(running.ready, 16) == b"ready\n"
            running.process.terminate()
            assert running.process.wait(timeout=STOP_MS_MAX / 1000 + SLACK_S) == 0
        finally:
            os.close(running.lifeline)
            running.close()
