"""Settings of the supervisor: table ``[supervisor]``, and what was asked on the command line."""

from __future__ import annotations

import grp
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from tensorcast_services.tables import Refusal, Table, nearest, with_value

ROLES = ("bus", "gateway", "global_store", "storage", "supervisor")
_ONE_PROCESS = re.compile(r"(?:gateway|storage)-[a-z0-9][a-z0-9_]{0,31}")
_SETTING = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_]+)=(.*)", re.DOTALL)


class SupervisorSettings(Struct, frozen=True):
    """`log_bytes_max` is looked at when a process is started: a larger log becomes NAME.log.1 first."""

    gateways: int = 1
    ready_ms_max: int = 30_000
    log_bytes_max: int = 16 << 20


def with_assignments(text: str, assignments: Sequence[str]) -> str:
    """The TOML text with every ``table.key=value`` of the command line set. Refusal for anything else."""
    for assignment in assignments:
        found = _SETTING.fullmatch(assignment)
        if found is None:
            raise Refusal(f"--set {assignment!r}: write PROCESS.SETTING=VALUE, as in storage.host_bytes_max=8GiB")
        table, key, value = found.groups()
        _check_table(table, f"--set {assignment}")
        text = with_value(text, table, key, value)
    return text


def group_of(tables: Mapping[str, Table]) -> int | None:
    """The group that may use this cluster: the one that its storages' sockets have. Refusal for an unknown group, and
    for several: the cluster's folder has room for one."""
    named = {
        str(t["socket_group"]) for n, t in tables.items() if n.partition("-")[0] == "storage" and t.get("socket_group")
    }
    if len(named) > 1:
        raise Refusal(f"storage.socket_group: one cluster has one group, here are {', '.join(sorted(named))}")
    for name in named:
        try:
            return int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
        except KeyError:
            raise Refusal(f"storage.socket_group {name!r}: this host has no such group") from None
    return None


def check_tables(tables: Mapping[str, Table], where: str) -> None:
    """Refusal for a table that no process reads, naming the nearest that one does."""
    for table in tables:
        _check_table(table, where)


def _check_table(table: str, where: str) -> None:
    if table not in ROLES and not _ONE_PROCESS.fullmatch(table):
        raise Refusal(f"{where}: there is no process {table!r}{nearest(table, ROLES)}")
