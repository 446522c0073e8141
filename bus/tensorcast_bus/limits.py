"""Limits of the bus, each with its unit. Everybody who sends, waits or queues on the bus takes them from here."""

from __future__ import annotations

MESSAGE_BYTES_MAX = 512 << 10
"""A whole message, envelope and body. Checked by the sender; a receiver treats a larger one as garbage."""

TOKEN_CHARS_MAX = 128
"""One token of a subject."""

HANDLERS_INFLIGHT_MAX = 1024
"""Requests that one served subject works on at a time; the next one is refused as Unavailable, never queued."""

ERROR_TEXT_CHARS_MAX = 4096
"""Text of an error whose record would not fit a message otherwise."""

BUDGET_MS_MAX = 24 * 3600 * 1000
"""The longest time a request may be given."""

CLOSE_S_MAX = 3.0
"""Closing a bus, all in all."""

HANDLERS_END_S_MAX = 1.0
"""What running handlers get of it before they are cancelled, and again to end after that."""

ANSWER_WAIT_S_MAX = 5.0
"""How long a finished answer waits for a lost connection."""
