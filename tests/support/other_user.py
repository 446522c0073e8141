"""Running parts of a test as another user, or in a mount namespace of their own. Both need root; a test that cannot
have them says so by a skip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

OTHER_UID = 54_321
OTHER_GID = 54_322
CHILD_S_MAX = 120.0

# What a child starts with: it loads all that it will need while it may still read the interpreter's folders, and only
# then becomes the other user. `become(uid, gid, groups)` is there for what comes after it.
PRELUDE = """
import asyncio, encodings.idna, importlib, json, os, pkgutil, signal, sys, traceback
import torch, numpy, msgspec, nats
import tensorcast as tc
for package in ("tensorcast", "tensorcast_bus"):
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
if os.environ.get("WARM"):
    with tc.connect() as warm:
        warm.list_artifacts()
def become(uid, gid, groups=()):
    os.setgroups(list(groups)); os.setgid(gid); os.setuid(uid)
"""


def require_root(*programs: str) -> None:
    """Skips, visibly, where this test cannot change its user or namespaces."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"needs the program {program}")


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike those of pytest; gone at the end."""
    made = Path(tempfile.mkdtemp(prefix="tensorcast-test-"))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def run_python(
    code: str, *arguments: str, environment: Mapping[str, str], wrapper: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """A fresh Python that runs PRELUDE and then `code`, under `wrapper` (as in `unshare -m`)."""
    return subprocess.run(
        [*wrapper, sys.executable, "-c", PRELUDE + code, *arguments],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CHILD_S_MAX,
        check=False,
    )


def read_only_mount(folder: str) -> tuple[str, ...]:
    """A wrapper in whose mount namespace `folder` is read-only. Skips where namespaces may not be made."""
    require_root("unshare", "mount")
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    wrapper = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, folder)
    tried = subprocess.run([*wrapper, "true"], capture_output=True, text=True, timeout=CHILD_S_MAX, check=False)
    if tried.returncode:
        pytest.skip(f"needs mount namespaces: {tried.stderr.strip()}")
    return wrapper
