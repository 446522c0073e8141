"""The house rules as tests: sizes, purity, banned names, one reader of the environment, nothing private in the text."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bus", "native/tensorcast_native", "sdk", "services", "adapters")
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
PUBLIC_NAMES_MAX = 7
PUBLIC_NAMES_FREE = {"messages.py", "errors.py", "notes.py", "events.py", "effects.py", "manifest.py", "__init__.py"}
BANNED = re.compile(
    r"(?:Manager|Helper|Util|Impl|Data|Info|Base)(?=$|[A-Z_])|(?:^|_)(?:utils?|helpers?|managers?)(?:$|_)"
)
# What a delta version borrows from is its base, in the field's word; these are no abstract seams in disguise.
BANNED_ALLOWED = {"MetaData", "__metadata__", "AskBase", "BaseFound", "BaseGone", "PutBaseGone"}
PURE_FORBIDDEN = {
    "asyncio",
    "time",
    "random",
    "os",
    "socket",
    "nats",
    "duckdb",
    "torch",
    "threading",
    "subprocess",
}
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
ENVIRONMENT_READERS = {"sdk/tensorcast/settings.py", "services/tensorcast_services/settings.py"}


def python_files(*folders: str) -> list[Path]:
    return sorted(f for folder in folders for f in (ROOT / folder).rglob("*.py"))


def cpp_files() -> list[Path]:
    return sorted(f for f in (ROOT / "native").rglob("*") if f.suffix in (".cpp", ".hpp"))


def tracked_text() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def test_no_file_is_longer_than_the_house_allows() -> None:
    files = python_files(*PACKAGES, "tests", "docs/examples") + cpp_files()
    long = {relative(f): n for f in files if (n := len(f.read_text().splitlines())) > FILE_LINES_MAX}
    assert not long, f"over {FILE_LINES_MAX} lines: {long}"


def test_no_python_function_is_longer_than_the_house_allows() -> None:
    long = []
    for file in python_files(*PACKAGES, "tests", "docs/examples"):
        for node in functions(ast.parse(file.read_text())):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                long.append(f"{relative(file)}:{node.lineno} {node.name} {lines}")
    assert not long, long


def test_no_cpp_function_is_longer_than_the_house_allows() -> None:
    long = []
    for file in cpp_files():
        start = None
        for number, line in enumerate(file.read_text().splitlines(), 1):
            # clang-format puts a function's opening line and its closing brace in column 0 (or 2 inside a class).
            if start is None and re.match(
                r"^(?!namespace|extern|struct|class|enum|union|#|//|\}|TEST_SUITE)\S.*\{$", line
            ):
                start = number
            elif start is not None and re.match(r"^\}", line):
                if number - start + 1 > FUNCTION_LINES_MAX:
                    long.append(f"{relative(file)}:{start} {number - start + 1}")
                start = None
    assert not long, long


def test_cores_and_the_bus_are_pure() -> None:
    guilty = []
    cores = [f for f in python_files("services") if "core" in f.parts]
    bus = [f for f in python_files("bus") if "nats" not in f.parts and f.name != "loopback.py"]
    assert cores and bus
    for file in cores + bus:
        # A request is a future: the rooms that hold them know asyncio, and nothing else of the world.
        allowed = {"asyncio"} if file.name in {"exchange.py", "asking.py"} else set()
        # A path computed from arguments is arithmetic; nothing else of `os` is.
        imported = {name for name in imports(file) if name != "os.path"}
        bad = {name.split(".")[0] for name in imported} & (PURE_FORBIDDEN - allowed)
        if bad:
            guilty.append(f"{relative(file)} imports {sorted(bad)}")
    assert not guilty, guilty


def test_nothing_is_pickled() -> None:
    guilty = [relative(f) for f in python_files(*PACKAGES) if {n.split(".")[0] for n in imports(f)} & PICKLES]
    assert not guilty, guilty


def imports(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def test_names_say_what_a_thing_is() -> None:
    guilty = []
    for file in python_files(*PACKAGES):
        nodes = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ClassDef)]
        names = [n.name for n in nodes] + [n.name for n in functions(ast.parse(file.read_text()))] + [file.stem]
        guilty += [f"{relative(file)}: {n}" for n in names if BANNED.search(n) and n not in BANNED_ALLOWED]
    for file in cpp_files():
        for name in re.findall(r"^\s*(?:class|struct)\s+(\w+)", file.read_text(), re.M):
            if BANNED.search(name):
                guilty.append(f"{relative(file)}: {name}")
    assert not guilty, guilty


def test_a_module_shows_few_public_names() -> None:
    guilty = []
    for file in python_files(*PACKAGES):
        if file.name in PUBLIC_NAMES_FREE:
            continue
        body = ast.parse(file.read_text()).body
        shown = [n.name for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
        public = [name for name in shown if not name.startswith("_")]
        if len(public) > PUBLIC_NAMES_MAX:
            guilty.append(f"{relative(file)}: {len(public)} {public}")
    assert not guilty, guilty


def test_every_module_says_what_it_owns() -> None:
    silent = [
        relative(f)
        for f in python_files(*PACKAGES)
        if f.stat().st_size and not ast.get_docstring(ast.parse(f.read_text()))
    ]
    assert not silent, silent


def test_the_environment_is_read_in_one_place_a_floor() -> None:
    guilty = [
        relative(f)
        for f in python_files(*PACKAGES)
        if re.search(r"os\.environ|os\.getenv|\bgetenv\(", f.read_text()) and relative(f) not in ENVIRONMENT_READERS
    ]
    guilty += [relative(f) for f in cpp_files() if re.search(r"\b(?:secure_)?getenv\(", f.read_text())]
    assert not guilty, guilty


def test_the_text_speaks_of_the_product_only() -> None:
    # Spelled in pieces so that this file does not accuse itself.
    foreign = re.compile(
        "/" + r"work/|/" + r"root/|py" + r"pi\.org/simple|files\.python" + "hosted|deb\\.debian" + "\\.org"
    )
    guilty = []
    for file in tracked_text():
        if file.suffix in (".png", ".safetensors") or file.name == "LICENSE":
            continue
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
            if foreign.search(line):
                guilty.append(f"{relative(file)}:{number}")
    assert not guilty, guilty


@pytest.mark.parametrize(
    "name",
    [
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "ARCHITECTURE.md",
        "README.md",
        "docs/glossary.md",
        "docs/roadmap.md",
    ],
)
def test_the_pages_a_newcomer_needs_exist(name: str) -> None:
    assert len((ROOT / name).read_text()) > 400


def test_decision_records_are_short_and_complete() -> None:
    for file in sorted((ROOT / "docs/decisions").glob("*.md")):
        text = file.read_text()
        assert len(text.splitlines()) <= 60, file
        for part in ("## Context", "## Choice", "## Price"):
            assert part in text, f"{relative(file)} lacks {part}"


def test_generated_pages_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.reference", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_guard_stands_once_in_the_code_it_names() -> None:
    guards = tomllib.loads((ROOT / "tests/guards.toml").read_text())["guard"]
    counts = {g["name"]: (ROOT / g["file"]).read_text().count(g["find"]) for g in guards}
    assert {name: n for name, n in counts.items() if n != 1} == {}
    assert len(counts) == len(guards), "two guards have one name"
