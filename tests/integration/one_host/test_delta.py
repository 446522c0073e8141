"""Versions of one model on a running cluster: what moves, what stays in memory, and that every byte is right."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import pytest
import torch

import tensorcast as tc
from tensorcast.deadline import Deadline
from tensorcast.drafts.delta import delta_draft
from tensorcast.drafts.memory import draft_from_tensors
from tensorcast.errors import BadCheckpoint, Invalid, NotFound
from tensorcast_bus.manifest import TensorRow, decode_manifest
from tensorcast_bus.notes import PutAnswer, PutBaseGone, PutDone, PutDraft
from tensorcast_native import Attachment, Client, LocalStatus
from tests.support.cluster import Cluster, running_cluster
from tests.support.slack import SLACK_S

MIB = 1 << 20
# Head of an image, and where a part is not aligned to its neighbour.
HEAD_BYTES_MAX = 4096
# What a segment takes beyond its bytes, and as much again for one that would take no fewer blocks if it were compacted.
ROUNDING_BYTES_A_SEGMENT = 4 * MIB

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose memory nobody else uses."""
    with running_cluster(tmp_path_factory.mktemp("rt"), name="delta") as started:
        yield started


@pytest.fixture
def mine(own: Cluster) -> Iterator[tc.Runtime]:
    with own.connect() as runtime:
        yield runtime
        # Whatever a test did: without artifacts and maps nothing is left in memory.
        wait_until(lambda: _emptied(runtime, own), "an empty pool")
        assert own.storage_stats().pool["used_bytes"] == 0


def model(sizes: list[int], stamps: list[int]) -> Tensors:
    def layer(nbytes: int, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)

    pairs = zip(sizes, stamps, strict=True)
    return {f"layer{n}": layer(nbytes, 1000 * stamp + n) for n, (nbytes, stamp) in enumerate(pairs)}


def check_equal(rt: tc.Runtime, art_id: str, wanted: Tensors) -> None:
    found = rt.artifact(art_id).tensor_dict()
    assert set(found) == set(wanted)
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items()), art_id


def moved(artifact: tc.Artifact) -> int:
    assert artifact.stats is not None
    return artifact.stats.bytes_moved


def wait_until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + SLACK_S
    while not true():
        assert time.monotonic() < end, f"{what} did not come true within {SLACK_S} s"
        time.sleep(0.01)  # polling figures of another process; the deadline above bounds it


def test_a_new_version_moves_only_what_changed(mine: tc.Runtime) -> None:
    one = model([4 * MIB, 4 * MIB, MIB], [0, 0, 0])
    mine.put(one, "moves@1")
    two = {**one, "layer2": one["layer2"] + 1}
    second = mine.put(two, "moves@2")
    assert second.stats is not None and second.stats.bytes_total == 9 * MIB
    assert MIB <= moved(second) <= MIB + HEAD_BYTES_MAX
    check_equal(mine, "moves@1", one)
    check_equal(mine, "moves@2", two)
    mine.put(two, "moves-whole@1")
    digests = {record.art_id: record.digest for record in mine.list_artifacts("moves")}
    assert digests["moves@2"] == digests["moves-whole@1"] != digests["moves@1"]


def test_nothing_changed_moves_nothing_and_is_an_artifact_of_its_own(mine: tc.Runtime) -> None:
    one = model([4 * MIB, MIB], [0, 0])
    mine.put(one, "same@1")
    second = mine.put(one, "same@2")
    assert moved(second) == 0
    mine.delete("same@1")
    check_equal(mine, "same@2", one)


def test_a_base_of_another_name_is_named(mine: tc.Runtime) -> None:
    one = model([4 * MIB, MIB], [0, 0])
    mine.put(one, "named@1")
    assert moved(mine.put({"renamed": one["layer0"]}, "other@1", base="named@1")) == 0
    assert moved(mine.put({"renamed": one["layer1"]}, "third@1")) >= MIB
    check_equal(mine, "other@1", {"renamed": one["layer0"]})
    with pytest.raises(NotFound):
        mine.put(one, "other@2", base="nowhere@1")


def test_changed_takes_the_callers_word_for_all_other_names(mine: tc.Runtime) -> None:
    one = model([4 * MIB, MIB], [0, 0])
    mine.put(one, "word@1")
    given = {"layer0": one["layer0"] + 1, "layer1": one["layer1"] + 1}
    second = mine.put(given, "word@2", base="word@1", changed=["layer1"])
    assert moved(second) <= MIB + HEAD_BYTES_MAX
    check_equal(mine, "word@2", {"layer0": one["layer0"], "layer1": given["layer1"]})


