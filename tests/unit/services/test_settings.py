"""Settings: what wins, what is refused, and how a size is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Struct

from tensorcast_services.settings import BusSettings, load_bus_settings, load_settings, parse_bytes
from tensorcast_services.tables import Refusal, Table, read_tables, with_value


class Example(Struct, frozen=True):
    host_bytes_max: int = 1
    threads: int = 4
    socket_path: str = ""
    eager: bool = False


def load(tables: dict[str, Table] | None = None, environment: dict[str, str] | None = None) -> Example:
    return load_settings(
        Example, process="storage-a", role="storage", tables=tables or {}, environment=environment or {}
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 << 30),
        ("512 MiB", 512 << 20),
        ("2gb", 2_000_000_000),
        ("1.5KiB", 1536),
        ("4096", 4096),
        ("0", 0),
        (77, 77),
        ("9TiB", 9 << 40),
        ("12B", 12),
    ],
)
def test_a_size_is_read_with_its_unit(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "8 apples", "8GiBs", "1e9", "0x10", "８GiB x"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes(text)


def test_the_process_wins_over_its_role_and_the_environment_over_both() -> None:
    tables: dict[str, Table] = {
        "storage": {"threads": 1, "host_bytes_max": "1GiB", "socket_path": "/r"},
        "storage-a": {"threads": 2, "host_bytes_max": "2GiB"},
        "storage-b": {"threads": 9},
    }
    environment = {
        "TENSORCAST_STORAGE__HOST_BYTES_MAX": "3GiB",
        "TENSORCAST_STORAGE_A__EAGER": "true",
        "PATH": "/bin",
    }
    assert load(tables, environment) == Example(3 << 30, 2, "/r", eager=True)


def test_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(Refusal, match=r"\[storage\] has no setting 'host_byte_max'; did you mean 'host_bytes_max'"):
        load({"storage": {"host_byte_max": 1}})
    with pytest.raises(Refusal, match=r"TENSORCAST_STORAGE_A__THREAD: .*did you mean 'threads'"):
        load(environment={"TENSORCAST_STORAGE_A__THREAD": "1"})


def test_a_wrong_value_is_refused_by_name() -> None:
    with pytest.raises(Refusal, match=r"settings of storage-a: .*threads"):
        load({"storage": {"threads": "many"}})
    with pytest.raises(Refusal, match=r"\[storage\] host_bytes_max: 'lots' is not a size"):
        load({"storage": {"host_bytes_max": "lots"}})


def test_nats_url_is_for_processes_that_nobody_configured() -> None:
    given = {"NATS_URL": "nats://other:4222"}
    assert load_bus_settings({}, given).url == "nats://other:4222"
    assert load_bus_settings({"bus": {"url": "nats://table:1"}}, given).url == "nats://table:1"
    both = {**given, "TENSORCAST_BUS__URL": "nats://own:1", "TENSORCAST_BUS__TOKEN": "12345"}
    assert load_bus_settings({}, both) == BusSettings("nats://own:1", "12345")


def test_a_broken_file_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "tensorcast.toml"
    assert read_tables(path) == {}
    path.write_text("[storage\n")
    with pytest.raises(Refusal, match=r"tensorcast\.toml"):
        read_tables(path)
    path.write_text("threads = 4\n")
    with pytest.raises(Refusal, match="outside of a table"):
        read_tables(path)


def test_setting_a_value_keeps_the_rest_of_the_file() -> None:
    text = "# mine\n[storage]  # all\nthreads = 2\n\n[gateway]\nrequests_max = 5\n"
    changed = with_value(text, "storage", "threads", "8")
    assert changed == "# mine\n[storage]  # all\nthreads = 8\n\n[gateway]\nrequests_max = 5\n"
    added = with_value(changed, "storage", "host_bytes_max", "8GiB")
    assert '[storage]  # all\nhost_bytes_max = "8GiB"\nthreads = 8\n' in added
    new = with_value(added, "storage-a", "eager", "true")
    assert new.endswith("[storage-a]\neager = true\n")
    assert with_value("", "storage", "x", 'a"b\\c') == '[storage]\nx = "a\\"b\\\\c"\n'
