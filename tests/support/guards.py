"""Shows that every test of silent wrong data fails without the guard it tests.

`tests/guards.toml` lists cases: the guard in the code as a small patch (`file`, `find`, `replace`), and the tests that
protect it. Each patch is applied to a copy of the tree under build/guards, which runs in an environment of its own;
C++ guards are compiled. A guard is shown when its tests pass with it and at least one of them fails without it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "build" / "guards"
TREE = HOME / "tree"
FOLDERS = ("bus", "native", "sdk", "services", "adapters", "tests")
TEST_SECONDS_MAX = 900
CPP = "cpp:"


@dataclass(frozen=True)
class Guard:
    name: str
    why: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]

    @property
    def compiled(self) -> bool:
        return Path(self.file).suffix in (".cpp", ".hpp")


def read_guards() -> list[Guard]:
    rows = tomllib.loads((ROOT / "tests" / "guards.toml").read_text())["guard"]
    return [Guard(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def copy_tree() -> None:
    shutil.rmtree(TREE, ignore_errors=True)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, TREE / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", TREE)


def make_environment() -> Path:
    """An environment that imports the copy, and third-party packages from the one that runs this."""
    home = HOME / "venv"
    if not (home / "bin" / "python").exists():
        venv.create(home, with_pip=False, symlinks=True)
    site = next((home / "lib").glob("python3*")) / "site-packages"
    packages = next(p for p in sys.path if p.endswith("site-packages"))
    # Plain path lines: .pth files inside `packages` (the editable install of the original) are not read that way.
    lines = [str(TREE / f) for f in ("bus", "native", "sdk", "services", "adapters")] + [packages]
    (site / "guards.pth").write_text("\n".join(lines) + "\n")
    return home / "bin" / "python"


def build_native() -> None:
    build = HOME / "native"
    nanobind = _output([sys.executable, "-m", "nanobind", "--cmake_dir"])
    cmake = Path(sys.executable).parent / "cmake"
    _run([str(cmake), "-S", str(TREE / "native"), "-B", str(build), "-GNinja", "-DSKBUILD=1",
          f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind}",
          f"-DCMAKE_MAKE_PROGRAM={Path(sys.executable).parent / 'ninja'}"])  # fmt: skip
    _run([str(cmake), "--build", str(build), "--target", "_core"])
    for module in build.glob("_core*.so"):
        shutil.copy(module, TREE / "native" / "tensorcast_native" / module.name)


def apply(guard: Guard) -> None:
    file = TREE / guard.file
    text = file.read_text()
    if text.count(guard.find) != 1:
        raise SystemExit(f"{guard.name}: the guard stands {text.count(guard.find)} times in {guard.file}, not once")
    file.write_text(text.replace(guard.find, guard.replace))


def restore(guard: Guard) -> None:
    shutil.copy(ROOT / guard.file, TREE / guard.file)


def run_tests(python: Path, tests: tuple[str, ...]) -> int:
    """pytest's exit code (0 all passed, 1 some failed), or 1 when a C++ test case failed."""
    chosen = [t for t in tests if not t.startswith(CPP)]
    codes = [_pytest(python, chosen)] if chosen else []
    codes += [_doctest(t.removeprefix(CPP)) for t in tests if t.startswith(CPP)]
    return next((code for code in codes if code), 0)


def _pytest(python: Path, tests: list[str]) -> int:
    command = [str(python), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests]
    with (HOME / "last.log").open("w") as log:
        return subprocess.run(
            command, cwd=TREE, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=TEST_SECONDS_MAX, check=False
        ).returncode


def _doctest(pattern: str) -> int:
    build = HOME / "native-tests"
    cmake = Path(sys.executable).parent / "cmake"
    _run([str(cmake), "-S", str(TREE / "native"), "-B", str(build), "-GNinja", "-DTC_TESTS=ON",
          f"-DCMAKE_MAKE_PROGRAM={Path(sys.executable).parent / 'ninja'}"])  # fmt: skip
    _run([str(cmake), "--build", str(build), "--target", "tc_tests"])
    with (HOME / "last.log").open("w") as log:
        command = [str(build / "tc_tests"), f"--test-case={pattern}", "--no-skip"]
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=TEST_SECONDS_MAX, check=False
        ).returncode
    if "test cases: 0 " in (HOME / "last.log").read_text().replace("  ", " "):
        raise SystemExit(f"no C++ test case is named like {pattern!r}")
    return code


def show(guard: Guard, python: Path) -> bool:
    with_guard = run_tests(python, guard.tests)
    if with_guard != 0:
        print(
            f"  RED      {guard.name}: its tests do not pass with the guard in place\n{(HOME / 'last.log').read_text()}"
        )
        return False
    apply(guard)
    try:
        if guard.compiled:
            build_native()
        without = run_tests(python, guard.tests)
    finally:
        end_clusters(python)
        restore(guard)
        if guard.compiled:
            build_native()
    # A test process that a signal ended failed as surely as one whose assertion did; 2 to 5 are pytest's own troubles.
    failed = without == 1 or without < 0
    print(f"  {'shown   ' if failed else 'NOT SHOWN'} {guard.name}: {guard.why}", flush=True)
    return failed


def end_clusters(python: Path) -> None:
    """Stops clusters of this environment that a crashed test process left; nothing else runs from it."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile
        if command[0] == str(python).encode() and b"tensorcast_services.supervisor" in command:
            os.kill(int(entry.parent.name), signal.SIGTERM)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only guards whose name holds one of these")
    options = parser.parse_args()
    guards = [g for g in read_guards() if not options.names or any(n in g.name for n in options.names)]
    HOME.mkdir(parents=True, exist_ok=True)
    copy_tree()
    python = make_environment()
    build_native()
    shown = [show(guard, python) for guard in guards]
    print(f"{sum(shown)} of {len(shown)} guards shown")
    return 0 if shown and all(shown) else 1


if __name__ == "__main__":
    sys.exit(main())
