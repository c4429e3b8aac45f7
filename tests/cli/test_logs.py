"""The log of the process: `--log-level` and `--log-json` write it to stderr, and nothing of it reaches stdout."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

import pytest

from cli.desk import Desk

BAD = '''\
from detent import tool


@tool(side_effect="read")
def bad() -> str:
    """Fail."""
    raise KeyError("no \\x1b[31mkey")
'''
LINE = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+ (?P<level>[A-Z]+) (?P<logger>[\w.]+): (?P<message>.*)$", re.MULTILINE)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """An agent whose tool raises."""
    desk = Desk(tmp_path)
    desk.write("bad.py", BAD)
    desk.write("agent.toml", 'name = "tester"\ntools = ["./bad.py:bad"]\nrules = "rules.yaml"\n')
    desk.write("rules.yaml", "- name: bad\n  call: {tool: bad}\n- name: answer\n  answer: done\n")
    return desk


def test_a_level_writes_the_log_with_the_traceback_to_stderr(desk: Desk) -> None:
    """The lines have time, level and logger. Whoever asks for the log sees where a tool failed; nobody else gets a traceback."""
    quiet, logged = desk.detent("run", "Go"), desk.detent("run", "Go", "--log-level", "warning")
    assert (quiet.code, logged.code) == (0, 0) and quiet.out == logged.out == "done\n"
    assert "Traceback" not in quiet.err and not LINE.search(quiet.err)
    (line,) = LINE.finditer(logged.err)
    assert (line["level"], line["logger"]) == ("ERROR", "detent") and "the tool 'bad', call main.1.0 raised KeyError" in line["message"]
    assert re.search(r'^  File ".*bad\.py", line 7, in bad$', logged.err, re.MULTILINE) and "\x1b" not in logged.err


def test_a_lower_level_writes_more(desk: Desk) -> None:
    """`debug` has what libraries say; `error` has the failed tool only; both come before or after the command."""
    everything = desk.detent("--log-level=DEBUG", "run", "Go")
    assert {line["level"] for line in LINE.finditer(everything.err)} == {"DEBUG", "ERROR"}
    assert {line["level"] for line in LINE.finditer(desk.detent("run", "Go", "--log-level=error").err)} == {"ERROR"}
    desk.write("rules.yaml", "- name: answer\n  answer: done\n")
    assert not LINE.search(desk.detent("run", "Go", "--log-level=error").err)


def test_json_is_one_object_a_line_with_the_traceback_apart(desk: Desk) -> None:
    """A collector reads time, level, logger and message, and the traceback under a key of its own, not as part of the message."""
    done = desk.detent("run", "Go", "--json", "--log-json")
    assert done.json["status"] == "completed"
    (line,) = [json.loads(line) for line in done.err.splitlines() if line.startswith("{")]
    assert set(line) == {"time", "level", "logger", "message", "traceback"}
    assert (line["level"], line["logger"]) == ("error", "detent") and datetime.fromisoformat(line["time"]).utcoffset() is not None
    assert "\n" not in line["message"] and line["message"].startswith("run ") and "bad.py:7 in bad" in line["message"]
    assert line["traceback"].startswith("Traceback (most recent call last):") and "in bad" in line["traceback"]
    assert "\x1b" not in done.err
    low = desk.detent("run", "Go", "--log-json", "--log-level", "debug").err.splitlines()
    assert {json.loads(line)["level"] for line in low if line.startswith("{")} == {"debug", "error"}


@pytest.mark.parametrize("words", [("--log-level", "loud", "list"), ("list", "--log-level=loud"), ("list", "--log-level")])
def test_an_unknown_level_is_refused_with_the_known_ones(desk: Desk, words: tuple[str, ...]) -> None:
    """Exit code 2 and one line, before the command does anything."""
    done = desk.detent(*words)
    said = "'loud'" if any("loud" in word for word in words) else "'(empty)'"
    assert (done.code, done.out, done.err) == (2, "", f"error: unknown --log-level {said}; known: debug, error, info, warning\n")
    assert not desk.store.exists()
