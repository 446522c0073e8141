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
from tensorcast_services.effect import Save
from tensorcast_services.global_store.core.rows import ANSWERS, AnswerRecord

REMEMBER_MS = 24 * 3600 * 1000
ANSWERS_MAX = 200_000
IDEM_CHARS_MAX = 256
FORGOTTEN_A_TICK_MAX = 500


class Answers:
    """Ordered by time: ids are added at the end and forgotten from the front."""

    def __init__(self, saved: Sequence[AnswerRecord]) -> None:
        self._records = {record.idem: record for record in sorted(saved, key=lambda r: r.at_ms)}

    def __len__(self) -> int:
        return len(self._records)

    def find(self, idem: str, command: Struct) -> AnswerRecord | None:
        """The answer this id had. Conflict when it was given to another command, Invalid for an overlong id."""
        if len(idem) > IDEM_CHARS_MAX:
            raise Invalid(
                f"an idempotency id has {len(idem)} characters; the limit is {IDEM_CHARS_MAX}", idem=idem[:80]
            )
        record = self._records.get(idem) if idem else None
        if record is not None and record.fingerprint != _fingerprint(command):
            raise Conflict(
                f"idempotency id {idem!r} was used for another command; a new command needs a new id", idem=idem
            )
        return record

    def remember(self, idem: str, command: Struct, *, outcome: str, revision: int, now_ms: int) -> list[Save]:
        """Nothing to save where the command came without an id."""
        if not idem:
            return []
        record = AnswerRecord(idem, _fingerprint(command), outcome, revision, now_ms)
        self._records[idem] = record
        saves = [Save(ANSWERS, (idem,), record, new=True)]
        if len(self._records) > ANSWERS_MAX:
            saves.append(self._forget(next(iter(self._records))))
        return saves

    def expire(self, now_ms: int) -> list[Save]:
        old: list[str] = []
        for idem, record in self._records.items():
            if now_ms - record.at_ms <= REMEMBER_MS or len(old) >= FORGOTTEN_A_TICK_MAX:
                break
            old.append(idem)
        return [self._forget(idem) for idem in old]

    def _forget(self, idem: str) -> Save:
        del self._records[idem]
        return Save(ANSWERS, (idem,), None)


def _fingerprint(command: Struct) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(command), digest_size=12).hexdigest()
