"""One host, end to end, on real input: load a checkpoint once, attach it everywhere.

Run by `make demo`. Starts a cluster, puts a real embedding model and a generated 2 GiB checkpoint, attaches both from
four other processes at once, proves that the memory is shared and every byte is right, kills a reader and then the
storage, goes on, and prints what it measured beside safetensors in the same run.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

from checkpoint import drop_page_cache, generated_checkpoint, minilm_folder, shard_files
from processes import Answer, ReaderProcess, alive, tensorcast, wait_for
from table import Column, print_table, write_markdown

import tensorcast as tc
from tensorcast_bus.cluster import decode_cluster

READERS = 4
GENERATED, MINILM = "demo/llm@1", "demo/all-MiniLM-L6-v2@1"
BUILD = Path(__file__).resolve().parents[3] / "build" / "demo"


def say(text: str) -> None:
    print(f"  {text}", flush=True)


def start_readers(art_id: str, folder: Path, environment: dict[str, str], *, peer: bool = False) -> list[ReaderProcess]:
    return [ReaderProcess(art_id, folder, environment=environment, peer=peer) for _ in range(READERS)]


def all_at_once(readers: list[ReaderProcess], task: str) -> list[Answer]:
    for reader in readers:
        reader.tell(task)
    return [reader.answer() for reader in readers]


def demand_equal_bytes(readers: list[ReaderProcess], *, when: str) -> None:
    for answer in all_at_once(readers, "compare"):
        if "wrong" in answer:
            raise SystemExit(f"WRONG BYTES {when}: {answer['wrong']}")
    say(f"every byte of every tensor compared in {len(readers)} processes {when}: equal")


def put_cold(runtime: tc.Runtime, folder: Path, art_id: str) -> float:
    """Seconds from an empty page cache to a visible artifact."""
    drop_page_cache(folder)
    started = time.perf_counter()
    artifact = runtime.put(folder, art_id, deadline_ms=300_000)
    seconds = time.perf_counter() - started
    assert artifact.stats is not None
    say(f"put {art_id}: {artifact.outcome}, {artifact.stats.bytes_total / 2**20:.0f} MiB in {seconds:.2f} s")
    return seconds


def measure_ours(
    readers: list[ReaderProcess], environment: dict[str, str], folder: Path, *, load_s: float, storage_pid: int
) -> Column:
    together = all_at_once(readers, "attach")
    say(f"attached in {len(together)} processes at once: " + ", ".join(f"{a['attach_ms']:.1f} ms" for a in together))
    all_at_once(readers, "read")
    memory, storage_bytes = [r.ask("smaps") for r in readers], pool_share(storage_pid)
    later = ReaderProcess(GENERATED, folder, environment=environment)
    column = Column("TensorCast", load_s, later.ask("attach") | later.ask("read"), memory, storage_bytes)
    later.end()
    return column


def measure_peer(folder: Path, environment: dict[str, str]) -> Column:
    """The same by safetensors.torch.load_file: a first process with a cold cache, then more with a warm one."""
    cold = ReaderProcess("-", folder, environment=environment, peer=True)
    drop_page_cache(folder)
    load = cold.ask("attach")
    # load_file maps: without reading every byte, its load has not happened yet.
    load_s = (float(load["attach_ms"]) + float(cold.ask("read")["read_ms"])) / 1e3
    cold.end()
    readers = start_readers("-", folder, environment, peer=True)
    all_at_once(readers, "attach")
    all_at_once(readers, "read")
    memory = [r.ask("smaps") for r in readers]
    later = ReaderProcess("-", folder, environment=environment, peer=True)
    column = Column("safetensors", load_s, later.ask("attach") | later.ask("read"), memory)
    later.end()
    for reader in readers:
        reader.end()
    return column


def kill_a_reader(readers: list[ReaderProcess]) -> None:
    victim = readers.pop()
    victim.kill()
    say(f"killed reader {victim.pid} (SIGKILL): the others go on")
    demand_equal_bytes(readers, when="after a reader was killed")


def storage_of(cluster_file: Path) -> tuple[int, str]:
    """Its pid and state."""
    processes = decode_cluster(cluster_file.read_bytes()).processes
    return next((p.pid, p.state) for p in processes if p.role == "storage")


def pool_share(pid: int) -> int:
    """The storage's proportional share (Pss, bytes) of the pool's pages that somebody else maps too; what it keeps
    faulted in for later is nobody's share."""
    total, shared = 0, 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        key, _, rest = line.partition(":")
        if "-" in key.split(" ")[0] and " " in key:
            inside = "/memfd:" in line
        elif inside and key in ("Shared_Clean", "Shared_Dirty"):
            shared += int(rest.split()[0]) * 1024
        elif inside and key in ("Private_Clean", "Private_Dirty"):
            total -= int(rest.split()[0]) * 1024
        elif inside and key == "Pss":
            total += int(rest.split()[0]) * 1024
    return total if shared else 0


