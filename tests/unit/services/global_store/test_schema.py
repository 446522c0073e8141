"""Files that earlier versions wrote, and a change of their tables that is whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from tensorcast_bus.messages import AliasRow, ArtifactRow
from tensorcast_services.effect import Save
from tensorcast_services.global_store.core.rows import (
    ALIASES,
    ARTIFACTS,
    DELETED,
    MARKS,
    AnswerRecord,
    DeletedRecord,
    MarkRecord,
    ReplicaRecord,
    SavedRows,
)
from tensorcast_services.global_store.store import Store

MEMORY = 64 << 20
# As version 1 made and filled them.
VERSION_1 = """
BEGIN;
CREATE TABLE artifacts (art_id VARCHAR NOT NULL, digest VARCHAR NOT NULL, nbytes BIGINT NOT NULL,
    tensors BIGINT NOT NULL, owner VARCHAR NOT NULL, created_ms BIGINT NOT NULL, revision BIGINT NOT NULL,
    PRIMARY KEY (art_id));
CREATE TABLE replicas (art_id VARCHAR NOT NULL, process VARCHAR NOT NULL, tier VARCHAR NOT NULL, node VARCHAR NOT NULL,
    incarnation BIGINT NOT NULL, digest VARCHAR NOT NULL, since_ms BIGINT NOT NULL, lost_ms BIGINT NOT NULL,
    PRIMARY KEY (art_id, process, tier));
CREATE TABLE deleted (art_id VARCHAR NOT NULL, digest VARCHAR NOT NULL, revision BIGINT NOT NULL,
    deleted_ms BIGINT NOT NULL, PRIMARY KEY (art_id));
CREATE TABLE answers (idem VARCHAR NOT NULL, fingerprint VARCHAR NOT NULL, outcome VARCHAR NOT NULL,
    revision BIGINT NOT NULL, at_ms BIGINT NOT NULL, PRIMARY KEY (idem));
CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version VALUES (1);
COMMIT;
INSERT INTO artifacts VALUES ('m@1', 'aa', 100, 3, 'me', 5, 1), ('m@2', 'bb', 100, 3, '', 6, 4);
INSERT INTO replicas VALUES ('m@1', 'storage-a', 'host', 'a', 7, 'aa', 5, 0);
INSERT INTO deleted VALUES ('old', 'cc', 3, 8);
INSERT INTO answers VALUES ('p:1:1', 'ff', 'stored', 1, 9);
"""
ROWS = SavedRows(
    [ArtifactRow("m@1", "aa", 100, 3, "me", 5, 1, "system"), ArtifactRow("m@2", "bb", 100, 3, "", 6, 4, "system")],
    [ReplicaRecord("m@1", "storage-a", "host", "a", 7, "aa", 5, 0)],
    [DeletedRecord("old", "cc", 3, 8, "deleted", "")],
    [AnswerRecord("p:1:1", "ff", "stored", 1, 9)],
    [],
    [],
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of version 1."""
    made = tmp_path / "catalog.duckdb"
    with duckdb.connect(str(made)) as connection:
        connection.execute(VERSION_1)
    return made


def test_a_file_of_version_1_keeps_every_row_and_takes_new_ones(path: Path) -> None:
    store = Store(path, memory_bytes_max=MEMORY)
    assert store.load() == ROWS
    leased = ArtifactRow("m@2", "pending:" + "0" * 32, 100, 3, "", 6, 5, "lease")
    ended = DeletedRecord("gone", "dd", 6, 9, "lease", "storage-a")
    alias = AliasRow("m@latest", "m@1", 7, 10)
    mark = MarkRecord("revision", 8)
    store.save(
        [
            Save(ARTIFACTS, ("m@2",), leased),
            Save(DELETED, ("gone",), ended, new=True),
            Save(DELETED, ("old",), None),
            Save(ALIASES, ("m@latest",), alias, new=True),
            Save(MARKS, ("revision",), mark),
        ]
    )
    store.close()
    again = Store(path, memory_bytes_max=MEMORY)
    found = again.load()
    assert {row.art_id: row for row in found.artifacts} == {"m@1": ROWS.artifacts[0], "m@2": leased}
    assert (found.deleted, found.aliases, found.marks) == ([ended], [alias], [mark])
    assert (found.replicas, found.answers) == (ROWS.replicas, ROWS.answers)
    again.close()


def test_a_changed_file_has_the_very_columns_of_a_new_one(path: Path, tmp_path: Path) -> None:
    shapes = []
    for file in (path, tmp_path / "new.duckdb"):
        Store(file, memory_bytes_max=MEMORY).close()
        with duckdb.connect(str(file)) as connection:
            ask = (
                "SELECT table_name, column_name, data_type, is_nullable FROM duckdb_columns() ORDER BY 1, column_index"
            )
            shapes.append(connection.execute(ask).fetchall())
            assert connection.execute("SELECT version FROM schema_version").fetchall() == [(2,)]
    assert shapes[0] == shapes[1]


def test_a_process_killed_after_the_change_loses_nothing(path: Path) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tensorcast_bus.messages import ArtifactRow\n"
        "from tensorcast_services.effect import Save\n"
        "from tensorcast_services.global_store.store import Store\n"
        f"store = Store(Path(sys.argv[1]), memory_bytes_max={MEMORY})\n"
        "row = ArtifactRow('m@3', 'aa', 1, 1, '', 1, 9, 'lease')\n"
        "store.save([Save('artifacts', (row.art_id,), row, new=True)])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False).returncode == -9
    store = Store(path, memory_bytes_max=MEMORY)
    found = store.load()
    assert {(row.art_id, row.ownership) for row in found.artifacts} == {
        ("m@1", "system"),
        ("m@2", "system"),
        ("m@3", "lease"),
    }
    assert found.deleted == ROWS.deleted
    store.close()


def test_a_change_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE marks (name VARCHAR)")  # in the way of the last table that the change makes
    with pytest.raises(duckdb.Error, match="marks"):
        Store(path, memory_bytes_max=MEMORY)
    with duckdb.connect(str(path)) as connection:
        assert connection.execute("SELECT version FROM schema_version").fetchall() == [(1,)]
        assert connection.execute("DESCRIBE deleted").fetchall()[-1][0] == "deleted_ms"
        connection.execute("DROP TABLE marks")
    store = Store(path, memory_bytes_max=MEMORY)
    assert store.load() == ROWS
    store.close()
