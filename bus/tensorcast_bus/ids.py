"""Artifact ids: what is allowed, and how one is spelled inside a subject.

`name` or `name@version`; 1 to 512 bytes of UTF-8 in NFC; letters and digits (any script) and ``/ . _ - : + =``;
separators neither first nor last.
"""

from __future__ import annotations

import hashlib
import unicodedata

from tensorcast_bus.errors import Invalid

ART_ID_BYTES_MAX = 512
SEPARATORS = "/._-:+="


def check_art_id(art_id: str) -> str:
    """The id itself, or Invalid naming the id, what is wrong with it, and what is allowed."""
    problem = _problem(art_id)
    if problem:
        raise Invalid(
            f"artifact id {art_id[:80]!r} {problem}; allowed is `name` or `name@version`: 1 to {ART_ID_BYTES_MAX} "
            f"bytes, letters, digits and {' '.join(SEPARATORS)}, separators neither first nor last",
            art_id=art_id[:80],
        )
    return art_id


def subject_token(art_id: str) -> str:
    """hex(blake2b-64(id)): an id never stands in a subject itself."""
    return hashlib.blake2b(art_id.encode(), digest_size=8).hexdigest()


def _problem(art_id: str) -> str:
    try:
        size = len(art_id.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode (a lone surrogate)"
    if size == 0:
        return "is empty"
    if size > ART_ID_BYTES_MAX:
        return f"has {size} bytes"
    if not unicodedata.is_normalized("NFC", art_id):
        return "is not in Unicode normal form NFC"
    name, at, version = art_id.partition("@")
    if "@" in version:
        return "has more than one @"
    for part, what in ((name, "name"), (version, "version")):
        if not part:
            if what == "name" or at:
                return f"has an empty {what}"
            continue
        bad = next((c for c in part if not (c.isalnum() or c in SEPARATORS or _is_mark(c))), None)
        if bad is not None:
            return f"holds {bad!r} (U+{ord(bad):04X})"
        if part[0] in SEPARATORS or part[-1] in SEPARATORS:
            return f"has a separator at an end of its {what}"
    return ""


def _is_mark(char: str) -> bool:
    # Combining marks belong to the letters of many scripts (Devanagari, Thai); NFC keeps them as separate characters.
    return ord(char) > 127 and unicodedata.category(char) in ("Mn", "Mc")
