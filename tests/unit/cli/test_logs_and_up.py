"""Reading logs while others write and rotate them, and the folders that `up` makes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tensorcast.cli import logs
from tensorcast.cli.logs import _Log, _more, _tail
from tensorcast.cli.up import _log_path
from tensorcast.cli.words import Words
from tensorcast.errors import NotFound, TensorCastError


def test_the_last_lines_are_found_in_a_file_longer_than_one_block(tmp_path: Path) -> None:
    path = tmp_path / "p.log"
    path.write_text("".join(f"line {n} {'x' * 100}\n" for n in range(5000)))
    found = _tail(_Log("p", str(path)), 700)
    assert len(found) == 700 and found[0].startswith("line 4300 ") and found[-1].startswith("line 4999 ")
    assert _tail(_Log("p", str(path)), 0) == []


def test_lines_are_followed_across_growth_and_rotation(tmp_path: Path) -> None:
    path = tmp_path / "p.log"
    path.write_text("one\n")
    log = _Log("p", str(path))
    assert _tail(log, 10) == ["one"] and _more(log) == []
    with path.open("a") as file:
        file.write("two\nthr")
        file.flush()
        assert _more(log) == ["two"]
        file.write("ee\n")
        file.flush()
        assert _more(log) == ["three"]
    path.rename(tmp_path / "p.log.1")
    assert _more(log) == []
    path.write_text("four\n")
    assert _more(log) == ["four"]
    path.write_text("5\n")
    assert _more(log) == ["5"]


def test_an_unknown_process_is_refused_with_those_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "tensorcast" / "x" / "logs"
    folder.mkdir(parents=True)
    (folder / "storage-a.log").write_text("hello\n")
    with pytest.raises(NotFound, match="storage-a"):
        logs.logs(Words("logs", cluster="x", process="storage"))


def test_the_logs_of_a_stopped_cluster_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "tensorcast" / "x" / "logs"
    folder.mkdir(parents=True)
    (folder / "a.log").write_text("hello\n")
    (folder / "b.log").write_text("there\n")
    assert logs.logs(Words("logs", cluster="x")) == 0
    assert [row.split() for row in capsys.readouterr().out.splitlines()] == [["a", "hello"], ["b", "there"]]


def test_logs_as_json_are_one_object_a_line_whatever_was_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "tensorcast" / "x" / "logs"
    folder.mkdir(parents=True)
    (folder / "a.log").write_text('{"event": "ready", "process": "other", "n": 1}\n[1, 2]\n')
    (folder / "b.log").write_bytes(b'plain "text" \xff\n{"cut": \n')
    assert logs.logs(Words("logs", cluster="x", json=True)) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"process": "a", "event": "ready", "n": 1},
        {"process": "a", "line": "[1, 2]"},
        {"process": "b", "line": 'plain "text" \ufffd'},
        {"process": "b", "line": '{"cut": '},
    ]


def test_up_makes_folders_that_nobody_else_can_enter(tmp_path: Path) -> None:
    folder = tmp_path / "tensorcast" / "x"
    log = _log_path(str(folder))
    for made in (folder.parent, folder, folder / "logs"):
        assert made.stat().st_mode & 0o777 == 0o700
    assert log == str(folder / "logs" / "supervisor.log")


def test_up_refuses_folders_that_others_can_write(tmp_path: Path) -> None:
    folder = tmp_path / "tensorcast" / "x"
    folder.mkdir(parents=True)
    os.chmod(folder.parent, 0o777)
    with pytest.raises(TensorCastError, match="mode 777"):
        _log_path(str(folder))


def test_up_refuses_a_folder_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "tensorcast").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TensorCastError, match="folders must be yours"):
        _log_path(str(tmp_path / "tensorcast" / "x"))
