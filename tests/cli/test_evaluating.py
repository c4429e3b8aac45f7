"""`detent eval` in a directory: killed and resumed, looked at and steered from another terminal, and told what is wrong before anything is run."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
from pathlib import Path

import pytest

from amounts import in_check, thinned
from cli.desk import Desk, ended
from cli.terminals import at_a_terminal
from detent import Agent, Engine, FinalAnswer
from detent.config.state_directory import store_url
from detent.evals import Case, Suite, evaluate
from detent.evals.trials import trial_id
from detent.testing import ScriptedPlanner

SUITE = """\
name = "pauses"
require = "passed == 1.0"
[[graders]]
kind = "contains"
expected = "all done"
[[cases]]
id = "one"
goal = "pause, then answer"
tags = ["a"]
[[cases]]
id = "two"
goal = "pause, then answer again"
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.steps("pause", "answer")
    desk.write("suite.toml", SUITE)
    return desk


@in_check
def test_an_evaluation_that_is_killed_is_shown_steered_and_resumed(desk: Desk) -> None:
    """Nothing of it is in the directory: another process finds it in the store."""
    assert desk.detent("eval", "list").code == 0
    assert desk.detent("eval", "resume").err.startswith("error: no evaluation in sqlite:///")
    os.mkfifo(desk.home / "begun")
    running = desk.start("eval", "run", "suite.toml", "--parallel", "1")
    (desk.home / "begun").read_text()
    found = desk.detent("eval", "top", "--json").json
    while found["status"] != "running":
        found = desk.detent("eval", "top", "--json").json
    (one,) = found["in_progress"]
    assert (found["trials"], found["ended"], one["trial"], one["status"], one["attempt"]) == (2, {}, "one/1", "running", 1)
    assert found["processes"][0]["name"] == one["where"] and one["where"].endswith(f":{running.pid}")
    running.kill()
    assert ended(running).code == -signal.SIGKILL
    (desk.home / "begun").unlink()
    desk.write("go", "")
    cancelled = desk.detent("eval", "cancel", "two/1")
    assert (cancelled.code, "1 trial of evaluation" in cancelled.err) == (0, True), cancelled
    resumed = desk.detent("eval", "resume")
    assert resumed.code == 0 and "reached: passed == 1.0" in resumed.err, resumed
    assert "1 cancelled" in resumed.out
    again = desk.detent("eval", "requeue", one["run_id"])
    assert again.code == 0 and "one/1 is begun anew, as attempt 2" in again.err
    assert desk.detent("eval", "resume", found["id"][:10], "--out", "r.json").code == 0
    desk.write("other.toml", SUITE.replace("all done", "nothing like this"))
    graded = desk.detent("eval", "regrade", found["id"], "--suite", "other.toml", "--require", "passed == 1.0")
    assert graded.code == 1 and "1 trial graded again; nothing was run" in graded.err and "not reached" in graded.err, graded
    (line,) = desk.detent("eval", "list").out.splitlines()[1:]
    assert re.search(rf"^{found['id']} +ended +2 of 2 +1 failed, 1 cancelled", line), line


def test_ctrl_c_suspends_an_evaluation_and_says_how_to_continue_it(desk: Desk) -> None:
    os.mkfifo(desk.home / "begun")
    running = desk.start("eval", "run", "suite.toml", "--parallel", "1")
    (desk.home / "begun").read_text()
    running.send_signal(signal.SIGINT)
    done = ended(running)
    assert done.code == 5, done
    assert re.search(r"suspended \(SIGINT\); nothing is lost\n +next: detent eval resume [\d-]+[0-9a-f]{6}\n", done.err), done.err


