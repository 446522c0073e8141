"""The catalog's rows in a real DuckDB file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from tensorcast_bus.messages import AliasRow, ArtifactRow
from tensorcast_services.effect import Save
from tensorcast_services.global_store import store as store_module
from tensorcast_services.global_store.core.rows import (
    ALIASES,
    ANSWERS,
    ARTIFACTS,
    DELETED,
    MARKS,
    REPLICAS,
    AnswerRecord,
    DeletedRecord,
    MarkRecord,
    ReplicaRecord,
    SavedRows,
)
from tensorcast_services.global_store.store import Store
from tensorcast_services.tables import Refusal

MEMORY = 64 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog.duckdb"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    opened = Store(path, memory_bytes_max=MEMORY)
    yield opened
    opened.close()


def artifact(art_id: str, *, revision: int = 1) -> ArtifactRow:
    return ArtifactRow(art_id, "aa", (1 << 63) - 1, 3, "me", 1_700_000_000_000, revision, "lease")


def replica(art_id: str, tier: str = "host") -> ReplicaRecord:
    return ReplicaRecord(art_id, "storage-a", tier, "a", 1_700_000_000_000_000_000, "aa", 5)


def save_artifact(row: ArtifactRow) -> Save:
    return Save(ARTIFACTS, (row.art_id,), row)


def test_a_new_file_is_empty_and_every_kind_of_row_comes_back_as_it_was(store: Store, path: Path) -> None:
    assert store.load() == SavedRows([], [], [], [], [], [])
    rows = SavedRows(
        [artifact("m/é@1'\"")],
        [replica("m/é@1'\""), replica("m/é@1'\"", "file")],
        [DeletedRecord("old", "bb", 2, 7, "lease", "storage-a")],
        [AnswerRecord("p:1:1", "ff", "stored", 1, 9)],
        [AliasRow("m@latest", "m/é@1'\"", 3, 8)],
        [MarkRecord("revision", 4)],
    )
    store.save(
        [
            *(save_artifact(r) for r in rows.artifacts),
            *(Save(REPLICAS, (r.art_id, r.process, r.tier), r) for r in rows.replicas),
            *(Save(DELETED, (r.art_id,), r) for r in rows.deleted),
            *(Save(ANSWERS, (r.idem,), r) for r in rows.answers),
            *(Save(ALIASES, (r.name,), r) for r in rows.aliases),
            *(Save(MARKS, (r.name,), r) for r in rows.marks),
        ]
    )
    store.close()
    assert Store(path, memory_bytes_max=MEMORY).load() == rows


def test_of_several_saves_of_a_row_in_one_batch_the_last_counts(store: Store) -> None:
    store.save(
        [
            save_artifact(artifact("a", revision=1)),
            Save(ARTIFACTS, ("a",), None),
            save_artifact(artifact("a", revision=2)),
            save_artifact(artifact("b")),
            Save(ARTIFACTS, ("b",), None),
        ]
    )
    assert store.load().artifacts == [artifact("a", revision=2)]
    store.save([save_artifact(artifact("a", revision=3))])
    assert store.load().artifacts == [artifact("a", revision=3)]


def test_a_row_called_new_is_written_changed_and_removed_like_any_other(store: Store) -> None:
    def new(row: ArtifactRow) -> Save:
        return Save(ARTIFACTS, (row.art_id,), row, new=True)

    gone = Save(ARTIFACTS, ("a",), None)
    store.save([new(artifact("a")), save_artifact(artifact("a", revision=2)), new(artifact("b")), new(artifact("c"))])
    store.save([gone, new(artifact("a", revision=3)), Save(ARTIFACTS, ("b",), None)])
    store.save([new(artifact("d")), Save(ARTIFACTS, ("d",), None)])
    assert {(r.art_id, r.revision) for r in store.load().artifacts} == {("a", 3), ("c", 1)}


def test_removing_takes_exactly_the_named_rows(store: Store) -> None:
    rows = [replica(i, tier) for i in ("a", "b") for tier in ("host", "file")]
    store.save([Save(REPLICAS, (r.art_id, r.process, r.tier), r) for r in rows])
    store.save([Save(REPLICAS, ("a", "storage-a", "host"), None), Save(REPLICAS, ("c", "x", "host"), None)])
    assert {(r.art_id, r.tier) for r in store.load().replicas} == {("a", "file"), ("b", "host"), ("b", "file")}


def test_a_batch_that_fails_leaves_nothing_of_itself(store: Store) -> None:
    bad = ArtifactRow("bad", "aa", 1 << 63, 3, "me", 1, 1)  # one more than its column can hold
    with pytest.raises(duckdb.Error):
        store.save([save_artifact(artifact("good")), save_artifact(bad)])
    assert store.load().artifacts == []
    store.save([save_artifact(artifact("good"))])
    assert len(store.load().artifacts) == 1


def test_a_killed_process_keeps_every_batch_that_was_saved(path: Path) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tensorcast_bus.messages import ArtifactRow\n"
        "from tensorcast_services.effect import Save\n"
        "from tensorcast_services.global_store.store import Store\n"
        f"store = Store(Path(sys.argv[1]), memory_bytes_max={MEMORY})\n"
        "for i in range(20):\n"
        "    row = ArtifactRow(f'm{i:02}', 'aa', 1, 1, '', 1, i)\n"
        "    store.save([Save('artifacts', (row.art_id,), row)])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False).returncode == -9
    assert [r.revision for r in Store(path, memory_bytes_max=MEMORY).load().artifacts] == list(range(20))


def test_a_damaged_file_is_refused_with_what_to_do(path: Path) -> None:
    path.write_bytes(b"this is no database" * 1000)
    with pytest.raises(Refusal, match="move it and its \\.wal file away"):
        Store(path, memory_bytes_max=MEMORY)
    assert path.read_bytes().startswith(b"this is no database")


def test_a_file_of_something_else_is_refused_and_left_alone(path: Path) -> None:
    with duckdb.connect(str(path)) as other:
        other.execute("CREATE TABLE cats (name VARCHAR)")
    with pytest.raises(Refusal, match=r"something else \(tables cats"):
        Store(path, memory_bytes_max=MEMORY)
    with duckdb.connect(str(path)) as other:
        assert other.execute("SELECT table_name FROM duckdb_tables()").fetchall() == [("cats",)]


def test_a_file_of_another_version_is_refused(store: Store, path: Path) -> None:
    store.close()
    with duckdb.connect(str(path)) as other:
        other.execute("UPDATE schema_version SET version = 99")
    with pytest.raises(Refusal, match="schema version 99"):
        Store(path, memory_bytes_max=MEMORY)


def test_a_file_in_use_is_refused_after_a_while(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "LOCK_WAIT_MS_MAX", 200)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tensorcast_services.global_store.store import Store\n"
        f"store = Store(Path(sys.argv[1]), memory_bytes_max={MEMORY})\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(Refusal, match="cannot be opened as the catalog"):
            Store(path, memory_bytes_max=MEMORY)
        holder.communicate(timeout=30)
