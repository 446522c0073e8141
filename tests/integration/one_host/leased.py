"""An owner process for the tests of leases: registers what it is told, then does what it is told, a line at a time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import tensorcast as tc
from tensorcast.errors import LeaseLost
from tests.support.cluster import Cluster
from tests.support.slack import SLACK_S

ELEMENTS = 1 << 20

OWNER = """
import functools, json, sys
import torch, tensorcast as tc, tensorcast.local
torch.set_num_threads(1)
say = lambda **words: print(json.dumps(words), flush=True)
what = json.loads(sys.argv[1])
if what.get("hidden"):
    tensorcast.local.Client = functools.partial(tensorcast.local.Client, vm_read=False)
rt = tc.connect()
if "path" in what:
    given = what["path"]
else:
    given = {f"w{n}": torch.full((what["elements"],), n, dtype=torch.int32) for n in range(4)}
lease = rt.register(given, what["art_id"], ttl_s=what.get("ttl_s", 60))
say(lease_id=lease.lease_id, digest=lease.digest, path=lease.stats.path, moved=lease.stats.bytes_moved)
for line in sys.stdin:
    word = line.strip()
    try:
        if word == "change":
            given["w2"][-1] += 1
            say(done=word)
        elif word == "release":
            lease.release()
            say(done=word)
        elif word == "drop":
            del lease
            say(done=word)
        elif word == "renew":
            lease.renew()
            say(done=word, lease_id=lease.lease_id)
        elif word == "end":
            break
    except tc.errors.TensorCastError as error:
        say(error=error.code, text=error.text)
"""


class Owner:
    """`first` is what it said of its registration."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.first = self.hear()

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> dict[str, object]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the owner ended"
        said: dict[str, object] = json.loads(line)
        return said

    def tell(self, word: str) -> dict[str, object]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.hear()

    def end(self) -> None:
        """As a program ends: without a word to the storage."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(30) == 0


@contextmanager
def owner(cluster: Cluster, art_id: str, **what: object) -> Iterator[Owner]:
    """`elements` (of each of four int32 tensors `w0` to `w3`) or `path`; `ttl_s`; `hidden`: the storage is asked not to
    read its memory."""
    given = {"elements": ELEMENTS} | what | {"art_id": art_id}
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, json.dumps(given)],
        env=cluster.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Owner(process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def check(tensors: dict[str, torch.Tensor]) -> None:
    for n in range(4):
        assert torch.equal(tensors[f"w{n}"], torch.full((ELEMENTS,), n, dtype=torch.int32)), n


def ends(rt: tc.Runtime, art_id: str, within_s: float = SLACK_S) -> None:
    """New reads of the id fail as those of an ended lease, soon."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            rt.artifact(art_id).tensor_meta()
        except LeaseLost:
            assert [r.art_id for r in rt.list_artifacts(art_id)] == []
            return
        time.sleep(0.02)  # polls what another process decides; bounded by the deadline above
    raise AssertionError(f"{art_id} is still there after {within_s} s")
