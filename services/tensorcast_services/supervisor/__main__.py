"""``python -m tensorcast_services.supervisor``: one host's cluster, until SIGTERM, SIGINT or SIGHUP.

Exit codes: 0 stopped as asked, 1 the cluster cannot run (the reason is on stderr), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
from pathlib import Path

from tensorcast_bus.cluster import CLUSTER_FILE, DEFAULT_CLUSTER, SETTINGS_FILE
from tensorcast_bus.errors import TensorCastError
from tensorcast_services.process import NODE, PRIVATE, configure_logs
from tensorcast_services.settings import load_settings, read_environment
from tensorcast_services.supervisor.cluster import Cluster, NotReady, Plan
from tensorcast_services.supervisor.folder import holds_lock, prepare_folder, share_folder, take_lock, write_private
from tensorcast_services.supervisor.keeper import ChildFailed
from tensorcast_services.supervisor.orphans import PIDS_FILE, clean_after_dead_run
from tensorcast_services.supervisor.settings import SupervisorSettings, check_tables, group_of, with_assignments
from tensorcast_services.tables import Refusal, parse_tables

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
FOLDER_LOOK_S = 1.0
FIRST_TEXT = "# Settings of this cluster, a table a process; [storage] is for all storages, [storage-a] for one.\n"


def main() -> int:
    options = _parse()
    configure_logs("supervisor")
    os.umask(PRIVATE)
    folder: Path = options.folder.absolute()
    try:
        prepare_folder(folder)
        lock = take_lock(folder, options.name)
        for found in clean_after_dead_run(folder):
            _say(found)
        return _run(folder, options, lock)
    except (Refusal, ChildFailed, NotReady, TensorCastError) as error:
        _say(f"cluster {options.name!r} is not up: {error}")
        return 1


def _run(folder: Path, options: argparse.Namespace, lock: int) -> int:
    path = folder / SETTINGS_FILE
    before = path.read_text() if path.exists() else FIRST_TEXT
    text = with_assignments(before, options.set)
    plan = _plan(folder, options, text)
    if plan.group is not None:
        share_folder(folder, plan.group)
    write_private(path, text.encode())
    try:
        asyncio.run(_until_signal(plan, lock))
    except (ChildFailed, NotReady):
        # What did not work must not be there at the next start, where nobody asked for it.
        write_private(path, before.encode())
        raise
    finally:
        for name in (CLUSTER_FILE, PIDS_FILE):
            (folder / name).unlink(missing_ok=True)
    return 0


def _plan(folder: Path, options: argparse.Namespace, text: str) -> Plan:
    tables = parse_tables(text, where=str(folder / SETTINGS_FILE))
    check_tables(tables, str(folder / SETTINGS_FILE))
    environment = read_environment()
    settings = load_settings(
        SupervisorSettings, process="supervisor", role="supervisor", tables=tables, environment=environment
    )
    return Plan(
        folder,
        options.name,
        tuple(dict.fromkeys(options.node)),
        settings,
        environment,
        nats_url=environment.get("NATS_URL", ""),
        nats_token=environment.get("TENSORCAST_BUS__TOKEN", ""),
        group=group_of(tables),
    )


async def _until_signal(plan: Plan, lock: int) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(sig, stopping.set)
    watching = asyncio.create_task(_stop_without_folder(plan.folder, lock, stopping), name="folder")
    try:
        await Cluster(plan, say=_say).run(stopping)
    finally:
        watching.cancel()


async def _stop_without_folder(folder: Path, lock: int, stopping: asyncio.Event) -> None:
    """A cluster whose folder was removed can be found by nobody, and a second one would start beside it."""
    while holds_lock(folder, lock):  # noqa: ASYNC110 - a file system tells nobody that a file is gone
        await asyncio.sleep(FOLDER_LOOK_S)
    _say(f"the cluster folder {folder} was removed: stopping")
    stopping.set()


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        pass  # whoever started us in the background has closed his end


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tensorcast_services.supervisor", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="the cluster folder, made with mode 0700")
    parser.add_argument("--name", default=DEFAULT_CLUSTER, help="the cluster's name")
    parser.add_argument("--node", action="append", default=[], help="a storage of this name; may be given again")
    parser.add_argument(
        "--set", action="append", default=[], metavar="PROCESS.SETTING=VALUE", help="kept in tensorcast.toml"
    )
    options = parser.parse_args()
    if not _NAME.fullmatch(options.name):
        parser.error(f"--name {options.name!r}: a cluster's name is {_NAME.pattern}")
    for node in options.node:
        if not NODE.fullmatch(node):
            parser.error(f"--node {node!r}: a node's name is {NODE.pattern}")
    return options


if __name__ == "__main__":
    sys.exit(main())
