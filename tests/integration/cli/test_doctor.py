"""The doctor on the host that runs the tests: it finds something out about all of it, with and without a cluster."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tensorcast.cli.checks import probes
from tensorcast.cli.checks.finding import FAIL, OK, WARN, Finding
from tensorcast.cli.main import main
from tests.support.cluster import Cluster

ALWAYS = {
    "kernel",
    "memory",
    "cgroup",
    "huge pages",
    "overcommit",
    "maps",
    "locked memory",
    "open files",
    "process_vm_readv",
    "clock",
    "python",
    "torch",
    "nats-py",
    "nats-server",
    "native module",
    "name",
    "socket folder",
    "disk tier",
    "ports",
}


class Told(msgspec.Struct):
    findings: list[Finding]
    well: bool


@pytest.fixture(autouse=True)
def _no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("TENSORCAST_CLUSTER", raising=False)
    monkeypatch.delenv("NATS_URL", raising=False)


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Finding]:
    """What it found by name; its code says whether anything failed."""
    capsys.readouterr()
    code = main(["doctor", "--json"])
    found = msgspec.json.decode(capsys.readouterr().out, type=Told)
    assert code == (0 if found.well else 1) and found.well == all(f.state != FAIL for f in found.findings)
    assert all(bool(f.fix) == (f.state != OK) and f.value for f in found.findings)
    return {f.check: f for f in found.findings}


def test_everything_is_looked_at_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(told(capsys)) == ALWAYS


def test_what_is_not_well_comes_with_its_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tensorcast" / "default"
    folder.mkdir(parents=True)
    os.chmod(folder, 0o777)
    found = told(capsys)["socket folder"]
    assert found.state == FAIL and found.fix == f"chmod 700 {folder}"
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "FAIL  socket folder" in shown and f"fix: chmod 700 {folder}" in shown
    assert main(["doctor", "-q"]) == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["FAIL", "fix:"]


def test_the_disk_tier_of_the_settings_is_the_one_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tensorcast" / "default"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "tensorcast.toml").write_text('[storage]\ndisk_path = "/dev/shm/x"\n')
    assert "/dev/shm/x" in told(capsys)["disk tier"].value
    (folder / "tensorcast.toml").write_text(
        f'[storage]\ndisk_path = "/dev/shm/x"\n[storage-a]\ndisk_path = "{tmp_path}"'
    )
    assert str(tmp_path) in told(capsys)["disk tier"].value


def test_a_server_that_is_named_and_does_not_answer_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    assert "Connection refused" in told(capsys)["NATS server"].value


def test_the_doctor_works_where_the_native_module_does_not_load(tmp_path: Path) -> None:
    code = (
        "import sys\nsys.modules['tensorcast_native'] = None\nfrom tensorcast.cli.main import main\n"
        "sys.exit(main(['doctor', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    found = {f.check: f for f in msgspec.json.decode(done.stdout, type=Told).findings}
    assert done.returncode == 1 and found["native module"].state == FAIL and "make build" in found["native module"].fix


def test_memory_of_another_process_is_really_read() -> None:
    # Where this host refuses it, the refusal is the system's own word.
    assert probes.vm_read() in ("", os.strerror(1), os.strerror(38))


def test_a_running_cluster_is_looked_at_too(cluster: Cluster) -> None:
    done = cluster.cli("doctor", "--json", check=False)
    found = {f.check: f for f in msgspec.json.decode(done.stdout, type=Told).findings}
    assert set(found) == ALWAYS | {"socket of a", "NATS server", "NATS pings"}
    assert {found[n].state for n in ("socket of a", "NATS server", "NATS pings", "socket folder")} == {OK}
    assert cluster.state().nodes[0].socket in found["socket of a"].value
    assert "every 2 s, 2 may be missed" in found["NATS pings"].value


def test_a_server_of_somebody_elses_is_asked_for_its_pings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening(b'INFO {"version":"2.15.1","max_payload":1048576}\r\n') as url:
        monkeypatch.setenv("NATS_URL", url)
        found = told(capsys)
    assert found["NATS server"].state == OK and found["NATS pings"].state == WARN
    assert 'ping_interval: "2s"' in found["NATS pings"].fix


@contextmanager
def listening(answer: bytes) -> Iterator[str]:
    """A server that says one thing and hangs up."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}"
        server.join(10)


def test_a_servers_first_line_is_understood_or_its_lack_explained() -> None:
    with listening(b'INFO {"version":"2.15.1","max_payload":1048576,"x":[1]}\r\n') as url:
        word, _ = probes.ask_server(url)
        assert word is not None and (word.version, word.max_payload) == ("2.15.1", 1 << 20)
    for answer, said in ((b"HTTP/1.1 400\r\n", "no NATS server"), (b"INFO {\r\n", "cannot be read"), (b"", "no NATS")):
        with listening(answer) as url:
            word, trouble = probes.ask_server(url)
            assert word is None and said in trouble
    assert probes.ask_server("nats://[broken")[0] is None
