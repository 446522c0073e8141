"""The commit of a put: visible when it is known, freed when it is refused, kept aside and asked again while unknown.

Called by puts.py and artifacts.py. Only `known` publishes.
"""

from __future__ import annotations

from tensorcast_bus.errors import TensorCastError, from_record
from tensorcast_bus.notes import PutDone
from tensorcast_services.storage.core import wording
from tensorcast_services.storage.core.effects import CallCommit, Publish, RemoveSidecar
from tensorcast_services.storage.core.events import CommitKnown, CommitRefused, CommitUnknown
from tensorcast_services.storage.core.phases import Cue, Phase
from tensorcast_services.storage.core.shelf import Entry, Holding, Run, Shelf

SETTLE_MS = 5000  # budget of one more try to learn a commit's outcome


def ask(shelf: Shelf, entry: Entry, run: Run, *, budget_ms: int) -> None:
    """A repeat has the same idempotency id: the run's ticket."""
    s = run.sealed
    assert s is not None
    shelf.do(
        CallCommit(run.ticket, run.ticket, entry.art_id, s.digest, s.nbytes, s.tensors, s.in_file, budget_ms=budget_ms)
    )


def known(shelf: Shelf, entry: Entry, run: Run, event: CommitKnown) -> None:
    answer = _done(run, event.outcome)
    if event.revision <= entry.deleted_revision:
        # Committed, and deleted again before this answer was read.
        shelf.do(RemoveSidecar(entry.art_id))
        stop(shelf, entry, run, answer=answer, fresh=False)
        return
    assert run.sealed is not None and run.manifest_segment is not None
    s = run.sealed
    entry.holding = Holding(
        shelf.new_serial(), s.digest, s.nbytes, s.tensors, s.files, s.in_file, event.revision, confirmed=True
    )
    entry.move(Cue.KNOWN)
    shelf.do(Publish(entry.art_id, run.manifest_segment, run.segments))
    shelf.end_run(entry)
    shelf.reply(run.ask, answer)
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


def stop(shelf: Shelf, entry: Entry, run: Run, *, answer: PutDone | TensorCastError | None, fresh: bool) -> None:
    """Ends a put's run without an artifact; whoever waited for the id goes on."""
    entry.move(Cue.FAILED)
    shelf.end_run(entry)
    if answer is not None:
        shelf.reply(run.ask, answer)
    shelf.wake(entry, fresh=fresh)


def _done(run: Run, outcome: str) -> PutDone:
    s, f = run.sealed, run.filled
    assert s is not None and f is not None
    return PutDone(outcome, s.digest, s.nbytes, f.bytes_moved, f.bytes_copied, f.path, f.ms)
