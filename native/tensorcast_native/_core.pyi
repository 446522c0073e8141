"""Kept by hand; tests/native checks that its names equal the module's.

Sizes and offsets are bytes. `pieces` and `rows` are packed little-endian structs (the layout of tc/fill.hpp):
PIECE = "<IIQQQII" (segment, kind, dst, nbytes, src, src_index, 0), kind 1 inline, 2 memory, 3 file, 4 segment of
the same job, 5 sealed segment of the pool (number src_index of the load's `sources`);
ROW = "<IIQQ" (segment, 0, offset, nbytes); a FILE is (fd, device, inode, size, mtime_ns).
"""

from collections.abc import Sequence
from typing import Final

from typing_extensions import Buffer, CapsuleType

_File = tuple[int, int, int, int, int]

def xxh3_128(data: Buffer, seed: int = 0) -> bytes: ...
def tensor_digest(data: Buffer) -> bytes:
    """16 bytes; the rule is in tc/digest.hpp. Large buffers are digested without the GIL."""

def digest_file(file: _File, rows: bytes, *, threads: int = 2, deadline_ms: int) -> FillDone:
    """Digests of parts of an open file; nothing is kept. Same statuses as a fill."""

class PoolFull(Exception):
    """No room. args: (text, free_bytes, longest_run_bytes)."""

class WaitedTooLong(Exception):
    """The call's deadline passed. args: (phase,)."""

class PeerGone(Exception):
    """The other end of the local socket is gone or cannot be reached. args: (text,)."""

def box_pieces(
    *,
    segment: int,
    kind: int,
    src_index: int,
    src: int,
    dst: int,
    run_bytes: int,
    counts: Sequence[int],
    strides: Sequence[int],
    pieces_max: int,
) -> bytes:
    """Packed PIECEs for a box of a strided source: `counts` and `strides` (bytes) of the outer dimensions, outermost
    first; each run of `run_bytes` follows the one before it in the destination. ValueError above `pieces_max`."""

class Ticket:
    """Sixteen bytes at a fixed address that a storage reads to see that the memory behind a put is still the caller's.
    One given to Client.put() outlives the call: until end(), or until it is collected, a kept put may read."""

    def __init__(self) -> None: ...
    def end(self) -> None:
        """From here on nothing read through it counts. Idempotent."""

class BlockAllocator:
    """Runs of blocks, fewest first. Pure bookkeeping; exposed for property tests."""

    def __init__(self, blocks_max: int) -> None: ...
    def add(self, first: int, count: int) -> None: ...
    def allocate(self, blocks: int) -> list[tuple[int, int]]: ...
    def free(self, runs: Sequence[tuple[int, int]]) -> None: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def longest_run(self) -> int: ...

class SegmentTable:
    """States of segments: reserved -> sealed -> dropped; freed once nobody uses or maps it. For property tests."""

    def __init__(self) -> None: ...
    def reserve(self, nbytes: int) -> int: ...
    def seal(self, segment: int) -> None: ...
    def hold(self, segment: int) -> None: ...
    def drop(self, segment: int) -> bool:
        """True when the segment is freed by this call."""
    def pin(self, segment: int) -> None: ...
    def unpin(self, segment: int) -> bool:
        """True when the segment is freed by this call."""
    def state(self, segment: int) -> str:
        """ "reserved", "sealed", "dropped" (still mapped) or "unknown"."""

class Pool:
    def __init__(
        self,
        *,
        capacity_bytes: int,
        extent_bytes_max: int = ...,
        prefault_ahead_bytes: int = ...,
        memory_reserve_bytes: int = ...,
    ) -> None:
        """ValueError when this host or its memory cgroup cannot hold the capacity."""
    def reserve(self, nbytes: int) -> int: ...
    def write(self, segment: int, offset: int, data: bytes) -> None:
        """Into a reserved segment: manifests and other small things the storage makes itself."""
    def read(self, segment: int, offset: int, nbytes: int) -> bytes: ...
    def seal(self, segment: int) -> None: ...
    def hold(self, segment: int) -> None:
        """One more user of a sealed segment; KeyError when it is gone, ValueError when it is not sealed."""
    def drop(self, segment: int) -> None: ...
    def write_to(self, segment: int, fd: int, offset: int, nbytes: int) -> None:
        """Writes that part of a sealed segment to the same place of an open file, without the GIL. OSError. The caller
        holds the segment meanwhile."""
    def stats(self) -> dict[str, int]:
        """The fields of tc::PoolStats."""
    def stop(self) -> None: ...

class LocalStatus:
    """Answers of the local protocol. Below 100 the server's own; FAILED brings an opaque body made by the storage."""

    OK: Final = 0
    FAILED: Final = 1  # body: the storage's error record
    STREAM: Final = 2  # (internal to Client.put) send the bytes on the socket
    BAD_REQUEST: Final = 3  # body: text
    VERSION: Final = 4  # body: text naming both versions
    MOVED: Final = 5  # to an attach; body: the storage's word on where to look instead
    MANIFEST: Final = 6  # to an attach of the manifest only; body: the storage's word on what is not in the pool

