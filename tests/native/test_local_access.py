"""Who may do what: other users, refused memory, and how the client is told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.local_actor import Actor
from tests.native.local_storage import MIB, Storage

NOBODY = 65534
BECOME_NOBODY = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})"
PUT = (
    "out = client.put({art_id!r}, draft=b'', segment_bytes=[MIB], pieces=memory_piece(ctypes.addressof(m), MIB),"
    " rows=b'', deadline_ms=20000)"
)
MEMORY = "m = ctypes.create_string_buffer(b'm' * MIB, MIB)"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run processes as another user")


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o005 != 0o005 and folder.owner() == "root" and "pytest" in folder.name:
            folder.chmod(0o755)
    tmp_path.chmod(0o777)
    return tmp_path


@pytest.fixture
def actors() -> Iterator[list[Actor]]:
    made = [Actor(), Actor()]
    yield made
    for one in made:
        one.kill()


def test_a_user_who_may_not_connect_learns_owner_mode_and_remedy(open_folder: Path, actors: list[Actor]) -> None:
    storage = Storage(str(open_folder / "s"))
    actors[0].do(BECOME_NOBODY)
    refusal = actors[0].do(f"Client({storage.path!r}, deadline_ms=1000)")
    assert isinstance(refusal, tuple)
    kind, text = refusal
    assert kind == "PermissionError"
    for part in (storage.path, "root:root", "0600", f"uid {NOBODY}", "0660"):
        assert part in text
    storage.close()


def test_memory_that_may_not_be_read_is_streamed(open_folder: Path, actors: list[Actor]) -> None:
    """The storage runs as nobody, the client as root."""
    serving, client = actors
    serving.do(f"import os; os.umask(0); {BECOME_NOBODY}; s = Storage({str(open_folder / 's')!r})")
    client.do(f"client = Client({str(open_folder / 's')!r}, deadline_ms=20000); {MEMORY}")
    assert client.do("out = client.vm_read") is False
    assert client.do(PUT.format(art_id="a")) == (0, b"socket ")
    assert client.do("out = bytes(client.attach('a', deadline_ms=20000).view(1, 0, MIB)) == b'm' * MIB") is True


def test_a_process_that_turns_unreadable_is_streamed_from_then_on(open_folder: Path, actors: list[Actor]) -> None:
    serving, client = actors
    serving.do(f"{BECOME_NOBODY}; s = Storage({str(open_folder / 's')!r})")
    client.do(f"{BECOME_NOBODY}; libc = ctypes.CDLL(None); libc.prctl(4, 1, 0, 0, 0)")
    client.do(f"client = Client({str(open_folder / 's')!r}, deadline_ms=20000); {MEMORY}")
    assert client.do(PUT.format(art_id="a")) == (0, b"vm_read ")
    client.do("libc.prctl(4, 0, 0, 0, 0)")
    assert client.do(PUT.format(art_id="b")) == (0, b"socket ")
    assert client.do("out = client.vm_read") is False
    assert serving.do("out = s.kinds()") == ["put", "ok", "put", "gone", "gone", "put", "ok"]
    assert serving.do(f"out = s.pool.stats()['used_bytes'] <= {2 * MIB}") is True
