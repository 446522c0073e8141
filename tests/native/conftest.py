"""A storage with its real socket, and a client of it, for the tests of the binding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorcast_native import Client
from tests.native.local_storage import Storage

DEADLINE_MS = 20_000


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    started = Storage(str(tmp_path / "s"))
    yield started
    started.close()


@pytest.fixture
def client(storage: Storage) -> Iterator[Client]:
    made = Client(storage.path, deadline_ms=DEADLINE_MS)
    yield made
    made.close()
