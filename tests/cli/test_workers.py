"""Runs handed over at the command line: submitted by one process, advanced by others, stopped, killed, given up."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from amounts import in_check
from cli.desk import Desk, ended, told_by
from cli.test_models import on_a_terminal
from detent import Engine
from detent.config.state_directory import store_url

TOOLS = '''\
"""A tool that puts each text down once, whatever becomes of the process; the text `slow` is held up in the process that begins it."""

import os
from pathlib import Path

from detent import ToolContext, tool


@tool(side_effect="write", idempotent=True)
def put(text: str, context: ToolContext) -> str:
    """Put it down."""
    line = f"{context.idempotency_key} {text}\\n"
    with open("notes.txt", "a+") as file:
        file.seek(0)
        if line not in file.readlines():
            file.write(line)
    if text == "slow" and os.path.exists("held"):
        with open("held", "w") as pipe:
            os.unlink("held")
            pipe.write(str(os.getpid()))
        with open("never") as pipe:
            pipe.read()
    return f"put {text}"
'''
AGENT = 'name = "clerk"\ntools = ["./tools.py:put"]\nrules = "rules.yaml"\n'
RULES = '- name: put\n  call: {tool: put, args: {text: "${goal}"}}\n- name: answer\n  answer: done\n'


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk whose agent puts down its goal."""
    desk = Desk(tmp_path)
    for name, text in (("tools.py", TOOLS), ("agent.toml", AGENT), ("rules.yaml", RULES)):
        desk.write(name, text)
    return desk


def submitted(desk: Desk, goal: str) -> str:
    """Submit a run and return its id, which is all that stands on stdout."""
    done = desk.detent("submit", goal)
    assert done.code == 0, done.err
    return done.out.strip()


@in_check
def test_a_killed_worker_among_three_costs_no_run_and_repeats_no_effect(desk: Desk) -> None:
    """One of three `detent worker` processes dies by SIGKILL in the middle of a tool; the others take its runs to their end."""
    goals = ["slow", "one", "two", "three"]
    begun = [desk.start("submit", goal) for goal in goals]
    runs = [ended(process).out.strip() for process in begun]
    os.mkfifo(desk.home / "held")
    os.mkfifo(desk.home / "never")
    workers = [desk.start("worker", "--concurrency", "2") for _ in range(3)]
    os.kill(int((desk.home / "held").read_text()), signal.SIGKILL)
    tails = [desk.start("tail", run) for run in runs]
    codes = [ended(tail).code for tail in tails]
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    ends = [ended(worker) for worker in workers]
    assert codes == [0] * len(runs), [done.err for done in ends]
    assert sorted(done.code for done in ends) == [-signal.SIGKILL, 0, 0]
    assert sorted(line.split(" ", 1)[1] for line in desk.notes) == sorted(goals), "each effect once"
    assert asyncio.run(sound(desk, runs))


async def sound(desk: Desk, runs: list[str]) -> bool:
    """Whether the digest chains of all runs hold."""
    async with Engine(store=store_url(desk.home)) as engine:
        return all([(await engine.verify(run)).ok for run in runs])


def test_a_stopped_worker_suspends_its_runs_and_exits_with_0(desk: Desk) -> None:
    """SIGTERM in the middle of a tool that is not waited for: nothing is finished, and the next worker takes the run on."""
    submitted(desk, "slow")
    os.mkfifo(desk.home / "held")
    os.mkfifo(desk.home / "never")
    worker = desk.start("worker", "--drain", "0")
    (desk.home / "held").read_text()
    worker.send_signal(signal.SIGTERM)
    done = ended(worker)
    assert done.code == 0, done.err
    assert "the worker was stopped (SIGTERM): 1 suspended, left to the next worker" in done.err
    assert desk.detent("worker", "--until-idle", "--json").json["came_to"] == {"completed": 1}
    assert len(desk.notes) == 1


HELD = '''\
"""A tool that says that it began, and puts its text down when there is a file named go."""

import os
import time

from detent import tool


@tool(side_effect="write")
def put(text: str) -> str:
    """Put it down."""
    with open("begun", "w") as pipe:
        pipe.write("begun\\n")
    while not os.path.exists("go"):
        time.sleep(0.02)
    with open("notes.txt", "a") as file:
        file.write(text + "\\n")
    return "put"
'''


