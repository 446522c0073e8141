"""The life of one artifact in one storage, as a table.

Two rules hold everywhere. Only `move` changes a phase, and a step that the table does not list is a bug that stops the
storage's loop loudly rather than an artifact in two states. An artifact has at most one run of work at a time: whoever
else wants the id waits in its entry and is asked again when the phase is one of AT_REST.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Phase(enum.Enum):
    ABSENT = "absent"
    IN_LINE = "waiting for room in the pool"
    FILLING = "copying the bytes"
    SEALING = "sealing the manifest"
    COMMITTING = "committing at the global store"
    SETTLING = "settling an earlier commit whose answer was lost"  # bytes are kept, nobody sees them
    DRAINING = "freeing what an abandoned run still holds"  # something native or on a thread has yet to end
    RESIDENT = "resident"
    EVICTING = "being evicted"  # still published: readers are served until the withdrawal
    ON_FILE = "on file"
    OPENING = "opening its source files"
    LOAD_LINE = "waiting for room to load it"
    LOADING = "loading from its source files"
    VERIFYING = "comparing digests of what was loaded"


class Cue(enum.Enum):
    BEGIN = "begin"
    ROOM = "room"
    FILLED = "filled"
    SEALED = "sealed"
    KNOWN = "known"
    UNKNOWN = "unknown"
    FAILED = "failed"
    ABANDONED = "abandoned"
    ENDED = "ended"
    LOST = "lost"
    EVICT = "evict"
    KEPT = "kept"
    WITHDRAWN = "withdrawn"
    OPENED = "opened"
    RESTORED = "restored"


STEPS: Mapping[Phase, Mapping[Cue, Phase]] = {
    Phase.ABSENT: {Cue.BEGIN: Phase.IN_LINE, Cue.RESTORED: Phase.ON_FILE},
    Phase.IN_LINE: {Cue.ROOM: Phase.FILLING, Cue.FAILED: Phase.ABSENT, Cue.ABANDONED: Phase.DRAINING},
    Phase.FILLING: {Cue.FILLED: Phase.SEALING, Cue.FAILED: Phase.ABSENT, Cue.ABANDONED: Phase.DRAINING},
    Phase.SEALING: {Cue.SEALED: Phase.COMMITTING, Cue.FAILED: Phase.ABSENT, Cue.ABANDONED: Phase.DRAINING},
    Phase.COMMITTING: {Cue.KNOWN: Phase.RESIDENT, Cue.FAILED: Phase.ABSENT, Cue.UNKNOWN: Phase.SETTLING},
    Phase.SETTLING: {Cue.KNOWN: Phase.RESIDENT, Cue.FAILED: Phase.ABSENT},
    Phase.DRAINING: {Cue.ENDED: Phase.ABSENT, Cue.KEPT: Phase.ON_FILE},
    Phase.RESIDENT: {Cue.EVICT: Phase.EVICTING, Cue.LOST: Phase.ABSENT},
    Phase.EVICTING: {Cue.KEPT: Phase.RESIDENT, Cue.WITHDRAWN: Phase.ON_FILE, Cue.LOST: Phase.ABSENT},
    Phase.ON_FILE: {Cue.BEGIN: Phase.OPENING, Cue.LOST: Phase.ABSENT},
    Phase.OPENING: {Cue.OPENED: Phase.LOAD_LINE, Cue.FAILED: Phase.ON_FILE, Cue.LOST: Phase.ABSENT},
    Phase.LOAD_LINE: {
        Cue.ROOM: Phase.LOADING,
        Cue.FAILED: Phase.ON_FILE,
        Cue.LOST: Phase.ABSENT,
        Cue.ABANDONED: Phase.DRAINING,
    },
    Phase.LOADING: {
        Cue.FILLED: Phase.VERIFYING,
        Cue.FAILED: Phase.ON_FILE,
        Cue.LOST: Phase.ABSENT,
        Cue.ABANDONED: Phase.DRAINING,
    },
    Phase.VERIFYING: {
        Cue.SEALED: Phase.RESIDENT,
        Cue.FAILED: Phase.ON_FILE,
        Cue.LOST: Phase.ABSENT,
        Cue.ABANDONED: Phase.DRAINING,
    },
}

AT_REST = frozenset({Phase.ABSENT, Phase.RESIDENT, Phase.ON_FILE})
PUTTING = frozenset({Phase.IN_LINE, Phase.FILLING, Phase.SEALING, Phase.COMMITTING, Phase.SETTLING})
HOLDING_LOADS = frozenset({Phase.OPENING, Phase.LOAD_LINE, Phase.LOADING, Phase.VERIFYING})
PUBLISHED = frozenset({Phase.RESIDENT, Phase.EVICTING})


def next_phase(phase: Phase, cue: Cue) -> Phase:
    """RuntimeError on a step that the table does not know."""
    found = STEPS[phase].get(cue)
    if found is None:
        raise RuntimeError(f"no step from {phase.name} by {cue.name}")
    return found
