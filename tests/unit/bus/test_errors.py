"""Errors keep their class, text and facts across a process boundary, whatever their text holds."""

from __future__ import annotations

import copy

import msgspec
import pytest

from tensorcast_bus import errors
from tensorcast_bus.errors import CODES, BadCheckpoint, ErrorRecord, NotFound, RemoteProtocolError, from_record

RETRYABLE = {
    "Unavailable",
    "NotConnected",
    "StorageLost",
    "NoReplica",
    "Rebuilding",
    "Timeout",
    "CapacityExceeded",
    "Draining",
    "TransferError",
    "PeerLost",
    "ChecksumMismatch",
}


def crossed(error: errors.TensorCastError) -> errors.TensorCastError:
    return from_record(msgspec.msgpack.decode(msgspec.msgpack.encode(error.record()), type=ErrorRecord))


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_error_comes_out_as_it_went_in(code: str) -> None:
    back = crossed(CODES[code]("what, who, how long, what next", art_id="x", waited_ms=5, names=["a"], ok=None))
    assert type(back) is CODES[code]
    assert (back.code, back.text, str(back)) == (code, "what, who, how long, what next", back.text)
    assert back.context == {"art_id": "x", "waited_ms": 5, "names": ["a"], "ok": None}


def test_exactly_these_errors_may_be_tried_again() -> None:
    assert {code for code, error in CODES.items() if error.retryable} == RETRYABLE


def test_an_error_of_a_newer_release_keeps_its_name_and_text() -> None:
    back = from_record(ErrorRecord("QuotaExceeded", "tenant t is over its quota", {"tenant": "t"}))
    assert type(back) is RemoteProtocolError
    assert back.text == "QuotaExceeded: tenant t is over its quota" and back.context == {"tenant": "t"}


def test_facts_may_have_any_name() -> None:
    back = from_record(ErrorRecord("NotFound", "no x", {"self": 1, "text": "t", "record": 2}))
    assert back.context == {"self": 1, "text": "t", "record": 2}


def test_a_file_name_that_is_not_unicode_does_not_keep_an_error_from_arriving() -> None:
    name = b"model-\xff.safetensors".decode("utf-8", "surrogateescape")
    back = crossed(BadCheckpoint(f"cannot read {name}", path=name, names=[name]))
    assert type(back) is BadCheckpoint
    assert "model-\\udcff.safetensors" in back.text
    assert back.context["path"] == "model-\\udcff.safetensors"


def test_a_fact_beyond_64_bits_does_not_keep_an_error_from_arriving() -> None:
    assert crossed(NotFound("no x", wanted=1 << 80)).context["wanted"] == str(1 << 80)


def test_errors_can_be_copied() -> None:
    again = copy.copy(NotFound("no x", art_id="x"))
    assert type(again) is NotFound and again.context == {"art_id": "x"}
