"""What can be said on the command line, how it is shown, and what saying it costs."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from tensorcast.cli import render
from tensorcast.cli.alias import expectation
from tensorcast.cli.catalog import chosen
from tensorcast.cli.main import main
from tensorcast.cli.transfer import line
from tensorcast.cli.words import Words, parse
from tensorcast.records import UNSET, AliasRecord, ArtifactRecord
from tensorcast_bus.messages import ArtifactRow

HELP_CPU_S_MAX = 0.3


def test_global_options_stand_before_or_behind_the_command() -> None:
    wanted = Words("ls", cluster="x", json=True, quiet=True, prefix="a/")
    assert parse(["--cluster", "x", "--json", "-q", "ls", "a/"]) == wanted
    assert parse(["ls", "a/", "--cluster", "x", "--json", "-q"]) == wanted


def test_up_takes_nodes_and_settings() -> None:
    words = parse(
        ["up", "--detach", "--node", "a", "--node", "b", "--set", "storage.host_bytes_max=8GiB", "--set=x.y=1"]
    )
    assert words.detach and words.nodes == ("a", "b")
    assert words.settings == ("storage.host_bytes_max=8GiB", "x.y=1")


def test_put_and_get_take_their_arguments_in_the_documented_order() -> None:
    assert (parse(["put", "f", "id"]).path, parse(["put", "f", "id"]).art_id) == ("f", "id")
    assert (parse(["get", "id", "f"]).path, parse(["get", "id", "f"]).art_id) == ("f", "id")
    assert parse(["put", "f", "id", "--deadline", "1.5"]).deadline_ms == 1500


def test_a_node_given_twice_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["up", "--node", "a", "--node", "a"])
    assert "--node a is given twice" in capsys.readouterr().err


def test_help_of_up_says_that_settings_stay(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["up", "--help"])
    assert "tensorcast.toml and stays" in " ".join(capsys.readouterr().out.split())


def test_aliases_are_set_shown_listed_and_removed_by_one_command() -> None:
    assert parse(["alias"]) == Words("alias")
    assert parse(["alias", "n"]) == Words("alias", alias="n")
    assert parse(["alias", "n", "id", "--expect", "none"]) == Words("alias", alias="n", art_id="id", expect="none")
    assert parse(["alias", "--rm", "n", "--expect", "rev:7"]) == Words("alias", alias="n", remove=True, expect="rev:7")


def test_what_is_expected_of_an_alias_is_an_id_nothing_or_a_setting() -> None:
    assert expectation("n", None) is UNSET
    assert expectation("n", "none") is None
    assert expectation("n", "a@1") == "a@1"
    assert expectation("n", "rev:12") == AliasRecord("n", "", 12, 0)


def test_lists_are_narrowed_and_ordered_by_words() -> None:
    words = parse(["ls", "a/", "--sort", "size", "--reverse", "--tier", "disk", "--node", "b", "--min-size", "1.5MiB"])
    wanted = Words("ls", prefix="a/", sort="size", reverse=True, tier="disk", on_node="b", min_bytes=3 << 19)
    assert words == wanted


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4096", 4096), ("8GiB", 8 << 30), ("8 gib", 8 << 30), ("2KB", 2000), ("1.5M", 1_500_000), ("10B", 10), ("0", 0)],
)
def test_sizes_are_taken_as_people_write_them(text: str, nbytes: int) -> None:
    assert parse(["ls", "--min-size", text]).min_bytes == nbytes


def record(art_id: str, nbytes: int, places: tuple[str, ...], **more: object) -> ArtifactRecord:
    fields = {"tensors": 1, "created_ms": 1, "ownership": "system"} | more
    return msgspec.convert(
        {"art_id": art_id, "digest": "d", "nbytes": nbytes, "places": places} | fields, ArtifactRecord
    )


RECORDS = [
    record("b", 10, ("a:host", "b:disk"), created_ms=3),
    record("a", 20, ("a:host",), created_ms=1, tensors=9),
    record("d", 5, ("b:lease",), created_ms=2, ownership="lease"),
    record("c", 20, (), created_ms=4),
]


@pytest.mark.parametrize(
    ("said", "ids"),
    [
        ([], "abcd"),
        (["--reverse"], "dcba"),
        (["--sort", "size"], "acbd"),
        (["--sort", "age"], "cbda"),
        (["--sort", "tensors"], "abcd"),
        (["--tier", "host"], "ab"),
        (["--tier", "host", "--node", "b"], ""),
        (["--tier", "disk", "--node", "b"], "b"),
        (["--node", "b"], "bd"),
        (["--min-size", "10", "--sort", "size", "--reverse"], "bca"),
        (["--ownership", "lease"], "d"),
    ],
)
def test_what_is_listed_is_what_was_asked_for_in_its_order(said: list[str], ids: str) -> None:
    assert "".join(r.art_id for r in chosen(RECORDS, parse(["ls", *said]))) == ids


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly"],
        ["put", "x"],
        ["ls", "a", "b"],
        ["up", "--set", "nonsense"],
        ["logs", "-n", "-3"],
        ["put", "a", "b", "--deadline", "0"],
        ["put", "a", "b", "--deadline", "nan"],
        ["rm"],
        ["up", "--node", "a", "--node", "b", "--node", "a"],
        ["ls", "--sort", "colour"],
        ["ls", "--tier", "tape"],
        ["ls", "--min-size", "big"],
        ["ls", "--ownership", "mine"],
        ["alias", "--rm"],
        ["alias", "--rm", "name", "id"],
        ["alias", "name", "--expect", "none"],
        ["alias", "name", "id", "--expect", "rev:x"],
        ["alias", "name", "id", "--expect", ""],
        ["alias", "a", "b", "c"],
        ["doctor", "x"],
    ],
)
def test_words_that_make_no_sense_end_with_usage_and_code_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["status"],
        ["ls"],
        ["down"],
        ["describe", "x"],
        ["put", "/x", "x"],
        ["get", "x", "/x"],
        ["rm", "x"],
        ["logs"],
        ["alias"],
        ["alias", "x"],
        ["alias", "x", "y"],
        ["alias", "--rm", "x"],
    ],
)
def test_without_a_cluster_every_command_ends_with_code_3(
    argv: list[str], tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("NATS_URL", raising=False)
    assert main(argv) == 3
    assert "NotConnected" in capsys.readouterr().err
    assert main([*argv, "--json"]) == 3
    assert msgspec.json.decode(capsys.readouterr().err)["error"]["code"] == "NotConnected"


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom tensorcast.cli.main import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(*(m for m in ('torch', 'numpy', 'nats', 'duckdb', 'msgspec') if m in sys.modules), file=sys.stderr)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    said, loaded = child.stdout.read(), child.stderr.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    child.stdout.close()
    child.stderr.close()
    assert child.returncode == 0 and b"exit codes" in said
    assert loaded.split() == []
    assert used.ru_utime + used.ru_stime < HELP_CPU_S_MAX


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (1 << 60, "1024.0 PiB")],
)
def test_sizes_are_for_people(nbytes: int, shown: str) -> None:
    assert render.size(nbytes) == shown


@pytest.mark.parametrize(
    ("ms", "shown"), [(3, "3 ms"), (1500, "2 s"), (90_000, "2 min"), (7.2e6, "2 h"), (3e8, "3 d"), (0, "0 ms")]
)
def test_spans_are_for_people(ms: float, shown: str) -> None:
    assert render.span(ms) == shown


def test_columns_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    render.table(("ID", "SIZE"), [("a", "1 B"), ("longer", "10 KiB")], right=frozenset({1}))
    assert capsys.readouterr().out == "ID        SIZE\na          1 B\nlonger  10 KiB\n"


def test_json_has_fields_by_name_also_for_rows_of_the_wire(capsys: pytest.CaptureFixture[str]) -> None:
    render.as_json({"rows": (ArtifactRow("x", "d", 1, 2, "", 3),)})
    assert msgspec.json.decode(capsys.readouterr().out)["rows"][0]["art_id"] == "x"


def test_progress_tells_rate_and_what_is_left() -> None:
    assert line(1 << 30, 2 << 30, 2.0) == "1.0 GiB of 2.0 GiB (50 %), 512.0 MiB/s, 2 s left"
    assert line(0, 1 << 20, 0.0) == "0 B of 1.0 MiB (0 %), 0 B/s"
