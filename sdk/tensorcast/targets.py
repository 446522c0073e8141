"""Caller buffers of a copy_into, judged before a byte is written: all that is wrong with them, in one error.

A target may be strided and lie inside a bigger buffer, but no byte of it may belong to another element of any target,
else the outcome would hang on the order of the copies. Tied tensors may go to targets that are tied alike.
"""

from __future__ import annotations

import importlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from tensorcast.deadline import Deadline
from tensorcast.tensors import torch_form
from tensorcast.views.part import Part
from tensorcast_bus.errors import FormatMismatch

if TYPE_CHECKING:
    import torch

_NAMES_SHOWN = 10
# How far the exact question, whether two strided shapes meet, is followed; past it the answer is yes.
_OVERLAP_WORK_MAX = 1_000_000
_PHASE = "looking at the targets"


def check_targets(
    targets: Mapping[str, torch.Tensor], parts: Iterable[Part], art_id: str, *, deadline: Deadline
) -> None:
    """Raises FormatMismatch listing missing, unexpected, misshapen, overlapping and unwritable targets; Timeout."""
    sources = {part.name: part for part in parts}
    problems = []
    if missing := sorted(set(sources) - set(targets)):
        problems.append(f"{len(missing)} tensors have no target: {_some(missing)}")
    if unexpected := sorted(set(targets) - set(sources), key=str):
        problems.append(f"{len(unexpected)} targets are not in the artifact: {_some([str(n) for n in unexpected])}")
    shared = sorted(set(sources) & set(targets))
    for name in shared:
        if problem := _problem(targets[name], sources[name]):
            problems.append(f"{name!r} {problem}")
    if not problems:
        given = {name: targets[name] for name in shared}
        problems += _unwritable(given)
        problems += islice(_overlaps(given, sources, deadline), _NAMES_SHOWN)
    if problems:
        raise FormatMismatch(
            f"copy_into from {art_id!r}: nothing was written; {_some(problems)}; give a target of equal shape "
            "and dtype, in memory of its own, for every tensor",
            art_id=art_id,
            problems=problems[:_NAMES_SHOWN],
        )


def _problem(target: object, source: Part) -> str:
    import torch

    if not isinstance(target, torch.Tensor):
        return f"is of type {type(target).__name__}, not a torch tensor (torch.from_numpy() makes one of an array)"
    if target.is_nested or target.layout is not torch.strided:
        return f"is {'nested' if target.is_nested else f'of layout {target.layout}'}, not strided memory"
    if type(target).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return f"is a {type(target).__name__}, a wrapper whose bytes are not its own; give the plain tensors in it"
    dtype, shape = torch_form(source.dtype, source.shape)
    if tuple(target.shape) != shape:
        return f"is {list(target.shape)}, in the artifact {list(shape)}"
    if target.dtype != dtype:
        return f"is {target.dtype}, in the artifact {dtype}"
    if target.device.type == "meta":
        return "is on the meta device and has no memory to fill"
    if any(step == 0 and size > 1 for step, size in zip(target.stride(), target.shape, strict=True)):
        return "is expanded: several of its elements share one place in memory"
    if target.numel() and _folded(target):
        return f"has strides {list(target.stride())}, by which elements of it share memory"
    return ""


def _folded(target: torch.Tensor) -> bool:
    """Whether elements may share memory: each stride must pass over all that the smaller ones reach."""
    reach = 0
    for step, size in sorted(zip(target.stride(), target.shape, strict=True)):
        if size > 1:
            if step <= reach:
                return True
            reach += step * (size - 1)
    return False


class _Shape:
    """A strided shape at an address, for numpy's arithmetic; its memory is never touched."""

    def __init__(self, target: torch.Tensor) -> None:
        size = target.itemsize
        self.__array_interface__ = {
            "version": 3,
            "data": (target.data_ptr(), True),
            "typestr": f"|V{size}",
            "shape": tuple(target.shape),
            "strides": tuple(step * size for step in target.stride()),
        }


class _Span(NamedTuple):
    """Bytes from `begin` to `end`; inside them blocks of at most `block` bytes, each `step` after the one before."""

    begin: int
    end: int
    step: int
    block: int
    name: str

    def passes(self, other: _Span) -> bool:
        """Whether the two certainly share nothing: their blocks lie side by side in every step, as columns do."""
        step = self.step
        if step != other.step or not step:
            return False
        return (other.begin - self.begin) % step >= self.block and (self.begin - other.begin) % step >= other.block


def _span(name: str, target: torch.Tensor) -> _Span:
    size = target.itemsize
    dims = [(step * size, count) for step, count in zip(target.stride(), target.shape, strict=True) if count > 1]
    reach = sum(step * (count - 1) for step, count in dims) + size
    step, count = max(dims, default=(0, 1))
    begin = target.data_ptr()
    return _Span(begin, begin + reach, step, reach - step * (count - 1), name)


def _overlaps(targets: Mapping[str, torch.Tensor], sources: Mapping[str, Part], deadline: Deadline) -> Iterator[str]:
    by_device: dict[str, list[_Span]] = {}
    for name, target in targets.items():
        if target.numel():
            by_device.setdefault(str(target.device), []).append(_span(name, target))
    for spans in by_device.values():
        begun: list[_Span] = []
        for span in sorted(spans):
            deadline.left_ms(_PHASE)
            begun = [other for other in begun if other.end > span.begin]
            for other in begun:
                if span.passes(other):
                    continue
                tied = sources[other.name].tie == sources[span.name].tie
                if _meet(targets[other.name], targets[span.name], tied=tied):
                    yield f"{other.name!r} and {span.name!r} share memory"
            begun.append(span)


def _meet(one: torch.Tensor, other: torch.Tensor, *, tied: bool) -> bool:
    if tied and one.data_ptr() == other.data_ptr() and one.stride() == other.stride():
        return False
    # Imported by whoever has a torch tensor; a plain attach does without it.
    numpy = importlib.import_module("numpy")
    try:
        arrays = [numpy.asarray(_Shape(target)) for target in (one, other)]
        return bool(numpy.shares_memory(*arrays, max_work=_OVERLAP_WORK_MAX))
    except numpy.exceptions.TooHardError:
        return True


def _unwritable(targets: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Memory that is mapped for reading only (an array of numpy.memmap, a read-only map) would kill the process."""
    spans = [_span(name, t) for name, t in targets.items() if t.numel() and t.device.type == "cpu"]
    if not spans:
        return
    closed = sorted(_closed_maps())
    starts = [begin for begin, _ in closed]
    for span in spans:
        at = max(bisect_right(starts, span.begin) - 1, 0)
        if any(low < span.end and span.begin < high for low, high in closed[at : bisect_right(starts, span.end)]):
            yield f"{span.name!r} lies in memory that this process may only read"


def _closed_maps() -> Iterator[tuple[int, int]]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            lines = maps.readlines()
    except OSError:
        return
    for line in lines:
        span, rights, _ = line.split(" ", 2)
        if "w" not in rights:
            low, high = span.split("-")
            yield int(low, 16), int(high, 16)


def _some(names: list[str]) -> str:
    shown = "; ".join(n[:200] for n in names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"
