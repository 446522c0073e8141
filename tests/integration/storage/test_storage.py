"""A real storage beside a real global store and a real nats-server, through the native client."""

from __future__ import annotations

import os
import random
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tensorcast_bus.errors import (
    AlreadyExists,
    BadCheckpoint,
    CapacityExceeded,
    Invalid,
    NoReplica,
    NotFound,
    TensorCastError,
)
from tensorcast_bus.notes import PutAnswer, PutDone, PutExists
from tensorcast_native import Client
from tests.integration.storage.house import (
    House,
    attach,
    content,
    delete,
    describe,
    put_file,
    put_memory,
    put_with_asides,
    read,
    stats,
    until,
)

MIB = 1 << 20


def a_file(folder: Path, name: str, nbytes: int) -> Path:
    path = folder / name
    path.write_bytes(os.urandom(nbytes))
    return path


def test_bytes_from_memory_come_back_and_a_second_put_learns_that_the_id_exists(house: House) -> None:
    client = house.client()
    tensors = {"big": os.urandom(3 * MIB), "small": b"abc", "empty": b""}
    done = put_memory(client, "model@1", tensors)
    assert isinstance(done, PutDone) and done.outcome == "stored" and done.path in ("vm_read", "socket")
    assert read(client, "model@1") == tensors
    again = put_memory(client, "model@1", {"big": b"other"})
    assert isinstance(again, PutExists) and again.digest == done.digest and again.files == ()
    assert describe(client, "model@1").state == "resident"


