"""Fixtures that more than one floor uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tensorcast as tc
from tests.support.cluster import Cluster, running_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests that do not hurt it: 512 MiB of host memory, one node `a`."""
    with running_cluster(tmp_path_factory.mktemp("rt"), name="shared") as started:
        yield started


@pytest.fixture
def rt(cluster: Cluster) -> Iterator[tc.Runtime]:
    """A runtime of its own on the shared cluster."""
    with cluster.connect() as runtime:
        yield runtime
