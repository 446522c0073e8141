"""The front page: what is exported, what importing costs, and that both faces say the same."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable

import pytest

import tensorcast as tc
from tensorcast.deadline import Deadline
from tensorcast.errors import Invalid, Timeout

HEAVY = ("torch", "numpy", "nats", "duckdb", "asyncio", "msgspec")


def loaded_after(code: str) -> set[str]:
    told = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*(m for m in {HEAVY!r} if m in sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(told.stdout.split())


def test_importing_tensorcast_imports_nothing_heavy() -> None:
    assert loaded_after("import tensorcast") == set()


def test_connecting_and_putting_files_needs_neither_torch_nor_the_bus() -> None:
    assert loaded_after("import tensorcast; tensorcast.connect, tensorcast.Runtime, tensorcast.load_file") == {
        "msgspec"
    }


def test_every_exported_name_is_there() -> None:
    assert all(getattr(tc, name) is not None for name in tc.__all__)
    with pytest.raises(AttributeError, match="plan"):
        tc.plan  # noqa: B018


def public(kind: type) -> dict[str, Callable[..., object]]:
    return {n: f for n, f in vars(kind).items() if inspect.isfunction(f) and not n.startswith("_")}


def spoken(function: Callable[..., object]) -> tuple[list[tuple[str, str, object, object]], str]:
    signature = inspect.signature(function)
    parameters = [(p.name, str(p.kind), p.default, p.annotation) for p in signature.parameters.values()]
    return parameters, str(signature.return_annotation).replace("Async", "")


@pytest.mark.parametrize(
    ("sync", "other"),
    [(tc.Runtime, tc.AsyncRuntime), (tc.Artifact, tc.AsyncArtifact), (tc.Lease, tc.AsyncLease)],
)
def test_both_faces_have_the_same_calls_with_the_same_signatures(sync: type, other: type) -> None:
    ours, theirs = public(sync), public(other)
    assert set(ours) == set(theirs)
    for name in ours:
        assert spoken(ours[name]) == spoken(theirs[name]), name
        assert inspect.iscoroutinefunction(theirs[name]) == (name != "artifact"), name


def test_connect_and_aconnect_take_the_same() -> None:
    assert spoken(tc.connect) == spoken(tc.aconnect)
    assert inspect.iscoroutinefunction(tc.aconnect)


def test_every_call_that_waits_takes_a_deadline() -> None:
    free = {"close", "artifact", "release"}
    for kind in (tc.Runtime, tc.Artifact, tc.Lease):
        for name, function in public(kind).items():
            default = inspect.signature(function).parameters.get("deadline_ms")
            assert (default is not None and default.default == 30_000) or (kind is not tc.Lease and name in free), name


@pytest.mark.parametrize("given", [0, -1, 1.5, True, "30", 10**12])
def test_a_deadline_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(Invalid, match="deadline_ms"):
        Deadline(given, "put of 'x'")  # type: ignore[arg-type]


def test_a_deadline_that_passed_names_the_call_the_phase_and_how_long() -> None:
    deadline = Deadline(1, "put of 'x'")
    while not deadline.over:
        pass
    with pytest.raises(Timeout, match=r"put of 'x'.*1 ms.*while sealing"):
        deadline.left_ms("sealing")
