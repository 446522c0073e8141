"""What only trying tells: reading another process's memory, listening on loopback, asking a server. Each has a deadline
of its own and raises nothing; "" means that it worked."""

from __future__ import annotations

import ctypes
import http.client
import os
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import msgspec

from tensorcast.cli.checks.bus import ServerWord

PROBE_S_MAX = 5.0
SERVER_S_MAX = 2.0
MONITOR_PORT = 8222
_LINE_BYTES_MAX = 1 << 20
_ANSWER_BYTES_MAX = 4 << 20
_PR_SET_PTRACER = 0x59616D61

# Reads 16 bytes of its parent, as a storage reads those of a client.
_READER = """
import ctypes, os, sys
class Range(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t)]
sys.stdin.readline()
pid, address = int(sys.argv[1]), int(sys.argv[2])
into = (ctypes.c_char * 16)()
here, there = Range(ctypes.addressof(into), 16), Range(address, 16)
libc = ctypes.CDLL(None, use_errno=True)
got = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
print(bytes(into).hex() if got == 16 else os.strerror(ctypes.get_errno()))
"""


def vm_read() -> str:
    """Why another process of this user cannot read this one's memory; this one allows it, as every client does."""
    secret = os.urandom(16)
    memory = (ctypes.c_char * 16).from_buffer_copy(secret)
    command = [sys.executable, "-I", "-S", "-c", _READER, str(os.getpid()), str(ctypes.addressof(memory))]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError as error:
        return f"no process to try it with: {error.strerror}"
    with child:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, child.pid, 0, 0, 0)
        try:
            said, _ = child.communicate("go\n", timeout=PROBE_S_MAX)
        except subprocess.TimeoutExpired:
            child.kill()
            return f"no answer within {PROBE_S_MAX:.0f} s"
    return "" if said.strip() == secret.hex() else said.strip() or "the probe failed"


def listen() -> str:
    """Why nothing can listen on loopback."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
    except OSError as error:
        return str(error.strerror or error)
    return ""


def ask_server(url: str) -> tuple[ServerWord | None, str]:
    """The first line of a NATS server, or why there is none."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        place = (parts.hostname or "127.0.0.1", parts.port or 4222)
        with socket.create_connection(place, timeout=SERVER_S_MAX) as connection:
            connection.settimeout(SERVER_S_MAX)
            with connection.makefile("rb") as stream:
                line = stream.readline(_LINE_BYTES_MAX)
    except (OSError, ValueError) as error:
        return None, str(error)
    if not line.startswith(b"INFO "):
        return None, f"what listens there is no NATS server (it said {line[:40]!r})"
    try:
        return msgspec.json.decode(line[5:], type=ServerWord), ""
    except msgspec.DecodeError as error:
        return None, f"its first line cannot be read: {error}"


def ask_monitor(url: str) -> tuple[bytes, str]:
    """The answer to /varz at the usual monitoring port of the server's host, or b"" and why there is none."""
    try:
        host = urlsplit(url if "://" in url else f"nats://{url}").hostname or "127.0.0.1"
        line = http.client.HTTPConnection(host, MONITOR_PORT, timeout=SERVER_S_MAX)
        try:
            line.request("GET", "/varz")
            answer = line.getresponse()
            blob = answer.read(_ANSWER_BYTES_MAX)
        finally:
            line.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        return b"", f"no monitoring at {host_and_port(url)}: {error}"
    return blob, "" if answer.status == http.client.OK else f"monitoring answers {answer.status}"


def host_and_port(url: str) -> str:
    return f"{urlsplit(url if '://' in url else f'nats://{url}').hostname}:{MONITOR_PORT}"
