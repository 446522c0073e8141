"""Settings: one frozen struct a process, filled from TOML tables, then from the environment, then handed over.

``[storage]`` applies to every storage and ``[storage-a]`` to one; ``TENSORCAST_STORAGE_A__HOST_BYTES_MAX=8GiB``
wins over both. Unknown keys are refused with the nearest valid one. Sizes are plain bytes or carry a unit ("8GiB");
a field holds a size when its name has the word ``bytes``. Only this module of the services reads the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from tensorcast_services.tables import Refusal, Setting, Table, nearest

S = TypeVar("S", bound=msgspec.Struct)

ENVIRONMENT_PREFIX = "TENSORCAST_"
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}ib": 1024 ** (i + 1) for i, letter in enumerate("kmgt")}
_UNITS |= {f"{letter}b": 1000 ** (i + 1) for i, letter in enumerate("kmgt")}
_SIZE = re.compile(r"(\d+)(\.\d+)?\s*([A-Za-z]*)")


class BusSettings(msgspec.Struct, frozen=True):
    """Table ``[bus]``. The supervisor gives both to its children by the environment."""

    url: str = "nats://127.0.0.1:4222"
    token: str = ""


def parse_bytes(text: str | int) -> int:
    """Bytes of "8GiB", "512 MiB", "2.5GB", "4096" or 4096. ValueError names the text and the units."""
    if isinstance(text, int):
        return text
    found = _SIZE.fullmatch(text.strip())
    if found is None or found[3].lower() not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write bytes, or a number with KiB, MiB, GiB, TiB, KB, MB, GB or TB")
    factor = _UNITS[found[3].lower()]
    return int(found[1]) * factor + (int(float(found[2]) * factor) if found[2] else 0)


def read_environment() -> dict[str, str]:
    """The process's environment, for load_settings and for children."""
    return dict(os.environ)


def load_settings(
    kind: type[S],
    *,
    process: str,
    role: str,
    tables: Mapping[str, Table],
    environment: Mapping[str, str],
) -> S:
    """The settings of `process` ("storage-a") of `role` ("storage"). Refusal names the key, where it stands, and what
    is valid instead."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Setting] = {}
    for name in dict.fromkeys((role, process)):
        for key, value in tables.get(name, {}).items():
            if key not in fields:
                raise Refusal(f"[{name}] has no setting {key!r}{nearest(key, fields)}")
            values[key] = _sized(key, value, f"[{name}] {key}")
    for name in dict.fromkeys((role, process)):
        for key, text in _from_environment(name, fields, environment):
            values[key] = _sized(key, text, f"{_prefix(name)}{key.upper()}")
    try:
        # Texts of the environment become numbers here; a number for a text field is refused as it should be.
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refusal(f"settings of {process}: {error}") from error


def load_bus_settings(tables: Mapping[str, Table], environment: Mapping[str, str]) -> BusSettings:
    """``[bus]`` and TENSORCAST_BUS__*; NATS_URL gives the url to a process that somebody starts by hand."""
    found = load_settings(BusSettings, process="bus", role="bus", tables=tables, environment=environment)
    if "NATS_URL" in environment and f"{_prefix('bus')}URL" not in environment and "url" not in tables.get("bus", {}):
        return msgspec.structs.replace(found, url=environment["NATS_URL"])
    return found


def _from_environment(
    name: str, fields: Mapping[str, object], environment: Mapping[str, str]
) -> Iterable[tuple[str, str]]:
    prefix = _prefix(name)
    for variable, text in environment.items():
        if variable.startswith(prefix):
            key = variable.removeprefix(prefix).lower()
            if key not in fields:
                raise Refusal(f"{variable}: {name} has no setting {key!r}{nearest(key, fields)}")
            yield key, text


def _prefix(name: str) -> str:
    return f"{ENVIRONMENT_PREFIX}{name.upper().replace('-', '_')}__"


def _sized(key: str, value: Setting, where: str) -> Setting:
    if "bytes" not in key.split("_") or not isinstance(value, str):
        return value
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise Refusal(f"{where}: {error}") from error
