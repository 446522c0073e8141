"""What is said without a name, as in load_file(), means the shared cluster."""

from __future__ import annotations

import pytest

from tests.support.cluster import Cluster


@pytest.fixture(autouse=True)
def _default_cluster(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(cluster.runtime_folder))
    monkeypatch.setenv("TENSORCAST_CLUSTER", cluster.name)
