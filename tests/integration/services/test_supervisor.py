"""The supervisor with real children: up, down, deaths of everybody, and what a dead run leaves."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorcast_bus.errors import Unavailable
from tensorcast_bus.messages import ListWorkers, WorkerList
from tensorcast_bus.nats.client import connect_bus
from tensorcast_bus.subjects import Subjects
from tests.integration.services.running import WAIT_S_MAX, Supervisor, processes_of, supervisor, wait_until
from tests.support.nats_server import running_nats
from tests.support.stopping import stop

SERVICES = {"global_store", "gateway-0", "nats"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cluster"


@pytest.fixture
def up(folder: Path) -> Iterator[Supervisor]:
    with supervisor(folder) as running:
        running.wait_ready()
        yield running


async def wait_for_workers(up: Supervisor, expected: set[str]) -> None:
    """Until exactly these live, as a gateway's caller sees it."""
    state = up.wait_ready()
    bus = await connect_bus(state.nats_url, name="test", token=state.nats_token)
    seen: set[str] = set()
    try:
        async with asyncio.timeout(WAIT_S_MAX):
            while seen != expected:
                try:
                    found = await bus.request(
                        Subjects.gateway("test", "workers"), ListWorkers(), answer=WorkerList, budget_ms=5_000
                    )
                    seen = {w.process for w in found.workers if w.living}
                except Unavailable:
                    seen = set()  # the gateway or the global store is on its way back
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{seen} instead of {expected}\n{up.logs()}") from None
    finally:
        await bus.close()


async def test_a_cluster_comes_up_answers_and_goes_down_without_a_trace(up: Supervisor) -> None:
    state = up.wait_ready()
    assert {p.process for p in state.processes} == SERVICES
    assert all(p.state == "ready" and p.pid and p.restarts == 0 for p in state.processes)
    assert state.supervisor_pid == up.process.pid
    assert (up.folder / "cluster.json").stat().st_mode & 0o777 == 0o600
    assert (up.folder / "nats" / "nats.conf").stat().st_mode & 0o777 == 0o600
    assert state.nats_token not in " ".join(command for _, command in processes_of(up.folder))
    await wait_for_workers(up, {"global_store", "gateway-0"})
    assert up.end() == 0
    assert "ready in" in up.output()
    assert processes_of(up.folder) == []
    assert not list(up.folder.glob("*.sock")) + list(up.folder.glob("*.json"))


def test_a_second_up_of_the_same_folder_is_refused_and_says_how_to_stop_the_first(up: Supervisor) -> None:
    second = Supervisor(up.folder, (), dict(os.environ))
    assert second.process.wait(timeout=30) == 1
    said = second.output()
    assert "already running" in said
    assert f"pid {up.process.pid}" in said
    assert "tensorcast down" in said
    assert {p.state for p in up.wait_ready().processes} == {"ready"}


@pytest.mark.parametrize("process", ["global_store", "gateway-0", "nats"])
async def test_a_killed_child_is_started_again_and_the_cluster_works(up: Supervisor, process: str) -> None:
    before = up.wait_ready()
    old = up.entry(process).pid
    os.kill(old, signal.SIGKILL)
    entry = up.wait_restarted(process, old)
    assert entry.restarts == 1
    after = up.wait_ready()
    assert (after.nats_url, after.nats_token) == (before.nats_url, before.nats_token)
    await wait_for_workers(up, {"global_store", "gateway-0"})


async def test_a_killed_supervisor_takes_its_children_along_and_the_next_one_starts(folder: Path) -> None:
    with supervisor(folder) as first:
        first.wait_ready()
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
        # The next one starts while the children may still be ending: it waits for them.
        with supervisor(folder) as second:
            second.wait(lambda s: s.state == "ready" and s.supervisor_pid == second.process.pid)
            await wait_for_workers(second, {"global_store", "gateway-0"})
            assert len(processes_of(folder)) == 1 + len(SERVICES)


def test_children_of_a_killed_supervisor_end_by_themselves(folder: Path) -> None:
    with supervisor(folder) as only:
        only.wait_ready()
        only.end(signal.SIGKILL)
        wait_until(lambda: not processes_of(folder), lambda: str(processes_of(folder)))


def test_a_child_that_hangs_does_not_keep_the_cluster_from_ending(up: Supervisor) -> None:
    stop(up.entry("gateway-0").pid)
    assert up.end() == 0
    assert processes_of(up.folder) == []


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_before_the_cluster_is_ready_ends_it_cleanly(folder: Path, sig: signal.Signals) -> None:
    with supervisor(folder) as running:
        running.wait(lambda s: any(p.process == "nats" for p in s.processes))
        assert running.end(sig) == 0
        assert processes_of(folder) == []
        assert not (folder / "cluster.json").exists()


def test_a_setting_that_a_child_refuses_fails_the_start_with_its_words(folder: Path) -> None:
    with supervisor(folder, "--set", "gateway.request_max=5") as running:
        assert running.process.wait(timeout=30) == 1
        said = running.output()
    assert "gateway-0 cannot run here (exit code 2)" in said
    assert "did you mean 'requests_max'" in said
    assert processes_of(folder) == []
    with supervisor(folder, "--set", "gateway.requests_max=5") as running:
        running.wait_ready()
        assert "requests_max = 5" in (folder / "tensorcast.toml").read_text()


def test_a_foreign_catalog_fails_the_start_and_stays_as_it_is(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "global_store.duckdb").write_bytes(b"not a database" * 999)
    with supervisor(folder) as running:
        assert running.process.wait(timeout=30) == 1
        said = running.output()
    assert "global_store cannot run here" in said
    assert "cannot be opened as the catalog" in said
    assert (folder / "global_store.duckdb").read_bytes() == b"not a database" * 999


def test_a_folder_open_to_others_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with supervisor(folder) as running:
        assert running.process.wait(timeout=30) == 1
        assert "others may write" in running.output()


async def test_with_a_server_of_the_callers_no_other_one_is_started(folder: Path, tmp_path: Path) -> None:
    with running_nats() as server:
        environment = {"NATS_URL": server.url, "TENSORCAST_BUS__TOKEN": server.token}
        with supervisor(folder, environment=environment) as running:
            state = running.wait_ready()
            assert {p.process for p in state.processes} == {"global_store", "gateway-0"}
            assert state.nats_url == server.url
            await wait_for_workers(running, {"global_store", "gateway-0"})
            assert running.end() == 0


def test_a_log_that_grew_too_large_is_set_aside_at_the_next_start(folder: Path) -> None:
    (folder / "logs").mkdir(parents=True)
    folder.chmod(0o700)
    (folder / "logs" / "gateway-0.log").write_bytes(b"old\n" * 1000)
    with supervisor(folder, "--set", "supervisor.log_bytes_max=1KiB") as running:
        running.wait_ready()
        assert (folder / "logs" / "gateway-0.log.1").read_bytes() == b"old\n" * 1000
        assert b"old" not in (folder / "logs" / "gateway-0.log").read_bytes()


def test_a_cluster_whose_folder_was_removed_stops_by_itself(up: Supervisor) -> None:
    """Nobody could find it any more, and another one would start beside it."""
    up.wait_ready()
    shutil.rmtree(up.folder)
    assert up.process.wait(WAIT_S_MAX) == 0
    wait_until(lambda: not processes_of(up.folder), lambda: f"{processes_of(up.folder)} live on")
