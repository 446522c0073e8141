"""The commit of a put or a registration: visible when it is known, freed when it is refused, kept aside and asked again
while unknown.

Called by puts.py and artifacts.py. Only `known` publishes. A registration that nobody waits for any more when its
commit becomes known ends at once: nobody would renew it.
"""

from __future__ import annotations

from tensorcast_bus.errors import TensorCastError, from_record
from tensorcast_bus.notes import Leased, PutDone
from tensorcast_services.storage.core import lease_wording, leases, wording
from tensorcast_services.storage.core.effects import Answer, CallCommit, Publish, RemoveSidecar
from tensorcast_services.storage.core.events import CommitKnown, CommitRefused, CommitUnknown
from tensorcast_services.storage.core.holdings import Holding, Lease, tiers_of
from tensorcast_services.storage.core.phases import Cue, Phase
from tensorcast_services.storage.core.shelf import Entry, Run, Shelf

SETTLE_MS = 5000  # budget of one more try to learn a commit's outcome


def ask(shelf: Shelf, entry: Entry, run: Run, *, budget_ms: int) -> None:
    """A repeat has the same idempotency id: the run's ticket."""
    here = _holding(shelf, run, revision=0)
    tiers = tiers_of(here, Phase.ON_FILE if run.manifest_segment is None else Phase.RESIDENT)
    shelf.do(
        CallCommit(
            run.ticket,
            run.ticket,
            entry.art_id,
            here.digest,
            here.nbytes,
            here.tensors,
            tiers,
            budget_ms=budget_ms,
            ownership=here.ownership,
        )
    )


def known(shelf: Shelf, entry: Entry, run: Run, event: CommitKnown) -> None:
    if event.revision <= entry.deleted_revision:
        # Committed, and deleted again before this answer was read.
        shelf.do(RemoveSidecar(entry.art_id))
        gone = lease_wording.lease_lost(entry.art_id, ended=None, now_ms=shelf.now_ms)
        stop(shelf, entry, run, answer=gone if run.kind == "register" else _answer(run, event.outcome), fresh=False)
        return
    here = entry.holding = _holding(shelf, run, revision=event.revision)
    here.serial = shelf.new_serial()
    shelf.ended.pop(entry.art_id, None)
    if run.manifest_segment is None:
        entry.move(Cue.LEASED)
    else:
        entry.move(Cue.KNOWN)
        shelf.do(Publish(entry.art_id, run.manifest_segment, run.segments))
    shelf.end_run(entry)
    if here.lease is not None and not shelf.is_open(run.ask):
        leases.end(shelf, entry, why="its owner hung up before it was granted")
        return
    if here.lease is not None:
        shelf.lease_dues.set(here.lease.source, here.lease.due_ms)
    shelf.reply(run.ask, _answer(run, event.outcome))
    shelf.wake(entry, fresh=True)


def refused(shelf: Shelf, entry: Entry, run: Run, event: CommitRefused) -> None:
    shelf.do(RemoveSidecar(entry.art_id))
    stop(shelf, entry, run, answer=from_record(event.trouble), fresh=False)


def unknown(shelf: Shelf, entry: Entry, run: Run, event: CommitUnknown) -> None:
    assert run.ask is not None
    if entry.phase is Phase.COMMITTING:
        shelf.reply(run.ask, wording.too_late(run.ask, process=shelf.process, phase=entry.phase.value))
        entry.move(Cue.UNKNOWN)
    ask(shelf, entry, run, budget_ms=SETTLE_MS)


def stop(shelf: Shelf, entry: Entry, run: Run, *, answer: Answer | TensorCastError | None, fresh: bool) -> None:
    """Ends a put's run without an artifact; whoever waited for the id goes on."""
    entry.move(Cue.FAILED)
    shelf.end_run(entry)
    if answer is not None:
        shelf.reply(run.ask, answer)
    shelf.wake(entry, fresh=fresh)


def _holding(shelf: Shelf, run: Run, *, revision: int) -> Holding:
    """What is here once the commit is known."""
    s, offer = run.sealed, run.ask.offer if run.ask is not None else None
    assert s is not None
    here = Holding(0, s.digest, s.nbytes, s.tensors, s.files, s.in_file, revision, True, run.disk_bytes)
    if offer is not None:
        here.in_file = False
        here.lease = Lease(
            offer.lease, offer.source, not offer.eager_bytes, shelf.now_ms + offer.ttl_ms, memory=offer.path != "file"
        )
    return here


def _answer(run: Run, outcome: str) -> PutDone | Leased:
    s, f, offer = run.sealed, run.filled, run.ask.offer if run.ask is not None else None
    assert s is not None
    if offer is not None:
        return Leased(offer.lease, s.digest, s.nbytes, offer.ttl_ms, offer.path)
    assert f is not None
    return PutDone(outcome, s.digest, s.nbytes, f.bytes_moved, f.bytes_copied, f.path, f.ms)
