"""When a dead child is started again."""

from __future__ import annotations

from tensorcast_services.supervisor.restarts import Restarts


def test_the_wait_doubles_up_to_its_limit() -> None:
    restarts = Restarts()
    restarts.is_ready()
    waits = [restarts.died(code=1, lived_ms=10) for _ in range(9)]
    assert waits == [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]
    assert restarts.restarts == 9


def test_a_long_life_starts_the_waits_anew() -> None:
    restarts = Restarts()
    restarts.is_ready()
    assert [restarts.died(code=-9, lived_ms=ms) for ms in (10, 10, 30_000, 10)] == [100, 200, 100, 200]


def test_a_child_that_refuses_twice_at_its_start_cannot_run_here() -> None:
    restarts = Restarts()
    assert [restarts.died(code=2, lived_ms=10) for _ in range(2)] == [100, None]


def test_refusals_count_in_a_row_only() -> None:
    restarts = Restarts()
    assert [restarts.died(code=code, lived_ms=10) for code in (2, 1, 2)] == [100, 200, 400]


def test_a_child_that_never_gets_ready_is_given_up_in_the_end() -> None:
    restarts = Restarts()
    assert [restarts.died(code=1, lived_ms=10) for _ in range(5)][-1] is None


def test_a_child_that_was_ready_once_is_started_for_ever() -> None:
    restarts = Restarts()
    restarts.is_ready()
    assert None not in [restarts.died(code=2, lived_ms=10) for _ in range(100)]


def test_a_child_whose_place_another_process_has_is_not_started_again() -> None:
    restarts = Restarts()
    restarts.is_ready()
    assert restarts.died(code=3, lived_ms=100_000) is None and restarts.proven
