"""The tables of a catalog's file: made for a new one, brought up to date in an older one, left alone in anybody else's.

Tables have the fields of their row structs, in that order; a row written is a struct's fields by place, so a field is
added at the end of both. A change of the schema is one transaction: a process killed in it leaves the older version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

import duckdb
import msgspec

from tensorcast_services.global_store.core.rows import ALIASES, ANSWERS, ARTIFACTS, DELETED, MARKS, REPLICAS, TABLES
from tensorcast_services.tables import Refusal

SCHEMA_VERSION = 2
_FIRST_TABLES = frozenset({"schema_version", ARTIFACTS, REPLICAS, DELETED, ANSWERS})
_COLUMN_TYPES: Mapping[object, str] = {str: "VARCHAR", int: "BIGINT"}


def prepare(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Refusal where the file is of something else, or of a version that is not known here; nothing is changed then."""
    found = {str(row[0]) for row in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if found and not found >= _FIRST_TABLES:
        raise Refusal(
            f"{path} is a DuckDB file of something else (tables {', '.join(sorted(found)[:5])}); "
            "set global_store.database to another path, or move the file away"
        )
    if not found:
        _in_one_transaction(connection, _make)
        return
    version = connection.execute("SELECT max(version) FROM schema_version").fetchall()[0][0]
    if version == 1:
        _in_one_transaction(connection, _from_1_to_2)
    elif version != SCHEMA_VERSION:
        raise Refusal(
            f"{path} has schema version {version}, this global store has {SCHEMA_VERSION}; "
            "run the version that wrote it, or move the file away"
        )


def _in_one_transaction(
    connection: duckdb.DuckDBPyConnection, work: Callable[[duckdb.DuckDBPyConnection], None]
) -> None:
    connection.execute("BEGIN")
    try:
        work(connection)
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(duckdb.Error):
            connection.execute("ROLLBACK")
        raise


def column_type(field: msgspec.structs.FieldInfo) -> str:
    return _COLUMN_TYPES[field.type]


def _make(connection: duckdb.DuckDBPyConnection) -> None:
    for table in TABLES:
        _make_table(connection, table)
    connection.execute("CREATE TABLE schema_version (version INTEGER NOT NULL)")
    connection.execute("INSERT INTO schema_version VALUES (?)", [SCHEMA_VERSION])


def _from_1_to_2(connection: duckdb.DuckDBPyConnection) -> None:
    """What was there is the system's, and what is gone was deleted."""
    for table, column, value in (
        (ARTIFACTS, "ownership", "system"),
        (DELETED, "reason", "deleted"),
        (DELETED, "process", ""),
    ):
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} VARCHAR DEFAULT '{value}'")
        connection.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET NOT NULL")
    for table in (ALIASES, MARKS):
        _make_table(connection, table)
    connection.execute("UPDATE schema_version SET version = 2")


def _make_table(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    kind, key_fields = TABLES[table]
    fields = msgspec.structs.fields(kind)
    columns = ", ".join(f"{field.name} {column_type(field)} NOT NULL" for field in fields)
    key = ", ".join(field.name for field in fields[:key_fields])
    connection.execute(f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({key}))")
