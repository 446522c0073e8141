"""The wire form of every message, held to the byte. A change of these bytes is a change of the protocol.

After adding a message or a field at the end, write the bytes anew and look at the difference:

    python -m tests.unit.bus.test_golden --write
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

from tensorcast_bus.envelope import Envelope
from tests.unit.bus.samples import message_structs, sample

GOLDEN = Path(__file__).with_name("golden.json")
STRUCTS = message_structs()


def golden() -> dict[str, str]:
    return msgspec.json.decode(GOLDEN.read_bytes(), type=dict[str, str])


def wire_forms() -> dict[str, str]:
    return {name: msgspec.msgpack.encode(sample(struct)).hex() for name, struct in sorted(STRUCTS.items())}


def test_every_message_has_golden_bytes_and_no_golden_bytes_are_left_over() -> None:
    assert set(golden()) == set(STRUCTS)


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_a_message_is_written_as_its_golden_bytes(name: str) -> None:
    assert wire_forms()[name] == golden()[name]


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_golden_bytes_are_read_back_as_the_message(name: str) -> None:
    read = msgspec.msgpack.decode(bytes.fromhex(golden()[name]), type=STRUCTS[name])
    assert msgspec.msgpack.encode(read) == msgspec.msgpack.encode(sample(STRUCTS[name]))
    assert isinstance(read, Envelope) or read == sample(STRUCTS[name])  # A Raw body compares by identity.


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_a_field_that_a_newer_release_added_at_the_end_is_ignored(name: str) -> None:
    fields = msgspec.msgpack.decode(bytes.fromhex(golden()[name]))
    newer = msgspec.msgpack.encode([*fields, {"a field": "of tomorrow"}])
    read = msgspec.msgpack.decode(newer, type=STRUCTS[name])
    assert msgspec.msgpack.encode(read).hex() == golden()[name]


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_every_message_is_a_row_and_frozen(name: str) -> None:
    config = STRUCTS[name].__struct_config__
    assert config.array_like and config.frozen


def test_no_two_messages_of_one_module_have_the_same_kind() -> None:
    kinds = [(name.split(".")[0], s.__struct_config__.tag or s.__name__) for name, s in STRUCTS.items()]
    assert len(kinds) == len(set(kinds))


if __name__ == "__main__":
    assert sys.argv[1:] == ["--write"], __doc__
    GOLDEN.write_text(json.dumps(wire_forms(), indent=1) + "\n")
