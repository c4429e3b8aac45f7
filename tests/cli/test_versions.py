"""Two versions of the code side by side, as processes: `detent worker` with DETENT_VERSION, ramp, drain and move with `detent versions`."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from amounts import in_check
from cli.desk import Desk, ended, told_by
from detent.running.versions import routed

TOOLS = '''\
"""A tool whose code differs by version."""

import os

from detent import tool


@tool(side_effect="write")
def put(text: str) -> str:
    """Put it down."""
    with open("notes.txt", "a") as file:
        file.write(f"{os.environ['DETENT_VERSION']} {text}\\n")
    return "put"
'''
AGENT = 'name = "clerk"\ntools = ["./tools.py:put"]\nrules = "rules.yaml"\n'
RULES = '- name: put\n  call: {tool: put, args: {text: "${goal}"}}\n- name: answer\n  answer: done\n'
ASKING = "- name: ask\n  ask: Which one?\n" + RULES


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk whose agent puts down its goal, with the version of its process."""
    desk = Desk(tmp_path)
    for name, text in (("tools.py", TOOLS), ("agent.toml", AGENT), ("rules.yaml", RULES)):
        desk.write(name, text)
    return desk


@in_check
def test_two_versions_work_side_by_side_and_each_run_is_advanced_by_its_own(desk: Desk) -> None:
    """Both worker processes run at once; after a drain, what waits moves to the version that is left, and the workers of the other find nothing."""
    assert desk.detent("versions", "1=100", DETENT_VERSION="1").code == 0
    refused = desk.detent("versions", "2=50")
    assert refused.code == 2 and "DETENT_VERSION=2" in refused.err
    ramp = desk.detent("versions", "2=50", "--json", DETENT_VERSION="2").json
    assert (ramp["of"], ramp["checked"], ramp["stranded"]) == ({"1": 50, "2": 50}, 0, 0)
    workers = [desk.start("worker", DETENT_VERSION=version) for version in ("1", "2")]
    try:
        runs = [desk.detent("submit", "--run-id", f"run-{n}", f"goal-{n}").out.strip() for n in range(8)]
        for run in runs:
            assert ended(desk.start("tail", run)).code == 0
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        ends = [ended(worker) for worker in workers]
    assert [done.code for done in ends] == [0, 0], ends
    wanted = sorted(f"{routed(run, {'1': 50, '2': 50}, '')} goal-{run.removeprefix('run-')}" for run in runs)
    assert sorted(desk.notes) == wanted
    assert {line[0] for line in wanted} == {"1", "2"}, "both had something to do"


def test_what_waits_on_a_drained_version_moves_and_pinned_runs_keep_their_workers(desk: Desk) -> None:
    """The new version is rolled out with what was checked; a worker of the old one finishes what is pinned."""
    desk.write("rules.yaml", ASKING)
    desk.write("pinned.toml", AGENT.replace('"clerk"', '"pinned"') + 'upgrade = "pinned"\n')
    desk.write("detent.toml", '[agents]\nclerk = "agent.toml"\npinned = "pinned.toml"\n')
    assert desk.detent("versions", "1=100", DETENT_VERSION="1").code == 0
    moving = desk.detent("run", "moves", "--json", DETENT_VERSION="1").json["run_id"]
    staying = desk.detent("run", "stays", "--agent", "pinned.toml", "--json", DETENT_VERSION="1").json["run_id"]
    rolled = desk.detent("versions", "2=100", DETENT_VERSION="2")
    assert rolled.code == 0 and "draining" in rolled.out
    for run in (moving, staying):
        assert desk.detent("reply", run, "this", "--no-resume", DETENT_VERSION="2").code == 0
    assert desk.process("worker", "--until-idle", DETENT_VERSION="2").code == 0
    assert desk.notes == ["2 moves"]
    refused = desk.detent("resume", staying, DETENT_VERSION="2")
    assert refused.code == 2 and "needs version '1'" in refused.err and "--upgrade" in refused.err
    assert desk.process("worker", "--until-idle", DETENT_VERSION="1").code == 0
    assert desk.notes == ["2 moves", "1 stays"]
    uses = {use["version"]: use["share"] for use in desk.detent("versions", "--json").json}
    assert uses == {"1": 0, "2": 100}


def test_a_worker_with_one_version_too_many_fails_loudly(desk: Desk) -> None:
    """It names the versions, says what to do, and exits with 2; one without a share says so and works on."""
    desk.write("rules.yaml", ASKING)
    desk.write("detent.toml", "[limits]\nmax_versions = 1\n")
    assert desk.detent("run", "waits", DETENT_VERSION="1").code == 3
    failed = desk.process("worker", "--until-idle", DETENT_VERSION="2")
    assert failed.code == 2 and "max_versions is 1. There are: '1' (1)" in failed.err
    assert desk.detent("cancel", "--where", "version=1", "--yes").code == 0
    assert desk.detent("versions", "3=100", "--unchecked").code == 0
    worker = desk.start("worker", DETENT_VERSION="2")
    assert "detent versions 2=100" in told_by(worker, "no new run begins")
    worker.send_signal(signal.SIGTERM)
    assert ended(worker).code == 0
