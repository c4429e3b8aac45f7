"""What people see of a run and its children: tree, list, show, cost, verify and cancel on the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from detent.cli.main import run as detent
from detent.core.records import RunHead
from detent.history.trees import tree_at
from detent.stores.ram import RamStore

BOSS = """
name = "boss"
[[rules]]
name = "ask"
as = "heard"
for_each = "['one', 'two']"
call = {tool = "agent_helper", args = {goal = "${item}"}}
[[rules]]
name = "done"
answer = "heard ${string(results.heard.count)}"
[subagents.helper]
[[subagents.helper.rules]]
name = "done"
answer = "found ${goal}"
"""
ASKING = BOSS.replace('answer = "found ${goal}"', 'ask = "which?"')
Command = Callable[..., Any]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command here and return its output; with `--json` the document."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DETENT_STORE", f"file:{tmp_path / 'runs'}")
    monkeypatch.setenv("DETENT_TRUST", str(tmp_path))
    (tmp_path / "agent.toml").write_text(BOSS)

    def run(*words: str) -> Any:
        capsys.readouterr()
        detent(words)
        out = capsys.readouterr().out
        return json.loads(out) if "--json" in words else out

    return run


def test_a_run_and_its_children_are_shown_with_links_both_ways(command: Command) -> None:
    """Otherwise nobody finds what a helper did, or for whom it did it."""
    done = command("run", "go", "--json")
    boss = done["run_id"]
    assert [one["run_id"] for one in command("list", "--json")] == [boss] and len(command("list", "--all", "--json")) == 3
    found = command("tree", "last", "--json")
    assert found["root"] == boss and [(one["agent"], one["depth"], one["status"]) for one in found["runs"]] == [
        ("boss", 0, "completed"),
        ("helper", 1, "completed"),
        ("helper", 1, "completed"),
    ]
    assert [one["goal"] for one in found["runs"]] == ["go", "one", "two"]
    lines = command("tree", boss).splitlines()
    assert lines[2].startswith("├─ c") and lines[3].startswith("└─ c")
    child = found["runs"][1]["run_id"]
    above, below = command("show", child, "--json"), command("show", boss, "--json")
    assert above["parent"]["run"] == boss and above["parent"]["path"] == ["boss", "helper"]
    assert below["children"][0]["run"] == child and below["iterations"][0]["calls"][0]["child"] == child
    assert f"run {child}" in command("show", boss) and f"run {boss}, call" in command("show", child)


def test_what_a_tree_cost_is_counted_once(command: Command) -> None:
    """A run's usage includes its children's, so a plain sum would count them twice; `verify` and `stats` know."""
    boss = command("run", "go", "--json")["run_id"]
    own = command("cost", boss, "--tree", "--json")
    assert sum(one["own"]["iterations"] for one in own) == own[0]["whole"]["iterations"] == 5
    assert [one["own"]["iterations"] for one in own] == [3, 1, 1]
    assert command("verify", boss, "--json")["ok"]
    assert command("stats", "--json")["all"]["runs"] == 1 and command("stats", "--json")["all"]["turns"] == 5


def test_an_open_child_holds_a_part_of_the_budget(command: Command, tmp_path: Path) -> None:
    """It is shown beside what was used, not as used; `cancel --tree` ends all of them."""
    (tmp_path / "agent.toml").write_text(ASKING)
    waiting = command("run", "go", "--json")
    assert waiting["status"] == "waiting_for_subagent" and waiting["reserved"]["iterations"] > 0
    assert "reserved" in command("show", waiting["run_id"])
    (first,) = waiting["waits_for"]
    assert (first["on"], first["path"], first["what"]) == ("person", ["boss", "helper"], "an answer: which?")
    assert first == command("list", "--json")[0]["waits_for"][0] == command("show", waiting["run_id"], "--json")["waits_for"][0]
    shown = command("list") + command("show", waiting["run_id"])
    assert "waiting_for_subagent: person" in shown and "boss > helper (run" in shown and "waits for a person: an answer: which?" in shown
    command("cancel", waiting["run_id"], "--tree")
    assert {one["status"] for one in command("tree", "last", "--follow", "--json")["runs"]} == {"stopped"}


def test_a_thousand_runs_are_a_tree_within_300_ms() -> None:
    """The listing has all that is needed: no log is read."""

    async def main() -> float:
        store = RamStore()
        await store.open()
        start, parents = datetime(2026, 1, 1, tzinfo=UTC), ["root"]
        for number in range(1_000):
            parent = parents[number // 10] if number else ""
            run = f"{parent}.c{number:012x}" if number else "root"
            at = start + timedelta(seconds=number)
            head = RunHead(run_id=run, goal_id="root", parent=parent, agent="a", created_at=at, updated_at=at, records=1)
            await store.append(run, 0, [b"{}"], head=head, durable=False)
            parents += [run] if number else []
        before = process_time()
        found = await tree_at(store, "root")
        assert len(found.runs) == 1_000 and max(one.depth for one in found.runs) > 2
        return process_time() - before

    assert min(asyncio.run(main()) for _ in range(2)) < 3  # of the processor, and ten times what is promised: for slow machines


def test_one_stream_of_events_for_a_tree_says_whose_each_is(command: Command) -> None:
    """What reads it needs no other look to know run, parent, root, agent and turn of an event."""
    boss = command("run", "go", "--json")["run_id"]
    events = [json.loads(line) for line in command("tail", boss, "--events").splitlines()]
    helpers = {one["run"] for one in events} - {boss}
    assert len(helpers) == 2 and {one["root"] for one in events} == {boss}
    assert {(one["run"], one["parent"], one["agent"]) for one in events} == {
        (boss, "", "boss"),
        *((one, boss, "helper") for one in helpers),
    }
    for run in (boss, *helpers):
        mine = [one for one in events if one["run"] == run]
        assert [one["sequence"] for one in mine] == [*range(1, len(mine) + 1)] and mine[-1]["status"] == "completed"
        turns = [one["iteration"] for one in mine if one["event"]["type"] == "turn_started"]
        assert mine[0]["event"]["type"] == "run_started" and turns == [*range(1, (3 if run == boss else 1) + 1)]
    assert events[0]["run"] == events[-1]["run"] == boss
