"""`run` and what takes a run on, from a shell: exit codes, what stands on which stream, and that nothing is done twice."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import threading
from pathlib import Path

import pytest

from cli.desk import Desk, ended, told_by
from cli.terminals import at_a_terminal, typed
from detent import Agent, Engine, Plan, ToolCall, tool
from detent.testing import ScriptedPlanner


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_run_answers_on_stdout_and_exits_0(desk: Desk) -> None:
    """Stdout holds the answer alone; progress, run id and figures are on stderr, as plain lines."""
    done = desk.detent("run", "Write", "one", "line")
    assert (done.code, done.out) == (0, "all done\n")
    assert "note ok" in done.err
    assert f"run {desk.only_run()}" in done.err
    assert "\x1b" not in done.err
    assert desk.notes == ["one"]


def test_the_words_of_the_goal_are_joined(desk: Desk) -> None:
    """No quotes are needed; after `--` a word may look like an option."""
    desk.detent("run", "--", "Write", "--one", "line")
    assert desk.detent("list", "--json").json[0]["goal"] == "Write --one line"


def test_skills_of_the_agent_file_are_there_in_every_process_that_takes_the_run_on(desk: Desk) -> None:
    """Their folders stand in the log; a folder without a skill is refused before anything runs."""
    skill = desk.home / "skills" / "letters"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: letters\ndescription: How letters are written.\n---\n\nWrite politely.\n")
    agent = desk.home / "agent.toml"
    agent.write_text(agent.read_text() + 'skills = ["skills"]\n')
    read = "{name: read, call: {tool: activate_skill, args: {name: letters}}, as: skill}"
    wipe = "{name: wipe, call: {tool: wipe, args: {name: x}}}"
    (desk.home / "rules.yaml").write_text(f"[{wipe}, {read}, {{name: say, answer: '${{results.skill.value.instructions}}'}}]\n")
    assert desk.detent("run", "Write").code == 3
    done = desk.detent("approve", "last", "main.1.0", "--by", "ann")
    assert (done.code, done.out) == (0, "Write politely.\n")
    agent.write_text(agent.read_text().replace('"skills"', '"notes"'))
    refused = desk.detent("run", "Write")
    assert refused.code == 2 and "skills: there is no skill in" in refused.err


@pytest.mark.parametrize(
    ("steps", "code", "status", "reason"),
    [
        (("note", "answer"), 0, "completed", "final_answer"),
        (("note", "explode"), 1, "failed", "fatal_tool_error"),
        (("note", "wipe", "answer"), 3, "waiting_for_approval", ""),
        (("note", "ask", "answer"), 3, "waiting_for_user", ""),
        (("note", "stop"), 4, "stopped", "stop_action"),
    ],
)
def test_the_exit_code_says_how_the_run_stands(desk: Desk, steps: tuple[str, ...], code: int, status: str, reason: str) -> None:
    """0 completed, 1 failed, 3 waiting, 4 stopped; the document says the same."""
    desk.steps(*steps)
    done = desk.detent("run", "Go", "--json")
    assert (done.code, done.json["status"], done.json["reason"]) == (code, status, reason)
    assert (done.json["output"] is not None) == (status == "completed")


def test_a_bound_that_is_reached_names_the_command_that_raises_it(desk: Desk) -> None:
    """That command works as it is printed, and what was done before is not done again."""
    desk.steps("note", "second", "answer")
    done = desk.detent("run", "Go", "--max-iterations", "1")
    assert done.code == 4
    command = next(line.split("next: ")[1] for line in done.err.splitlines() if "reopen" in line)
    again = desk.detent(*shlex.split(command)[1:])
    assert (again.code, desk.notes) == (4, ["one", "two"])
    refused = desk.detent("reopen", "last")
    assert refused.code == 2
    assert "max_iterations" in refused.err
    last = desk.detent("reopen", "last", "--budget", "iterations=9", "--why", "more time")
    assert (last.code, desk.notes) == (0, ["one", "two"])
    assert "more time" in desk.detent("show", "last").out


def test_an_approval_is_given_by_another_process_and_runs_once(desk: Desk) -> None:
    """The waiting run prints the exact line; that line executes exactly the stored call, and a second time it is refused."""
    desk.steps("note", "wipe", "answer")
    waiting = desk.detent("run", "Clean")
    assert (waiting.code, waiting.out, desk.notes) == (3, "", ["one"])
    command = next(line.split("next: ")[1] for line in waiting.err.splitlines() if "approve " in line)
    assert command in desk.detent("approvals").out
    done = desk.detent(*shlex.split(command)[1:], "--by", "ann")
    assert (done.code, done.out, desk.notes) == (0, "all done\n", ["one", "wiped x"])
    assert desk.detent(*shlex.split(command)[1:]).code == 2
    assert desk.notes == ["one", "wiped x"]
    assert "approved by ann" in desk.detent("show", "last").out


def test_an_approval_may_be_recorded_now_and_taken_up_later(desk: Desk) -> None:
    """With --no-resume nothing runs until somebody resumes."""
    desk.steps("wipe", "answer")
    desk.detent("run", "Clean")
    assert desk.detent("approve", "last", "main.1.0", "--no-resume", "--by", "ann").code == 0
    assert desk.notes == []
    listed, asked = desk.detent("list"), desk.detent("approvals")
    assert "answered by ann" in listed.err and "detent resume" in listed.err
    assert "answered by ann" in asked.out and "detent resume" in asked.out and "detent approve" not in asked.out
    assert desk.detent("resume", "last").code == 0
    assert desk.notes == ["wiped x"]


def test_an_approval_may_change_the_arguments(desk: Desk) -> None:
    """The call runs with the arguments that were approved, never with those that were asked for; wrong JSON is refused first."""
    desk.steps("wipe", "answer")
    desk.detent("run", "Clean")
    assert desk.detent("approve", "last", "main.1.0", "--args", "[1]").code == 2
    asked = desk.detent("approve", "last", "main.1.0", "--args", '{"name": "y"}')
    if asked.code == 3:  # authorised again: the edited call is as destructive as the first
        asked = desk.detent("approve", "last", "main.1.0")
    else:
        assert "with other arguments" in asked.err and '  | wipe {"name": "y"}' in asked.err
    assert (asked.code, desk.notes) == (0, ["wiped y"])


def test_approved_arguments_that_do_not_fit_leave_the_call_open(desk: Desk) -> None:
    """A typo used up the approval, and the planner was told that its call was wrong."""
    desk.steps("wipe", "answer")
    desk.detent("run", "Clean")
    refused = desk.detent("approve", "last", "main.1.0", "--args", '{"name": 5}')
    assert refused.code == 2 and "do not fit" in refused.err and "main.1.0" in desk.detent("approvals").out


def test_an_answer_where_the_tools_are_missing_posts_nothing_and_can_be_given_otherwise(desk: Desk) -> None:
    """The approval of a destructive call was posted although the command exited with 2, and could no longer be denied."""

    @tool(side_effect="destructive")
    def wipe(name: str) -> str:
        """Remove a thing."""
        return "gone"

    async def main() -> None:
        desk.store.parent.mkdir(parents=True, exist_ok=True)
        planner = ScriptedPlanner([Plan(actions=(ToolCall(tool="wipe", args={"name": "x"}),))])
        async with Engine(store=f"sqlite:///{desk.store}", planner=planner, approver="caller") as engine:
            await engine.run(Agent(name="a", tools=(wipe,)), "Clean", run_id="r")

    asyncio.run(main())
    refused = desk.detent("approve", "r", "main.1.0", "--by", "ann")
    assert refused.code == 2 and "needs tools" in refused.err and "Nothing was posted" in refused.err and "--no-resume" in refused.err
    assert "answered by" not in desk.detent("approvals").out
    assert desk.detent("deny", "r", "main.1.0", "--by", "ann", "--no-resume").code == 0


def test_approving_a_tool_that_changed_names_where_the_new_request_is(desk: Desk) -> None:
    """The same reason stood there three times below "approved call", without the next step."""
    desk.steps("wipe", "answer")
    desk.detent("run", "Clean")
    tools = (desk.home / "tools.py").read_text()
    desk.write("tools.py", tools.replace("def wipe(name: str)", 'def wipe(name: str, why: str = "")'))
    refused = desk.detent("approve", "last", "main.1.0")
    assert refused.code == 2 and "the tool changed" in refused.err and "detent approvals" in refused.err
    assert "approved call" not in refused.err and "is dropped" not in refused.err and desk.notes == []


def test_a_denied_call_never_runs(desk: Desk) -> None:
    """The planner is told, and the run goes on."""
    desk.steps("wipe", "answer")
    desk.detent("run", "Clean")
    done = desk.detent("deny", "last", "main.1.0", "--reason", "not today")
    assert (done.code, desk.notes) == (0, [])
    assert "not today" in desk.detent("show", "last").out


def test_a_question_is_answered_by_another_process(desk: Desk) -> None:
    """The question and the command that answers it are printed."""
    desk.steps("ask", "answer")
    asked = desk.detent("run", "Choose")
    assert "Which one?" in asked.err
    assert "detent reply" in asked.err
    done = desk.detent("reply", "last", "the", "red", "one")
    assert (done.code, done.out) == (0, "all done\n")
    assert "the red one" in desk.detent("show", "last", "-v").out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_suspends_and_the_run_goes_on_later(desk: Desk, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM: exit 5, one line that says how to resume, nothing finished, nothing repeated."""
    desk.steps("note", "pause", "second", "answer")
    process = desk.start_and_wait_for_the_tool("run", "Go", "--store", "file:runs")
    process.send_signal(number)
    done = ended(process)
    assert (done.code, done.out) == (5, "")
    command = done.err.splitlines()[-1].split("next: ")[1]
    assert "suspended (" in done.err and command.endswith("--store file:runs")
    assert "Traceback" not in done.err
    desk.write("go", "")
    (desk.home / "begun").unlink()
    again = desk.detent(*shlex.split(command)[1:])
    assert (again.code, again.out, desk.notes) == (0, "all done\n", ["one", "two"])


