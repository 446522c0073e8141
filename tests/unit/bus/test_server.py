"""Which nats-server is taken, and what it is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tensorcast_bus.errors import Invalid, NotFound
from tensorcast_bus.nats import server
from tensorcast_bus.nats.server import config_text, find_server, server_url

TOKEN = "t" * 16


def program(folder: Path, says: str, *, code: int = 0) -> str:
    folder.mkdir()
    file = folder / "nats-server"
    file.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    file.chmod(0o755)
    return str(file)


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "WHEEL", "no-such-package-as-this")


def test_the_wheel_serves_where_path_has_no_server(tmp_path: Path) -> None:
    found = find_server(search_path=str(tmp_path))
    assert found.origin == "wheel" and os.access(found.path, os.X_OK)
    assert tuple(int(part) for part in found.version.split(".")[:2]) >= server.VERSION_MIN


def test_a_new_enough_server_on_path_comes_first(tmp_path: Path) -> None:
    file = program(tmp_path / "bin", "nats-server: v2.12.0")
    assert find_server(search_path=str(tmp_path / "bin")) == server.ServerBinary(file, "2.12.0", "path")


@pytest.mark.parametrize("says", ["nats-server: v2.9.10", "nats-server: v1.99.0", "something else", ""])
def test_an_old_or_foreign_program_on_path_is_passed_over(tmp_path: Path, says: str) -> None:
    program(tmp_path / "bin", says)
    assert find_server(search_path=str(tmp_path / "bin")).origin == "wheel"


def test_the_wheel_s_own_program_on_path_is_called_the_wheel(tmp_path: Path) -> None:
    wheel = find_server(search_path=str(tmp_path))
    assert find_server(search_path=os.path.dirname(wheel.path)) == wheel


@pytest.mark.usefixtures("no_wheel")
def test_without_any_server_the_error_says_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    file = program(tmp_path / "bin", "nats-server: v2.9.10")
    with pytest.raises(NotFound, match="pip install") as caught:
        find_server(search_path=str(tmp_path / "bin"))
    assert f"{file} is 2.9.10" in caught.value.text


def test_the_configuration_is_loopback_only_with_a_token_and_short_patience() -> None:
    text = config_text(port=-1, token=TOKEN, folder="/run/x")
    for line in (
        'listen: "127.0.0.1:-1"',
        'ports_file_dir: "/run/x"',
        f'authorization {{ token: "{TOKEN}" }}',
        "max_payload: 1MB",
        'ping_interval: "2s"',
        "ping_max: 2",
        'write_deadline: "2s"',
    ):
        assert line in text.splitlines()


def test_nothing_can_break_out_of_the_configuration() -> None:
    assert 'ports_file_dir: "/a\\" \\\\ b"' in config_text(port=4222, token=TOKEN, folder='/a" \\ b').splitlines()
    for token in ("short", TOKEN + '"', TOKEN + "\n", "t" * 257, ""):
        with pytest.raises(Invalid):
            config_text(port=4222, token=token, folder="/run/x")
    with pytest.raises(Invalid):
        config_text(port=4222, token=TOKEN, folder="/run\nport: 1")
    for port in (0, -2, 65536):
        with pytest.raises(Invalid):
            config_text(port=port, token=TOKEN, folder="/run/x")


def test_a_server_s_address_is_known_once_it_wrote_it(tmp_path: Path) -> None:
    assert server_url(str(tmp_path), pid=7) is None
    ports = tmp_path / "nats-server_7.ports"
    ports.write_text('{"nats": ["nats://127')
    assert server_url(str(tmp_path), pid=7) is None
    ports.write_text('{"nats": ["nats://127.0.0.1:4567"]}')
    assert server_url(str(tmp_path), pid=7) == "nats://127.0.0.1:4567"