def test_a_file_comes_back_names_its_source_and_leaves_a_sidecar(house: House) -> None:
    client, path = house.client(), a_file(house.folder, "m.bin", 5 * MIB)
    done = put_file(client, "m", path)
    assert isinstance(done, PutDone) and done.path == "file"
    assert read(client, "m")["tensor"] == path.read_bytes()[8:]
    again = put_file(client, "m", path)
    stat = path.stat()
    identity = (str(path), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    assert again == PutExists(done.digest, done.bytes_total, (identity,))
    assert len(house.sidecars()) == 1


def test_a_deleted_id_is_gone_at_once_and_its_blocks_return_at_the_last_unmap(house: House) -> None:
    client = house.client()
    tensors = {"t": os.urandom(4 * MIB)}
    put_memory(client, "x", tensors)
    held = attach(client, "x")
    delete(client, "x")
    with pytest.raises(NotFound):
        read(client, "x")
    assert content(held) == tensors and stats(client).pool["dropped_pinned_bytes"] == 4 * MIB
    assert held.release() == 0
    until(lambda: stats(client).pool["free_bytes"] == 64 * MIB, what="blocks return")
    put_memory(client, "x", {"t": b"new"})
    assert read(client, "x") == {"t": b"new"}
    with pytest.raises(NotFound):
        delete(client, "never")


def test_artifacts_in_files_make_room_and_come_back(house: House) -> None:
    client = house.client()
    paths = {f"f{i}": a_file(house.folder, f"f{i}.bin", 16 * MIB) for i in range(6)}
    for art_id, path in paths.items():
        assert isinstance(put_file(client, art_id, path), PutDone)
    assert stats(client).evictions >= 3
    for art_id, path in paths.items():
        assert read(client, art_id)["tensor"] == path.read_bytes()[8:]
    assert stats(client).loads >= 3
    assert describe(client, "f0").state in ("resident", "away")


def test_a_put_that_cannot_fit_is_refused_with_figures_and_nothing_is_thrown_out(house: House) -> None:
    client = house.client()
    put_memory(client, "fixed", {"t": os.urandom(40 * MIB)})
    held = attach(client, "fixed")  # what is mapped cannot go, wherever else it may lie
    with pytest.raises(CapacityExceeded, match=r"needs 40.* and the pool of storage-a has") as refused:
        put_memory(client, "more", {"t": bytes(40 * MIB)})
    assert refused.value.context["free_bytes"] and refused.value.retryable
    path = a_file(house.folder, "f.bin", 8 * MIB)
    put_file(client, "f", path)
    with pytest.raises(CapacityExceeded):
        put_memory(client, "more", {"t": bytes(40 * MIB)})
    assert describe(client, "f").state == "resident" and held.release() == 0


def test_a_mapped_artifact_is_not_evicted(house: House) -> None:
    client, path = house.client(), a_file(house.folder, "f.bin", 40 * MIB)
    put_file(client, "f", path)
    held = attach(client, "f")
    with pytest.raises(CapacityExceeded, match="are mapped by readers"):
        put_memory(client, "more", {"t": bytes(40 * MIB)})
    assert held.release() == 0
    until(lambda: describe(client, "f").pins == 0, what="the unmap is seen")
    put_memory(client, "more", {"t": bytes(40 * MIB)})
    assert describe(client, "f").state == "away"


@pytest.mark.parametrize("how", ["rewritten", "same size and time", "gone"])
def test_a_file_that_is_not_what_it_was_gives_no_bytes(house: House, how: str) -> None:
    client, path = house.client(), a_file(house.folder, "f.bin", 8 * MIB)
    put_file(client, "f", path)
    put_memory(client, "more", {"t": bytes(56 * MIB)})
    assert describe(client, "f").state == "away"
    delete(client, "more")
    stat = path.stat()
    if how == "gone":
        path.unlink()
    else:
        with path.open("r+b") as file:
            file.seek(4 * MIB)
            file.write(os.urandom(64))
        if how == "same size and time":
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(NoReplica if how == "gone" else BadCheckpoint, match="gone" if how == "gone" else "changed"):
        read(client, "f")
    until(lambda: not house.sidecars(), what="the sidecar goes")
    with pytest.raises(NoReplica, match="storage-a had it"):
        read(client, "f")


def test_tensors_copied_aside_come_back_from_the_file_too(house: House) -> None:
    client, path = house.client(), a_file(house.folder, "f.bin", 9 * MIB + 3)
    done = put_with_asides(client, "f", path, offsets=(9, 4 * MIB + 1), nbytes=3 * MIB)
    assert isinstance(done, PutDone) and done.bytes_copied == 6 * MIB
    whole = path.read_bytes()
    wanted = {"a": whole[9 : 9 + 3 * MIB], "b": whole[4 * MIB + 1 : 7 * MIB + 1]}
    assert read(client, "f") == wanted
    put_memory(client, "more", {"t": bytes(56 * MIB)})
    assert describe(client, "f").state == "away"
    delete(client, "more")
    assert read(client, "f") == wanted and stats(client).loads == 1


def test_another_nodes_artifact_is_named_and_a_put_here_makes_a_replica(house: House) -> None:
    house.start("storage", node="b")
    there = Client(str(house.folder / "storage-b.sock"), deadline_ms=10_000)
    put_memory(there, "x", {"t": b"there"})
    here = house.client()
    with pytest.raises(NoReplica, match="held by node b"):
        read(here, "x")
    stored = put_memory(here, "x", {"t": b"there"})
    assert isinstance(stored, PutDone) and stored.outcome == "stored"
    assert read(here, "x") == read(there, "x") == {"t": b"there"}
    with pytest.raises(AlreadyExists):
        put_memory(here, "y", {"t": b"here"})
        put_memory(there, "y", {"t": b"there"})
    delete(here, "x")
    until(lambda: describe(there, "x").state == "unknown", what="the other storage hears of the delete")


def test_under_load_bytes_are_right_and_nothing_leaks(house: House) -> None:
    files = {f"f{i}": a_file(house.folder, f"f{i}.bin", (2 * i + 3) * MIB) for i in range(8)}
    wrong: list[str] = []

    def work(seed: int) -> None:
        client, chance = house.client(), random.Random(seed)
        for _ in range(25):
            art_id = chance.choice([*sorted(files), "m0", "m1"])
            with suppress(CapacityExceeded, NotFound, NoReplica):
                match chance.choice(["put", "read", "read", "delete"]):
                    case "put" if art_id in files:
                        put_file(client, art_id, files[art_id])
                    case "put":
                        put_memory(client, art_id, {"tensor": art_id.encode() * MIB})
                    case "read":
                        found = read(client, art_id)["tensor"]
                        good = files[art_id].read_bytes()[8:] if art_id in files else art_id.encode() * MIB
                        wrong.extend([art_id] * (found != good))
                    case _:
                        delete(client, art_id)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong and not any(thread.is_alive() for thread in threads)
    client = house.client()
    for art_id in (*files, "m0", "m1"):
        with suppress(NotFound):
            delete(client, art_id)
    until(lambda: stats(client).pool["free_bytes"] == 64 * MIB, what="all blocks are free again")
    assert stats(client).artifacts == 0
    until(lambda: not house.sidecars(), what="all sidecars go")
    assert '"level": "error"' not in house.log("storage-a").read_text()


def test_two_puts_of_one_id_at_once_store_once_and_tell_the_other(house: House) -> None:
    answers: list[PutAnswer | TensorCastError] = []

    def put(fill: int) -> None:
        try:
            answers.append(put_memory(house.client(), "x", {"t": bytes([fill]) * (8 * MIB)}))
        except TensorCastError as error:
            answers.append(error)

    threads = [threading.Thread(target=put, args=(fill,)) for fill in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    done = [answer for answer in answers if isinstance(answer, PutDone)]
    exist = [answer for answer in answers if isinstance(answer, PutExists)]
    assert len(done) == 1 and len(exist) == 3 and {answer.digest for answer in exist} == {done[0].digest}
    client = house.client()
    assert len(set(read(client, "x")["t"])) == 1
    until(lambda: stats(client).pool["reserved_bytes"] == 0, what="the losers' blocks return")


def test_many_readers_of_an_evicted_artifact_cause_one_load(house: House) -> None:
    client, path = house.client(), a_file(house.folder, "f.bin", 16 * MIB)
    put_file(client, "f", path)
    put_memory(client, "more", {"t": bytes(48 * MIB)})
    delete(client, "more")
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(read(house.client(), "f")["tensor"])) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [path.read_bytes()[8:]] * 6
    assert stats(client).loads == 1


def test_what_a_storage_cannot_keep_or_read_is_refused_in_words(house: House) -> None:
    client = house.client()
    with pytest.raises(Invalid, match="separator"):
        put_memory(client, "/bad", {"t": b"x"})
    with pytest.raises(NotFound, match="never put"):
        read(client, "nothing")


def test_an_impossible_capacity_ends_the_start_with_one_line_and_code_2(tmp_path: Path) -> None:
    house = House(tmp_path, settings='[storage]\nhost_bytes_max = "900TiB"\n')
    try:
        house.folder.mkdir(exist_ok=True)
        (house.folder / "tensorcast.toml").write_text(house.settings)
        house.start_nats()
        with pytest.raises(AssertionError, match="host_bytes_max"):
            house.start("storage", node="a")
        assert house.processes["storage-a"].wait(20) == 2
    finally:
        house.close()
