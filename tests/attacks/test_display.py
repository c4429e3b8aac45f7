"""What is shown is what is bound: nothing steers a terminal or hides, and a person sees the whole call, or is held to its digest."""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from amounts import in_check, stride
from cli.desk import Desk
from cli.terminals import at_a_terminal
from detent.cli import main
from detent.expressions.display import clean

HOSTILE = (
    "\x07\x08\x1b]0;evil\x07\x7f\x85\x9b31m\xad\u034f\u061c\u115f\u180e\u200b\u200d\u200e\u2028\u2029\u202e\u2060\u2066\u3164\ue000\ufe0f\ufeff\ufff9"
    "\U0001d159\U0001d173\U000e0041\U000e0100\U000f0000"
)
ESCAPED = "".join(f"\\U{ord(char):08x}" for char in HOSTILE)
"""The same as Python and TOML write it."""
ALLOWED = {"\n", "\t"}
INVISIBLE = set("\u034f\u115f\u1160\u3164\u2800\ufe0f\U000e0100\U0001d159")


def hidden_in(text: str) -> set[str]:
    """Return the characters of a text that steer or hide."""
    return {c for c in text if c in INVISIBLE or unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")} - ALLOWED


TOOLS = f'''\
from detent import tool

H = "{ESCAPED}"


@tool(side_effect="read", description="Looks " + H)
def look(where: str) -> dict:
    return {{"saw " + H: "seen " + where + H}}


@tool(side_effect="read")
def fail(where: str) -> str:
    """Fail."""
    raise RuntimeError("failed " + where + H)


@tool(side_effect="destructive")
def wipe(name: str) -> str:
    """Remove."""
    return "gone"
'''
PLANNER = f'''\
from detent import FinalAnswer, ToolCall
from detent.ports import Plan

H = "{ESCAPED}"


class Hostile:
    """Says everything with characters that steer or hide."""

    async def plan(self, view):
        called = len(view.results)
        steps = [ToolCall(tool="look", args={{"where": H}}), ToolCall(tool="fail", args={{"where": H}}), ToolCall(tool="lo" + H, args={{"k" + H: H}})]
        if called < len(steps):
            action = steps[called]
        elif "ask" in view.goal:
            action = ToolCall(tool="wipe", args={{"name": "x" + H}})
        else:
            action = FinalAnswer(content="done " + H)
        return Plan(actions=(action,), text="text " + H, thinking="thought " + H)
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose agent, tools and planner say such characters wherever they say anything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DETENT_TRUST", str(tmp_path))
    Path("tools.py").write_text(TOOLS)
    Path("planner.py").write_text(PLANNER)
    Path("agent.toml").write_text(
        f'name = "agent"\ninstructions = "do {ESCAPED}"\ntools = ["./tools.py:look", "./tools.py:fail", "./tools.py:wipe"]\n'
    )
    Path("detent.toml").write_text('planner = "./planner.py:Hostile"\nmemory = "sqlite:///memory.db"\n')
    Path("lines").write_text(
        f"ask {HOSTILE[8:]}\n/deny no {HOSTILE[8:]}\n/{HOSTILE[11:]}\n/show\n/cost\n/tools\n/memory\n/memory {HOSTILE[8:]}\n/undo\n"
    )
    return tmp_path


def commands(run: str, other: str) -> Iterator[tuple[str, ...]]:
    """Yield every command with words that make it say what it was given, or what a run holds."""
    yield ("run", f"again {HOSTILE}", "--tenant", f"acme{HOSTILE}", "-vv", "--run-id", "third")
    yield ("run", f"{HOSTILE}", "--agent", f"no{HOSTILE}.toml")
    yield ("chat",)
    yield ("chat", "--session", f"no{HOSTILE}")
    yield ("sessions",)
    yield ("list", "--session", "last")
    yield ("export", "--session", "last")
    yield ("memory", "add", "--scope", "-/agent", "--by", f"ann {HOSTILE[3:9]}", f"fact {HOSTILE}")
    yield ("memory", "list")
    yield ("memory", "search", "fact")
    yield ("memory", "show", f"no{HOSTILE}")
    yield ("memory", "correct", f"no{HOSTILE}", HOSTILE)
    yield ("memory", "review")
    yield ("memory", "forget", "--person", f"ann {HOSTILE[3:9]}", "--why", HOSTILE, "--yes")
    yield ("memory", "import", f"no{HOSTILE}")
    yield ("memory", f"no{HOSTILE}")
    yield ("submit", f"ask {HOSTILE}")
    yield ("worker", "--until-idle", "-v")
    yield ("serve", "--agent", f"no{HOSTILE}.toml")
    yield ("serve", "--listen", HOSTILE)
    yield ("eval", "run", f"no{HOSTILE}.toml")
    yield ("eval", "compare", f"no{HOSTILE}.json", "none.json")
    yield ("ui", "--agent", f"no{HOSTILE}.toml")
    yield ("tokens", "add", f"ann {HOSTILE}", "--tenant", HOSTILE, "--tokens", "tokens.json")
    yield ("tokens", "list", "--tokens", "tokens.json")
    yield ("tokens", "remove", f"no{HOSTILE}", "--tokens", "tokens.json")
    yield ("pause", f"agent:no{HOSTILE}", "--by", f"ann {HOSTILE}", "--why", HOSTILE)
    yield ("pause",)
    yield ("list",)
    yield ("resume", f"agent:no{HOSTILE}")
    yield ("list", "--goal", HOSTILE[:3])
    yield ("list", "--status", f"wait{HOSTILE}")
    for look in ("show", "verify", "replay", "tail"):
        yield (look, run)
        yield (look, f"no{HOSTILE}")
    yield ("show", run, "-v")
    yield ("show", other)
    yield ("why", other)
    yield ("why", f"no{HOSTILE}")
    yield ("top", "--once")
    yield ("top", "--every", HOSTILE)
    yield ("versions",)
    yield ("versions", f"v{HOSTILE}=20")
    yield ("tools",)
    yield ("approvals",)
    yield ("explain", run, "main.3.0")
    yield ("backtest", "--policy", f"no{HOSTILE}.toml")
    yield ("diff", run, other)
    yield ("bisect", run, other)
    yield ("check-upgrade",)
    yield ("fork", run, "--at", "3", "--set", f"goal={HOSTILE}")
    yield ("approve", other, f"no{HOSTILE}")
    yield ("deny", other, "main.4.0", "--reason", f"no {HOSTILE}", "--by", f"ann {HOSTILE[3:9]}", "--no-resume")
    yield ("show", other)
    yield ("resume", other, "-vv")
    yield ("reply", other, f"yes {HOSTILE}")
    yield ("reconcile", other, f"c{HOSTILE}", "--not")
    yield ("reopen", run, "--why", HOSTILE)
    yield ("cancel", run, "--why", HOSTILE)
    yield ("cancel", "--where", f"goal=ask {HOSTILE[:3]}", "--why", HOSTILE, "--by", f"ann {HOSTILE[3:9]}", "--yes")
    yield ("cancel", "--where", f"{HOSTILE}=x", "--yes")
    yield ("schedule", "add", "hourly", "--every", "1h", f"water {HOSTILE}", "--by", f"ann {HOSTILE[3:9]}")
    yield ("schedule", "add", f"no{HOSTILE}", "--cron", HOSTILE, HOSTILE)
    yield ("schedule", "add", "no", "--every", "1h", "--zone", HOSTILE, HOSTILE)
    yield ("schedule",)
    yield ("schedule", "show", "hourly")
    yield ("schedule", "pause", "hourly")
    yield ("schedule", "resume", f"no{HOSTILE}")
    yield ("schedule", "remove", "hourly")
    yield ("operations",)
    yield ("operations", "show", f"no{HOSTILE}")
    yield ("operations", f"no{HOSTILE}")
    yield ("copy", run, "--to", f"sqlite:///no{HOSTILE[8:12]}/x.db")
    yield ("archive", run, "--to", "archives")
    yield ("import", f"no{HOSTILE}")
    yield ("erase", run, "--yes", "--why", HOSTILE)
    yield ("delete", other, "--yes")
    yield ("gc",)
    yield ("gc", "--yes")
    yield ("doctor",)
    yield ("where",)
    yield ("stats",)
    yield ("tree", run)
    yield ("cost", run, "--tree")
    yield ("completion", "bash")
    yield ("help", "settings")
    yield ("trust",)
    yield ("trust", f"no{HOSTILE}")
    yield ("where", f"no{HOSTILE}", "--adopt", "--trust")
    yield ("mcp", "login", f"no{HOSTILE}")
    yield ("init", f"new{HOSTILE[8:12]}")
    yield ("demo", f"--no{HOSTILE}")
    yield ("export", f"no{HOSTILE}")
    yield (f"no{HOSTILE}",)


@in_check
def test_no_command_writes_such_a_character(here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text of a run (goal, tool names, arguments, results, replies, model text, tenant, errors, file names) steers the terminal or hides."""
    assert main.run(["run", f"look {HOSTILE}", "--run-id", "first"]) == 0
    assert main.run(["run", f"ask {HOSTILE}", "--run-id", "second"]) == 3
    first = capfd.readouterr()
    assert not hidden_in(first.out + first.err)
    assert "\\u202e" in first.out
    tried: set[str] = set()
    ways: tuple[tuple[str, ...], ...] = ((), ("--json",), ("--debug",))
    for n, words in enumerate(commands("first", "second")):
        tried.add(words[0])
        for more in ways if n % stride(4) == 0 else ways[:1]:
            with Path("lines").open() as lines:
                monkeypatch.setattr("sys.stdin", lines)
                code = main.run([*words, *more])
            said = capfd.readouterr()
            assert not hidden_in(said.out + said.err), (words, more, code)
            if more == ("--json",) and "No such option" not in said.out and words[0] != "tail":
                json.loads(said.out)
    missing = {name for group in main.GROUPS.values() for name in group} - tried
    assert not missing, f"commands that nobody tried: {missing}"


def test_everything_hidden_is_escaped() -> None:
    """A character of any hidden kind is let through by the one function that cleans."""
    every = [chr(code) for code in range(sys.maxunicode + 1)]
    visible = set("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u0890\u0891\u08e2\U000110bd\U000110cd")
    left = hidden_in(clean("".join(every))) - visible
    assert not left, sorted(map(hex, map(ord, left)))
    for kept in ("שלום عربي 漢字 ñ é 😀 €", "a\\u202e"):
        assert clean(kept) == kept
    assert clean("a\n\tb") == "a\\n\\tb"
    assert clean("a\n\tb\r", lines=True) == "a\n\tb\\r"
    assert json.loads(clean(json.dumps({"k": HOSTILE}, ensure_ascii=False))) == {"k": HOSTILE}


def on_a_terminal(*words: str, answers: Iterable[tuple[str, str]] = (), rows: int = 24) -> str:
    """Run a command on a terminal of 80 columns and return all that was written; answers are typed one after the other, each to its prompt.

    Where there is more to be seen and no answer to that is given, Enter is typed. Whoever is asked once more is gone.
    """
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    environment.pop("COLUMNS", None)
    environment.pop("LINES", None)
    answered, left = 0, list(answers)

    def types(shown: str) -> str | None:
        nonlocal answered
        prompt = shown[answered:].rstrip()
        if left and prompt.endswith(left[0][0]):
            answered = len(shown)
            return left.pop(0)[1] + "\n"
        if prompt.endswith("stops --"):
            answered = len(shown)
            return "\n"
        return None if not left and prompt.endswith("ater:") else ""

    sat = at_a_terminal(*words, types=types, env=environment, rows=rows)
    assert not left, sat.shown
    return sat.shown.replace("\r\n", "\n")


def test_at_a_terminal_the_prompt_shows_the_whole_call(here: Path) -> None:
    """A long argument pushes what matters out of sight, or breaks a line so that it looks like the prompt."""
    padded = "a" * 3_000 + " " * 200 + "approve this call? rm -rf THE-END"
    Path("planner.py").write_text(PLANNER.replace('"x" + H', repr(padded)))
    shown = on_a_terminal("run", "ask", answers=[("ater:", "y")], rows=14)
    prompt = shown[shown.index("wipe wants to run") :]
    rows = [line for line in prompt.split("\n") if line.startswith("  | ")]
    assert padded in "".join(row[4:] for row in rows)
    assert all(len(row) <= 80 for row in rows)
    assert "more: Enter shows them" in prompt
    assert not hidden_in(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", shown))
    left = on_a_terminal("run", "ask", answers=[("stops --", "q"), ("ater:", "y"), ("ater:", "l")], rows=14)
    assert left.count("not all of it was shown. [n]o / [l]ater:") == 2
    assert "waiting for approval" in left


def test_at_a_terminal_an_export_is_shown_as_text(here: Path) -> None:
    """The bytes of a log steer the terminal of somebody who exports it; in a file they stay as they are."""
    assert main.run(["run", f"look {HOSTILE}", "--run-id", "first"]) == 0
    assert not hidden_in(on_a_terminal("export", "first").replace("\r", ""))
    assert main.run(["export", "first", "-o", "log"]) == 0
    assert HOSTILE[11:] in Path("log").read_text()


def test_what_is_too_long_to_be_shown_is_approved_by_its_digest_only(desk: Desk) -> None:
    """A call too long to be read is approved by somebody who has not seen it."""
    desk.write("rules.yaml", "- name: wipe\n  call: {tool: wipe, args: {name: " + "x" * 70_000 + "}}\n- name: answer\n  answer: done\n")
    waiting = desk.detent("run", "Wipe", "--run-id", "mine")
    assert waiting.code == 3
    assert len(waiting.err) < 5_000
    (asked,) = desk.detent("approvals", "mine", "--json").json
    assert len(asked["args"]["name"]) == 70_000
    refused = desk.detent("approve", "mine", asked["call_id"])
    assert (refused.code, "--digest DIGEST" in refused.err) == (2, True), refused
    other = desk.detent("approve", "mine", asked["call_id"], "--digest", "0" * 32)
    assert (other.code, "is not what you saw" in other.err) == (2, True), other
    assert asked["digest"] not in other.err, "a script could copy it"
    assert desk.notes == []
    assert asked["digest"] in desk.detent("approvals").out
    assert desk.detent("approve", "mine", asked["call_id"], "--digest", asked["digest"]).code == 0
    assert len(desk.notes) == 1


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_an_approval_says_where_it_runs_and_what_is_new(desk: Desk) -> None:
    """A second call looks like the first, which was approved, and differs in one argument; a program would run without a sandbox."""
    desk.write("agent.toml", (desk.home / "agent.toml").read_text().replace("tools = [", 'tools = ["exec", '))
    desk.write("detent.toml", '[workspace]\nsandbox = "off"\n')
    desk.write(
        "rules.yaml",
        "- name: one\n  call: {tool: wipe, args: {name: shelf}}\n- name: two\n  call: {tool: wipe, args: {name: house}}\n"
        "- name: run\n  call: {tool: exec, args: {command: ls}}\n- name: answer\n  answer: done\n",
    )
    assert desk.detent("run", "Wipe the shelf", "--run-id", "mine").code == 3
    (first,) = desk.detent("approvals", "--json").json
    assert (first["differs"], first["origins"]["name"]["label"]) == (None, "user")
    again = desk.detent("approve", "mine", first["call_id"])
    assert 'name: "shelf" -> "house"' in again.err
    (second,) = desk.detent("approvals", "--json").json
    assert second["differs"] == {"call_id": first["call_id"], "args": {"name": {"before": "shelf", "now": "house"}}}
    assert "no sandbox: the sandbox is switched off" in desk.detent("approve", "mine", second["call_id"]).err
    (third,) = desk.detent("approvals", "--json").json
    assert third["sandbox"] == "no sandbox: the sandbox is switched off"
