"""What may be said on the command line, and what was said, as a typed record."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DEADLINE_S_DEFAULT = 600.0
SORTS = ("id", "size", "age", "tensors")
TIERS = ("host", "disk", "file", "lease")
OWNERSHIPS = ("system", "lease")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGTP]?)(i?)B?)?", re.IGNORECASE)


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
    sort: str = "id"
    reverse: bool = False
    tier: str = ""
    on_node: str = ""
    min_bytes: int = 0
    ownership: str = ""
    aliases: bool = False
    art_id: str = ""
    alias: str = ""
    expect: str | None = None
    remove: bool = False
    path: str = ""
    durable: bool = False
    progress: bool = False
    every: bool = False
    digests: bool = False
    process: str = ""
    follow: bool = False
    lines: int = 40
    deadline_s: float = DEADLINE_S_DEFAULT

    @property
    def deadline_ms(self) -> int:
        return max(1, int(self.deadline_s * 1000))


def parse(argv: Sequence[str]) -> Words:
    """Exits with code 2 and the usage where the words make no sense, with 0 after --help and --version."""
    parser = _parser()
    found = {name: value for name, value in vars(parser.parse_args(argv)).items() if value is not None}
    for name in ("nodes", "settings"):
        if name in found:
            found[name] = tuple(found[name])
    words = Words(**found)
    problem = _contradiction(words)
    if problem:
        parser.error(problem)
    return words


def _contradiction(words: Words) -> str:
    """What words that are each right say wrong together; "" where nothing."""
    twice = sorted({n for n in words.nodes if words.nodes.count(n) > 1})
    if twice:
        return f"up: --node {twice[0]} is given twice; a host runs one storage of a name"
    if words.command != "alias":
        return ""
    if words.remove and (not words.alias or words.art_id):
        return "alias: --rm takes the NAME of an alias, and no ID"
    if words.expect is not None and not words.art_id and not words.remove:
        return "alias: --expect is for setting (`alias NAME ID --expect ...`) and for --rm"
    return ""


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
    command("down", "stop the cluster; what only memory holds is gone then")
    command("status", "show processes, memory, disk and health")
    command("doctor", "look at this host: what would keep a cluster from working well, and what to do about it")
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
        help="a setting, as in storage.host_bytes_max=8GiB; it is written into the cluster's tensorcast.toml and stays "
        "there for every later `up`",
    )
    logs.add_argument("process", nargs="?", metavar="PROCESS", help="as `status` names it (default: all)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on with what is logged from now on")
    logs.add_argument("-n", "--lines", type=_count, metavar="N", help="how many of the last lines (default: 40)")


def _artifact_commands(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    describe = command("describe", "show an artifact, its replicas and its tensors")
    describe.add_argument("art_id", metavar="ID", help="an id or an alias")
    describe.add_argument(
        "--all", action="store_true", dest="every", help="every tensor, not the first 20, and their digests"
    )
    describe.add_argument("--digests", action="store_true", help="the digest of each tensor shown")
    put = command("put", "store a safetensors file, directory or index")
    put.add_argument("path", metavar="PATH", help="also a model's folder or snapshot in a cache of the hub")
    put.add_argument("art_id", metavar="ID")
    put.add_argument("--durable", action="store_true", help="return when the bytes are on disk too")
    put.add_argument("--progress", action="store_true", help="show progress even where there is no terminal")
    get = command("get", "write an artifact to a safetensors file")
    get.add_argument("art_id", metavar="ID", help="an id or an alias")
    get.add_argument("path", metavar="FILE")
    rm = command("rm", "delete an artifact")
    rm.add_argument("art_id", metavar="ID")
    for parser in (describe, put, get, rm):
        parser.add_argument("--node", metavar="NODE", help="the storage to ask, where the host runs several")
    for parser in (describe, put, get, rm, _listing(command), _alias(command)):
        parser.add_argument(
            "--deadline", type=_seconds, dest="deadline_s", metavar="SECONDS", help="for the whole call (default: 600)"
        )


def _listing(command: Callable[[str, str], argparse.ArgumentParser]) -> argparse.ArgumentParser:
    ls = command("ls", "list artifacts")
    ls.add_argument(
        "prefix", nargs="?", metavar="PREFIX", help="only ids that begin so; PLACES `none`: nobody alive holds it"
    )
    ls.add_argument("--sort", choices=SORTS, help="by what (default: id); largest, most and newest first")
    ls.add_argument("--reverse", action="store_true", help="the other way round")
    ls.add_argument("--tier", choices=TIERS, help="only what has a living replica there")
    ls.add_argument("--node", dest="on_node", metavar="NODE", help="only what has a living replica on that node")
    ls.add_argument("--min-size", type=_size, dest="min_bytes", metavar="SIZE", help="bytes, or as in 1.5GiB")
    ls.add_argument("--ownership", choices=OWNERSHIPS, help="only what the system owns, or a caller by a lease")
    ls.add_argument("--aliases", action="store_true", help="a column of the aliases that point at each")
    return ls


def _alias(command: Callable[[str, str], argparse.ArgumentParser]) -> argparse.ArgumentParser:
    alias = command("alias", "point a movable name at an artifact; show, list or remove such names")
    alias.add_argument("alias", nargs="?", metavar="NAME", help="alone: show it; without: list all")
    alias.add_argument("art_id", nargs="?", metavar="ID", help="what NAME is to point at from now on")
    alias.add_argument(
        "--expect",
        type=_expectation,
        metavar="WHAT",
        help="do it only if NAME is what you think: `none` (no such alias), the id it points at, or `rev:N` (that very "
        "setting, as `alias NAME` shows it)",
    )
    alias.add_argument("--rm", action="store_true", dest="remove", help="remove NAME; what it points at stays")
    return alias


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


def _size(text: str) -> int:
    """Bytes of "4096", "8GiB", "1.5 MB"."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write bytes, or a number with KiB, MiB, GiB or TiB")
    number, unit, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGTP".index((unit or " ").upper()))


def _expectation(text: str) -> str:
    if not text or (text.startswith("rev:") and not text.removeprefix("rev:").isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not `none`, an id, or `rev:N` with a whole number")
    return text
