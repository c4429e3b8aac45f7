"""The commands: fork, diff, bisect, check-upgrade, and what the other commands show of a fork; as a user calls them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.desk import Desk
from detent.cli.forking import parse_edits
from detent.core.errors import ConfigError, UnknownName
from detent.running.people import me


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk whose agent writes two notes and answers."""
    desk = Desk(tmp_path)
    desk.steps("note", "second", "answer")
    return desk


def test_a_run_is_forked_shown_and_compared(desk: Desk) -> None:
    """By default nothing is done again; what was not executed is said; both runs are listed."""
    assert desk.detent("run", "write notes").code == 0
    run = desk.only_run()
    made = desk.detent("fork", run, "--at", "2", "--run-id", "branch")
    assert (made.code, desk.notes) == (0, ["one", "two"]), made.err
    assert f"forked: run branch continues from {run[:15]}" in made.err
    shown = desk.detent("show", "branch", "-v")
    assert shown.out.count("not executed: the outcome is that of the same call") == 2
    assert f"forked by {me()} from record 2 of run {run}; side effects: dry run" in shown.out
    trace = desk.detent("show", "branch", "--json").json
    assert [call["source"] for turn in trace["iterations"] for call in turn["calls"]] == ["recorded", "recorded"]
    assert desk.detent("replay", "branch").out.startswith("identical")
    same = desk.detent("diff", run, "branch")
    assert (same.code, same.out.strip()) == (0, f"no difference: {run[:15]} and branch did the same")
    assert desk.detent("diff", run, "branch", "--json").json["identical"] is True
    assert "no difference: both runs did the same" in desk.detent("bisect", run, "branch").out
    assert "recorded outcome of an ancestor" in desk.detent("explain", "branch", "main.1.0").out
    assert {head["run_id"] for head in desk.detent("list", "--json").json} == {run, "branch"}
    assert "completed" in desk.detent("tail", "branch").err
    assert desk.detent("delete", run, "--yes").code == 0
    assert desk.detent("show", "branch").code == desk.detent("verify", "branch").code == 0


def test_a_fork_of_an_erased_run_is_shown_as_what_it_is(desk: Desk) -> None:
    """Lists and `verify` say it, `show` says what can be done, and `erase` does that."""
    desk.detent("run", "write notes")
    run = desk.only_run()
    desk.detent("fork", run, "--at", "2", "--run-id", "branch", "--set", "goal=write less", "--no-resume")
    assert desk.detent("erase", run, "--yes").code == 0
    listed = desk.detent("list").out
    assert "write less (continues from an erased run)" in listed and "(erased)" in listed
    checked = desk.detent("verify", "branch")
    assert checked.code == 0 and f"it continues from run {run}, which was erased" in checked.out
    assert desk.detent("verify", "branch", "--json").json["parent_erased"] == run
    for command in (("show", "branch"), ("resume", "branch")):
        refused = desk.detent(*command)
        assert refused.code == 2 and "neither be read nor resumed" in refused.err and "detent erase branch" in refused.err
    assert desk.detent("erase", "branch", "--yes").code == 0
    assert "write less" not in desk.detent("list").out and "content erased" in desk.detent("verify", "branch").out


def test_edits_and_effects_are_options(desk: Desk) -> None:
    """A result, a bound and the goal are set; `redo` does things again; the difference and the first step apart are shown."""
    desk.detent("run", "write notes")
    run = desk.only_run()
    at = desk.detent("show", run, "--json").json["iterations"][1]["seq"] - 1
    words = ("--at", str(at), "--set", "goal=write less", "--set", "budget.max_iterations=1", "--result", 'main.1.0={"error": "full"}')
    made = desk.detent("fork", run, *words, "--effects", "redo", "--run-id", "branch", "--json")
    assert (made.code, made.json["status"], made.json["reason"]) == (4, "stopped", "max_iterations")
    assert desk.notes == ["one", "two", "two"]
    found = desk.detent("diff", run, "branch")
    for line in ("run: goal", "run: budget.max_iterations", "iteration 1: result of main.1.0", "  b  {", "iterations: 3 -> 2 (-1)"):
        assert line in found.out, found.out
    data = desk.detent("diff", run, "branch", "--json").json
    assert (data["first"]["what"], data["shared"], data["identical"]) == ("goal", at, False)
    parting = desk.detent("bisect", run, "branch", "--json").json["parting"]
    assert (parting["b_run"], parting["b_at"]) == ("branch", 1)
    assert set(parting["b"]["edits"]) == {"goal", "budget", "results"}
    assert "they differ from" in desk.detent("bisect", run, "branch").out


