"""Boxes against numpy: the pieces of a slice bring the very bytes that numpy's copy of it has."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from tensorcast_native import box_pieces

FILE = 3
ITEM_BYTES = (1, 2, 4, 8)


def brought(source: bytes, pieces: bytes) -> bytes:
    """What the pieces bring, which must follow one another from 0."""
    out = b""
    for segment, kind, dst, nbytes, src, src_index, _ in struct.iter_unpack("<IIQQQII", pieces):
        assert (segment, kind, src_index, dst) == (2, FILE, 7, len(out))
        assert src + nbytes <= len(source)
        out += source[src : src + nbytes]
    return out


@pytest.mark.parametrize("seed", range(200))
def test_a_random_box_is_numpys_slice(seed: int) -> None:
    draw = random.Random(seed)
    shape = [draw.randint(1, 6) for _ in range(draw.randint(1, 5))]
    nbytes = draw.choice(ITEM_BYTES)
    whole = np.frombuffer(draw.randbytes(nbytes * int(np.prod(shape))), dtype=f"V{nbytes}").reshape(shape)
    starts = [draw.randrange(n + 1) for n in shape]
    steps = [draw.randint(1, 3) for _ in shape]
    box = whole[tuple(slice(s, draw.randint(s, n), t) for s, n, t in zip(starts, shape, steps, strict=True))]
    first = sum(s * t for s, t in zip(starts, whole.strides, strict=True)) if box.size else 0
    pieces = box_pieces(
        segment=2,
        kind=FILE,
        src_index=7,
        src=first,
        dst=0,
        run_bytes=nbytes,
        counts=list(box.shape),
        strides=list(box.strides),
        pieces_max=max(1, box.size),
    )
    assert brought(whole.tobytes(), pieces) == box.tobytes()
