"""What a process that ran out of something is told: descriptors, memory and threads are this process's own trouble."""

from __future__ import annotations

import errno

from tensorcast_bus.errors import Unavailable

_SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS}


def shortage(error: BaseException, what: str) -> Unavailable | None:
    """The error for a shortage, with the system's own text; None where `error` tells of something else."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SHORT):
        why = str(error) or "out of memory"
        return Unavailable(
            f"{what}: this process is short of a resource: {why}; release what it holds (tensors, files, runtimes) or "
            "raise its limits (`ulimit -n`, `ulimit -v`, the memory cgroup), then call again"
        )
    return None