def test_a_fork_is_only_made_when_that_is_wanted(desk: Desk) -> None:
    """`--no-resume`; what cannot be forked is said with exit code 2."""
    desk.detent("run", "write notes")
    run = desk.only_run()
    made = desk.detent("fork", run, "--no-resume", "--run-id", "branch")
    assert made.code == 0 and "next: detent resume branch" in made.err
    assert desk.detent("resume", "branch").code == 0
    for words, said in (
        (("--at", "99"), "fork it at one of 1 to"),
        (("--set", "modle=x"), "did you mean 'model'"),
        (("--set", "model"), "write it as NAME=VALUE"),
        (("--result", "main.7.0=1"), "no call 'main.7.0'"),
        (("--run-id", "branch"), "already"),
    ):
        done = desk.detent("fork", run, *words)
        assert done.code == 2 and said in done.err, done.err
    records = desk.detent("export", run).out.splitlines()
    begun = next(n for n, line in enumerate(records, 1) if '"type":"tool_started"' in line)
    refused = desk.detent("fork", run, "--at", str(begun))
    assert refused.code == 2 and "call main.1.0 (note) has begun" in refused.err


def test_an_upgrade_is_checked_before_it_is_made(desk: Desk) -> None:
    """0 when every open run goes on; 1 when one does not, with the reason; nothing is recorded."""
    desk.steps("note", "ask", "answer")
    assert desk.detent("run", "ask me").code == 3
    run = desk.only_run()
    before = desk.detent("export", run).out
    fine = desk.detent("check-upgrade")
    assert (fine.code, "1 open runs, 0 cannot continue" in fine.out) == (0, True), fine.out
    tools = (desk.home / "tools.py").read_text()
    (desk.home / "tools.py").write_text(tools.replace("def note(text: str)", "def note(text: str, loud: bool = False)"))
    changed = desk.detent("check-upgrade", run)
    assert changed.code == 0 and "changed since the run was opened: tool:note" in changed.out
    (desk.home / "tools.py").write_text(tools.replace("def note(text: str)", "def jot(text: str)"))
    stranded = desk.detent("check-upgrade")
    assert stranded.code == 1 and "missing tools: note" in stranded.out
    data = desk.detent("check-upgrade", "--json").json["runs"][0]
    assert data["goes_on"] is False and "note" in data["missing"] and "note" in data["problem"]
    (desk.home / "tools.py").write_text(tools)
    assert desk.detent("export", run).out == before
    assert desk.detent("reply", run, "this one").code == 0
    assert "0 open runs" in desk.detent("check-upgrade").out


def test_what_is_set_is_read_as_the_agent_is() -> None:
    """Text stays text, lists may be written with commas, the rest is JSON; bounds and variables have names below theirs."""
    edits = parse_edits(
        ("model=x:y=z", "tools=a, b", "budget.max_cost_usd=0.5", "budget.iterations=3", "variables.n=7", "variables.t=07", "wrap_up=true"),
        ("main.1.0=[1]", "main.1.1=text"),
        ("main.2=7",),
    )
    assert edits == {
        "model": "x:y=z",
        "tools": ["a", "b"],
        "budget": {"max_cost_usd": 0.5, "max_iterations": 3},
        "variables": {"n": 7, "t": "07"},
        "wrap_up": True,
        "results": {"main.1.0": [1], "main.1.1": "text"},
        "replies": {"main.2": "7"},
    }
    assert parse_edits(('policy={"rules": []}', "model_settings.temperature=0.2"), (), ()) == {
        "policy": {"rules": []},
        "model_settings": {"temperature": 0.2},
    }
    with pytest.raises(UnknownName):
        parse_edits(("results=1",), (), ())
    with pytest.raises(ConfigError):
        parse_edits((), ("=1",), ())