def kill_the_storage(cluster_file: Path, runtime: tc.Runtime, readers: list[ReaderProcess]) -> None:
    pid, _ = storage_of(cluster_file)
    os.kill(pid, signal.SIGKILL)

    def back() -> bool:
        now, state = storage_of(cluster_file)
        return now != pid and state == "ready"

    seconds = wait_for("the storage's restart", back)
    say(f"killed the storage {pid} (SIGKILL): another one was ready after {seconds:.1f} s")
    demand_equal_bytes(readers, when="mapped before the storage died")
    started = time.perf_counter()
    rows = {row.art_id for row in runtime.list_artifacts("demo/")}
    attached = all_at_once(readers, "attach")
    say(
        f"{len(rows)} artifacts listed; the first attach loads it again: "
        + ", ".join(f"{a['attach_ms']:.0f} ms" for a in attached)
        + f" ({time.perf_counter() - started:.1f} s in all, no put needed)"
    )
    demand_equal_bytes(readers, when="after the storage came back by itself")


def real_model(environment: dict[str, str]) -> None:
    readers = start_readers(MINILM, minilm_folder(), environment)
    attached = all_at_once(readers, "attach")
    say("all-MiniLM-L6-v2 attached in " + ", ".join(f"{a['attach_ms']:.1f} ms" for a in attached))
    demand_equal_bytes(readers, when=f"of {MINILM}")
    forward = readers[0].ask("model")
    if not forward["equal"]:
        raise SystemExit("the forward pass from attached weights differs from the one from safetensors")
    say("one forward pass of the real model from attached weights equals the one from safetensors, bit for bit")
    for reader in readers:
        reader.end()


def run(folder: Path, environment: dict[str, str], cluster_file: Path) -> tuple[Column, Column]:
    with tc.connect() as runtime:
        runtime.put(minilm_folder() / "model.safetensors", MINILM, deadline_ms=300_000)
        real_model(environment)
        load_s = put_cold(runtime, folder, GENERATED)
        readers = start_readers(GENERATED, folder, environment)
        pid, _ = storage_of(cluster_file)
        ours = measure_ours(readers, environment, folder, load_s=load_s, storage_pid=pid)
        demand_equal_bytes(readers, when=f"of {GENERATED}")
        kill_a_reader(readers)
        kill_the_storage(cluster_file, runtime, readers)
        for reader in readers:
            reader.end()
    return ours, measure_peer(folder, environment)


def main() -> None:
    print("TensorCast on one host: load a checkpoint once, attach it everywhere\n", flush=True)
    folder = generated_checkpoint(BUILD / "checkpoint")
    size = sum(f.stat().st_size for f in shard_files(folder))
    say(f"checkpoint: {size / 2**30:.2f} GiB in {len(shard_files(folder))} shards")
    with tempfile.TemporaryDirectory(prefix="tc-demo-") as runtime_folder:
        os.environ |= {"XDG_RUNTIME_DIR": runtime_folder, "TENSORCAST_CLUSTER": "demo"}
        environment = dict(os.environ)
        cluster_file = Path(runtime_folder) / "tensorcast" / "demo" / "cluster.json"
        tensorcast("up", "--detach", environment=environment)
        pids = [p.pid for p in decode_cluster(cluster_file.read_bytes()).processes]
        try:
            ours, peer = run(folder, environment, cluster_file)
        finally:
            tensorcast("down", environment=environment)
        wait_for("the end of all processes", lambda: not any(alive(pid) for pid in pids))
        say("stopped; no process is left")
    print_table([ours, peer], bytes_total=size)
    write_markdown(BUILD / "one_host.md", [ours, peer], bytes_total=size)


if __name__ == "__main__":
    main()
