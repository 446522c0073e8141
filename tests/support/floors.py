"""Runs every floor of tests that one machine can run, prints each one's time and count, fails if one ran nothing.

Called by `make test`. A floor is a folder of tests; the C++ floor is native/tests, run plain and under sanitizers.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "floors"
PYTEST_FLOORS = ("tidy", "unit", "property", "contract", "native", "integration", "cases")
FLOOR_SECONDS_MAX = 1500
NOT_ASKED = {
    "docker": "needs a container engine",
    "rdma": "needs an RDMA device or the virtual machine",
    "engines": "needs vLLM or SGLang in environments of their own",
    "gpu": "needs a CUDA device",
    "chaos, one hour": "run by hand",
    "guards": "run by hand: make guards",
}


@dataclass(frozen=True)
class Verdict:
    floor: str
    passed: int
    skipped: int
    failed: int
    seconds: float
    ok: bool


def run_pytest_floor(floor: str, *, python: str) -> Verdict:
    report = OUT / f"{floor}.xml"
    report.unlink(missing_ok=True)
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        f"tests/{floor}",
    ]
    started = time.monotonic()
    code = _run(command)
    seconds = time.monotonic() - started
    if not report.exists():
        return Verdict(floor, 0, 0, 1, seconds, ok=False)
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    total, skipped = int(suite.get("tests", "0")), int(suite.get("skipped", "0"))
    failed = int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
    passed = total - skipped - failed
    return Verdict(floor, passed, skipped, failed, seconds, ok=code == 0 and passed > 0)


def run_cpp_floor(*, bin_folder: str) -> Verdict:
    started = time.monotonic()
    log = OUT / "cpp.log"
    with log.open("w") as sink:
        code = subprocess.run(
            ["bash", "native/tests/run.sh", bin_folder],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            timeout=FLOOR_SECONDS_MAX,
            check=False,
        ).returncode
    text = log.read_text(errors="replace")
    print(text[-4000:] if code else "\n".join(text.splitlines()[-12:]), flush=True)
    # doctest's closing line: "[doctest] test cases: 61 | 61 passed | 0 failed | 0 skipped"
    counts = [line for line in text.splitlines() if "test cases:" in line]
    passed = sum(int(line.split("|")[1].split()[0]) for line in counts)
    failed = sum(int(line.split("|")[2].split()[0]) for line in counts)
    ok = code == 0 and passed > 0 and len(counts) == 3
    return Verdict("c++ (plain, asan+ubsan, tsan)", passed, 0, failed, time.monotonic() - started, ok=ok)


def _run(command: list[str]) -> int:
    try:
        return subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=FLOOR_SECONDS_MAX, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"{' '.join(command)} did not end within {FLOOR_SECONDS_MAX} s", flush=True)
        return 124


def print_table(verdicts: list[Verdict]) -> None:
    print(f"\n{'floor':32} {'passed':>7} {'skipped':>8} {'failed':>7} {'seconds':>8}")
    for v in verdicts:
        note = "" if v.ok else ("  <- ran nothing" if not v.passed and not v.failed else "  <- red")
        print(f"{v.floor:32} {v.passed:7} {v.skipped:8} {v.failed:7} {v.seconds:8.1f}{note}")
    for name, why in NOT_ASKED.items():
        print(f"{name:32} not asked: {why}")
    passed, failed = sum(v.passed for v in verdicts), sum(v.failed for v in verdicts)
    print(f"total: {sum(v.seconds for v in verdicts):.0f} s\n{passed} passed, {failed} failed", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, help="the virtual environment's bin folder")
    parser.add_argument("floors", nargs="*", help="only these (default: all)")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    chosen = options.floors or ["cpp", *PYTEST_FLOORS]
    verdicts = []
    for floor in chosen:
        print(f"== {floor}", flush=True)
        if floor == "cpp":
            verdicts.append(run_cpp_floor(bin_folder=options.bin))
        else:
            verdicts.append(run_pytest_floor(floor, python=f"{options.bin}/python"))
    print_table(verdicts)
    return 0 if all(v.ok for v in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
