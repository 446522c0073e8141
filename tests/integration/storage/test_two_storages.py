"""Two storages that claim one node: the second one is refused, or the first one yields for good. Never both."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorcast_bus.errors import TensorCastError
from tests.integration.storage.house import START_S_MAX, TOKEN, House, put_memory, read

TAKEN_OVER_CODE = 3


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    found = House(tmp_path / "one")
    try:
        found.open()
        yield found
    finally:
        found.close()


def test_a_second_storage_in_the_same_folder_is_refused_and_the_first_serves_on(house: House) -> None:
    client = house.client()
    put_memory(client, "x", {"t": b"abc"}, durable=True)
    pid = house.processes["storage-a"].pid
    command = [sys.executable, "-m", "tensorcast_services.storage", "--node", "a"]
    command += ["--config", str(house.folder / "tensorcast.toml")]
    env = {**os.environ, "TENSORCAST_BUS__URL": house.url, "TENSORCAST_BUS__TOKEN": TOKEN}
    second = subprocess.run(command, env=env, capture_output=True, timeout=START_S_MAX, check=False, text=True)
    assert second.returncode == TAKEN_OVER_CODE
    said = second.stderr.strip().splitlines()[-1]
    assert f"pid {pid}" in said and str(house.folder / "storage-a") in said and "--node" in said
    assert read(client, "x") == {"t": b"abc"} and read(house.client(), "x") == {"t": b"abc"}


def test_a_storage_whose_name_was_taken_over_stops_for_good_and_says_so(house: House, tmp_path: Path) -> None:
    client = house.client()
    put_memory(client, "x", {"t": b"abc"})
    other = House(tmp_path / "two", url=house.url)
    try:
        other.folder.mkdir()
        (other.folder / "tensorcast.toml").write_text(other.settings)
        other.start("storage", node="a")
        put_memory(other.client(), "y", {"t": b"new"})
        old = house.processes.pop("storage-a")
        try:
            with pytest.raises(TensorCastError):
                # The first word to the global store is enough.
                put_memory(client, "z", {"t": b"late"})
            assert old.wait(START_S_MAX) == TAKEN_OVER_CODE
        finally:
            old.kill()
            old.wait()
            os.close(house.lifelines.pop("storage-a"))
        said = house.log("storage-a").read_text().splitlines()[-1]
        assert "taken over" in said and "--node" in said
        assert read(other.client(), "y") == {"t": b"new"}
    finally:
        other.close()
