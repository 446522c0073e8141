"""Settings of the global store: table ``[global_store]``."""

from __future__ import annotations

from msgspec import Struct


class GlobalStoreSettings(Struct, frozen=True):
    """`database` is a path, relative to the cluster folder. `memory_bytes_max` bounds DuckDB only."""

    database: str = "global_store.duckdb"
    memory_bytes_max: int = 256 << 20
