"""Idempotency ids: a command that comes again within a day gets the answer it had, and takes effect once.

Only successes are remembered, together with their effect and in the same transaction. The same id with another command
is refused: its sender mixes up two commands.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from tensorcast_bus.errors import Conflict, Invalid
from tensorcast_bus.messages import AliasRow, Commit, Committed, Delete, DeletedRow, EndLease
from tensorcast_services.effect import Save
from tensorcast_services.global_store.core.journal import Journal
from tensorcast_services.global_store.core.rows import ANSWERS, AnswerRecord

REMEMBER_MS = 24 * 3600 * 1000
ANSWERS_MAX = 200_000
IDEM_CHARS_MAX = 256
FORGOTTEN_A_TICK_MAX = 500


class Answers:
    """Ordered by time: ids are added at the end and forgotten from the front."""

    def __init__(self, saved: Sequence[AnswerRecord], journal: Journal) -> None:
        self._records = {record.idem: record for record in sorted(saved, key=lambda r: r.at_ms)}
        self._journal = journal

    def __len__(self) -> int:
        return len(self._records)

    def find(self, idem: str, command: Struct) -> Struct | None:
        """The answer this id had. Conflict when it was given to another command, Invalid for an overlong id."""
        if len(idem) > IDEM_CHARS_MAX:
            raise Invalid(
                f"an idempotency id has {len(idem)} characters; the limit is {IDEM_CHARS_MAX}", idem=idem[:80]
            )
        record = self._records.get(idem) if idem else None
        if record is None:
            return None
        if record.fingerprint != _fingerprint(command):
            raise Conflict(
                f"idempotency id {idem!r} was used for another command; a new command needs a new id", idem=idem
            )
        return _answer(record, command)

    def remember(self, idem: str, command: Struct, answer: Struct, now_ms: int) -> None:
        """Nothing to save where the command came without an id."""
        if not idem:
            return
        outcome, revision = _kept(answer)
        record = AnswerRecord(idem, _fingerprint(command), outcome, revision, now_ms)
        self._records[idem] = record
        self._journal.save(Save(ANSWERS, (idem,), record, new=True))
        if len(self._records) > ANSWERS_MAX:
            self._forget(next(iter(self._records)))

    def expire(self, now_ms: int) -> None:
        old: list[str] = []
        for idem, record in self._records.items():
            if now_ms - record.at_ms <= REMEMBER_MS or len(old) >= FORGOTTEN_A_TICK_MAX:
                break
            old.append(idem)
        for idem in old:
            self._forget(idem)

    def _forget(self, idem: str) -> None:
        del self._records[idem]
        self._journal.save(Save(ANSWERS, (idem,), None))


def _fingerprint(command: Struct) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(command), digest_size=12).hexdigest()


def _kept(answer: Struct) -> tuple[str, int]:
    """The outcome and the revision that `_answer` makes the answer from again."""
    match answer:
        case Committed(outcome, revision):
            return outcome, revision
        case DeletedRow(_, revision):
            return "deleted", revision
        case AliasRow():
            return msgspec.json.encode(answer).decode(), answer.revision
    raise AssertionError(f"no form to remember a {type(answer).__name__} in")


def _answer(record: AnswerRecord, command: Struct) -> Struct:
    match command:
        case Commit():
            return Committed(record.outcome, record.revision)
        case Delete() | EndLease():
            return DeletedRow(command.art_id, record.revision)
        case _:
            return msgspec.json.decode(record.outcome, type=AliasRow)
