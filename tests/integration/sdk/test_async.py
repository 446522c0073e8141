"""The async face where it differs from the sync one: cancelled awaits, and deadlines that many calls wait under."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator

import pytest
import torch

import tensorcast as tc
from tensorcast.errors import NotFound, TensorCastError
from tests.support.cluster import Cluster, running_cluster
from tests.support.slack import SLACK_S


@pytest.fixture(scope="module")
def stopped_at_times(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose storage these tests stop and continue."""
    with running_cluster(tmp_path_factory.mktemp("async"), name="async") as started:
        yield started


@pytest.fixture
def here(stopped_at_times: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(stopped_at_times.runtime_folder))
    monkeypatch.setenv("TENSORCAST_CLUSTER", stopped_at_times.name)
    return stopped_at_times


async def test_a_cancelled_put_returns_when_the_memory_is_the_callers_again(here: Cluster) -> None:
    value = torch.ones(4_000_000)
    async with await tc.aconnect() as rt:
        await rt.put(torch.ones(1), "async/before")
        here.kill("storage-a", sig=signal.SIGSTOP)
        try:
            task = asyncio.create_task(rt.put(value, "async/cancelled"))
            assert not (await asyncio.wait({task}, timeout=0.2))[0]  # it is inside the call by now
            task.cancel()
            assert not (await asyncio.wait({task}, timeout=0.2))[0]
        finally:
            here.kill("storage-a", sig=signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError):
            await task
        value.fill_(2)
        try:
            assert torch.equal(await rt.artifact("async/cancelled").tensor(), torch.ones(4_000_000))
        except NotFound:
            pass


async def test_puts_cancelled_at_any_moment_are_whole_or_not_there(here: Cluster) -> None:
    value = torch.empty(8_000_000)
    async with await tc.aconnect() as rt:
        for ms in range(1, 31, 2):
            value.fill_(1)
            try:
                await asyncio.wait_for(rt.put(value, "async/any"), ms / 1000)
            except TimeoutError:
                pass
            value.fill_(2)
            try:
                assert torch.unique(await rt.artifact("async/any").tensor()).tolist() == [1]
                await rt.delete("async/any")
            except NotFound:
                pass


async def test_a_cancelled_put_ends_by_its_deadline_at_the_latest(here: Cluster) -> None:
    async with await tc.aconnect() as rt:
        await rt.put(torch.ones(1), "async/before")
        here.kill("storage-a", sig=signal.SIGSTOP)
        try:
            started = time.monotonic()
            with pytest.raises((TimeoutError, TensorCastError)):
                await asyncio.wait_for(rt.put(torch.ones(1000), "async/late", deadline_ms=1_000), 0.1)
            assert time.monotonic() - started < 1 + SLACK_S
        finally:
            here.kill("storage-a", sig=signal.SIGCONT)


async def test_a_cancelled_read_is_given_up_at_once(here: Cluster) -> None:
    async with await tc.aconnect() as rt:
        await rt.put(torch.ones(1), "async/read")
        here.kill("storage-a", sig=signal.SIGSTOP)
        try:
            started = time.monotonic()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(rt.artifact("async/read").tensor(deadline_ms=60_000), 0.1)
            assert time.monotonic() - started < SLACK_S
        finally:
            here.kill("storage-a", sig=signal.SIGCONT)


async def test_hundreds_of_calls_at_once_keep_their_deadline(here: Cluster) -> None:
    async with await tc.aconnect() as rt:
        here.kill("storage-a", sig=signal.SIGSTOP)
        try:
            started = time.monotonic()
            calls = [rt.artifact("async/none").tensor_dict(deadline_ms=1_000) for _ in range(400)]
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - started < 1 + SLACK_S
        finally:
            here.kill("storage-a", sig=signal.SIGCONT)
        assert all(isinstance(f, TensorCastError) for f in found)
