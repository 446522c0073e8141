"""Every subject of the system, spelled here and nowhere else.

Names in code are long, the wire is short. A subject is a row of tokens; tokens are checked, so a name can never
become a wildcard or reach into another part of the tree. `verb` is the tag of the request's struct: the receiver
checks it, so that a permission on a subject is a permission on the request.
"""

from __future__ import annotations

import re

from tensorcast_bus.errors import Invalid
from tensorcast_bus.limits import TOKEN_CHARS_MAX

_TOKEN = re.compile(rf"[A-Za-z0-9_-]{{1,{TOKEN_CHARS_MAX}}}")
_CONCRETE = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(?:\.[^\s.*>\x00-\x1f\x7f]+)*")
_INBOX = "_INBOX_"


class Subjects:
    """Builders, one a kind of subject. All raise Invalid for a token that is not one."""

    @staticmethod
    def global_store(verb: str) -> str:
        return f"tc.v1.gs.{check_token(verb)}"

    @staticmethod
    def global_store_all() -> str:
        """What the global store serves."""
        return "tc.v1.gs.*"

    @staticmethod
    def gateway(caller: str, verb: str) -> str:
        return f"tc.v1.gw.{check_token(caller)}.{check_token(verb)}"

    @staticmethod
    def gateway_all() -> str:
        """What every gateway serves, in the queue group "gw"."""
        return "tc.v1.gw.*.*"

    @staticmethod
    def process(process: str, verb: str) -> str:
        """`process` is a process token: it names one incarnation."""
        return f"tc.v1.in.{check_token(process)}.{check_token(verb)}"

    @staticmethod
    def process_all(process: str) -> str:
        return f"tc.v1.in.{check_token(process)}.*"

    @staticmethod
    def process_token(process: str, incarnation: int) -> str:
        """`storage-a-<incarnation in hex>`: a request to a process never reaches its successor."""
        return check_token(f"{process}-{incarnation:x}")

    @staticmethod
    def heartbeat(role: str, process: str) -> str:
        return f"tc.v1.hb.{check_token(role)}.{check_token(process)}"

    @staticmethod
    def heartbeats() -> str:
        return "tc.v1.hb.>"

    @staticmethod
    def event(topic: str, token: str) -> str:
        """`token` is ids.subject_token(art_id), never the id itself."""
        return f"tc.v1.ev.{check_token(topic)}.{check_token(token)}"

    @staticmethod
    def events(topic: str) -> str:
        return f"tc.v1.ev.{check_token(topic)}.>"

    @staticmethod
    def inbox(sender: str, nonce: str) -> str:
        """Where answers to `sender` arrive, one more token (the request's id) behind it."""
        return f"{_INBOX}{check_token(sender)}.{check_token(nonce)}"


def check_token(token: str) -> str:
    """The token itself, or Invalid."""
    if not _TOKEN.fullmatch(token):
        raise Invalid(
            f"{token[:80]!r} cannot be a token of a subject: allowed are 1 to {TOKEN_CHARS_MAX} ASCII letters, digits, "
            "- and _; ids and names with other characters go through ids.subject_token",
            token=token[:80],
        )
    return token


def check_concrete(subject: str) -> str:
    """The subject itself, or Invalid where it has a wildcard, a space or an empty token: nobody can be asked there."""
    if not _CONCRETE.fullmatch(subject):
        raise Invalid(
            f"cannot send to {subject[:200]!r}: a message goes to one subject, without wildcards, spaces and empty "
            "tokens; build it with Subjects",
            subject=subject[:200],
        )
    return subject


def check_pattern(pattern: str) -> str:
    """What can be served or subscribed to: a subject, where a token may be `*` and the last one `>`; else Invalid."""
    tokens = pattern.split(".")
    last = len(tokens) - 1
    plain = ["x" if token == "*" or (token == ">" and at == last) else token for at, token in enumerate(tokens)]
    if not _CONCRETE.fullmatch(".".join(plain)):
        raise Invalid(
            f"{pattern[:200]!r} is no subject to serve or subscribe to: tokens are not empty, `*` is a whole token, "
            "`>` the last one; build it with Subjects",
            subject=pattern[:200],
        )
    return pattern


def inbox_of(sender: str, reply: str) -> bool:
    """Whether `reply` lies in the inboxes of `sender`. Anything else would make us send its answer to a third party."""
    # A sender is one token: "a.b" must not pass for somebody who owns a part of the inboxes of "a".
    return _TOKEN.fullmatch(sender) is not None and reply.startswith(f"{_INBOX}{sender}.") and is_inbox(reply)


def is_inbox(reply: str) -> bool:
    return reply.startswith(_INBOX) and _CONCRETE.fullmatch(reply) is not None


def subject_matches(pattern: str, subject: str) -> bool:
    """NATS' rule: `*` is one token, a closing `>` one or more."""
    wanted, given = pattern.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":
            return len(given) > place
        if place >= len(given) or token not in ("*", given[place]):
            return False
    return len(wanted) == len(given)