def test_changed_that_cannot_be_true_is_refused_and_nothing_is_stored(mine: tc.Runtime) -> None:
    one = model([MIB, MIB], [0, 0])
    mine.put(one, "untrue@1")
    with pytest.raises(Invalid, match="layer7"):
        mine.put(one, "untrue@2", base="untrue@1", changed=["layer7"])
    with pytest.raises(BadCheckpoint, match="'extra'"):
        mine.put({**one, "extra": one["layer0"] + 1}, "untrue@2", base="untrue@1", changed=["layer0"])
    assert [record.art_id for record in mine.list_artifacts("untrue")] == ["untrue@1"]


def test_a_client_that_lies_about_its_base_gets_nothing_stored(mine: tc.Runtime, own: Cluster) -> None:
    one = model([MIB, MIB], [0, 0])
    mine.put(one, "lied@1")
    client = Client(own.state().nodes[0].socket, deadline_ms=10_000)
    try:
        got = client.attach("lied@1", deadline_ms=10_000, manifest_only=True)
        assert isinstance(got, Attachment)
        base = decode_manifest(got.manifest)
        whole = draft_from_tensors({**one, "layer1": one["layer1"] + 1}, "lied@2", deadline=Deadline(10_000, "test"))
        draft = delta_draft(whole, base, changed=None, deadline=Deadline(10_000, "test"))
        row = next(row for row in draft.manifest.tensors if row.digest)
        elsewhere = next(other for other in base.tensors if other.offset != row.offset)

        def put(row_said: TensorRow, *, digest: str = draft.base_digest) -> tuple[int, bytes]:
            rows = tuple(row_said if one is row else one for one in draft.manifest.tensors)
            note = PutDraft(msgspec.structs.replace(draft.manifest, tensors=rows), base="lied@1", base_digest=digest)
            return client.put(
                "lied@2",
                draft=msgspec.msgpack.encode(note),
                segment_bytes=draft.segment_bytes,
                pieces=draft.pieces,
                rows=draft.rows,
                inline=draft.inline,
                deadline_ms=10_000,
            )

        for lie in (
            msgspec.structs.replace(row, digest=b"x" * 16),
            msgspec.structs.replace(row, offset=elsewhere.offset),
            msgspec.structs.replace(row, dtype="I8"),
        ):
            status, body = put(lie)
            assert status == LocalStatus.FAILED and b"is not as 'lied@1' has it" in body
        status, body = put(row, digest="0a" * 16)
        assert status == LocalStatus.OK
        assert msgspec.msgpack.decode(body, type=PutAnswer) == PutBaseGone("lied@1")
        assert [record.art_id for record in mine.list_artifacts("lied")] == ["lied@1"]
        status, body = put(row)
        assert status == LocalStatus.OK and isinstance(msgspec.msgpack.decode(body, type=PutAnswer), PutDone)
    finally:
        client.close()
    check_equal(mine, "lied@2", {**one, "layer1": one["layer1"] + 1})


def test_of_twenty_versions_the_last_three_take_twice_their_bytes_at_most(mine: tc.Runtime, own: Cluster) -> None:
    sizes = [8 * MIB, 6 * MIB, 3 * MIB, MIB, 300_000, 5_000]
    stamps = [0] * len(sizes)
    alive: dict[str, tuple[list[int], Tensors]] = {}
    for number in range(20):
        # Every part changes now and then, a different set each time; the largest once in twenty.
        stamps = [
            number if number % (len(sizes) - n + 1) == 0 or n == number % 3 + 3 else s for n, s in enumerate(stamps)
        ]
        art_id = f"line@{number}"
        alive[art_id] = (stamps, model(sizes, stamps))
        mine.put(alive[art_id][1], art_id)
        if len(alive) > 3:
            oldest = next(iter(alive))
            mine.delete(oldest)
            del alive[oldest]
        living = {(n, stamp, sizes[n]) for stamps_of, _ in alive.values() for n, stamp in enumerate(stamps_of)}
        most = 2 * sum(nbytes for _, _, nbytes in living) + ROUNDING_BYTES_A_SEGMENT * (2 + len(living))
        wait_until(
            partial(_fits, own, most),
            f"version {number}: {_in_use(own) / MIB:.1f} of at most {most / MIB:.1f} MiB",
        )
    assert own.storage_stats().compactions > 0
    for art_id, (_, wanted) in alive.items():
        check_equal(mine, art_id, wanted)


def _fits(cluster: Cluster, most: float) -> bool:
    return _in_use(cluster) <= most


def _in_use(cluster: Cluster) -> int:
    pool = cluster.storage_stats().pool
    return pool["used_bytes"] + pool["rounding_bytes"]


