"""`cancel --where`, `reopen --where` and `detent operations` at the command line."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from amounts import in_check, thinned
from cli.desk import Desk, ended, told_by
from detent import Agent, AskUser, Engine
from detent.config.state_directory import store_url
from detent.core.events import CancelRequested
from detent.testing import ScriptedPlanner


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk whose agent asks something."""
    desk = Desk(tmp_path)
    desk.steps("ask", "answer")
    return desk


def test_cancel_shows_what_it_is_about_asks_and_keeps_an_entry_for_each_run(desk: Desk) -> None:
    """Without a terminal and without --yes nothing is done, and nothing is kept of the operation."""
    runs = [desk.detent("run", goal, "--json").json["run_id"] for goal in ("water roses", "water tulips", "mow")]
    refused = desk.detent("cancel", "--where", "goal=water")
    assert refused.code == 2 and "Cancel 2 runs?" in refused.err and "--yes" in refused.err
    assert runs[0] in refused.err and runs[2] not in refused.err
    assert desk.detent("operations", "--json").json == []
    done = desk.detent("cancel", "--where", "goal=water", "--where", "status=waiting", "--why", "winter", "--yes", "--json")
    assert (done.code, done.json["done"], done.json["skipped"]) == (0, 2, 0)
    assert {entry["run_id"] for entry in done.json["entries"]} == set(runs[:2])
    listed = desk.detent("list", "--json").json
    assert {head["run_id"]: head["status"] for head in listed} == dict.fromkeys(runs[:2], "stopped") | {runs[2]: "waiting_for_user"}
    (operation,) = desk.detent("operations", "--json").json
    assert (operation["status"], operation["where"], operation["why"]) == ("finished", "goal=water status=waiting", "winter")
    shown = desk.detent("operations", "show", operation["id"])
    assert shown.code == 0 and all(run in shown.out for run in runs[:2])
    assert desk.detent("operations", "resume", operation["id"]).code == 0, "it is finished"
    assert desk.detent("operations", "remove", operation["id"]).code == 0
    assert "no operations" in desk.detent("operations").err


def test_reopen_opens_every_failed_run_that_matches_for_a_worker(desk: Desk) -> None:
    """It needs no agent file, no tools and no trust: the worker has them."""
    desk.steps("explode", "answer")
    runs = [desk.detent("run", goal, "--json").json["run_id"] for goal in ("one", "two")]
    done = desk.detent("reopen", "--where", "status=failed", "--yes")
    assert done.code == 0 and "reopen: 2 done, 0 skipped, 0 failed" in done.err
    assert {head["run_id"]: head.get("status", "running") for head in desk.detent("list", "--json").json} == dict.fromkeys(runs, "running")
    again = desk.detent("reopen", "--where", "status=failed", "--yes")
    assert again.code == 0 and "no run to reopen matches" in again.err


@in_check
def test_resume_and_replay_over_many_have_the_agents_of_this_directory(desk: Desk) -> None:
    """What was answered continues, also as an operation that was left; a changed tool shows up in the verdicts."""
    runs = [desk.detent("run", goal, "--json").json["run_id"] for goal in ("water roses", "water tulips", "mow")]
    for run in runs[:2]:
        assert desk.detent("reply", run, "yes", "--no-resume").code == 0
    refused = desk.detent("resume", "--where", "goal=water")
    assert refused.code == 2 and "Resume 2 runs?" in refused.err
    done = desk.detent("resume", "--where", "goal=water", "--yes", "--json")
    assert (done.code, [entry["what"] for entry in done.json["entries"]]) == (0, ["completed", "completed"]), done.err
    assert desk.detent("operations", "resume", done.json["id"]).code == 0
    verdicts = desk.detent("replay", "--where", "status=completed", "--yes", "--json")
    assert (verdicts.code, {entry["what"] for entry in verdicts.json["entries"]}) == (0, {"identical"}), verdicts.err
    assert desk.detent("replay", "--where", "goal=nothing", "--yes").code == 0


