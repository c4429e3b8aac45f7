"""`[[verify]]` in agent files, through the command line: what is listed, run, shown, protected and resumed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from detent.cli.main import run
from detent.core.errors import ToolFailed
from detent.tools.workspace import files
from detent.tools.workspace import sandbox as boxes
from detent.tools.workspace.confine import Workspace

AGENT = """\
name = "clerk"
rules = [
  {name = "late", when = "iteration > 1", answer = "7, source: the report"},
  {name = "early", answer = "7"},
]
[[verify]]
function = "./checks.py:cites"
[[verify]]
expression = "size(answer) < 100"
"""
CHECKS = """\
def cites(answer, view):
    "Want a source."
    return None if "source" in answer else "name the source"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trusted directory with an agent whose answers are checked."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "agent.toml").write_text(AGENT)
    (home / "checks.py").write_text(CHECKS)
    monkeypatch.chdir(home)
    monkeypatch.setenv("DETENT_TRUST", str(home))
    return home


def test_an_agent_file_checks_its_answers_and_show_says_so(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The function is imported beside the file; verdicts and objections are shown."""
    assert run(["run", "Count", "--store", "sqlite:///r.db"]) == 0
    assert "answer not accepted (function cites): name the source" in capsys.readouterr().err
    assert run(["show", "last", "--store", "sqlite:///r.db"]) == 0
    shown = capsys.readouterr().out
    assert "check function cites: objects: name the source" in shown and "check expression: accepted" in shown
    assert "answer not accepted by function cites: name the source" in shown
    assert run(["replay", "last", "--store", "sqlite:///r.db"]) == 0


def test_another_process_resumes_it_from_its_log(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The import path is in the log, and counts where the directory is trusted."""
    assert run(["submit", "Count", "--store", "sqlite:///r.db"]) == 0
    sys.modules.pop(next(name for name in sys.modules if name.startswith("detent_file_checks_")))
    assert run(["resume", "last", "--store", "sqlite:///r.db"]) == 0
    assert "7, source: the report" in capsys.readouterr().out


def test_a_command_checks_without_being_a_tool_of_the_agent(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The workspace gets the tool that runs it, and the agent does not; another process resumes it, too."""
    if boxes.probe().why:
        pytest.skip("there is no sandbox here")
    (place / "check.py").write_text("import json, sys\nsys.exit('no source' if 'source' not in json.load(sys.stdin)['answer'] else 0)\n")
    (place / "agent.toml").write_text(AGENT.replace('function = "./checks.py:cites"', 'command = ["python3", "check.py"]'))
    assert run(["run", "Count", "--store", "sqlite:///r.db"]) == 0
    assert "answer not accepted (command python3): the check failed (code 1): no source" in capsys.readouterr().err
    assert run(["submit", "Count", "--store", "sqlite:///r.db"]) == 0
    assert run(["resume", "last", "--store", "sqlite:///r.db"]) == 0


def test_trust_lists_what_checks_import_and_start(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody who looks before they trust sees it."""
    (place / "agent.toml").write_text(AGENT + '[[verify]]\ncommand = ["python3", "check.py"]\n')
    run(["trust"])
    told = capsys.readouterr()
    said = told.out + told.err
    assert "./checks.py:cites" in said and "python3 check.py, in the sandbox" in said


def test_the_files_of_checks_govern(place: Path) -> None:
    """An agent that could write them would pass every check."""
    (place / "check.py").write_text("")
    (place / "agent.toml").write_text(AGENT + '[[verify]]\ncommand = ["python3", "check.py"]\n')
    from detent.config.demands import govern

    govern(place / "agent.toml")
    for name in ("check.py", "checks.py"):
        with pytest.raises(ToolFailed) as refused:
            files.write_file(Workspace(place), name, "", force=True)
        assert refused.value.error_code == "protected_path", name


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ('function = "./checks.py:gone"', "gone"),
        ('function = "./checks.py:__doc__"', "expected a function"),
        ("grounded = 3", "verify 3: grounded"),
        ('rubic = "x"', "rubric"),
    ],
)
def test_what_is_wrong_in_an_entry_is_said_with_file_and_number(
    entry: str, problem: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, no traceback."""
    (place / "agent.toml").write_text(f"{AGENT}[[verify]]\n{entry}\n")
    assert run(["run", "Count", "--store", "sqlite:///r.db"]) == 2
    said = capsys.readouterr().err
    assert "agent.toml" in said and problem in said and "Traceback" not in said