class Request:
    """One thing a client asks that only the storage's Python can decide. Drained with LocalServer.events()."""

    @property
    def id(self) -> int: ...
    @property
    def session(self) -> int: ...
    @property
    def kind(self) -> str:
        """ "put", "attach" (unknown here: load it or refuse), "call", "gone" (the asker of `id` hung up) or "died"
        (`id` is what keep() returned: its process has ended)."""
    @property
    def art_id(self) -> str: ...
    @property
    def body(self) -> bytes:
        """put: the manifest draft; attach: what the caller gave with it; call: the caller's message."""
    @property
    def manifest_only(self) -> bool:
        """attach: only the manifest is wanted."""
    @property
    def segment_bytes(self) -> list[int]: ...
    @property
    def files(self) -> list[tuple[int, int, int, int]]:
        """put: (device, inode, size, mtime_ns) as the client saw each file it sent, in the order that pieces number
        them. The fill fails where a file is another; that these are the draft's files is the storage's to check."""
    @property
    def pieces(self) -> bytes:
        """put: the client's packed PIECEs; b"" for one that is streamed, and for every other request."""
    @property
    def source(self) -> str:
        """put: "vm_read", "socket" or "file"."""
    @property
    def budget_ms(self) -> int: ...
    @property
    def pid(self) -> int: ...

class FillDone:
    """The end of a fill that accept_put() or load() started: exactly one follows each, hang-ups included."""

    @property
    def id(self) -> int:
        """The request id, or the token given to load()."""
    @property
    def status(self) -> str:
        """ "ok", "bad_plan", "source_changed", "source_short", "source_error", "gone", "deadline", "cancelled"."""
    @property
    def error(self) -> int: ...
    @property
    def detail(self) -> str: ...
    @property
    def segments(self) -> list[int]:
        """On "ok": sealed, one user each: whoever took this event. Else empty: all were freed."""
    @property
    def digests(self) -> bytes: ...
    @property
    def bytes_moved(self) -> int: ...
    @property
    def bytes_copied(self) -> int: ...
    @property
    def ms(self) -> float: ...

class LocalServer:
    """Serves one Unix socket from its own native thread; never calls Python: events() is drained on event_fd."""

    def __init__(
        self, pool: Pool, socket_path: str, *, greeting: bytes, mode: int = 0o600, pull_threads: int = 4
    ) -> None:
        """Binds and serves. OSError when the path cannot be bound; a stale socket file is replaced. Paths over 100
        bytes work when the socket's own name is below 80."""
    @property
    def event_fd(self) -> int: ...
    def events(self) -> list[Request | FillDone]: ...
    def accept_put(self, request: int, rows: bytes | None = None) -> None:
        """Reserves all segments of a put, or none, and starts the fill; FillDone follows. `rows` (packed ROWs) replace
        the client's own: FillDone.digests are of these, and a row outside its segment is a "bad_plan". ValueError on
        rows of a broken size. PoolFull leaves the put pending: accept again, or reply. KeyError if gone. When the
        asker hangs up during the fill, a "gone" and a FillDone that is not "ok" come; a "gone" after an "ok" leaves
        the segments to whoever took that event."""
    def load(
        self,
        token: int,
        *,
        segment_bytes: Sequence[int],
        pieces: bytes,
        rows: bytes,
        files: Sequence[_File],
        inline: bytes = b"",
        sources: Sequence[int] = (),
        deadline_ms: int,
    ) -> None:
        """The same for files that the storage opened itself (fds are duplicated) and for sealed segments of the pool
        (`sources`, held until FillDone). PoolFull as above; ValueError on a token that runs already or is not below
        2**32, where request ids begin, and on a source that is not sealed."""
    def keep(self, request: int) -> int:
        """Keeps what a pending put named (pieces, inline bytes, open files, the way to its process's memory) beyond its
        answer, and watches the process: a "died" with the returned number comes once when it ends. A streamed put's
        memory cannot be kept: only the process is watched. Before accept_put() or reply(). KeyError if gone, ValueError
        past a limit (tc::KeptSources: 4096 a process), OSError when no descriptor is left."""
    def load_kept(
        self,
        token: int,
        source: int,
        *,
        rows: bytes,
        segment_bytes: Sequence[int] | None = None,
        pieces: bytes | None = None,
        inline: bytes | None = None,
        deadline_ms: int,
    ) -> None:
        """As load(), from what keep() kept: its own plan, or where given another over the same files and memory (whose
        pieces must lie inside those that the put named; ValueError). Where memory is read: "gone" when the process
        ended, or its Ticket did. PoolFull and ValueError as above, KeyError for an unknown source."""
    def let_go(self, source: int) -> None:
        """Closes what keep() kept; loads under way end as they can. Harmless for an unknown one."""
    def cancel(self, token: int) -> None: ...
    def progress(self, token: int) -> tuple[int, int]:
        """(bytes done, bytes in all); (0, 0) when unknown."""
    def publish(self, art_id: str, manifest: int, segments: Sequence[int]) -> None:
        """From here on attaches of art_id are answered natively. Takes a user of its own on every segment; the
        caller still drops its own. ValueError if art_id is published."""
    def withdraw(self, art_id: str) -> bool:
        """The reverse: blocks return at the last unmap. False when it was not published."""
    def withdraw_idle(self, art_id: str) -> bool:
        """Withdraws only what is published and mapped by nobody, in one step under the server's lock. False, and
        nothing done, when it is mapped or not published."""
    def republish(self, art_id: str, manifest: int, segments: Sequence[int]) -> None:
        """The same artifact from other segments, in one step: nobody meets it missing, and who maps the old ones keeps
        them. Users as in publish(). ValueError when it is not published or a segment is not sealed."""
    def attach_segments(self, request: int, manifest: int, segments: Sequence[int]) -> None:
        """Answers a pending "attach" with sealed segments that are published nowhere; pinned as usual. The caller
        still drops its own users. KeyError if gone."""
    def attach_now(self, request: int) -> None:
        """Answers a pending "attach" request from what is published by now. KeyError if not published (the request
        stays pending) or gone."""
    def reply(self, request: int, status: int, body: bytes = b"") -> None:
        """Answers a put, attach or call, and cancels a fill that still runs for it; silently nothing when the asker is
        gone. ValueError on a body over 64 MiB."""
    def usage(self) -> list[tuple[str, int, int, int]]:
        """Published artifacts: (art_id, last attach in CLOCK_MONOTONIC ns, map pins, bytes)."""
    def sessions(self) -> list[tuple[int, int, int, bool]]:
        """(session, pid, map pins, connected). A session that hung up but still maps stays, quarantined."""
    def stop(self) -> None:
        """Hangs up, cancels fills and waits for their end. Blocks that clients map stay pinned. Idempotent."""

