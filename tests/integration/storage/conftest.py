"""A house of real processes, without its supervisor, for the tests of one storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.storage.house import House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    found = House(tmp_path)
    try:
        found.open()
        yield found
    finally:
        found.close()
