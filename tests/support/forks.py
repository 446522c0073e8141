"""Work in a forked child, whose failure is the test's."""

from __future__ import annotations

import os
from collections.abc import Callable

CHILD_FAILED = 17


def in_a_forked_child(work: Callable[[], None]) -> None:
    """Returns when the child has ended well. No exit hook of the parent's runs in it."""
    pid = os.fork()
    if pid == 0:
        code = CHILD_FAILED
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