def test_the_first_signal_lets_a_write_finish(desk: Desk) -> None:
    """One line says what is waited for; the outcome is recorded, nothing more begins, and `resume` repeats nothing and asks nobody."""
    desk.steps("note", "held", "second", "answer")
    process = desk.start_and_wait_for_the_tool("run", "Go")
    process.send_signal(signal.SIGTERM)
    line = told_by(process, "finishing")
    assert re.fullmatch(r"finishing held_note \(main\.2\.0\), \d+ s left; Ctrl-C again cuts it off\n", line)
    desk.write("go", "")
    done = ended(process)
    assert (done.code, desk.notes) == (5, ["one", "held"]) and "suspended (SIGTERM): run" in done.err
    again = desk.detent("resume", "last")
    assert (again.code, again.out, desk.notes) == (0, "all done\n", ["one", "held", "two"])


def test_ctrl_c_at_a_terminal_counts_down_and_again_cuts(desk: Desk) -> None:
    """The live line says what is waited for and for how long. Programs that a tool has started hear nothing of the key."""
    desk.steps("held", "answer")
    os.mkfifo(desk.home / "begun")
    threading.Thread(target=(desk.home / "begun").read_text).start()
    pressed = list[str]()

    def types(shown: str) -> str:
        lines = ("held_note  held", r"finishing held_note \(main\.1\.0\), \d+ s left; Ctrl-C again cuts it off")
        due = [line for line in lines if re.search(line, shown)]
        if len(due) <= len(pressed):
            return ""
        pressed.append(due[-1])
        return "\x03"

    sat = at_a_terminal(
        "run", "Go", types=types, env={**desk.environment, "TERM": "xterm-256color"}, cwd=desk.home, columns=100, group=True
    )
    assert len(pressed) == 2 and sat.code == 5, sat.shown
    assert "suspended (SIGINT; cut off: held_note (main.1.0))" in sat.shown and desk.notes == []
    assert desk.detent("resume", "last").code == 3


