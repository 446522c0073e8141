"""What a request must look like before the catalog looks at it: sizes, alphabets, and numbers that fit a column."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tensorcast_bus.errors import Invalid
from tensorcast_bus.ids import check_art_id
from tensorcast_bus.messages import (
    REPORT_ROWS_MAX,
    Commit,
    Delete,
    DeleteAlias,
    DropReplica,
    EndLease,
    Expectation,
    GetAlias,
    Heartbeat,
    ReplicaClaim,
    Report,
    Resolve,
    SetAlias,
)
from tensorcast_services.global_store.core.rows import LEASE, SYSTEM, is_pending

TIERS = ("host", "disk", "file", LEASE)
OWNERSHIPS = (SYSTEM, LEASE)
EXPECTATIONS = ("any", "absent", "id", "revision")
OWNER_CHARS_MAX = 256
NUMBER_MAX = (1 << 63) - 1
FIGURES_MAX = 32
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_DIGEST = re.compile(r"[0-9a-f]{1,128}")


def check_commit(ask: Commit) -> None:
    check_art_id(ask.art_id)
    _claim(ask, ask.tiers)
    _place(ask.node, ask.process, ask.incarnation)
    if len(ask.owner) > OWNER_CHARS_MAX:
        raise Invalid(f"owner of {ask.art_id!r} has {len(ask.owner)} characters; the limit is {OWNER_CHARS_MAX}")


def check_report(ask: Report) -> None:
    _place(ask.node, ask.process, ask.incarnation)
    if len(ask.claims) > REPORT_ROWS_MAX:
        raise Invalid(f"a report of {ask.process} has {len(ask.claims)} rows; send at most {REPORT_ROWS_MAX} a part")
    for claim in ask.claims:
        check_art_id(claim.art_id)
        _claim(claim, (claim.tier,))
        if claim.was and (is_pending(claim.digest) or not is_pending(claim.was)):
            raise Invalid(
                f"digest {claim.digest[:140]!r} of {claim.art_id!r} cannot take the place of {claim.was[:140]!r}: only "
                "a pending digest is replaced, by one of bytes that were read",
                art_id=claim.art_id,
            )


def check_drop(ask: DropReplica) -> None:
    check_art_id(ask.art_id)
    _place(ask.node, ask.process, ask.incarnation)
    _tiers(ask.art_id, (ask.tier,))


def check_end(ask: EndLease) -> None:
    check_art_id(ask.art_id)
    _digest(ask.art_id, ask.digest)
    _place(ask.node, ask.process, ask.incarnation)


def check_named(ask: Delete | Resolve) -> None:
    check_art_id(ask.art_id)


def check_alias(ask: SetAlias | DeleteAlias | GetAlias) -> None:
    check_art_id(ask.name)
    if isinstance(ask, SetAlias):
        check_art_id(ask.art_id)
    if not isinstance(ask, GetAlias):
        _expectation(ask.name, ask.expect)


def check_heartbeat(beat: Heartbeat) -> None:
    """Invalid for one that would not fit the list of workers."""
    _place(beat.node or "none", beat.process, beat.incarnation)
    if not _NAME.fullmatch(beat.role) or len(beat.version) > 40 or len(beat.figures) > FIGURES_MAX:
        raise Invalid(f"a heartbeat of {beat.process} has a role, version or number of figures out of bounds")
    if any(len(name) > 40 or not -NUMBER_MAX <= value <= NUMBER_MAX for name, value in beat.figures.items()):
        raise Invalid(f"a heartbeat of {beat.process} has a figure out of bounds")


def _claim(claim: Commit | ReplicaClaim, tiers: Sequence[str]) -> None:
    art_id = claim.art_id
    _digest(art_id, claim.digest)
    if not 0 <= claim.nbytes <= NUMBER_MAX or not 0 <= claim.tensors <= NUMBER_MAX:
        raise Invalid(
            f"{art_id!r} with {claim.nbytes} bytes and {claim.tensors} tensors is out of bounds", art_id=art_id
        )
    _tiers(art_id, tiers)
    if claim.ownership not in OWNERSHIPS:
        raise Invalid(
            f"{art_id!r} is of {claim.ownership[:80]!r}: its owner is {' or '.join(OWNERSHIPS)}", art_id=art_id
        )
    if claim.ownership != LEASE and (LEASE in tiers or is_pending(claim.digest)):
        raise Invalid(
            f"{art_id!r} with digest {claim.digest} in {', '.join(tiers)} is not under a lease: only what a caller "
            "registered is in its memory, or has files that nobody read yet",
            art_id=art_id,
        )


def _digest(art_id: str, digest: str) -> None:
    if not _DIGEST.fullmatch(digest) and not is_pending(digest):
        raise Invalid(f"digest {digest[:140]!r} of {art_id!r} is not lower-case hex", art_id=art_id)


def _expectation(name: str, expect: Expectation) -> None:
    if expect.kind not in EXPECTATIONS or not 0 <= expect.revision <= NUMBER_MAX:
        raise Invalid(
            f"expectation {expect.kind[:80]!r} {expect.revision} of alias {name!r}: it is {', '.join(EXPECTATIONS)}",
            name=name,
        )
    if expect.kind == "id":
        check_art_id(expect.art_id)


def _tiers(art_id: str, tiers: Sequence[str]) -> None:
    if not tiers or len(tiers) > len(TIERS) or not set(tiers) <= set(TIERS):
        raise Invalid(f"tiers {list(tiers)[:4]} of {art_id!r}: a replica is in {', '.join(TIERS)}", art_id=art_id)


def _place(node: str, process: str, incarnation: int) -> None:
    if not _NAME.fullmatch(node) or not _NAME.fullmatch(process):
        raise Invalid(f"process {process[:80]!r} on node {node[:80]!r}: names are {_NAME.pattern}")
    if not 0 < incarnation <= NUMBER_MAX:
        raise Invalid(f"incarnation {incarnation} of {process} is not in 1..2^63-1", process=process)
