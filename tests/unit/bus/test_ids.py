"""Artifact ids: what is allowed, what is refused and why."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast_bus.errors import Invalid
from tensorcast_bus.ids import check_art_id, subject_token
from tensorcast_bus.subjects import check_token

ALLOWED = [
    "a",
    "meta-llama/Llama-3.1-8B@v1.0",
    "policy@17",
    "a/b/c:d+e=f_g",
    "模型/通义@2",
    "modèle",
    "हिन्दी",
    "x" * 512,
]
REFUSED = [
    ("", "empty"),
    ("x" * 513, "513 bytes"),
    ("ä" * 257, "514 bytes"),
    ("a b", "holds ' '"),
    ("a*", r"holds '\*'"),
    ("a>", "holds '>'"),
    ("a\n", "holds"),
    ("a\x00", "holds"),
    ("/a", "separator at an end of its name"),
    ("a/", "separator at an end of its name"),
    ("a@/b", "separator at an end of its version"),
    ("a@", "empty version"),
    ("@a", "empty name"),
    ("a@b@c", "more than one @"),
    (unicodedata.normalize("NFD", "modèle"), "NFC"),
    ("\udc80", "not valid Unicode"),
    ("a\u202eb", "holds"),
]


@pytest.mark.parametrize("art_id", ALLOWED)
def test_an_allowed_id_is_returned_as_it_is(art_id: str) -> None:
    assert check_art_id(art_id) == art_id


@pytest.mark.parametrize(("art_id", "why"), REFUSED)
def test_a_refused_id_is_told_why_and_what_is_allowed(art_id: str, why: str) -> None:
    with pytest.raises(Invalid, match=why) as caught:
        check_art_id(art_id)
    assert "`name@version`" in caught.value.text
    caught.value.record()


@given(st.text(max_size=40))
def test_any_text_is_allowed_or_refused_and_an_allowed_one_fits_a_subject(text: str) -> None:
    try:
        check_art_id(text)
    except Invalid:
        return
    assert check_token(subject_token(text)) == subject_token(text)


def test_the_token_of_an_id_is_the_same_everywhere() -> None:
    assert subject_token("policy@17") == "a9a75fb87086f1f6"