def test_a_killed_run_goes_on_and_what_nobody_knows_is_asked(desk: Desk) -> None:
    """After SIGKILL inside a write: exit 3 with the two ways to settle it; settled, the run completes and wrote once."""
    desk.steps("note", "slow", "second", "answer")
    process = desk.start_and_wait_for_the_tool("run", "Go")
    process.send_signal(signal.SIGKILL)
    assert ended(process).code == -signal.SIGKILL
    resumed = desk.detent("resume", "last")
    assert resumed.code == 3
    assert "in doubt: call main.2.0" in resumed.err
    commands = [shlex.split(line.split("next: ")[1]) for line in resumed.err.splitlines() if "next: " in line]
    assert [c[4] for c in commands] == ["--happened", "--not"]
    done = desk.detent("reconcile", "last", "main.2.0", "--happened", '"written"')
    assert (done.code, desk.notes) == (0, ["one", "slow", "two"])
    assert "settled" in desk.detent("show", "last", "-v").out
    assert desk.detent("replay", "last").code == 0


def test_a_call_that_did_not_happen_is_run_again(desk: Desk) -> None:
    """`reconcile --not` runs it with the same key; without a choice the command is refused."""
    desk.steps("slow", "answer")
    process = desk.start_and_wait_for_the_tool("run", "Go")
    process.send_signal(signal.SIGKILL)
    ended(process)
    assert desk.detent("resume", "last").code == 3
    assert desk.detent("reconcile", "last", "main.1.0").code == 2
    assert desk.detent("reconcile", "last", "main.1.0", "--not", "--no-resume").code == 0
    desk.write("tools.py", (desk.home / "tools.py").read_text().replace("await asyncio.Event().wait()", "await asyncio.sleep(0)"))
    (desk.home / "begun").unlink()
    resumed = desk.detent("resume", "last")
    assert resumed.code == 0 and "did not happen, and is made again" in resumed.err
    assert desk.notes == ["slow", "slow"]
    shown = desk.detent("show", "last").out
    assert "settled by" in shown and shown.index("resumed by") < shown.index("slow_note ok"), "in the order in which it happened"


