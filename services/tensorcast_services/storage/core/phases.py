"""The life of one artifact in one storage, as a table.

Two rules hold everywhere. Only `move` changes a phase, and a step that the table does not list is a bug that stops the
storage's loop loudly rather than an artifact in two states. An artifact has at most one run of work at a time: whoever
else wants the id waits in its entry and is asked again when the phase is one of AT_REST. A view of what is away has an
entry of its own, which goes from ABSENT to ABSENT.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Phase(enum.Enum):
    ABSENT = "absent"
    IN_LINE = "waiting for room in the pool"
    FILLING = "copying the bytes"
    SEALING = "sealing the manifest"
    KEEPING = "writing it to disk"  # a durable put: nobody sees it before it is there
    COMMITTING = "committing at the global store"
    SETTLING = "settling an earlier commit whose answer was lost"  # bytes are kept, nobody sees them
    DRAINING = "freeing what an abandoned run still holds"  # something native or on a thread has yet to end
    RESIDENT = "resident"
    SPILLING = "being written to disk"  # published all the while
    EVICTING = "being evicted"  # still published: readers are served until the withdrawal
    ON_FILE = "away"  # its source files, our disk or its owner give it back
    OPENING = "opening its source"
    LOAD_LINE = "waiting for room to load it"
    LOADING = "loading from its source"
    VERIFYING = "comparing digests of what was loaded"


class Cue(enum.Enum):
    BEGIN = "begin"
    REGISTER = "register"
    VIEW = "view"
    ROOM = "room"
    FILLED = "filled"
    SEALED = "sealed"
    KEEP = "keep"
    KNOWN = "known"
    LEASED = "leased"
    UNKNOWN = "unknown"
    FAILED = "failed"
    ABANDONED = "abandoned"
    ENDED = "ended"
    LOST = "lost"
    SPILL = "spill"
    WRITTEN = "written"
    EVICT = "evict"
    KEPT = "kept"
    WITHDRAWN = "withdrawn"
    OPENED = "opened"
    RESTORED = "restored"


STEPS: Mapping[Phase, Mapping[Cue, Phase]] = {
    Phase.ABSENT: {
        Cue.BEGIN: Phase.IN_LINE,
        Cue.REGISTER: Phase.COMMITTING,
        Cue.VIEW: Phase.OPENING,
        Cue.RESTORED: Phase.ON_FILE,
    },
    Phase.IN_LINE: {Cue.ROOM: Phase.FILLING, Cue.FAILED: Phase.ABSENT, Cue.ABANDONED: Phase.DRAINING},
    Phase.FILLING: {Cue.FILLED: Phase.SEALING, Cue.FAILED: Phase.ABSENT, Cue.ABANDONED: Phase.DRAINING},
    Phase.SEALING: {
        Cue.SEALED: Phase.COMMITTING,
        Cue.KEEP: Phase.KEEPING,
        Cue.FAILED: Phase.ABSENT,
        Cue.ABANDONED: Phase.DRAINING,
    },
    Phase.KEEPING: {Cue.WRITTEN: Phase.COMMITTING, Cue.FAILED: Phase.ABSENT, Cue.ABANDONED: Phase.DRAINING},
    Phase.COMMITTING: {
        Cue.KNOWN: Phase.RESIDENT,
        Cue.LEASED: Phase.ON_FILE,
        Cue.FAILED: Phase.ABSENT,
        Cue.UNKNOWN: Phase.SETTLING,
    },
    Phase.SETTLING: {Cue.KNOWN: Phase.RESIDENT, Cue.LEASED: Phase.ON_FILE, Cue.FAILED: Phase.ABSENT},
    Phase.DRAINING: {Cue.ENDED: Phase.ABSENT, Cue.KEPT: Phase.ON_FILE},
    Phase.RESIDENT: {Cue.EVICT: Phase.EVICTING, Cue.SPILL: Phase.SPILLING, Cue.LOST: Phase.ABSENT},
    Phase.SPILLING: {Cue.WRITTEN: Phase.RESIDENT, Cue.FAILED: Phase.RESIDENT, Cue.ABANDONED: Phase.DRAINING},
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
        Cue.ENDED: Phase.ABSENT,
        Cue.FAILED: Phase.ON_FILE,
        Cue.LOST: Phase.ABSENT,
        Cue.ABANDONED: Phase.DRAINING,
    },
}

AT_REST = frozenset({Phase.ABSENT, Phase.RESIDENT, Phase.ON_FILE})
HOLDING_LOADS = frozenset({Phase.OPENING, Phase.LOAD_LINE, Phase.LOADING, Phase.VERIFYING})
PUBLISHED = frozenset({Phase.RESIDENT, Phase.SPILLING, Phase.EVICTING})


def next_phase(phase: Phase, cue: Cue) -> Phase:
    """RuntimeError on a step that the table does not know."""
    found = STEPS[phase].get(cue)
    if found is None:
        raise RuntimeError(f"no step from {phase.name} by {cue.name}")
    return found