@pytest.mark.parametrize("drain", ["60", "0"])
def test_a_stopped_worker_lets_the_writes_of_its_runs_finish(desk: Desk, drain: str) -> None:
    """Three runs in a write each: with --drain all three are recorded, and no run has a doubt; without time all three have one."""
    desk.write("tools.py", HELD)
    runs = [submitted(desk, goal) for goal in ("one", "two", "three")]
    os.mkfifo(desk.home / "begun")
    with os.fdopen(os.open(desk.home / "begun", os.O_RDWR)) as begun:
        worker = desk.start("worker", "--drain", drain)
        assert [begun.readline() for _ in runs] == ["begun\n"] * 3
    worker.send_signal(signal.SIGTERM)
    if drain != "0":
        for _ in runs:
            told_by(worker, "finishing put (main.1.0)")
        desk.write("go", "")
    done = ended(worker)
    assert done.code == 0 and "the worker was stopped (SIGTERM): 3 suspended" in done.err
    came_to = desk.detent("worker", "--until-idle", "--json").json["came_to"]
    assert came_to == ({"waiting_for_reconciliation": 3} if drain == "0" else {"completed": 3})
    assert sorted(desk.notes) == ([] if drain == "0" else ["one", "three", "two"])


def test_a_worker_says_what_it_did_in_a_pipe_and_as_one_document(desk: Desk) -> None:
    """Lines on stderr, nothing on stdout; with --json one document there; with nothing to do the same."""
    run = submitted(desk, "one")
    again = desk.detent("submit", "one", "--run-id", run)
    assert again.out.strip() == run
    done = desk.detent("worker", "--until-idle")
    assert (done.code, done.out) == (0, "")
    assert f"run {run[:15]} completed (final_answer)" in done.err
    empty = desk.detent("worker", "--until-idle", "--json")
    assert empty.json == {"came_to": {}, "dead_letters": {}, "failed": {}, "left": {}}


def test_a_worker_whose_store_nobody_fills_says_so(desk: Desk) -> None:
    """A store that is not there is named, and may be a wrong URL; one in memory is refused, as by `submit`."""
    absent = desk.detent("worker", "--until-idle", "--store", "sqlite:///not/here.db")
    assert absent.code == 0
    assert "there is no store yet at sqlite:///not/here.db" in absent.err
    memory = desk.detent("worker", "--until-idle", "--store", "ram:")
    assert memory.code == 2
    assert "give --store URL" in memory.err


def test_what_is_missing_here_is_said_and_the_run_left(desk: Desk) -> None:
    """A worker without the tools of a run exits with 2, and the run stays as it is."""
    run = submitted(desk, "one")
    (desk.home / "tools.py").unlink()
    done = desk.detent("worker", "--until-idle")
    assert done.code == 2
    assert f"left to other workers: run {run[:15]}: " in done.err
    assert "tools.py" in done.err
    assert desk.detent("list", "--status", "running", "--json").json[0]["run_id"] == run


def test_a_dead_letter_is_listed_with_its_reason_and_opened_again(desk: Desk) -> None:
    """`detent list` says why and what to do; `detent reopen` takes the run on, or with --no-resume leaves it to a worker."""
    desk.write("detent.toml", "[worker]\nmax_attempts = 1\n")
    desk.write(
        "broken.py",
        'class Broken:\n    def begin_run(self, run_id):\n        raise RuntimeError("the planner is out of order")\n'
        "    async def plan(self, view):\n        ...\n",
    )
    desk.write("agent.toml", AGENT.replace('rules = "rules.yaml"\n', ""))
    desk.write("detent.toml", 'planner = "./broken.py:Broken"\n[worker]\nmax_attempts = 1\n')
    run = submitted(desk, "one")
    done = desk.detent("worker", "--until-idle")
    assert done.code == 3, done.err
    assert f"given up: run {run[:15]}: RuntimeError: the planner is out of order" in done.err
    listed = desk.detent("list", "--status", "waiting_for_operator")
    assert run[:15] in listed.out
    assert f"run {run[:15]}: given up by its workers: RuntimeError: the planner is out of order" in listed.err
    assert f"next: detent reopen {run[:15]}" in listed.err
    assert "out of order" in desk.detent("list", "--json").json[0]["why"]
    assert f"next: detent reopen {run[:15]}" in desk.detent("resume", run).err, "it waits, and nothing else is said to open it"
    desk.write(
        "broken.py",
        "from detent import FinalAnswer, Plan\n\nclass Broken:\n    async def plan(self, view):\n"
        '        return Plan(actions=(FinalAnswer(content="mended"),))\n',
    )
    assert desk.detent("reopen", run, "--no-resume").code == 0
    assert desk.detent("worker", "--until-idle", "--json").json["came_to"] == {"completed": 1}


def test_on_a_terminal_each_run_in_progress_is_shown_with_what_it_does(tmp_path: Path) -> None:
    """Below the lines that stay; the summary is last."""
    desk = Desk(tmp_path)
    desk.steps("pause", "answer")
    run = submitted(desk, "one")
    shown = on_a_terminal(desk, "worker", "--until-idle", when={f"{run[:15]} · iteration 1 · pause": lambda: desk.write("go", "")})
    assert f"run {run[:15]} completed (final_answer) · 2 iterations, 1 call" in shown
    assert "the worker has nothing left to do: 1 completed" in shown.rsplit("\x1b[2K", 1)[-1]
