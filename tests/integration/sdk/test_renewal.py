"""How a process keeps its leases: the renewal thread against a storage that restarts, refuses or falls silent."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from tensorcast.deadline import Deadline
from tensorcast.errors import AlreadyExists, BadCheckpoint, CapacityExceeded, Invalid, LeaseLost, StorageLost, Timeout
from tensorcast.leases.lease import Lease
from tensorcast.leases.registering import close_leases, register
from tensorcast_bus.notes import AskRelease, AskRenew, LeaseDraft
from tests.integration.sdk.scripted import Place, scripted
from tests.support.slack import SLACK_S
from tests.unit.sdk.checkpoint_files import image

TTL_S = 1
CHILD_FAILED = 7


@pytest.fixture(autouse=True)
def _default_cluster() -> None:
    """No cluster runs for these tests: the storage that they speak with is their own."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with scripted(tmp_path) as made:
        yield made


def leased(place: Place, x: object = None, *, art_id: str = "kept", ttl_s: float = TTL_S) -> Lease:
    given = {"w": numpy.arange(1000)} if x is None else x
    return register(place.link, given, art_id, ttl_s=ttl_s, deadline=Deadline(10_000, f"register of {art_id!r}"))


def test_a_lease_is_renewed_again_and_again_without_its_holder(place: Place) -> None:
    lease = leased(place)
    assert place.storage.wait(lambda: place.storage.count(AskRenew) >= 4, seconds=2 * TTL_S + SLACK_S)
    lease.renew()
    lease.release()


def test_a_storage_that_was_restarted_is_told_again_with_the_same_digests(place: Place) -> None:
    lease = leased(place)
    first, number = place.storage.heard[0], lease.lease_id
    storage = place.restart()
    assert storage.wait(lambda: bool(storage.leases), seconds=SLACK_S)
    again = next(heard for heard in storage.heard if isinstance(heard, LeaseDraft))
    assert again == first and again.digest == lease.digest
    lease.renew()
    assert lease.lease_id != number
    lease.release()
    assert storage.leases == {}


def test_its_holder_may_be_the_first_to_meet_the_restarted_storage(place: Place) -> None:
    lease = leased(place, ttl_s=60)
    storage = place.restart()
    lease.renew()
    assert list(storage.leases) == [lease.lease_id]
    lease.release()


def test_a_storage_that_ends_a_lease_is_believed(place: Place) -> None:
    lease = leased(place, ttl_s=60)
    place.storage.leases.clear()
    with pytest.raises(LeaseLost, match=r"'kept'.*there is no lease"):
        lease.renew()
    with pytest.raises(LeaseLost, match="there is no lease"):
        lease.renew()
    assert place.storage.count(LeaseDraft) == 1
    asked = len(place.storage.heard)
    lease.release()
    assert len(place.storage.heard) == asked


def test_a_restarted_storage_that_refuses_ends_the_lease(place: Place) -> None:
    lease = leased(place, ttl_s=60)
    place.restart().refusal = AlreadyExists("'kept' is taken by other content")
    with pytest.raises(LeaseLost, match=r"restarted and would not have it again.*other content"):
        lease.renew()
    assert "over" in repr(lease)


def test_a_restarted_storage_without_room_is_asked_until_it_has_some(place: Place) -> None:
    lease = leased(place, ttl_s=60)
    storage = place.restart()
    storage.refusal = CapacityExceeded("no room now")
    with pytest.raises(CapacityExceeded):
        lease.renew()
    storage.refusal = None
    lease.renew()
    assert list(storage.leases) == [lease.lease_id]
    lease.release()


def test_a_silent_storage_loses_a_lease_only_when_its_time_has_passed(place: Place) -> None:
    lease = leased(place, ttl_s=2)
    place.storage.silent = True
    with pytest.raises(Timeout):
        lease.renew(deadline_ms=50)
    while "over" not in repr(lease):
        with pytest.raises((Timeout, LeaseLost)):
            lease.renew(deadline_ms=200)
    with pytest.raises(LeaseLost, match="could not be renewed within its TTL"):
        lease.renew()


