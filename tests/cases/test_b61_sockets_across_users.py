"""B61: no root is needed; what a user may not reach is said with path, owner, mode and fix; a group shares across
containers (two mount namespaces that have one folder in common, and nothing else of it)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.cluster import Cluster, running_cluster
from tests.support.other_user import CHILD_S_MAX, OTHER_GID, OTHER_UID, open_folder, require_root, run_python

SHARED_GID = 54_400

# What another user meets who looks for the cluster.
CONNECT = f"""
become({OTHER_UID}, {OTHER_GID}, json.loads(sys.argv[1]))
try:
    with tc.connect() as rt:
        rt.list_artifacts()
    print("connected")
except tc.errors.TensorCastError as error:
    print(type(error).__name__, error)
"""

# Reads what the other container put, puts something back, from memory and from a file.
SHARE = f"""
become({OTHER_UID}, {OTHER_GID}, [{SHARED_GID}])
with tc.connect() as rt:
    assert torch.equal(rt.artifact("b61/theirs").tensor(), torch.arange(100_000))
    rt.put({{"w": torch.arange(90_000)}}, "b61/ours")
    assert torch.equal(rt.artifact("b61/ours").tensor("w"), torch.arange(90_000))
    rt.artifact("b61/ours").save(sys.argv[1] + "/ours.safetensors")
    stored = rt.put(sys.argv[1] + "/ours.safetensors", "b61/file")
    assert torch.equal(tc.load_file(sys.argv[1] + "/ours.safetensors")["w"], torch.arange(90_000))
print("shared")
"""


@pytest.fixture
def volume() -> Iterator[Path]:
    require_root()
    with open_folder() as made:
        yield made


def environment(cluster: Cluster, **more: str) -> dict[str, str]:
    return cluster.environment | more


def test_b61_another_user_is_told_path_owner_mode_and_fix(volume: Path) -> None:
    with running_cluster(volume, name="theirs") as cluster:
        done = run_python(CONNECT, "[]", environment=environment(cluster, WARM="1"))
    assert done.stdout.startswith("NotConnected "), done.stdout + done.stderr
    for said in (
        str(cluster.folder.parent),
        "uid 0",
        "mode 0700",
        f"you are uid {OTHER_UID}",
        "storage.socket_group=GROUP",
    ):
        assert said in done.stdout, done.stdout


def test_b61_a_socket_that_only_its_owner_may_use_is_named(volume: Path) -> None:
    """The group finds the cluster, but its sockets kept their mode."""
    with running_cluster(volume, name="half", settings={"storage.socket_group": str(SHARED_GID)}) as cluster:
        socket = cluster.state().nodes[0].socket
        done = run_python(CONNECT, f"[{SHARED_GID}]", environment=environment(cluster, WARM="1"))
    assert done.stdout.startswith("NotConnected "), done.stdout + done.stderr
    for said in (socket, "root", "mode 0600", f"uid {OTHER_UID}", "group access (mode 0660)"):
        assert said in done.stdout, done.stdout


def namespace(folder: Path, own: Path) -> tuple[str, ...]:
    """A mount namespace in which, of the temporary folders, only `folder` is the host's; another is its own."""
    require_root("unshare", "mount")
    script = 'mount -t tmpfs own "$0" && exec "$@"'
    wrapper = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(own))
    tried = subprocess.run([*wrapper, "true"], capture_output=True, text=True, timeout=CHILD_S_MAX, check=False)
    if tried.returncode:
        pytest.skip(f"needs mount namespaces: {tried.stderr.strip()}")
    return wrapper


def test_b61_a_group_shares_a_cluster_across_mount_namespaces(volume: Path) -> None:
    own = volume / "own"
    own.mkdir(mode=0o1777)
    own.chmod(0o1777)
    wrapper = namespace(volume, own)
    settings = {"storage.socket_group": str(SHARED_GID), "storage.socket_mode": "0660"}
    cluster = Cluster("shared", volume)
    up = [sys.executable, "-m", "tensorcast.cli", "--cluster", "shared", "up", "--detach"]
    up += [f"--set={key}={value}" for key, value in (settings | {"storage.host_bytes_max": "128MiB"}).items()]
    run(cluster, *wrapper, *up)
    try:
        with cluster.connect() as rt:
            rt.put(torch.arange(100_000), "b61/theirs")
        refused = run_python(CONNECT, "[]", environment=environment(cluster, WARM="1"))
        assert "NotConnected" in refused.stdout and f"gid {SHARED_GID}" in refused.stdout, refused.stdout
        done = run_python(SHARE, str(own), environment=environment(cluster, WARM="1"), wrapper=wrapper)
        assert done.stdout == "shared\n", done.stdout + done.stderr
        with cluster.connect() as rt:
            assert torch.equal(rt.artifact("b61/ours").tensor("w"), torch.arange(90_000))
        assert not (own / "ours.safetensors").exists(), "the namespaces are not one"
        assert os.stat(cluster.folder / "cluster.json").st_mode & 0o777 == 0o640
        assert os.stat(cluster.folder / "tensorcast.toml").st_mode & 0o777 == 0o600
    finally:
        run(cluster, sys.executable, "-m", "tensorcast.cli", "--cluster", "shared", "down")


def run(cluster: Cluster, *command: str) -> None:
    done = subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, timeout=CHILD_S_MAX, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# What the command line says to a user who cannot make the cluster's folder where it is asked to.
UP = f"""
from tensorcast.cli.main import main
become({OTHER_UID}, {OTHER_GID})
sys.exit(main(["up", "--detach"]))
"""


@pytest.mark.parametrize("missing", [False, True], ids=["not writable", "missing"])
def test_b61_a_folder_that_cannot_be_made_is_said_with_its_owner_and_mode(volume: Path, missing: bool) -> None:
    parent = volume / "run"
    parent.mkdir(mode=0o755)
    place = parent / "missing" if missing else parent
    done = run_python(UP, environment={**os.environ, "XDG_RUNTIME_DIR": str(place)})
    assert done.returncode == 1, done.stdout + done.stderr
    for said in (str(place), "uid 0", "mode 0755", f"you are uid {OTHER_UID}", "XDG_RUNTIME_DIR"):
        assert said in done.stderr, done.stderr


def test_b61_the_default_folder_needs_no_root() -> None:
    code = "become(54321, 54322); from tensorcast.settings import read_settings; "
    code += "from tensorcast.cluster_room import folder_of; print(folder_of('default', read_settings()))"
    require_root()
    plain = {k: v for k, v in os.environ.items() if k not in ("XDG_RUNTIME_DIR", "TMPDIR")}
    done = run_python(code, environment=plain)
    assert done.stdout == f"/tmp/tensorcast-{OTHER_UID}/default\n", done.stderr


def test_b61_a_folder_of_somebody_else_at_that_place_is_refused(volume: Path) -> None:
    """Whoever made the other user's folder first must not become its cluster."""
    planted = volume / f"tensorcast-{OTHER_UID}" / "default"
    planted.mkdir(parents=True, mode=0o755)
    (planted / "cluster.json").write_bytes(b"{}")
    code = CONNECT.replace("try:", "import tempfile; tempfile.tempdir = sys.argv[2]\ntry:", 1)
    plain = {k: v for k, v in os.environ.items() if k not in ("XDG_RUNTIME_DIR", "TENSORCAST_CLUSTER")}
    done = run_python(code, "[]", str(volume), environment=plain)
    assert done.stdout.startswith("NotConnected ") and "belongs to uid 0" in done.stdout, done.stdout + done.stderr
