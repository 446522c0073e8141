"""Delta versions and compaction over a real pool: memory follows what lives, and no byte of it is ever wrong."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorcast_bus.manifest import content_digest, encode_manifest
from tensorcast_native import Attachment, Client
from tensorcast_services.storage.drafts import BLOCK_BYTES
from tests.property.compaction_house import MIB, House, Tensors
from tests.support.slack import SLACK_S

# A segment's own rounding, and as much again for one that would take no fewer blocks if it were compacted; heads of
# images are within it.
ROUNDING_BYTES_A_SEGMENT = 2 * BLOCK_BYTES
SIZES = (0, 40, 5_000, 300_000, 1_500_000, 5_000_000)
KEPT_MAX = 3


def tensor(nbytes: int, stamp: int) -> Tensors:
    rng = numpy.random.default_rng(stamp)
    return {"t": rng.integers(0, 256, nbytes, dtype=numpy.uint8)}


def version(sizes: list[int], stamps: list[int]) -> Tensors:
    pairs = zip(sizes, stamps, strict=True)
    return {f"t{n}": tensor(nbytes, 100 * stamp + n)["t"] for n, (nbytes, stamp) in enumerate(pairs)}


def attached(client: Client, art_id: str) -> Attachment:
    got = client.attach(art_id, deadline_ms=20_000)
    assert isinstance(got, Attachment)
    return got


def check_read(house: House, client: Client, art_id: str, wanted: Tensors) -> None:
    attachment = attached(client, art_id)
    check_bytes(house, attachment, wanted)
    assert attachment.release() == 0


def check_bytes(house: House, attachment: Attachment, wanted: Tensors) -> None:
    manifest = msgspec.msgpack.decode(attachment.manifest, type=type(house.manifest(house.published()[0])))
    assert {row.name for row in manifest.tensors} == set(wanted)
    for row in manifest.tensors:
        view = attachment.view(1 + row.segment, row.offset, row.nbytes)
        assert bytes(view) == wanted[row.name].tobytes(), row.name
        del view


def living_bytes(house: House) -> int:
    places = {
        (manifest.segments[row.segment].key, row.offset, row.nbytes)
        for manifest in map(house.manifest, house.published())
        for row in manifest.tensors
    }
    return sum(nbytes for _, _, nbytes in places)


def check_memory(house: House) -> None:
    """What the pool has in use is what residents name, and at most twice what lives, but for rounding."""
    stats = house.pool.stats()
    segments = house.in_use()
    assert stats["segments"] == len(segments)
    manifests = sum(len(encode_manifest(house.manifest(art_id))) for art_id in house.published())
    most = 2 * living_bytes(house) + manifests + len(segments) * ROUNDING_BYTES_A_SEGMENT
    assert stats["used_bytes"] + stats["rounding_bytes"] <= most


def run(story: Callable[[House], Awaitable[None]], *, capacity_bytes: int = 96 * MIB) -> None:
    async def told() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with House(Path(folder), capacity_bytes=capacity_bytes) as house:
                await story(house)

    asyncio.run(told())


CHANGES = st.lists(st.sets(st.integers(0, 5), max_size=6), min_size=1, max_size=10)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(SIZES), min_size=6, max_size=6), CHANGES, st.integers(1, KEPT_MAX))
def test_memory_follows_what_lives_through_any_line_of_versions(
    sizes: list[int], changes: list[set[int]], kept: int
) -> None:
    async def story(house: House) -> None:
        stamps = [0] * 6
        await house.put("m@0", version(sizes, stamps))
        alive = {"m@0": version(sizes, stamps)}
        for number, changed in enumerate(changes, 1):
            stamps = [number if n in changed else stamp for n, stamp in enumerate(stamps)]
            art_id, base = f"m@{number}", f"m@{number - 1}"
            alive[art_id] = version(sizes, stamps)
            await house.put(art_id, alive[art_id], base=base)
            while len(alive) > kept:
                oldest = next(iter(alive))
                house.delete(oldest)
                del alive[oldest]
            await house.compactor.settle()
            check_memory(house)
        client = house.reader()
        for art_id, wanted in alive.items():
            check_read(house, client, art_id, wanted)
        client.close()

    run(story)


def two_versions() -> tuple[Tensors, Tensors]:
    """Of the first a fifth lives on in the second."""
    one = {"kept": tensor(2 * MIB, 1)["t"], "gone": tensor(8 * MIB, 2)["t"]}
    return one, {"kept": one["kept"], "new": tensor(MIB, 3)["t"]}


def test_a_segment_of_which_a_fifth_lives_is_copied_and_given_back() -> None:
    async def story(house: House) -> None:
        one, two = two_versions()
        await house.put("m@1", one)
        await house.put("m@2", two, base="m@1")
        digest = content_digest(house.manifest("m@2"))
        house.delete("m@1")
        await house.compactor.settle()
        assert house.compactor.compactions == 1
        assert house.pool.stats()["used_bytes"] < 3 * MIB + 100_000
        assert content_digest(house.manifest("m@2")) == digest
        client = house.reader()
        check_read(house, client, "m@2", two)
        client.close()

    run(story)


def test_what_a_put_brought_for_itself_is_not_even_looked_at() -> None:
    async def story(house: House) -> None:
        async def never() -> None:
            raise AssertionError("a manifest was read")

        house.pauses = [never]
        one, two = two_versions()
        await house.put("m@1", one)
        await house.put("m@2", two, base="m@1")
        house.delete("m@2")
        await house.compactor.settle()
        assert house.pauses == [never]

    run(story)


def test_who_maps_the_old_layout_keeps_its_bytes() -> None:
    async def story(house: House) -> None:
        one, two = two_versions()
        await house.put("m@1", one)
        await house.put("m@2", two, base="m@1")
        client = house.reader()
        old, older = attached(client, "m@2"), attached(client, "m@1")
        house.delete("m@1")
        await house.compactor.settle()
        assert house.compactor.compactions == 1
        await asyncio.to_thread(house.overwrite_all_that_is_free)
        check_bytes(house, old, two)
        check_bytes(house, older, one)
        check_read(house, client, "m@2", two)
        assert old.release() == older.release() == 0
        client.close()

    run(story)


def test_a_base_deleted_while_its_delta_is_put_lives_on_in_it() -> None:
    async def story(house: House) -> None:
        one, two = two_versions()
        await house.put("m@1", one)
        put = await house.begin(house.draft("m@2", two, base="m@1"))
        house.delete("m@1")
        await house.compactor.settle()
        await asyncio.to_thread(house.overwrite_all_that_is_free)
        house.publish(put)
        client = house.reader()
        check_read(house, client, "m@2", two)
        await house.compactor.settle()
        assert house.compactor.compactions == 1
        check_read(house, client, "m@2", two)
        check_memory(house)
        client.close()

    run(story)


def test_a_put_that_ends_without_its_delta_leaves_nothing_of_its_base() -> None:
    async def story(house: House) -> None:
        one, two = two_versions()
        await house.put("m@1", one)
        put = await house.begin(house.draft("m@2", two, base="m@1"))
        house.delete("m@1")
        house.give_up(put)
        assert house.pool.stats()["segments"] == 0

    run(story)


def test_a_delta_that_is_put_while_its_segment_is_compacted_keeps_it() -> None:
    async def story(house: House) -> None:
        one, two = two_versions()
        await house.put("m@1", one)
        await house.put("m@2", two, base="m@1")
        put = await house.begin(house.draft("m@3", two, base="m@2"))
        house.delete("m@1")
        await house.compactor.settle()
        house.publish(put)
        client = house.reader()
        check_read(house, client, "m@3", two)
        await house.compactor.settle()
        assert house.compactor.compactions == 2
        check_memory(house)
        check_read(house, client, "m@2", two)
        check_read(house, client, "m@3", two)
        client.close()

    run(story)


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("again", [False, True])
def test_a_user_that_went_meanwhile_is_left_alone_and_nothing_leaks(step: int, again: bool) -> None:
    async def story(house: House) -> None:
        one, two = two_versions()
        await house.put("m@1", one)
        await house.put("m@2", two, base="m@1")
        await house.put("m@3", two, base="m@2")
        house.delete("m@1")

        async def nothing() -> None: ...

        async def meddle() -> None:
            house.delete("m@2")
            if again:
                await house.put("m@2", one)

        house.pauses = [*[nothing] * step, meddle]
        await house.compactor.settle()
        client = house.reader()
        check_read(house, client, "m@3", two)
        if again:
            check_read(house, client, "m@2", one)
        check_memory(house)
        client.close()

    run(story)


def test_without_room_nothing_moves_and_the_next_look_tries_again() -> None:
    async def story(house: House) -> None:
        one, two = two_versions()
        await house.put("m@1", one)
        await house.put("m@2", two, base="m@1")
        taken = house.pool.reserve(house.pool.stats()["longest_run_bytes"])
        house.delete("m@1")
        segments = house.pool.stats()["segments"]
        await house.compactor.settle()
        assert house.compactor.compactions == 0 and house.pool.stats()["segments"] == segments
        house.pool.drop(taken)
        await house.put("other@1", {"t": one["kept"]})
        await house.compactor.settle()
        assert house.compactor.compactions == 1
        check_memory(house)

    run(story, capacity_bytes=32 * MIB)


def test_a_manifest_whose_digest_is_not_the_bytes_is_never_served_from_a_copy() -> None:
    async def story(house: House) -> None:
        one, two = two_versions()
        await house.put("m@1", one)
        put = await house.begin(house.draft("m@2", two, base="m@1"))
        rows = tuple(
            msgspec.structs.replace(row, digest=b"x" * 16) if row.name == "kept" else row
            for row in put.draft.manifest.tensors
        )
        manifest = msgspec.structs.replace(put.draft.manifest, tensors=rows)
        put.draft = msgspec.structs.replace(put.draft, manifest=manifest)
        house.publish(put)
        house.delete("m@1")
        await house.compactor.settle()
        assert house.compactor.compactions == 0
        check_memory_is_named(house)

    run(story)


def test_a_copy_that_ends_after_its_compactor_was_stopped_is_given_back() -> None:
    async def story(house: House) -> None:
        one, two = two_versions()
        await house.put("m@1", one)
        await house.put("m@2", two, base="m@1")
        house.delete("m@1")
        segments = house.pool.stats()["segments"]
        house.deaf(True)
        settling = asyncio.create_task(house.compactor.settle())
        await soon(lambda: house.pool.stats()["segments"] > segments)
        settling.cancel()
        await asyncio.gather(settling, return_exceptions=True)
        house.deaf(False)
        await soon(lambda: house.pool.stats()["segments"] == segments)
        check_memory_is_named(house)

    run(story)


async def soon(true: Callable[[], bool]) -> None:
    end = asyncio.get_running_loop().time() + SLACK_S
    while not true():
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0)


def check_memory_is_named(house: House) -> None:
    assert house.pool.stats()["segments"] == len(house.in_use())


def test_a_compactor_that_is_stopped_in_the_middle_gives_everything_back() -> None:
    async def story(house: House) -> None:
        one, two = two_versions()
        await house.put("m@1", one)
        await house.put("m@2", two, base="m@1")
        running = asyncio.create_task(house.compactor.run())
        reached = asyncio.Event()

        async def hang() -> None:
            reached.set()
            await asyncio.Event().wait()

        house.pauses = [hang]
        house.delete("m@1")
        await reached.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        check_memory_is_named(house)

    run(story)