def test_a_reader_of_the_old_layout_keeps_its_bytes(mine: tc.Runtime, own: Cluster) -> None:
    one = model([16 * MIB, 4 * MIB], [0, 0])
    mine.put(one, "layout@1")
    two = {"layer1": one["layer1"], "new": one["layer1"] + 1}
    mine.put(two, "layout@2")
    before = own.storage_stats().compactions
    held = mine.artifact("layout@2").tensor_dict()
    mine.delete("layout@1")
    wait_until(lambda: own.storage_stats().compactions > before, "the compaction")
    for number in range(3):  # they want the blocks that were given back
        mine.put({"w": torch.full((32 * MIB,), number, dtype=torch.uint8)}, f"filler@{number}")
    assert all(torch.equal(held[name], tensor) for name, tensor in two.items())
    check_equal(mine, "layout@2", two)


def test_a_version_is_right_when_its_base_is_deleted_while_it_is_put(mine: tc.Runtime, own: Cluster) -> None:
    kept = model([16 * MIB], [0])["layer0"]
    for number in range(8):
        base, art_id = f"race{number}@1", f"race{number}@2"
        mine.put({"kept": kept, "old": torch.zeros(4 * MIB, dtype=torch.uint8)}, base)
        new = torch.full((48 * MIB,), number + 1, dtype=torch.uint8)
        with own.connect() as other:
            deleting = threading.Timer(0.004 * number, other.delete, (base,))
            deleting.start()
            mine.put({"kept": kept, "new": new}, art_id)
            deleting.join()
        check_equal(mine, art_id, {"kept": kept, "new": new})
        assert [record.art_id for record in mine.list_artifacts(f"race{number}")] == [art_id]
        mine.delete(art_id)


def test_readers_meet_right_bytes_while_versions_come_go_and_are_compacted(mine: tc.Runtime, own: Cluster) -> None:
    sizes = [6 * MIB, 3 * MIB, MIB, 40_000]
    wanted: dict[str, Tensors] = {"busy@0": model(sizes, [0] * 4)}
    newest = ["busy@0"]
    seen: list[int] = []
    wrong: list[str] = []
    over = threading.Event()
    mine.put(wanted["busy@0"], "busy@0")

    def read() -> None:
        with own.connect() as other:
            count = 0
            while not over.is_set() and not wrong:
                art_id = newest[0]
                try:
                    found = other.artifact(art_id).tensor_dict()
                except NotFound:
                    continue  # deleted meanwhile
                wrong.extend(
                    f"{art_id} {name}" for name, t in wanted[art_id].items() if not torch.equal(found[name], t)
                )
                count += 1
            seen.append(count)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        stamps = [0] * 4
        for number in range(1, 13):
            stamps = [number if (number + n) % (n + 2) else stamp for n, stamp in enumerate(stamps)]
            art_id = f"busy@{number}"
            wanted[art_id] = model(sizes, stamps)
            mine.put(wanted[art_id], art_id)
            newest[0] = art_id
            mine.delete(f"busy@{number - 1}")
    finally:
        over.set()
        for reader in readers:
            reader.join()
    assert wrong == [] and min(seen) > 0
    assert own.storage_stats().compactions > 0


PUT_UNTIL_KILLED = """
import sys, torch, tensorcast as tc
rt = tc.connect()
kept = rt.artifact("killed@1").tensor_dict()["kept"].clone()
new = torch.ones(128 << 20, dtype=torch.uint8)
print("ready", flush=True)
for number in range(2, 1000):
    rt.put({"kept": kept, "new": new}, f"killed@{number}")
    rt.delete(f"killed@{number}")
"""


def test_a_client_killed_while_it_puts_a_version_leaves_no_loan_behind(mine: tc.Runtime, own: Cluster) -> None:
    kept = model([8 * MIB], [0])["layer0"]
    for number in range(2):
        mine.put({"kept": kept, "old": torch.zeros(MIB, dtype=torch.uint8)}, "killed@1")
        child = subprocess.Popen(
            [sys.executable, "-c", PUT_UNTIL_KILLED], env=own.environment, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.02 + 0.03 * number)
        child.kill()
        child.wait()
        child.stdout.close()
        wait_until(lambda: _emptied(mine, own), "an empty pool")


def _emptied(rt: tc.Runtime, cluster: Cluster) -> bool:
    """Deletes what is there; a commit that was on its way when its client ended may still come."""
    for record in rt.list_artifacts(""):
        rt.delete(record.art_id)
    return cluster.storage_stats().pool["segments"] == 0


def test_a_durable_version_outlives_its_base_and_the_storage(mine: tc.Runtime, own: Cluster) -> None:
    one = model([8 * MIB, 2 * MIB], [0, 0])
    mine.put(one, "durable@1", durable=True)
    two = {**one, "layer1": one["layer1"] + 1}
    mine.put(two, "durable@2", durable=True)
    mine.delete("durable@1")
    old_pid = own.kill("storage-a")
    own.wait_restarted("storage-a", old_pid)
    check_equal(mine, "durable@2", two)
    three = {**two, "layer0": two["layer0"] + 1}
    mine.put(three, "durable@3")
    check_equal(mine, "durable@3", three)
