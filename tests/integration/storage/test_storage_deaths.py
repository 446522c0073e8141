"""Deaths around a storage: its own, its clients', the global store's, the bus's. Nothing acknowledged is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tensorcast_bus.errors import NoReplica, NotFound, Timeout, Unavailable
from tensorcast_bus.notes import PutAnswer, PutDone
from tests.integration.storage.house import (
    House,
    delete,
    describe,
    put_file,
    put_memory,
    read,
    stats,
    until,
)
from tests.integration.storage.test_storage import MIB, a_file

SLOW_PUT = """
import sys
from tests.integration.storage.house import House, put_memory
from pathlib import Path
client = House(Path(sys.argv[1])).client()
print("go", flush=True)
put_memory(client, "x", {"t": bytes(48 << 20)})
print("done", flush=True)
sys.stdin.read()
"""


def test_a_storage_that_was_killed_comes_back_with_what_lies_in_files(house: House) -> None:
    client, path = house.client(), a_file(house.folder, "f.bin", 6 * MIB)
    other = a_file(house.folder, "g.bin", 2 * MIB)
    put_file(client, "f", path)
    put_file(client, "g", other)
    put_memory(client, "m", {"t": b"only in memory"})
    house.kill("storage-a")
    other.write_bytes(b"changed while nobody looked")
    house.start("storage", node="a")
    client = house.client()
    assert describe(client, "f").state == "away"
    assert read(client, "f")["tensor"] == path.read_bytes()[8:]
    for art_id in ("m", "g"):
        with pytest.raises(NoReplica, match="storage-a had it"):
            read(client, art_id)
    again = put_memory(client, "m", {"t": b"only in memory"})
    assert isinstance(again, PutDone) and again.outcome == "stored"


def test_what_was_deleted_while_the_storage_was_down_stays_deleted(house: House) -> None:
    path = a_file(house.folder, "f.bin", 2 * MIB)
    put_file(house.client(), "f", path)
    delete_by_hand = house.sidecars()[0].read_bytes()
    where = house.sidecars()[0]
    delete(house.client(), "f")
    until(lambda: not house.sidecars(), what="the sidecar goes")
    house.kill("storage-a")
    # As after a crash between the delete and the removal.
    where.write_bytes(delete_by_hand)
    house.start("storage", node="a")
    client = house.client()
    with pytest.raises(NotFound):
        read(client, "f")
    until(lambda: not house.sidecars(), what="the report's answer removes the sidecar")


def test_a_torn_sidecar_is_skipped_and_logged(house: House) -> None:
    path = a_file(house.folder, "f.bin", 2 * MIB)
    put_file(house.client(), "f", path)
    house.kill("storage-a")
    sidecar = house.sidecars()[0]
    sidecar.write_bytes(sidecar.read_bytes()[:-7])
    house.start("storage", node="a")
    with pytest.raises(NoReplica):
        read(house.client(), "f")
    assert "sidecar_skipped" in house.log("storage-a").read_text()


def test_a_client_killed_in_the_middle_of_its_put_leaves_room_for_the_next(house: House) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW_PUT, str(house.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdin is not None
    assert child.stdout.readline() == b"go\n"
    client = house.client()
    until(lambda: stats(client).pool["free_bytes"] < 60 * MIB, what="the put begins")
    os.kill(child.pid, signal.SIGKILL)
    child.wait(10)
    child.stdin.close()
    child.stdout.close()
    # Killed before or after its commit: either the id is free, or it has what was put.
    found = put_memory(client, "x", {"t": bytes([1]) * (48 * MIB)})
    assert set(read(client, "x")["t"]) == ({1} if isinstance(found, PutDone) else {0})
    assert stats(client).pool["reserved_bytes"] == 0


def test_attaches_go_on_without_global_store_and_puts_end_by_their_deadline(house: House) -> None:
    client = house.client()
    put_memory(client, "x", {"t": b"here"})
    house.kill("global_store")
    assert read(client, "x") == {"t": b"here"}
    with pytest.raises((Timeout, Unavailable), match="global store"):
        put_memory(client, "y", {"t": b"new"}, deadline_ms=1500)
    assert read(client, "x") == {"t": b"here"}
    house.start("global_store")
    assert isinstance(put_memory(client, "y", {"t": b"new"}), PutDone)
    assert read(client, "y") == {"t": b"new"}


def test_a_put_that_meets_a_dead_global_store_succeeds_when_that_is_back_in_time(house: House) -> None:
    client = house.client()
    house.kill("global_store")
    answers: list[PutAnswer] = []
    thread = threading.Thread(target=lambda: answers.append(put_memory(client, "x", {"t": b"new"})))
    thread.start()
    house.start("global_store")
    thread.join(20)
    assert isinstance(answers[0], PutDone)
    assert read(house.client(), "x") == {"t": b"new"}


def test_a_new_global_store_without_memory_is_told_what_is_here(house: House) -> None:
    client = house.client()
    put_memory(client, "x", {"t": b"here"})
    house.kill("global_store")
    for file in house.folder.glob("global_store.duckdb*"):
        file.unlink()
    house.start("global_store")
    until(lambda: "the global store restarted" in house.log("storage-a").read_text(), what="a report")
    until(lambda: house.log("storage-a").read_text().count('"event": "reported"') >= 2, what="its end")
    delete(client, "x")
    with pytest.raises(NotFound):
        read(client, "x")


def test_a_bus_that_comes_back_brings_a_report(house: House) -> None:
    client = house.client()
    put_memory(client, "x", {"t": b"here"})
    port = int(house.url.rpartition(":")[2])
    house.kill("nats")
    assert read(client, "x") == {"t": b"here"}
    house.start_nats(port=port)
    until(lambda: "the bus came back" in house.log("storage-a").read_text(), what="a report")
    assert isinstance(put_memory(client, "y", {"t": b"new"}), PutDone)


def test_a_clean_stop_unlinks_the_socket_and_ends_with_code_0(house: House) -> None:
    client = house.client()
    put_memory(client, "x", {"t": bytes(4 * MIB)})
    assert house.kill("storage-a", sig=signal.SIGTERM) == 0
    assert not Path(house.socket).exists()


def test_the_end_of_the_lifeline_is_the_end_of_the_storage(house: House) -> None:
    process = house.processes["storage-a"]
    os.close(house.lifelines.pop("storage-a"))
    assert process.wait(10) == 0
    assert not Path(house.socket).exists()
