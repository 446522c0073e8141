"""Digests of a caller's tensors, computed in this process: to find what changed, or to compare with what is stored.

A second thread helps where there is enough to do: native code digests large buffers without the GIL. Tied tensors are
read once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from tensorcast.deadline import Deadline
from tensorcast.drafts.draft import memory_at
from tensorcast.drafts.intake import Block
from tensorcast_native import tensor_digest

# Below this a thread costs more than it brings.
SHARED_BYTES_MIN = 16 << 20
_PHASE = "digesting the caller's tensors"


def digests_of(blocks: Sequence[Block], deadline: Deadline) -> list[bytes]:
    """16 bytes a block, in order. Raises Timeout between tensors."""
    found: dict[object, bytes] = {}
    work = {block.tie: block for block in blocks if block.nbytes}
    # The largest first, so that no thread is left alone with it at the end.
    todo = deque(sorted(work.values(), key=lambda block: -block.nbytes))
    troubles: list[BaseException] = []

    def digest() -> None:
        try:
            while todo and not troubles:
                deadline.left_ms(_PHASE)
                block = todo.popleft()
                found[block.tie] = tensor_digest(memory_at(block.address, block.nbytes))
        except IndexError:
            return  # the other thread took the last one
        except BaseException as trouble:
            troubles.append(trouble)

    other = _started(digest) if sum(b.nbytes for b in todo) >= SHARED_BYTES_MIN and len(todo) > 1 else None
    try:
        digest()
    finally:
        todo.clear()
        if other is not None:
            other.join()
    if troubles:
        raise troubles[0]
    empty = tensor_digest(b"")
    return [found[block.tie] if block.nbytes else empty for block in blocks]


def _started(work: Callable[[], None]) -> threading.Thread | None:
    thread = threading.Thread(target=work, name="tensorcast-digests", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None  # no more threads here: then one does it all
    return thread