class Attachment:
    """Private, copy-on-write maps of an artifact's segments in this process, or copies of the small ones.

    Segment 0 is the manifest; the artifact's own segments follow from 1 in the order of publish(). All methods that
    reach memory raise ValueError after release().
    """

    @property
    def manifest(self) -> bytes: ...
    @property
    def segments(self) -> int:
        """The manifest counts as one."""
    @property
    def borrowed(self) -> int:
        """Living exports (tensors, views)."""
    @property
    def mapped_bytes(self) -> int: ...
    def dlpack(self, segment: int, offset: int, shape: Sequence[int], code: int, bits: int) -> CapsuleType:
        """A "dltensor" capsule whose deleter is C++ only; ValueError outside the segment or if misaligned."""
    def view(self, segment: int, offset: int, nbytes: int) -> Buffer:
        """Read-only buffer; counts as borrowed while it lives."""
    def release(self) -> int:
        """Unmaps when nothing is borrowed and returns 0; else changes nothing and returns the count."""

class Client:
    """A process's link to its storage. Thread-safe; fork-aware (a child must make its own; old maps stay right)."""

    def __init__(self, socket_path: str, *, deadline_ms: int, vm_read: bool = True) -> None:
        """PeerGone, WaitedTooLong, or PermissionError naming path, owner and mode. `vm_read=False` asks the storage
        not to read this process's memory: every put is streamed."""
    @property
    def greeting(self) -> bytes: ...
    @property
    def alive(self) -> bool: ...
    @property
    def pid(self) -> int:
        """The process that made it."""
    @property
    def vm_read(self) -> bool:
        """Whether the storage can read this process's memory; else puts are streamed over a socket."""
    def put(
        self,
        art_id: str,
        *,
        draft: bytes,
        segment_bytes: Sequence[int],
        pieces: bytes,
        rows: bytes,
        inline: bytes = b"",
        files: Sequence[_File] = (),
        ticket: Ticket | None = None,
        deadline_ms: int,
    ) -> tuple[int, bytes]:
        """(status, body) of the storage's answer. The caller keeps the memory named in pieces alive and unchanged
        during the call only: a put that ends in an exception is never committed from bytes read after it. With a
        `ticket` of the caller's the memory stays open to the storage until that ends, if the storage keeps the put."""
    def attach(
        self, art_id: str, *, deadline_ms: int, manifest_only: bool = False, body: bytes = b""
    ) -> Attachment | tuple[int, bytes]:
        """The maps, or (status, body) of a refusal. `body` is for the storage's Python, where it is asked at all."""
    def call(self, body: bytes, *, deadline_ms: int) -> tuple[int, bytes]: ...
    def close(self) -> None:
        """Idempotent. Maps in use stay; their pins end with the last of them."""
