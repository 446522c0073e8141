"""Puts: from what a caller gives to what the pool has, with a base to borrow from where there is one.

Called by Session. A put of a new version sends what changed and borrows the rest of its base; where that is gone by
then, the same draft goes again, whole. An id that is taken is settled here, by content.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeGuard

from tensorcast.answers import decoded
from tensorcast.boxed import boxes_digest
from tensorcast.deadline import Deadline
from tensorcast.drafts.delta import delta_draft
from tensorcast.drafts.draft import Draft
from tensorcast.drafts.files import draft_from_path
from tensorcast.drafts.memory import draft_from_tensors
from tensorcast.ids import checked_id
from tensorcast.local import StorageLink
from tensorcast.records import PutStats
from tensorcast.records_local import About, Stored
from tensorcast.redirects import attach_by_name
from tensorcast_bus.errors import (
    AlreadyExists,
    Invalid,
    LeaseLost,
    LocalProtocolError,
    NoReplica,
    NotFound,
    Unavailable,
)
from tensorcast_bus.manifest import Manifest
from tensorcast_bus.notes import (
    AskBase,
    AskCommitView,
    AskDurable,
    BaseFound,
    Box,
    MadeDurable,
    PutAnswer,
    PutBaseGone,
    PutDone,
    PutExists,
)


class Puts:
    """Into the pool behind one link."""

    def __init__(self, storage: StorageLink) -> None:
        self._storage = storage

    def put(
        self,
        x: object,
        art_id: str,
        *,
        durable: bool,
        base: str | None,
        changed: Iterable[str] | None,
        deadline: Deadline,
    ) -> Stored:
        believed = _believed(x, base, changed, deadline.what)
        with draft_of(x, art_id, deadline) as whole:
            _check_named(believed, whole, deadline.what)
            sent = whole
            if not is_path(x) and (found := self._base(art_id, base, deadline)) is not None:
                sent = delta_draft(whole, found, changed=believed, deadline=deadline)
            answer = self._storage.put(sent, durable=durable, deadline=deadline)
            if isinstance(answer, PutBaseGone):
                sent = whole
                answer = self._storage.put(whole, durable=durable, deadline=deadline)
            if isinstance(answer, PutExists):
                return self._taken(whole, answer, durable, deadline)
            return _stored(answer, copied=whole.bytes_copied, deadline=deadline)

    def commit_view(
        self, base_id: str, *, digest: str, art_id: str, boxes: tuple[Box, ...], durable: bool, deadline: Deadline
    ) -> Stored:
        """Makes the boxes of `base_id`, whose content has `digest`, an artifact of its own. Nothing of it goes through
        this process, unless the id is taken and the contents must be compared."""
        ask = AskCommitView(art_id, base_id, digest, boxes, durable)
        answer = self._ask_for_view(ask, deadline)
        if isinstance(answer, PutBaseGone):
            # It left the pool between the storage's look and its hand; now it is read from where it went.
            answer = self._ask_for_view(ask, deadline)
        if not isinstance(answer, PutExists):
            return _stored(answer, copied=0, deadline=deadline)
        given = boxes_digest(self._storage, base_id, digest, boxes, deadline)
        _check_equal(art_id, stored=answer.digest, given=given)
        if durable:
            self.make_durable(art_id, deadline=deadline)
        stats = PutStats(answer.bytes_total, 0, 0, "", deadline.passed_ms)
        return Stored("already_present", given, stats)

    def _ask_for_view(self, ask: AskCommitView, deadline: Deadline) -> PutAnswer:
        """Where slices of what is away could be compared with no digest, the base is brought into the pool first, and
        stays there meanwhile because it is mapped."""
        try:
            return self._storage.ask_to_put(ask, deadline=deadline)
        except Unavailable as error:
            if not error.context.get("attach_first"):
                raise
        held = attach_by_name(self._storage, ask.base, deadline=deadline)
        answer = self._storage.ask_to_put(ask, deadline=deadline)
        del held
        return answer

    def make_durable(self, art_id: str, *, deadline: Deadline) -> None:
        """Returns once the artifact is on disk too. Raises what the storage refuses with."""
        self._storage.ask(AskDurable(art_id), answer=MadeDurable, deadline=deadline)

    def _taken(self, draft: Draft, taken: PutExists, durable: bool, deadline: Deadline) -> Stored:
        """The id is taken: unchanged files settle it by their identity, everything else by its content."""
        mine = {(f.device, f.inode, f.size, f.mtime_ns) for s in draft.manifest.segments if (f := s.file) is not None}
        theirs = {file[1:] for file in taken.files}
        digest = taken.digest if mine and mine == theirs else draft.digest(deadline)
        _check_equal(draft.manifest.art_id, stored=taken.digest, given=digest)
        if durable:
            self.make_durable(draft.manifest.art_id, deadline=deadline)
        stats = PutStats(draft.manifest.nbytes, 0, draft.bytes_copied, "", deadline.passed_ms)
        return Stored("already_present", digest, stats)

    def _base(self, art_id: str, base: str | None, deadline: Deadline) -> Manifest | None:
        """The manifest to borrow from; None where nothing of the kind is in the pool, since only that can be lent."""
        if base is not None:
            return self._manifest(base, deadline, named=True)
        if "@" not in art_id:
            return None
        found = self._storage.ask(AskBase(art_id), answer=BaseFound, deadline=deadline)
        return self._manifest(found.art_id, deadline, named=False) if found.art_id else None

    def _manifest(self, base: str, deadline: Deadline, *, named: bool) -> Manifest | None:
        try:
            seen = attach_by_name(self._storage, base, deadline=deadline, manifest_only=True)
        except NotFound:
            if named:
                raise
            return None
        except (NoReplica, LeaseLost):
            return None
        if isinstance(seen, About):
            return None
        return decoded(seen.attachment.manifest, Manifest, deadline.what)


def is_path(x: object) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(x, str | os.PathLike)


def draft_of(x: object, art_id: str, deadline: Deadline) -> Draft:
    """Of tensors or of a path. Raises BadCheckpoint, Timeout."""
    if is_path(x):
        return draft_from_path(os.fsdecode(x), art_id, deadline=deadline)
    return draft_from_tensors(x, art_id, deadline=deadline)


def _stored(answer: PutAnswer, *, copied: int, deadline: Deadline) -> Stored:
    """The end of a put whose id was free. `copied` bytes were copied on the caller's side."""
    if not isinstance(answer, PutDone):
        raise LocalProtocolError(f"{deadline.what}: the storage answered {type(answer).__name__}; this is a bug")
    stats = PutStats(
        answer.bytes_total, answer.bytes_moved, answer.bytes_copied + copied, answer.path, deadline.passed_ms
    )
    return Stored(answer.outcome, answer.digest, stats)