def test_archive_writes_every_finished_run_that_matches_into_the_directory(desk: Desk) -> None:
    """The others stay, and what was done has entries like any other operation."""
    (asks,) = [desk.detent("run", "mow", "--json").json["run_id"]]
    desk.steps("answer")
    runs = [desk.detent("run", goal, "--json").json["run_id"] for goal in ("water roses", "water tulips", "weed")]
    done = desk.detent("archive", "--where", "goal=water", "--to", "out", "--yes", "--json")
    assert (done.code, done.json["action"], done.json["done"]) == (0, "archive", 2), done.err
    assert sorted(head["run_id"] for head in desk.detent("list", "--json").json) == sorted([asks, runs[2]])
    assert sorted(path.name for path in (desk.home / "out").iterdir()) == sorted(f"{run}.jsonl.gz" for run in runs[:2])
    assert desk.detent("import", "out").code == 0
    for words in (
        ("--to", "out"),
        ("--before", "1d", "--where", "goal=x", "--to", "out"),
        ("--where", "goal=x", "--to", "out", "--dry-run"),
    ):
        assert desk.detent("archive", *words).code == 2


@thinned
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cancel",), "--where"),
        (("cancel", "last", "--where", "agent=x"), "run 'last' and --where were given"),
        (("operations", "jump"), "'[ACTION]': 'jump' is not one of"),
        (("cancel", "--where", "colour=red"), "colour"),
        (("cancel", "--where", "agent="), "KEY=VALUE"),
        (("cancel", "--where", "agent=a", "--where", "agent=b"), "more than once"),
        (("cancel", "--where", "status=completed"), "does not apply"),
        (("cancel", "--where", "agent=a", "--tree"), "--tree"),
        (("operations", "show"), "ID"),
        (("operations", "show", "nothing"), "operation"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(desk: Desk, words: tuple[str, ...], said: str) -> None:
    """Nothing is prepared then."""
    desk.detent("run", "one")
    done = desk.detent(*words)
    assert done.code == 2 and said in done.err, done.err


@in_check
def test_an_operation_whose_process_is_killed_is_resumed_and_nothing_is_done_twice(desk: Desk) -> None:
    """SIGKILL after the first entries; another process does the rest."""

    async def asked() -> list[str]:
        async with Engine(store=store_url(desk.home), planner=ScriptedPlanner([AskUser(question="?")])) as engine:
            return [(await engine.run(Agent(name="asker", actions=("ask_user",)), f"goal {n}")).run_id for n in range(60)]

    async def cancellations(runs: list[str]) -> list[int]:
        async with Engine(store=store_url(desk.home)) as engine:
            logs = [await engine.records(run_id) for run_id in runs]
            return [sum(isinstance(record.event, CancelRequested) for record in log) for log in logs]

    runs = asyncio.run(asked())
    process = desk.start("cancel", "--where", "agent=asker", "--yes")
    told_by(process, " of 60:")
    process.kill()
    assert ended(process).code == -signal.SIGKILL
    (operation,) = desk.detent("operations", "--json").json
    assert operation["status"] == "open" and 0 < operation["left"] < 60
    done = desk.detent("operations", "resume", operation["id"], "--json")
    assert (done.code, done.json["done"], done.json["failed"]) == (0, 60, 0)
    assert asyncio.run(cancellations(runs)) == [1] * 60
    entries = desk.detent("operations", "show", operation["id"], "--json").json["entries"]
    assert sorted(entry["run_id"] for entry in entries) == sorted(runs)


def test_why_says_what_keeps_a_run_and_which_command_changes_it(desk: Desk) -> None:
    """In words, and as one document."""
    run = desk.detent("run", "one", "--json").json["run_id"]
    said = desk.detent("why", "last")
    assert said.code == 0 and "it waits for an answer: Which one?" in said.out
    desk.detent("reply", run, "this", "--no-resume")
    said = desk.detent("why", run)
    assert "an answer by" in said.out and "nobody has taken it" in said.out and "detent worker" in said.err
    assert [reason["code"] for reason in desk.detent("why", run, "--json").json["reasons"]] == ["waits", "answered", "nobody"]
    assert desk.detent("why", "nothing").code == 2
