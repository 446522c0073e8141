"""One reader of the demo, as a process of its own: attaches, reads, compares, and says what it measured.

Speaks JSON lines: prints one after each task, takes the next from standard input. `--peer` does the same with
safetensors.torch.load_file and no cluster. Tasks: attach, read, compare, smaps, model, end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file as peer_load_file

import tensorcast as tc

Tensors = dict[str, torch.Tensor]


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, so that NaNs compare equal to themselves."""
    return tensor.reshape(-1).view(torch.uint8)


class Reader:
    """The state of one reader: what it holds and how it got it."""

    def __init__(self, *, art_id: str, folder: Path, peer: bool) -> None:
        self.art_id, self.folder, self.peer = art_id, folder, peer
        self.tensors: Tensors = {}
        self.runtime: tc.Runtime | None = None

    def attach(self) -> dict[str, float]:
        started = time.perf_counter()
        if self.peer:
            for file in sorted(self.folder.glob("*.safetensors")):
                self.tensors |= peer_load_file(file)
            return {"connect_ms": 0.0, "attach_ms": (time.perf_counter() - started) * 1e3}
        if self.runtime is None:
            self.runtime = tc.connect()
        connected = time.perf_counter()
        self.tensors = {}
        self.tensors = self.runtime.artifact(self.art_id).tensor_dict()
        ended = time.perf_counter()
        return {"connect_ms": (connected - started) * 1e3, "attach_ms": (ended - connected) * 1e3}

    def read(self) -> dict[str, float]:
        """Touches every byte once (a sum over 64-bit words)."""
        started = time.perf_counter()
        total = 0
        for tensor in self.tensors.values():
            data = bits_of(tensor)
            whole = data[: data.numel() // 8 * 8].view(torch.int64)
            total ^= int(whole.sum().item()) ^ int(data[whole.numel() * 8 :].sum().item())
        return {"read_ms": (time.perf_counter() - started) * 1e3, "sum": float(total & 0xFFFF)}

    def compare(self) -> dict[str, float | str]:
        """Every byte of every tensor against what safetensors reads from the files."""
        compared, names = 0, set()
        for file in sorted(self.folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - safe_open is no mapping
                    truth = opened.get_tensor(name)
                    mine = self.tensors[name]
                    same = mine.dtype == truth.dtype and mine.shape == truth.shape
                    if not same or not torch.equal(bits_of(mine), bits_of(truth)):
                        return {"wrong": name}
                    compared += truth.nbytes
                    names.add(name)
        if names != set(self.tensors):
            return {"wrong": f"names differ: {sorted(names ^ set(self.tensors))[:3]}"}
        return {"compared_bytes": float(compared)}

    def smaps(self) -> dict[str, float]:
        """Memory of this process's maps of the weights, in bytes, as the kernel counts it."""
        needle = ".safetensors" if self.peer else "/memfd:"
        sums = {"Rss": 0, "Pss": 0, "Anonymous": 0, "Shared_Clean": 0, "Shared_Dirty": 0}
        inside = False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            key, _, rest = line.partition(":")
            if "-" in key.split(" ")[0] and " " in key:
                inside = needle in line
            elif inside and key in sums:
                sums[key] += int(rest.split()[0]) * 1024
        return {
            **{k: float(v) for k, v in sums.items()},
            "shared": float(sums["Shared_Clean"] + sums["Shared_Dirty"]),
        }

    def model(self) -> dict[str, float | bool]:
        """One forward pass of the real model with these tensors and one with those safetensors reads."""
        from one_forward import (
            forward_pass,  # transformers takes seconds to import, and only this task needs it
        )

        mine = forward_pass(self.folder, self.tensors)
        truth = forward_pass(self.folder, peer_load_file(self.folder / "model.safetensors"))
        return {
            "equal": torch.equal(mine, truth),
            "norm": float(mine.norm().item()),
            "rows": float(mine.shape[0]),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("art_id")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.zeros(1).sum()  # torch sets itself up at first use; that is nobody's load time
    reader = Reader(art_id=options.art_id, folder=options.folder, peer=options.peer)
    print(json.dumps({"pid": os.getpid()}), flush=True)
    tasks = {t.__name__: t for t in (reader.attach, reader.read, reader.compare, reader.smaps, reader.model)}
    for line in sys.stdin:
        task = line.strip()
        if task == "end":
            break
        print(json.dumps(tasks[task]()), flush=True)


if __name__ == "__main__":
    main()
