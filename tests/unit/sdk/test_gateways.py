"""The link to the gateways: one for all threads, none after closing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tensorcast.errors import NotConnected
from tensorcast.gateways import Gateways
from tensorcast.places import Places
from tensorcast.settings import read_settings

THREADS = 8


def made() -> Gateways:
    return Gateways(Places(read_settings({}), cluster=None, url="nats://127.0.0.1:1", node=None))


def test_threads_that_come_first_at_once_get_one_link() -> None:
    for _ in range(50):
        gateways, together = made(), threading.Barrier(THREADS)

        def ask(gateways: Gateways = gateways, together: threading.Barrier = together) -> int:
            together.wait(10)
            return id(gateways.link())

        with ThreadPoolExecutor(THREADS) as pool:
            links = [pool.submit(ask) for _ in range(THREADS)]
        assert {link.result() for link in links} == {id(gateways.link())}


def test_a_closed_one_opens_nothing_any_more() -> None:
    gateways = made()
    gateways.close()
    with pytest.raises(NotConnected, match="was closed"):
        gateways.link()