def test_a_run_that_another_process_advances_is_busy(desk: Desk) -> None:
    """Exit 5, the holder is named, and the run is not disturbed."""
    desk.steps("pause", "answer")
    process = desk.start_and_wait_for_the_tool("run", "Go")
    busy = desk.detent("resume", "last")
    assert busy.code == 5
    assert "is being advanced by" in busy.err
    desk.write("go", "")
    assert ended(process).code == 0


def test_cancel_reaches_the_process_that_advances_the_run(desk: Desk) -> None:
    """The other process stops its call and ends the run as cancelled: exit 4 there, 0 here, with the document that was asked for."""
    desk.steps("pause", "answer")
    process = desk.start_and_wait_for_the_tool("run", "Go")
    told = desk.detent("cancel", "last", "--why", "wrong goal", "--json")
    assert told.code in (0, 4)
    assert told.json["run_id"]
    done = ended(process)
    assert done.code == 4
    assert "wrong goal" in done.err
    assert desk.detent("list", "--status", "stopped", "--json").json[0]["reason"] == "cancelled"


def test_cancel_ends_a_waiting_run_at_once(desk: Desk) -> None:
    """Nobody advances it: the command itself ends it."""
    desk.steps("wipe", "answer")
    desk.detent("run", "Clean")
    done = desk.detent("cancel", "last")
    assert done.code == 4
    assert desk.detent("cancel", "last").code == 4
    assert desk.notes == []


def test_cancel_of_a_run_that_has_ended_says_so(desk: Desk) -> None:
    """Exit 2, as for every command that does not fit; the answer is not printed as if the command had brought it about."""
    desk.detent("run", "Go")
    done = desk.detent("cancel", "last")
    assert (done.code, done.out) == (2, "")
    assert "has already ended, completed (final_answer)" in done.err
    assert desk.detent("cancel", "last", "--json").json["error"]["code"] == "not_allowed_now"


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("wipe", "the run waits for approval of wipe (call main.1.0): destructive tools need approval"),
        ("ask", "the run waits for an answer: Which one?"),
    ],
)
def test_the_last_line_of_a_run_that_waits_says_why(desk: Desk, step: str, why: str) -> None:
    """Below the commands that continue it, where a person looks first."""
    desk.steps(step, "answer")
    assert desk.detent("run", "Go").err.splitlines()[-1] == why


def test_the_same_run_id_attaches_and_another_goal_is_refused(desk: Desk) -> None:
    """`--run-id` of an existing run takes it on; with another goal it is a usage error."""
    first = desk.detent("run", "--run-id", "mine", "Go", "--json")
    again = desk.detent("run", "--run-id", "mine", "Go", "--json")
    assert (first.json["run_id"], again.json["run_id"], again.code, desk.notes) == ("mine", "mine", 0, ["one"])
    other = desk.detent("run", "--run-id", "mine", "Something else")
    assert other.code == 2
    assert "goal" in other.err


def test_a_run_goes_on_in_the_workspace_that_its_log_names(desk: Desk, tmp_path: Path) -> None:
    """`--workspace` of the first command counts for `resume` alone too."""
    (tmp_path / "elsewhere").mkdir()
    desk.write(
        "rules.yaml",
        "- name: w\n  call: {tool: write_file, args: {path: a.txt, content: a}}\n- name: q\n  ask: sure?\n"
        "- name: w2\n  call: {tool: write_file, args: {path: b.txt, content: b}}\n- name: d\n  answer: ok\n",
    )
    desk.write("agent.toml", 'name = "writer"\ntools = ["write_file"]\nrules = "rules.yaml"\nworkspace = "."\n')
    assert desk.detent("run", "--workspace", "elsewhere", "Write").code == 3
    assert desk.detent("reply", "last", "yes").code == 0
    assert sorted(p.name for p in (tmp_path / "elsewhere").iterdir()) == ["a.txt", "b.txt"]


def test_on_a_terminal_the_person_is_asked(desk: Desk) -> None:
    """An approval is asked for right there; `y` runs the call, and the run completes in the same command."""
    desk.steps("wipe", "answer")
    sat = at_a_terminal("run", "Clean", types=typed("ater: ", "what\ny\n"), env=desk.environment, cwd=desk.home, piped=True)
    assert (sat.code, sat.out, desk.notes) == (0, "all done\n", ["wiped x"])


def test_putting_an_approval_off_leaves_the_run_waiting(desk: Desk) -> None:
    """`l` at the prompt: exit 3, nothing ran, the approval is still open."""
    desk.steps("wipe", "answer")
    sat = at_a_terminal("run", "Clean", types=typed("ater: ", "l\n"), env=desk.environment, cwd=desk.home, piped=True)
    assert (sat.code, sat.out, desk.notes) == (3, "", [])
    assert len(desk.detent("approvals", "--json").json) == 1
