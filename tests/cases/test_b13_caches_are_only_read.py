"""B13: a model in a cache that is read-only or somebody else's loads, and nothing is ever written there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import tensorcast as tc
from tensorcast.errors import BadCheckpoint
from tests.support.cluster import Cluster
from tests.support.other_user import OTHER_GID, OTHER_UID, open_folder, read_only_mount, require_root, run_python
from tests.unit.sdk.checkpoint_files import Entries, sharded, write

FIRST = torch.arange(70_000, dtype=torch.int32)
SECOND = torch.arange(5, dtype=torch.float32)
SHARDS: dict[str, Entries] = {
    "model-00001-of-00002.safetensors": {"first": ("I32", [70_000], FIRST.numpy().tobytes())},
    "model-00002-of-00002.safetensors": {"second": ("F32", [5], SECOND.numpy().tobytes())},
}
REVISION = "c0ffee" * 6 + "abcd"

# Puts, loads and reads back by the folder of the repository, by a snapshot and by its index.
LOAD = """
repository, snapshot = sys.argv[1], sys.argv[2]
if len(sys.argv) > 3:
    become(int(sys.argv[3]), int(sys.argv[4]))
said = []
try:
    with tc.connect() as rt:
        for number, path in enumerate((repository, snapshot, snapshot + "/model.safetensors.index.json")):
            art_id = f"b13/{os.path.basename(os.path.dirname(repository))}/{os.getpid()}/{number}"
            rt.put(path, art_id)
            for found in (rt.artifact(art_id).tensor_dict(), tc.load_file(path)):
                assert torch.equal(found["first"], torch.arange(70_000, dtype=torch.int32))
                assert torch.equal(found["second"], torch.arange(5, dtype=torch.float32))
    print("loaded")
except BaseException:
    traceback.print_exc()
"""


def cache(folder: Path, *, mode: int) -> tuple[Path, Path]:
    """(repository, snapshot) as the hub's library lays them out; every folder of them ends with `mode`."""
    repository = folder / "models--acme--tiny"
    snapshot = repository / "snapshots" / REVISION
    (repository / "blobs").mkdir(parents=True)
    sharded(snapshot, SHARDS)
    for number, file in enumerate(sorted(snapshot.iterdir())):
        blob = repository / "blobs" / f"{number:064x}"
        file.rename(blob)
        blob.chmod(0o444)
        file.symlink_to(os.path.relpath(blob, snapshot))
    write(repository / "refs" / "main", REVISION.encode())
    for place, _, _ in os.walk(repository):
        os.chmod(place, mode)
    return repository, snapshot


def everything(folder: Path) -> dict[str, tuple[int, ...]]:
    """What there is, and all of its times but the one of the last access."""
    found: dict[str, tuple[int, ...]] = {}
    for place, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            seen = os.lstat(os.path.join(place, name))
            found[os.path.join(place, name)] = (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
    return found


def test_b13_a_cache_on_a_read_only_mount_loads_and_stays_as_it_is(cluster: Cluster, tmp_path: Path) -> None:
    repository, snapshot = cache(tmp_path / "hub", mode=0o755)
    wrapper = read_only_mount(str(tmp_path / "hub"))
    before = everything(tmp_path / "hub")
    done = run_python(LOAD, str(repository), str(snapshot), environment=cluster.environment, wrapper=wrapper)
    assert done.stdout == "loaded\n", done.stderr
    assert everything(tmp_path / "hub") == before
    tried = run_python(
        "open(sys.argv[1] + '/new', 'w')", str(repository), environment=cluster.environment, wrapper=wrapper
    )
    assert "Read-only file system" in tried.stderr, "else this test shows nothing"


def test_b13_another_users_cache_loads_for_who_may_only_read_it() -> None:
    """The caller is a user who owns nothing there and may write nothing; the cluster is that user's too."""
    require_root("setpriv")
    with open_folder() as folder:
        repository, snapshot = cache(folder / "hub", mode=0o555)
        before = everything(folder / "hub")
        runtime = folder / "runtime"
        runtime.mkdir(mode=0o700)
        os.chown(runtime, OTHER_UID, OTHER_GID)
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "TENSORCAST_CLUSTER": "theirs"}
        done = run_python(THEIR_CLUSTER + LOAD, str(repository), str(snapshot), environment=environment)
        assert done.stdout.splitlines()[-1:] == ["loaded"], done.stdout + done.stderr
        assert everything(folder / "hub") == before


# Everything under the other user: the interpreter's own folders may be out of its reach, so it keeps the right to read
# (and only that) for the processes that it starts.
THEIR_CLUSTER = f"""
import subprocess
def theirs(*words):
    drop = ["setpriv", "--reuid={OTHER_UID}", "--regid={OTHER_GID}", "--clear-groups",
            "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
            "--bounding-set=-all,+dac_read_search"]
    done = subprocess.run([*drop, sys.executable, "-m", "tensorcast.cli", *words], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
theirs("up", "--detach", "--set", "storage.host_bytes_max=64MiB")
pid, owner = os.fork(), os.getpid()
if pid:
    _, status = os.waitpid(pid, 0)
    theirs("down")
    os._exit(os.waitstatus_to_exitcode(status))
become({OTHER_UID}, {OTHER_GID})
"""


def test_b13_a_cache_that_may_not_be_read_is_named_with_its_owner_and_mode() -> None:
    require_root()
    with open_folder() as folder:
        repository, snapshot = cache(folder / "hub", mode=0o755)
        (snapshot / "model-00002-of-00002.safetensors").resolve().chmod(0o600)
        locked = folder / "locked"
        locked.mkdir(mode=0o700)
        done = run_python(REFUSED, str(repository), str(locked), str(locked / "x"), environment=os.environ)
    said = done.stdout.splitlines()
    assert len(said) == 3, done.stdout + done.stderr
    for line, place, mode in zip(said, (repository / "blobs", locked, locked), ("0600", "0700", "0700"), strict=True):
        assert f"{place}" in line and f"belongs to uid 0 with mode {mode}, you are uid {OTHER_UID}" in line, line


REFUSED = f"""
from tensorcast.checkpoint.source import open_checkpoint
from tensorcast.deadline import Deadline
become({OTHER_UID}, {OTHER_GID})
for path in sys.argv[1:]:
    try:
        open_checkpoint(path, Deadline(60_000, "test"))
    except tc.errors.BadCheckpoint as error:
        print(error)
"""


def test_b13_a_dangling_link_is_named_with_its_target(rt: tc.Runtime, cluster: Cluster, tmp_path: Path) -> None:
    repository, snapshot = cache(tmp_path / "hub", mode=0o755)
    link = snapshot / "model-00002-of-00002.safetensors"
    target = os.readlink(link)
    (snapshot / target).unlink()
    for path in (repository, snapshot, snapshot / "model.safetensors.index.json", link):
        with pytest.raises(BadCheckpoint) as caught:
            rt.put(path, "b13/dangling")
        assert target in str(caught.value) and link.name in str(caught.value)
        with pytest.raises(BadCheckpoint, match="dangling"):
            tc.load_file(path)
    assert target in cluster.cli("put", str(repository), "b13/dangling", check=False).stderr
    assert "b13/dangling" not in {r.art_id for r in rt.list_artifacts()}
