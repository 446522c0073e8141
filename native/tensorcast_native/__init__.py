"""The native data plane, as Python sees it: the pool and the local server for a storage, the client for an SDK.

Knows bytes, segments and sockets; no control vocabulary. Blocking calls drop the GIL and wake every 50 ms to look
for signals. Types and errors: ``_core.pyi``.
"""

from tensorcast_native._core import (
    Attachment,
    BlockAllocator,
    Client,
    FillDone,
    LocalServer,
    LocalStatus,
    PeerGone,
    Pool,
    PoolFull,
    Request,
    SegmentTable,
    Ticket,
    WaitedTooLong,
    box_pieces,
    digest_file,
    tensor_digest,
    xxh3_128,
)

__all__ = [
    "Attachment",
    "BlockAllocator",
    "Client",
    "FillDone",
    "LocalServer",
    "LocalStatus",
    "PeerGone",
    "Pool",
    "PoolFull",
    "Request",
    "SegmentTable",
    "Ticket",
    "WaitedTooLong",
    "box_pieces",
    "digest_file",
    "tensor_digest",
    "xxh3_128",
]
