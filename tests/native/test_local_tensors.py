"""What an attachment hands out: tensors and views that live as long as they are held, whoever goes first."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.utils.dlpack

from tensorcast_native import Attachment, Client
from tests.native.local_actor import Actor
from tests.native.local_storage import MIB, Storage, eventually, pattern

DEADLINE_MS = 20_000
UINT, FLOAT = 1, 2
NBYTES = 20 * MIB


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    started = Storage(str(tmp_path / "s"), capacity_bytes=96 * MIB)
    started.publish("a", pattern(NBYTES, 1), b"small")
    yield started
    started.close()


@pytest.fixture
def got(storage: Storage) -> Iterator[Attachment]:
    client = Client(storage.path, deadline_ms=DEADLINE_MS)
    attachment = client.attach("a", deadline_ms=DEADLINE_MS)
    assert isinstance(attachment, Attachment)
    yield attachment
    client.close()


def tensor(attachment: Attachment, nbytes: int = NBYTES) -> torch.Tensor:
    return torch.utils.dlpack.from_dlpack(attachment.dlpack(1, 0, [nbytes], UINT, 8))


def test_a_tensor_is_the_mapping_itself_with_its_shape(got: Attachment) -> None:
    floats = torch.utils.dlpack.from_dlpack(got.dlpack(1, 4096, [2, 3, 4], FLOAT, 32))
    assert (floats.shape, floats.stride(), floats.dtype) == ((2, 3, 4), (12, 4, 1), torch.float32)
    assert floats.untyped_storage().data_ptr() % 4096 == 0
    assert floats.numpy().tobytes() == pattern(NBYTES, 1)[4096 : 4096 + 96]
    scalar = torch.utils.dlpack.from_dlpack(got.dlpack(2, 0, [], UINT, 8))
    assert (scalar.shape, int(scalar)) == ((), ord("s"))
    assert torch.utils.dlpack.from_dlpack(got.dlpack(2, 5, [0, 3], UINT, 8)).shape == (0, 3)


def test_what_does_not_fit_is_refused(got: Attachment) -> None:
    for segment, offset, shape, bits in (
        (1, 0, [NBYTES + 1], 8),
        (1, 2, [1], 32),
        (3, 0, [1], 8),
        (1, 0, [1], 4),
        (1, 0, [1 << 62, 8], 8),
        (2, 6, [0], 8),
    ):
        with pytest.raises(ValueError):
            got.dlpack(segment, offset, shape, UINT, bits)
    with pytest.raises(ValueError):
        got.view(1, NBYTES, 1)
    assert got.borrowed == 0


def test_release_counts_what_lives_and_is_final(storage: Storage, got: Attachment) -> None:
    first, view = tensor(got), got.view(1, 0, 10)
    window = memoryview(view)
    del view
    assert (got.borrowed, got.release()) == (2, 2)
    del first
    assert got.release() == 1
    window.release()
    del window
    assert (got.release(), got.release(), got.borrowed, got.mapped_bytes) == (0, 0, 0, 0)
    for use in (lambda: got.manifest, lambda: got.view(1, 0, 1), lambda: got.dlpack(1, 0, [1], UINT, 8)):
        with pytest.raises(ValueError, match="released"):
            use()
    assert eventually(lambda: storage.pins() == 0)


def test_a_capsule_that_nobody_took_lets_go(got: Attachment) -> None:
    capsule = got.dlpack(1, 0, [1], UINT, 8)
    assert got.borrowed == 1
    del capsule
    assert got.borrowed == 0


def test_a_write_is_seen_by_nobody_else_and_views_are_read_only(storage: Storage, got: Attachment) -> None:
    mine = tensor(got)
    mine[:] = 7
    other = Client(storage.path, deadline_ms=DEADLINE_MS)
    theirs = other.attach("a", deadline_ms=DEADLINE_MS)
    assert isinstance(theirs, Attachment)
    assert bytes(theirs.view(1, 0, NBYTES)) == pattern(NBYTES, 1)
    assert memoryview(theirs.view(1, 0, 10)).readonly
    other.close()


def test_a_tensor_outlives_attachment_client_and_storage(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "s"), capacity_bytes=64 * MIB)
    storage.publish("a", pattern(NBYTES, 1))
    client = Client(storage.path, deadline_ms=DEADLINE_MS)
    attachment = client.attach("a", deadline_ms=DEADLINE_MS)
    assert isinstance(attachment, Attachment)
    kept = tensor(attachment)
    del attachment
    client.close()
    del client
    storage.close()
    del storage
    gc.collect()
    assert kept.numpy().tobytes() == pattern(NBYTES, 1)


def test_the_last_tensor_may_be_freed_by_any_thread(storage: Storage, got: Attachment) -> None:
    held = [tensor(got)]
    freeing = threading.Thread(target=held.clear)
    freeing.start()
    freeing.join()
    assert got.release() == 0
    assert eventually(lambda: storage.pins() == 0)


def test_tensors_alive_at_interpreter_exit_do_no_harm(storage: Storage) -> None:
    actor = Actor()
    actor.do(f"client = Client({storage.path!r}, deadline_ms=20000)")
    actor.do("import torch, sys; a = client.attach('a', deadline_ms=20000)")
    actor.do(f"t = torch.utils.dlpack.from_dlpack(a.dlpack(1, 0, [{NBYTES}], 1, 8)); sys.keep = t, a; out = None")
    assert actor.do("out = int(t[0])") == pattern(NBYTES, 1)[0]
    actor.end()
    assert actor.process.returncode == 0
    assert eventually(lambda: storage.server.sessions() == [])


def test_a_tensor_freed_by_a_native_thread_after_finalization_does_no_harm(storage: Storage) -> None:
    """The deleter runs from an exit handler of C, when there is no interpreter any more."""
    actor = Actor()
    actor.do(f"client = Client({storage.path!r}, deadline_ms=20000); a = client.attach('a', deadline_ms=20000)")
    actor.do("ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p")
    actor.do("ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]")
    actor.do("c = a.dlpack(1, 0, [10], 1, 8); p = ctypes.pythonapi.PyCapsule_GetPointer(c, b'dltensor')")
    actor.do("ctypes.pythonapi.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]")
    actor.do("used = ctypes.create_string_buffer(b'used'); ctypes.pythonapi.PyCapsule_SetName(c, used)")
    actor.do("ctypes.pythonapi.Py_IncRef(ctypes.py_object(c)); ctypes.pythonapi.Py_IncRef(ctypes.py_object(used))")
    # The deleter is the last word of the struct: 48 bytes of tensor, the context, the deleter.
    actor.do("deleter = ctypes.c_uint64.from_address(p + 56).value; libc = ctypes.CDLL(None)")
    actor.do("out = libc.__cxa_atexit(ctypes.c_void_p(deleter), ctypes.c_void_p(p), None)")
    actor.end()
    assert actor.process.returncode == 0
    assert eventually(lambda: storage.server.sessions() == [])


def test_reading_copies_nothing_and_core_dumps_leave_maps_out(storage: Storage) -> None:
    actor = Actor()
    actor.do(f"client = Client({storage.path!r}, deadline_ms=20000); a = client.attach('a', deadline_ms=20000)")
    actor.do(f"out = sum(bytes(a.view(1, 0, {NBYTES}))) > 0")
    smaps = Path(f"/proc/{actor.pid}/smaps").read_text()
    maps = [m for m in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", smaps) if "rw-p" in m and "memfd" in m]
    assert maps
    for one in maps:
        assert re.search(r"^Anonymous:\s+0 kB$", one, re.M)
        assert " dd" in one.partition("VmFlags:")[2]
    actor.end()
