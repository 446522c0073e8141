"""The disk tier of a real storage: what is durable survives everything, what is damaged is never served."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from tensorcast_bus.errors import BadCheckpoint, CapacityExceeded, NoReplica, NotFound, TensorCastError, Unavailable
from tensorcast_bus.notes import AskDurable, MadeDurable, PutDone
from tensorcast_native import Client, LocalStatus
from tests.integration.storage.house import (
    BUDGET_MS,
    House,
    delete,
    describe,
    put_file,
    put_memory,
    read,
    refusal,
    stats,
    until,
)
from tests.integration.storage.test_storage import MIB, a_file

EVERYBODY = ("storage-a", "global_store", "nats")


def settled(house: House, **settings: object) -> House:
    """The storage started again with these settings."""
    house.kill("storage-a")
    lines = "".join(f"{name} = {value!r}\n".replace("'", '"') for name, value in settings.items())
    (house.folder / "tensorcast.toml").write_text(house.settings + lines)
    house.start("storage", node="a")
    return house


def restart(house: House) -> Client:
    house.kill("storage-a")
    house.start("storage", node="a")
    return house.client()


def make_durable(client: Client, art_id: str) -> MadeDurable:
    status, body = client.call(msgspec.msgpack.encode(AskDurable(art_id)), deadline_ms=BUDGET_MS)
    if status != LocalStatus.OK:
        raise refusal(status, body)
    return msgspec.msgpack.decode(body, type=MadeDurable)


def data_of(house: House) -> list[Path]:
    return [path for path in house.disk() if path.suffix == ".safetensors"]


def test_a_durable_put_survives_the_death_of_everybody_and_the_loss_of_the_catalog(house: House) -> None:
    tensors = {"big": os.urandom(5 * MIB), "small": b"abc", "empty": b""}
    done = put_memory(house.client(), "x", tensors, durable=True)
    assert isinstance(done, PutDone)
    assert [path.stat().st_mode & 0o777 for path in house.disk()] == [0o600, 0o600]
    assert describe(house.client(), "x").tiers == ("host", "disk")
    for name in EVERYBODY:
        house.kill(name)
    for path in house.folder.glob("global_store.duckdb*"):
        path.rename(path.with_name(f"moved-away-{path.name}"))
    house.start_nats()
    house.start("global_store")
    house.start("storage", node="a")
    client = house.client()
    assert describe(client, "x").state == "away"
    assert read(client, "x") == tensors and describe(client, "x").digest == done.digest
    delete(client, "x")
    until(lambda: not house.disk(), what="what was deleted leaves the disk")


def test_what_is_only_visible_may_go_with_its_storage_and_says_so(house: House) -> None:
    put_memory(house.client(), "x", {"t": os.urandom(MIB)})
    with pytest.raises(NoReplica, match="storage-a had it"):
        read(restart(house), "x")


def test_data_whose_sidecar_was_never_written_is_no_artifact(house: House) -> None:
    client = house.client()
    put_memory(client, "whole", {"t": b"whole"}, durable=True)
    kept = set(house.disk())
    put_memory(client, "half", {"t": os.urandom(2 * MIB)}, durable=True)
    house.kill("storage-a")
    # As after a crash between the two: the data is there and synced, the sidecar is not.
    (sidecar,) = (path for path in set(house.disk()) - kept if path.suffix == ".manifest")
    sidecar.unlink()
    house.start("storage", node="a")
    client = house.client()
    assert read(client, "whole") == {"t": b"whole"} and set(house.disk()) == kept
    with pytest.raises(NoReplica):
        read(client, "half")


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_copy_is_an_error_that_names_the_file_and_is_used_no_more(house: House, damage: str) -> None:
    tensors = {"a": os.urandom(3 * MIB), "b": os.urandom(3 * MIB)}
    put_memory(house.client(), "x", tensors, durable=True)
    client = restart(house)
    assert describe(client, "x").state == "away"
    (path,) = data_of(house)
    match damage:
        case "flip":
            before = path.stat()
            with path.open("r+b") as file:
                file.seek(4 * MIB)
                byte = file.read(1)
                file.seek(4 * MIB)
                file.write(bytes([byte[0] ^ 1]))
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        case "truncate":
            os.truncate(path, 6 * MIB - 1)
        case _:
            path.unlink()
    with pytest.raises((BadCheckpoint, NoReplica), match=path.name) as damaged:
        read(client, "x")
    if damage == "flip":
        assert "'b'" in damaged.value.text
    with pytest.raises(NoReplica):
        read(client, "x")
    until(lambda: not house.disk(), what="the damaged copy goes")
    assert isinstance(put_memory(client, "x", tensors, durable=True), PutDone)
    assert read(restart(house), "x") == tensors


def test_a_folder_that_was_moved_is_found_again(house: House) -> None:
    content = {"t": os.urandom(2 * MIB)}
    put_memory(house.client(), "x", content, durable=True)
    house.kill("storage-a")
    elsewhere = house.folder / "elsewhere"
    (house.folder / "storage-a" / "disk").rename(elsewhere)
    for path in elsewhere.iterdir():
        path.write_bytes(path.read_bytes())  # another time than when it was written, as after a restore
    (house.folder / "tensorcast.toml").write_text(house.settings + f'disk_path = "{elsewhere}"\n')
    house.start("storage", node="a")
    assert read(house.client(), "x") == content


def test_an_artifact_of_a_file_that_is_durable_outlives_its_file(house: House) -> None:
    client, path = house.client(), a_file(house.folder, "f.bin", 3 * MIB)
    content = path.read_bytes()[8:]
    put_file(client, "f", path)
    assert describe(client, "f").tiers == ("host", "file")
    assert make_durable(client, "f") == MadeDurable("f") == make_durable(client, "f")
    assert describe(client, "f").tiers == ("host", "disk", "file")
    path.write_bytes(b"other")
    client = restart(house)
    assert describe(client, "f").tiers == ("disk",)
    assert read(client, "f")["tensor"] == content
    path.unlink()
    assert read(restart(house), "f")["tensor"] == content


def test_a_durable_put_that_finds_no_room_on_disk_fails_and_leaves_nothing(house: House) -> None:
    client = settled(house, disk_bytes_max="8MiB").client()
    put_memory(client, "fits", {"t": os.urandom(5 * MIB)}, durable=True)
    before = set(house.disk())
    with pytest.raises(CapacityExceeded, match=r"storage\.disk_bytes_max"):
        put_memory(client, "more", {"t": os.urandom(5 * MIB)}, durable=True)
    with pytest.raises(NotFound):
        read(client, "more")
    assert set(house.disk()) == before and stats(client).disk_bytes == 5 * MIB
    assert isinstance(put_memory(client, "more", {"t": bytes(5 * MIB)}), PutDone)
    with pytest.raises(CapacityExceeded):
        make_durable(client, "more")
    delete(client, "fits")
    until(lambda: not house.disk(), what="room on disk")
    assert make_durable(client, "more") == MadeDurable("more")


def test_a_disk_that_is_memory_is_none_and_the_refusal_names_the_setting(house: House, tmp_path: Path) -> None:
    folder = Path("/dev/shm") / f"tensorcast-test-{os.getpid()}"
    folder.mkdir(mode=0o700)
    try:
        client = settled(house, disk_path=str(folder)).client()
        with pytest.raises(Unavailable, match=r"storage\.disk_path"):
            put_memory(client, "x", {"t": b"abc"}, durable=True)
        assert isinstance(put_memory(client, "x", {"t": b"abc"}), PutDone)
        with pytest.raises(Unavailable, match=r"storage\.disk_path"):
            make_durable(client, "x")
        assert house.log("storage-a").read_text().count("disk_tier_off") == 1
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def test_what_is_put_beyond_the_pool_is_spilled_and_every_byte_comes_back(house: House) -> None:
    client = house.client()
    contents = {f"m{i}": {"t": os.urandom(16 * MIB)} for i in range(12)}
    for art_id, tensors in contents.items():
        assert isinstance(put_memory(client, art_id, tensors), PutDone)
    assert stats(client).spills >= 8 and stats(client).disk_bytes >= 128 * MIB
    for art_id, tensors in contents.items():
        assert read(client, art_id) == tensors
    assert stats(client).loads >= 8
    client = restart(house)
    held = {art_id for art_id in contents if describe(client, art_id).state == "away"}
    assert len(held) >= 8
    for art_id in held:
        assert read(client, art_id) == contents[art_id]


def test_above_the_watermark_writing_out_happens_ahead_of_need(house: House) -> None:
    client = settled(house, spill_percent=50).client()
    for number in range(3):
        put_memory(client, f"m{number}", {"t": os.urandom(16 * MIB)})
    until(lambda: stats(client).spills >= 1, what="spilling ahead")
    assert stats(client).evictions == 0 and describe(client, "m0").tiers == ("host", "disk")


def test_spilling_to_a_full_disk_keeps_what_is_in_memory_and_says_that_the_disk_is_full(house: House) -> None:
    client = settled(house, disk_bytes_max="20MiB").client()
    contents = {f"m{i}": {"t": os.urandom(16 * MIB)} for i in range(5)}
    stored: list[str] = []
    trouble: TensorCastError | None = None
    for art_id, tensors in contents.items():
        try:
            put_memory(client, art_id, tensors)
            stored.append(art_id)
        except CapacityExceeded as full:
            trouble = full
    assert trouble is not None and "disk" in trouble.text and len(stored) >= 4
    away = [art_id for art_id in stored if describe(client, art_id).state == "away"]
    for art_id in stored:
        if art_id not in away:
            assert read(client, art_id) == contents[art_id]
    # What went to disk before it was full waits for room in the pool, and loses nothing.
    for art_id in set(stored) - set(away):
        delete(client, art_id)
    assert away
    for art_id in away:
        assert read(client, art_id) == contents[art_id]


def test_a_real_full_file_system_is_told_from_other_trouble(house: House) -> None:
    """Needs a file system of its own, which only root can mount."""
    image, mount = house.folder / "disk.img", house.folder / "mount"
    mount.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 16 * MIB)
    if os.geteuid() or os.system(f"mkfs.ext4 -q {image} && mount -o loop {image} {mount}"):
        pytest.skip("cannot make and mount a small file system here")
    try:
        disk = mount / "disk"
        disk.mkdir(mode=0o700)
        client = settled(house, disk_path=str(disk), disk_bytes_max="1GiB").client()
        assert isinstance(put_memory(client, "fits", {"t": os.urandom(4 * MIB)}, durable=True), PutDone)
        with pytest.raises(CapacityExceeded, match="disk"):
            put_memory(client, "more", {"t": os.urandom(24 * MIB)}, durable=True)
        with pytest.raises(NotFound):
            read(client, "more")
        assert len(list(disk.iterdir())) == 3 and read(restart(house), "fits")
        house.kill("storage-a")
    finally:
        assert os.system(f"umount -l {mount}") == 0
        (house.folder / "tensorcast.toml").write_text(house.settings)
        house.start("storage", node="a")
