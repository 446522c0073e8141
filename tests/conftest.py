"""Fixtures that more than one floor uses."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

import tensorcast as tc
from tests.support.cluster import Cluster, running_cluster


def pytest_configure() -> None:
    """What starts us in the background (nohup, a shell's `&`) may have had signals ignored, which children inherit;
    tests of Ctrl-C and hang-ups mean what a terminal does."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


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
