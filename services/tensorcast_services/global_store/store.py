"""The catalog's rows in DuckDB: read once at start, written one transaction a batch, one statement a table and kind.

The file belongs to one process; ``schema`` makes its tables from the row structs. Called by the service on one thread
of its own, never on the event loop. A row is acknowledged only after its transaction, whose log is on disk then.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import duckdb
import msgspec
from msgspec import Struct

from tensorcast_bus.messages import AliasRow, ArtifactRow
from tensorcast_services.effect import Save
from tensorcast_services.global_store.core.rows import (
    ALIASES,
    ANSWERS,
    ARTIFACTS,
    DELETED,
    MARKS,
    REPLICAS,
    TABLES,
    AnswerRecord,
    DeletedRecord,
    MarkRecord,
    ReplicaRecord,
    SavedRows,
)
from tensorcast_services.global_store.schema import column_type, prepare
from tensorcast_services.tables import Refusal

LOCK_WAIT_MS_MAX = 6_000
LOCK_RETRY_MS = 100
FETCH_ROWS = 10_000
R = TypeVar("R", bound=Struct)


class Store:
    """One open file. Not thread-safe: one thread at a time."""

    def __init__(self, path: Path, *, memory_bytes_max: int) -> None:
        """Refusal when the file is corrupt, foreign, of another version, or in use by another process for long."""
        self._path = path
        self._connection = _open(path, memory_bytes_max)
        try:
            prepare(self._connection, path)
        except BaseException:
            self._connection.close()
            raise

    def load(self) -> SavedRows:
        return SavedRows(
            artifacts=self._rows(ARTIFACTS, ArtifactRow),
            replicas=self._rows(REPLICAS, ReplicaRecord),
            deleted=self._rows(DELETED, DeletedRecord),
            answers=self._rows(ANSWERS, AnswerRecord),
            aliases=self._rows(ALIASES, AliasRow),
            marks=self._rows(MARKS, MarkRecord),
        )

    def save(self, saves: Sequence[Save]) -> None:
        """The net effect of a batch, all or nothing. Raises duckdb.Error; nothing of the batch is saved then."""
        # The first word about a key tells whether the file has it, the last what it shall be.
        first = {(save.table, save.key): save for save in reversed(saves)}
        net = {(save.table, save.key): save.row for save in saves}
        self._connection.execute("BEGIN")
        try:
            for table, (kind, key_fields) in TABLES.items():
                mine = [(key, row, first[(of, key)].new) for (of, key), row in net.items() if of == table]
                self._remove(table, kind, key_fields, [key for key, row, new in mine if row is None and not new])
                self._write("INSERT", table, kind, [row for _, row, new in mine if row is not None and new])
                # Planning this one costs three times as much, so it is kept for rows that may be there.
                self._write(
                    "INSERT OR REPLACE", table, kind, [row for _, row, new in mine if row is not None and not new]
                )
            self._connection.execute("COMMIT")
        except BaseException:
            # A commit that failed (a full disk) has ended its transaction itself; its own error is the one to tell.
            with contextlib.suppress(duckdb.Error):
                self._connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        self._connection.close()

    def _rows(self, table: str, kind: type[R]) -> list[R]:
        names = ", ".join(field.name for field in msgspec.structs.fields(kind))
        cursor = self._connection.execute(f"SELECT {names} FROM {table}")
        rows: list[R] = []
        while part := cursor.fetchmany(FETCH_ROWS):
            rows.extend(kind(*row) for row in part)
        return rows

    def _write(self, how: str, table: str, kind: type[Struct], rows: Sequence[Struct]) -> None:
        if not rows:
            return
        fields = msgspec.structs.fields(kind)
        # One list a column: as rows of parameters the same insert takes five times as long.
        columns = [[getattr(row, field.name) for row in rows] for field in fields]
        lists = ", ".join(f"unnest(?::{column_type(field)}[])" for field in fields)
        self._connection.execute(f"{how} INTO {table} SELECT {lists}", columns)

    def _remove(self, table: str, kind: type[Struct], key_fields: int, keys: Sequence[tuple[str, ...]]) -> None:
        if not keys:
            return
        names = [field.name for field in msgspec.structs.fields(kind)[:key_fields]]
        lists = ", ".join(f"unnest(?::VARCHAR[]) AS {name}" for name in names)
        same = " AND ".join(f"{table}.{name} = gone.{name}" for name in names)
        columns = [list(column) for column in zip(*keys, strict=True)]
        self._connection.execute(f"DELETE FROM {table} USING (SELECT {lists}) AS gone WHERE {same}", columns)


def _open(path: Path, memory_bytes_max: int) -> duckdb.DuckDBPyConnection:
    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "memory_limit": f"{memory_bytes_max // (1 << 20)}MiB",
    }
    deadline = time.monotonic() + LOCK_WAIT_MS_MAX / 1000
    while True:
        try:
            return duckdb.connect(str(path), config=config)
        except duckdb.Error as error:
            # The last global store may still be on its way out.
            if "lock" in str(error).lower() and time.monotonic() < deadline:
                time.sleep(LOCK_RETRY_MS / 1000)
                continue
            raise Refusal(
                f"{path} cannot be opened as the catalog: {str(error).splitlines()[0]}; if it is in use, stop that "
                "process; if it is damaged, move it and its .wal file away (storages report again what they hold)"
            ) from error