def _check_equal(art_id: str, *, stored: str, given: str) -> None:
    if given != stored:
        raise AlreadyExists(
            f"artifact {art_id!r} exists with other content: stored is {stored}, given is {given}; artifacts never "
            "change: put it under another id or version, or delete the id first",
            art_id=art_id,
            stored=stored,
            given=given,
        )


def _believed(x: object, base: str | None, changed: Iterable[str] | None, what: str) -> frozenset[str] | None:
    """The names of what changed, where the caller's word counts; None where every tensor is digested and compared."""
    if is_path(x) and (base is not None or changed is not None):
        raise Invalid(f"{what}: base and changed are for tensors in memory; a file is taken as it is, leave them out")
    if base is not None:
        checked_id(base)
    if changed is None:
        return None
    if base is None:
        raise Invalid(f"{what}: changed says what differs from a base; name it with base=, an id or alias")
    if isinstance(changed, str | bytes) or not isinstance(changed, Iterable):
        raise Invalid(f"{what}: changed is {changed!r:.80}; give a list of names of tensors")
    return frozenset(changed)


def _check_named(believed: frozenset[str] | None, draft: Draft, what: str) -> None:
    """A misspelled name would leave the base's old bytes where the caller has new ones."""
    strange = sorted(str(n) for n in (believed or frozenset()) - {t.name for t in draft.manifest.tensors})
    if strange:
        raise Invalid(
            f"{what}: changed names {len(strange)} tensors that were not given: {', '.join(strange)[:400]}; the names "
            "are those of tensor_meta(), nested dicts joined with '.'",
            names=strange[:10],
        )
