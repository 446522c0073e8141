"""What a keeper does with a child whose place another process has."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tensorcast_services.supervisor.child import Spec
from tensorcast_services.supervisor.keeper import ChildFailed, Keeper
from tests.support.slack import SLACK_S

TAKEN_OVER = "print('pid 7 has it', file=sys.stderr); os._exit(3)"
READY_FIRST = f"""
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.write(int(sys.argv[4]), b"ready\\n")
signal.sigwait([signal.SIGUSR1])
{TAKEN_OVER}
"""


def keeper_of(folder: Path, code: str, seen: list[str]) -> Keeper:
    spec = Spec("storage-a", "storage", (sys.executable, "-c", code), dict(os.environ), folder / "a.log")
    return Keeper(spec, on_change=lambda: seen.append("changed"), log_bytes_max=1 << 20)


async def test_a_child_that_was_ready_and_lost_its_place_stays_down_until_the_end(tmp_path: Path) -> None:
    seen: list[str] = []
    keeper = keeper_of(tmp_path, READY_FIRST, seen)
    keeping = asyncio.create_task(keeper.keep())
    async with asyncio.timeout(4 * SLACK_S):
        await keeper.ready.wait()
        os.kill(keeper.pid, signal.SIGUSR1)
        while keeper.entry().state != "refused":
            await asyncio.wait({keeping}, timeout=0.01)
            assert not keeping.done(), "the others would be stopped"
        assert keeper.entry().pid == 0 and keeper.entry().restarts == 0
        await keeper.end()
        await keeping
    assert keeper.entry().state == "stopped"


async def test_a_child_that_never_had_its_place_fails_the_start_with_its_last_words(tmp_path: Path) -> None:
    keeper = keeper_of(tmp_path, f"import os, sys; {TAKEN_OVER}", [])
    with pytest.raises(ChildFailed, match="pid 7 has it"):
        async with asyncio.timeout(4 * SLACK_S):
            await keeper.keep()