def test_one_silent_storage_does_not_cost_the_leases_at_another(place: Place, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with scripted(tmp_path / "other") as other:
        stuck = [leased(place, art_id=f"stuck/{n}", ttl_s=3) for n in range(20)]
        lease = leased(other, ttl_s=3)
        place.storage.silent = True
        assert other.storage.wait(lambda: other.storage.count(AskRenew) >= 6, seconds=9 + SLACK_S)
        lease.renew()
        lease.release()
        for one in stuck:
            with pytest.raises(LeaseLost):
                one.renew(deadline_ms=1000)


def test_release_is_told_once_and_lets_go_of_the_memory(place: Place) -> None:
    array = numpy.arange(1000)
    gone = weakref.ref(array)
    lease = leased(place, {"w": array})
    del array
    assert gone() is not None
    lease.release()
    lease.release()
    assert place.storage.count(AskRelease) == 1 and gone() is None
    with pytest.raises(LeaseLost, match="was released"):
        lease.renew()


def test_a_release_that_the_storage_does_not_hear_frees_the_memory_all_the_same(place: Place) -> None:
    array = numpy.arange(1000)
    gone = weakref.ref(array)
    lease = leased(place, {"w": array}, ttl_s=60)
    del array
    place.storage.silent = True
    with pytest.raises((Timeout, StorageLost)):
        lease.release(deadline_ms=50)
    assert gone() is None
    place.storage.silent = False
    lease.release()
    with pytest.raises(LeaseLost):
        lease.renew()


def test_a_lease_that_nobody_holds_any_more_is_released(place: Place) -> None:
    lease = leased(place, ttl_s=60)
    assert list(place.storage.leases) == [lease.lease_id]
    del lease
    gc.collect()
    assert place.storage.wait(lambda: not place.storage.leases, seconds=SLACK_S)


def test_closing_releases_what_is_left_and_only_over_that_link(place: Place, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with scripted(tmp_path / "other") as other:
        mine, theirs = leased(place, ttl_s=60), leased(other, ttl_s=60)
        close_leases(place.link)
        assert place.storage.leases == {} and list(other.storage.leases) == [theirs.lease_id]
        with pytest.raises(LeaseLost, match="runtime was closed"):
            mine.renew()
        theirs.renew()
        theirs.release()


def test_the_lease_of_a_with_statement_ends_with_it(place: Place) -> None:
    with leased(place) as lease:
        assert list(place.storage.leases) == [lease.lease_id]
    assert place.storage.leases == {}


def test_a_forked_child_has_no_part_in_its_parents_lease(place: Place) -> None:
    lease = leased(place, ttl_s=60)
    asked = len(place.storage.heard)
    pid = os.fork()
    if pid == 0:
        code = CHILD_FAILED
        try:
            with pytest.raises(LeaseLost, match=f"process {os.getppid()}"):
                lease.renew()
            lease.release()
            close_leases(place.link)
            del lease
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    lease.renew()
    assert [type(heard) for heard in place.storage.heard[asked:]] == [AskRenew]
    lease.release()


def test_a_forked_child_keeps_leases_of_its_own(place: Place) -> None:
    ready, go = os.pipe()
    with leased(place, ttl_s=60):
        pid = os.fork()
        if pid == 0:
            code = CHILD_FAILED
            try:
                mine = leased(place, art_id="of/the/child")
                os.read(ready, 1)
                mine.renew()
                mine.release()
                code = 0
            finally:
                os._exit(code)
        try:
            assert place.storage.wait(lambda: place.storage.count(AskRenew) >= 4, seconds=2 * TTL_S + SLACK_S)
        finally:
            os.write(go, b"!")
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            os.close(ready)
            os.close(go)
        assert len(place.storage.leases) == 1


def test_files_are_registered_unread_with_a_pending_digest(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(image({"w": ("I64", [2], bytes(16))}))
    with leased(place, path) as lease:
        assert lease.digest.startswith("pending:") and len(lease.digest) == len("pending:") + 32
        with leased(place, path, art_id="again") as again:
            assert again.digest == lease.digest
    path.write_bytes(image({"w": ("I64", [2], bytes(16))}))
    with leased(place, path) as other:
        assert other.digest != lease.digest


@pytest.mark.parametrize("ttl_s", [0, 0.5, -1, 86_401, True, "60", float("nan")])
def test_a_ttl_out_of_bounds_is_refused(place: Place, ttl_s: float) -> None:
    with pytest.raises(Invalid, match="ttl_s"):
        leased(place, ttl_s=ttl_s)
    assert place.storage.heard == []


def test_what_cannot_be_registered_leaves_no_lease(place: Place) -> None:
    place.storage.refusal = AlreadyExists("'kept' is taken")
    array = numpy.arange(10)
    gone = weakref.ref(array)
    with pytest.raises(AlreadyExists):
        leased(place, array)
    del array
    assert gone() is None
    with pytest.raises(BadCheckpoint):
        leased(place, {"w": "no tensor"})