@thinned
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "suite.toml", "--runs", "x"], "detent eval run takes no --runs; that is an option of grade, label, from-runs"),
        (["run", "suite.toml", "--require", "pass_hat(3) >"], "--require"),
        (["run", "suite.toml", "--require", "passd > 0.9"], "did you mean 'passed'?"),
        (["run", "suite.toml", "--out", "r.txt"], "--out r.txt: give a file that ends in .json, .md, .xml, .html"),
        (["run", "suite.toml", "--tag", "b"], "no case is left"),
        (["run", "suite.toml", "other.toml"], "name the suite"),
        (["top", "nothing"], "unknown evaluation 'nothing'"),
        (["requeue", "one/1"], "no evaluation in"),
        (["cancel"], "name a trial or an evaluation"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_anything_is_run(desk: Desk, words: list[str], said: str) -> None:
    done = desk.detent("eval", *words)
    assert done.code == 2 and said in done.err and "Traceback" not in done.err, done
    assert desk.notes == [] and not (desk.home / "evals").exists()


def test_a_run_is_found_where_the_id_of_a_later_evaluation_begins_like_its_own(desk: Desk) -> None:
    async def both() -> None:
        planner = ScriptedPlanner([FinalAnswer(content="done")] * 2)
        async with Engine(store=store_url(desk.home), agents=[Agent(name="a", tools=())], planner=planner) as engine:
            for name in ("nightly-2", "nightly"):
                await evaluate(
                    engine, Suite(name="s", cases=(Case(id="one", goal="go"),), graders=({"kind": "exact", "expected": "done"},)), id=name
                )

    asyncio.run(both())
    done = desk.detent("eval", "requeue", trial_id("nightly-2", "", "one", 1))
    assert done.code == 0 and "one/1 is begun anew, as attempt 2" in done.err and "nightly-2" in done.err, done


def test_a_suite_of_the_store_starts_no_command_that_no_file_here_names(desk: Desk) -> None:
    desk.steps("answer")
    text = SUITE.replace('kind = "contains"\nexpected = "all done"', 'kind = "command"\ncommand = ["touch", "done"]')
    desk.write("suite.toml", text.replace('goal = "pause, then answer"', 'goal = "answer"\nfiles = {"a.txt" = "x"}'))
    done = desk.detent("eval", "run", "suite.toml", "--tag", "a")
    assert done.code == 0, done  # a case with files has a workspace of its own
    found = desk.detent("eval", "top", "--json").json
    assert desk.detent("eval", "requeue", "one/1").code == 0
    refused = desk.detent("eval", "resume")
    assert refused.code == 2 and "grades with the command 'touch done', as the store says; name the suite" in refused.err, refused
    assert desk.detent("eval", "resume", found["id"], "--suite", "suite.toml").code == 0


def test_an_agent_file_that_the_store_names_is_executed_only_where_the_command_names_it_too(desk: Desk) -> None:
    """Whoever wrote into the store could name a file of their own: trusting this directory is not trusting that."""
    desk.steps("answer")
    desk.write("other.toml", (desk.home / "agent.toml").read_text())
    run = desk.detent("eval", "run", "suite.toml", "--tag", "a", "--agent", "other.toml")
    assert "--agent other.toml` continues it" in run.err, run
    assert desk.detent("eval", "requeue", "one/1").code == 0
    refused = desk.detent("eval", "resume")
    assert refused.code == 2 and "with the agent file other.toml, as the store says; name it, too: detent eval resume" in refused.err, (
        refused
    )
    assert desk.detent("eval", "resume", "--agent", "other.toml").code == run.code


def test_what_a_case_attaches_is_kept_with_the_suite_and_no_file_is_read_because_the_store_says_so(desk: Desk) -> None:
    desk.steps("answer")
    desk.write("note.txt", "secret")
    desk.write("suite.toml", SUITE.replace('tags = ["a"]', 'tags = ["a"]\nattachments = [{type = "file", path = "note.txt"}]'))
    assert desk.detent("eval", "run", "suite.toml", "--tag", "a").code == 0
    store = sqlite3.connect(desk.store)
    (kept,) = store.execute("SELECT data FROM blobs WHERE run_id='_detent.evaluations'").fetchone()
    assert b"note.txt" in kept and b'"path"' not in kept
    forged = kept.replace(b'"name":"note.txt"', b'"path":"note.txt"')
    store.execute("UPDATE blobs SET data=? WHERE run_id='_detent.evaluations'", (forged,))
    store.commit()
    store.close()
    done = desk.detent("eval", "resume", "2")
    assert done.code == 2 and "reads a file, as the store says" in done.err, done


@in_check
def test_at_a_terminal_the_table_is_renewed_in_place(desk: Desk) -> None:
    desk.write("go", "")
    sat = at_a_terminal(
        "eval", "run", "suite.toml", types=lambda shown: "", env=desk.environment, cwd=desk.home, forks=["detent.evals.evaluating"]
    )  # fmt: skip
    assert sat.code == 0 and "2 of 2" in sat.shown and "VARIANT" in sat.shown, sat.shown
