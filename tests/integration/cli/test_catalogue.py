"""Aliases, listings and descriptions on a real cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

import tensorcast as tc
from tests.support.cluster import Cluster

SMALL, LARGE = torch.arange(100), torch.arange(100_000)


@pytest.fixture
def two(rt: tc.Runtime, tmp_path: Path) -> Iterator[Path]:
    """`list/small` from memory, `list/large` from the file whose path it is."""
    path = tmp_path / "large.safetensors"
    safetensors.torch.save_file({"w": LARGE}, path)
    rt.put({"a": SMALL, "b": SMALL + 1}, "list/small")
    rt.put(path, "list/large")
    yield path
    for art_id in ("list/small", "list/large"):
        rt.delete(art_id)


@pytest.fixture
def alias(cluster: Cluster, two: Path) -> Iterator[str]:
    cluster.cli("alias", "list/now", "list/small")
    yield "list/now"
    cluster.cli("alias", "--rm", "list/now", check=False)


def ids(cluster: Cluster, *words: str) -> list[str]:
    return cluster.cli("ls", "list/", "-q", *words).stdout.split()


def record(cluster: Cluster, *words: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(cluster.cli(*words, "--json").stdout)
    return found


def test_lists_are_sorted_and_narrowed(cluster: Cluster, two: Path) -> None:
    assert ids(cluster) == ["list/large", "list/small"]
    assert ids(cluster, "--reverse") == ["list/small", "list/large"]
    assert ids(cluster, "--sort", "tensors") == ["list/small", "list/large"]
    assert ids(cluster, "--sort", "size", "--min-size", "100KiB") == ["list/large"]
    assert ids(cluster, "--tier", "file") == ["list/large"]
    assert ids(cluster, "--tier", "host", "--node", "a") == ["list/large", "list/small"]
    assert ids(cluster, "--node", "nowhere") == []
    assert ids(cluster, "--ownership", "lease") == []
    assert (
        "no artifacts that begin with 'list/' of those asked for"
        in cluster.cli("ls", "list/", "--tier", "lease").stdout
    )


def test_an_alias_is_set_shown_listed_moved_and_removed(cluster: Cluster, alias: str) -> None:
    shown = cluster.cli("alias", alias).stdout
    assert shown.startswith("list/now -> list/small, rev:")
    revision = shown.partition("rev:")[2].partition(",")[0]
    assert cluster.cli("alias", alias, "-q").stdout == "list/small\n"
    assert "list/now" in cluster.cli("alias").stdout and "list/now" in cluster.cli("alias", "-q").stdout.split()
    moved = cluster.cli("alias", alias, "list/large", "--expect", f"rev:{revision}").stdout
    assert moved.startswith("list/now -> list/large, rev:")
    assert record(cluster, "alias", alias)["art_id"] == "list/large"
    assert cluster.cli("alias", "--rm", alias, "--expect", "list/large").stdout == "removed alias list/now\n"
    gone = cluster.cli("alias", alias, check=False)
    assert gone.returncode == 1 and "[NotFound]" in gone.stderr


@pytest.mark.parametrize("expected", ["none", "list/large", "rev:1"])
def test_an_alias_that_is_not_as_expected_stays(cluster: Cluster, alias: str, expected: str) -> None:
    for words in (("alias", alias, "list/large", "--expect", expected), ("alias", "--rm", alias, "--expect", expected)):
        done = cluster.cli(*words, check=False)
        assert done.returncode == 1 and "[Conflict]" in done.stderr and "list/small" in done.stderr
    assert record(cluster, "alias", alias)["art_id"] == "list/small"


def test_an_alias_stands_for_its_artifact_in_get_and_describe(cluster: Cluster, alias: str, tmp_path: Path) -> None:
    cluster.cli("get", alias, str(tmp_path / "x.safetensors"))
    assert torch.equal(safetensors.torch.load_file(tmp_path / "x.safetensors")["a"], SMALL)
    shown = cluster.cli("describe", alias).stdout
    assert shown.startswith("list/now -> list/small (an alias, rev:") and "\nlist/small: " in shown
    listed = cluster.cli("ls", "list/", "--aliases").stdout.splitlines()
    assert listed[0].split()[-1] == "ALIASES"
    assert listed[2].startswith("list/small ") and listed[2].split()[-1] == "list/now"
    named = json.loads(cluster.cli("ls", "list/", "--aliases", "--json").stdout)
    assert {r["art_id"]: r["aliases"] for r in named} == {"list/large": [], "list/small": ["list/now"]}


def test_removing_an_alias_as_if_it_were_an_artifact_tells_how(cluster: Cluster, alias: str, rt: tc.Runtime) -> None:
    done = cluster.cli("rm", alias, check=False)
    assert done.returncode == 1
    assert "tensorcast alias --rm list/now" in done.stderr and "tensorcast rm list/small" in done.stderr
    assert torch.equal(rt.artifact("list/small").tensor("a"), SMALL)
    assert record(cluster, "alias", alias)["art_id"] == "list/small"


def test_what_is_described_has_sources_digests_and_owner(cluster: Cluster, two: Path) -> None:
    shown = cluster.cli("describe", "list/large").stdout
    assert "owned by the system" in shown and f"from file {two.resolve()}" in shown and "DIGEST" not in shown
    found = record(cluster, "describe", "list/large")
    assert found["sources"] == [str(two.resolve())]
    assert isinstance(found["tensors"], list) and len(found["tensors"][0]["digest"]) == 32
    digest = found["tensors"][0]["digest"]
    for option in ("--digests", "--all"):
        assert digest in cluster.cli("describe", "list/large", option).stdout
    assert record(cluster, "describe", "list/small")["sources"] == []


def test_a_file_that_was_loaded_by_path_is_told_by_its_id(cluster: Cluster, two: Path) -> None:
    tc.load_file(two)
    art_id = next(r["art_id"] for r in json.loads(cluster.cli("ls", "file:", "--json").stdout))
    assert "from file" in cluster.cli("describe", art_id).stdout


def test_a_registered_tensor_is_shown_with_what_is_left_of_its_lease(cluster: Cluster, rt: tc.Runtime) -> None:
    with rt.register({"w": LARGE}, "list/leased", ttl_s=60):
        assert ids(cluster, "--ownership", "lease") == ["list/leased"]
        assert ids(cluster, "--tier", "lease") == ["list/leased"]
        shown = cluster.cli("describe", "list/leased").stdout
        assert "leased by" in shown and " left" in shown and "I64" in shown
        here = record(cluster, "describe", "list/leased")["here"]
        assert isinstance(here, dict) and 0 < here["lease_left_ms"] <= 60_000
        assert "LEASES" in cluster.cli("status").stdout
    assert ids(cluster, "--ownership", "lease") == []


def test_a_durable_put_is_on_disk_and_shown_so(cluster: Cluster, two: Path) -> None:
    cluster.cli("put", str(two), "list/durable", "--durable")
    assert ids(cluster, "--tier", "disk") == ["list/durable"]
    assert "on disk" in cluster.cli("describe", "list/durable").stdout
    shown = cluster.cli("status").stdout
    assert "DISK" in shown and not re.search(r"\d{7,}", shown.partition("STORAGE")[2]), "sizes are for people"
    cluster.cli("rm", "list/durable")
