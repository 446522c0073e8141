"""Who lives, in virtual time: TTLs, incarnations, and the global store's own stalls."""

from __future__ import annotations

from tensorcast_bus.codec import encode_body
from tensorcast_bus.limits import MESSAGE_BYTES_MAX
from tensorcast_bus.messages import Committed, Heartbeat, ListWorkers, Resolve, Resolved, WorkerList
from tensorcast_services.effect import NOBODY
from tensorcast_services.global_store.core.registry import WORKERS_MAX
from tests.unit.services.global_store.cases import Desk, commit


def living(desk: Desk) -> list[str]:
    return [w.process for w in desk.ask(ListWorkers(), WorkerList).workers if w.living]


def test_a_process_lives_until_a_ttl_after_its_last_word() -> None:
    desk = Desk()
    desk.beat()
    desk.pass_time(5_000)
    assert living(desk) == ["storage-a"]
    desk.pass_time(500)
    assert living(desk) == []
    (worker,) = desk.ask(ListWorkers("storage"), WorkerList).workers
    assert (worker.living, worker.age_ms, worker.figures) == (False, 5_500, {"bytes": 5})
    desk.beat()
    assert living(desk) == ["storage-a"]
    assert desk.ask(ListWorkers("gateway"), WorkerList).workers == ()


def test_an_older_incarnation_is_not_heard() -> None:
    desk = Desk()
    desk.beat("storage-a", 7)
    desk.beat("storage-a", 6)
    (worker,) = desk.ask(ListWorkers(), WorkerList).workers
    assert worker.incarnation == 7
    desk.pass_time(8_000, beating=[("storage-a", 6)])
    assert living(desk) == []


def test_a_dead_process_is_forgotten_after_a_day() -> None:
    desk = Desk()
    desk.beat()
    desk.pass_time(6_000)
    assert len(desk.ask(ListWorkers(), WorkerList).workers) == 1
    desk.tick(after_ms=25 * 3600 * 1000)
    assert desk.ask(ListWorkers(), WorkerList).workers == ()


def test_nobody_expires_for_the_global_stores_own_stall() -> None:
    desk = Desk()
    desk.ask(commit(), Committed)
    desk.pass_time(3_000, beating=[("storage-a", 1)])
    desk.tick(after_ms=60_000)
    assert living(desk) == ["storage-a"]
    (replica,) = desk.ask(Resolve("m@1"), Resolved).replicas
    assert replica.living
    desk.pass_time(6_000)
    assert living(desk) == []


def test_nobody_expires_while_the_global_store_does_not_hear_itself() -> None:
    desk = Desk(own="global_store")
    desk.pass_time(2_000, beating=[("storage-a", 1), ("global_store", 5)])
    desk.pass_time(20_000)
    assert living(desk) == ["global_store", "storage-a"]
    desk.pass_time(3_000, beating=[("global_store", 5)])
    assert living(desk) == ["global_store", "storage-a"]
    desk.pass_time(6_000, beating=[("global_store", 5)])
    assert living(desk) == ["global_store"]


def test_after_a_restart_holders_get_one_ttl_to_be_heard() -> None:
    desk = Desk()
    desk.ask(commit(), Committed)
    desk.ask(commit(process="storage-b"), Committed)
    desk.restart()
    assert [r.living for r in desk.ask(Resolve("m@1"), Resolved).replicas] == [True, True]
    desk.pass_time(6_000, beating=[("storage-b", 1)])
    found = {r.process: r.living for r in desk.ask(Resolve("m@1"), Resolved).replicas}
    assert found == {"storage-a": False, "storage-b": True}


def test_a_list_of_all_workers_with_all_figures_fits_a_message() -> None:
    desk = Desk()
    figures = {f"{i:040}": (1 << 63) - 1 for i in range(32)}
    for i in range(WORKERS_MAX + 50):
        process = f"{i:080}"
        beat = Heartbeat(process, "r" * 80, "n" * 80, i + 1, 1, 1 << 30, "v" * 40, 1 << 40, figures)
        desk.core.step(beat, NOBODY, desk.now_ms)
    found = desk.ask(ListWorkers(), WorkerList)
    assert len(found.workers) == WORKERS_MAX
    assert len(encode_body(found)) < MESSAGE_BYTES_MAX - 1024


def test_a_new_process_takes_the_room_of_the_longest_dead_one() -> None:
    desk = Desk()
    desk.beat("storage-dead", 1)
    desk.pass_time(6_000)
    for i in range(WORKERS_MAX):
        desk.beat(f"storage-{i}", 1)
    names = {w.process for w in desk.ask(ListWorkers(), WorkerList).workers}
    assert len(names) == WORKERS_MAX
    assert "storage-dead" not in names


def test_garbage_heartbeats_are_ignored() -> None:
    desk = Desk()
    for bad in (
        Heartbeat("a.b", "storage", "a", 1, 1, 1, "v", 1),
        Heartbeat("storage-a", "storage", "a", 0, 1, 1, "v", 1),
        Heartbeat("storage-a", "storage", "a", 1, 1, 1, "v" * 99, 1),
        Heartbeat("storage-a", "storage", "a", 1, 1, 1, "v", 1, {"x": 1 << 63}),
        Heartbeat("storage-a", "storage", "a", 1, 1, 1, "v", 1, {str(i): 1 for i in range(33)}),
    ):
        assert not desk.core.step(bad, NOBODY, desk.now_ms)
    assert desk.ask(ListWorkers(), WorkerList).workers == ()


def test_a_hello_fills_the_silence_every_two_seconds() -> None:
    desk = Desk()
    desk.told()
    desk.pass_time(10_000)
    assert desk.told(hellos=True) == [("hello", "")] * 5
