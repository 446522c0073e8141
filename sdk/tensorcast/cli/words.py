"""What may be said on the command line, and what was said, as a typed record."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DEADLINE_S_DEFAULT = 600.0


@dataclass(frozen=True)
class Words:
    """Every option of every command; those of other commands keep their defaults. `cluster` "" is the default one."""

    command: str
    cluster: str = ""
    json: bool = False
    quiet: bool = False
    detach: bool = False
    nodes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    node: str | None = None
    prefix: str = ""
    art_id: str = ""
    path: str = ""
    durable: bool = False
    progress: bool = False
    every: bool = False
    process: str = ""
    follow: bool = False
    lines: int = 40
    deadline_s: float = DEADLINE_S_DEFAULT

    @property
    def deadline_ms(self) -> int:
        return max(1, int(self.deadline_s * 1000))


def parse(argv: Sequence[str]) -> Words:
    """Exits with code 2 and the usage where the words make no sense, with 0 after --help and --version."""
    found = {name: value for name, value in vars(_parser().parse_args(argv)).items() if value is not None}
    for name in ("nodes", "settings"):
        if name in found:
            found[name] = tuple(found[name])
    return Words(**found)


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    shared.add_argument(
        "--cluster", metavar="NAME", help="the cluster to use (default: TENSORCAST_CLUSTER or `default`)"
    )
    shared.add_argument("--json", action="store_true", help="machine-readable output")
    shared.add_argument("-q", "--quiet", action="store_true", help="print only what was asked for")
    parser = argparse.ArgumentParser(
        prog="tensorcast",
        description="Tensors with a life of their own, shared by the processes of a host.",
        parents=[shared],
        epilog="exit codes: 0 ok, 1 failed, 2 usage, 3 not connected",
    )
    parser.add_argument("--version", action="version", version="tensorcast 0.1.0")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            parents=[shared],
            argument_default=argparse.SUPPRESS,
        )

    up = command("up", "start a cluster on this host")
    command("down", "stop the cluster")
    command("status", "show processes, memory and health")
    _process_commands(up, command("logs", "show what processes logged"))
    _artifact_commands(command)
    return parser


def _process_commands(up: argparse.ArgumentParser, logs: argparse.ArgumentParser) -> None:
    up.add_argument("--detach", action="store_true", help="return when it is ready; else it runs until Ctrl-C")
    up.add_argument(
        "--node", action="append", dest="nodes", metavar="NODE", help="a storage to run (default: one, `a`)"
    )
    up.add_argument(
        "--set",
        action="append",
        dest="settings",
        metavar="PROCESS.FIELD=VALUE",
        type=_setting,
        help="a setting, as in storage.host_bytes_max=8GiB",
    )
    logs.add_argument("process", nargs="?", metavar="PROCESS", help="as `status` names it (default: all)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on with what is logged from now on")
    logs.add_argument("-n", "--lines", type=_count, metavar="N", help="how many of the last lines (default: 40)")


def _artifact_commands(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    ls = command("ls", "list artifacts")
    ls.add_argument("prefix", nargs="?", metavar="PREFIX", help="only ids that begin so")
    describe = command("describe", "show an artifact, its replicas and its tensors")
    describe.add_argument("art_id", metavar="ID")
    describe.add_argument("--all", action="store_true", dest="every", help="every tensor, not the first 20")
    put = command("put", "store a safetensors file, directory or index")
    put.add_argument("path", metavar="PATH")
    put.add_argument("art_id", metavar="ID")
    put.add_argument("--durable", action="store_true", help="return when the bytes are on disk too")
    put.add_argument("--progress", action="store_true", help="show progress even where there is no terminal")
    get = command("get", "write an artifact to a safetensors file")
    get.add_argument("art_id", metavar="ID")
    get.add_argument("path", metavar="FILE")
    rm = command("rm", "delete an artifact")
    rm.add_argument("art_id", metavar="ID")
    for parser in (describe, put, get, rm):
        parser.add_argument("--node", metavar="NODE", help="the storage to ask, where the host runs several")
        parser.add_argument(
            "--deadline", type=_seconds, dest="deadline_s", metavar="SECONDS", help="for the whole call (default: 600)"
        )


def _setting(text: str) -> str:
    name, equals, _ = text.partition("=")
    if not equals or "." not in name:
        raise argparse.ArgumentTypeError(f"{text!r} is not PROCESS.FIELD=VALUE, as in storage.host_bytes_max=8GiB")
    return text


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.001 <= found <= 604_800:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.001 to 604800")
    return found
