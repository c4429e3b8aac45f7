"""What looks at runs: list, show, tail, verify, replay, export, approvals, tools; and that `--json` is one document."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amounts import sampled, thinned
from cli.desk import Desk, Done, ended
from detent import Agent, AskUser, Budget, Engine, FinalAnswer, Plan, Thought, ToolCall, tool
from detent.cli import looking
from detent.cli.commands import BEGINNERS, EVERY, GROUPS
from detent.cli.invocation import Invocation
from detent.cli.main import run
from detent.cli.options import Setup
from detent.cli.progress import Progress
from detent.config.state_directory import store_url
from detent.core.codec import read_log
from detent.history.traces import make_trace
from detent.testing import ScriptedPlanner


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_list_filters_by_status_agent_goal_and_time(desk: Desk) -> None:
    """Each filter leaves out what does not fit; `waiting` stands for every kind of waiting; the newest run is first."""
    desk.detent("run", "Sweep the floor")
    desk.steps("ask", "answer")
    desk.detent("run", "Water the plants")

    def goals(*words: str) -> list[str]:
        return [head["goal"] for head in desk.detent("list", "--json", *words).json]

    assert goals() == ["Water the plants", "Sweep the floor"]
    assert goals("--status", "waiting") == goals("--goal", "PLANTS") == goals("--limit", "1") == ["Water the plants"]
    assert goals("--status", "completed", "--agent", "tester", "--since", "1h") == ["Sweep the floor"]
    assert goals("--agent", "other") == goals("--since", "2999-01-01") == goals("--tenant", "acme") == []
    text = desk.detent("list").out.splitlines()
    assert text[0].split()[:2] == ["RUN", "STATUS"]
    assert "waiting_for_user" in text[1]
    assert "completed" in text[2]


@pytest.mark.parametrize("words", [("--status", "complted"), ("--since", "yesterday")])
def test_a_wrong_filter_is_a_usage_error(desk: Desk, words: tuple[str, ...]) -> None:
    """Exit 2, and what would be right."""
    done = desk.detent("list", *words)
    assert done.code == 2
    assert "did you mean 'completed'" in done.err or "12h" in done.err


@pytest.mark.parametrize("agent", ["tester", "a-worker-of-a-quite-remarkable-name"])
@pytest.mark.parametrize("run_id", ["mine", "20260131-080000-water-the-plants-7k3f9q", f"20260131-080000-{'s' * 48}-7k3f9q"])
def test_list_keeps_ids_statuses_and_goals_on_a_terminal_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_id: str, agent: str
) -> None:
    """An id has its short name, which is not broken; no line is too long, and 15 characters of a goal are there."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    async def fill() -> None:
        async with Engine(store=store_url(tmp_path), planner=ScriptedPlanner([AskUser(question="Which?")])) as engine:
            await engine.run(Agent(name=agent), "Water the plants on the balcony and those in the kitchen", run_id=run_id)

    asyncio.run(fill())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout", shown := Terminal())
    assert looking.list_runs(setup=Setup()) == 0
    lines = shown.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    assert run_id[:15].rstrip("-") in text and "waiting_for_user" in text and "Water the plants" in text


def test_list_without_a_store_creates_none(desk: Desk) -> None:
    """Looking leaves nothing behind."""
    done = desk.detent("list")
    assert (done.code, done.out) == (0, "")
    assert not desk.store.parent.exists()


def test_show_has_each_step_and_the_termination_audit(desk: Desk) -> None:
    """Decision, tool, input, output, error and state of each iteration (row R2); how and why it ended (row R9)."""
    desk.steps("note", "wipe", "explode")
    desk.detent("run", "Clean")
    desk.detent("approve", "last", "main.2.0", "--by", "ann")
    out = desk.detent("show", "last", "-v").out
    for piece in (
        "iteration 1",
        "decision  call note",
        'input   {"text": "one"}',
        "output  written",
        "state     running · 1 call",
        "approved by ann",
    ):
        assert piece in out
    audit = out[out.index("termination audit") :]
    for piece in (
        "status    failed · fatal_tool_error",
        "the disk is on fire",
        "iterations 3/50",
        "in doubt  none",
        "resumed",
        "records, head",
        "receipt   failed: 2 calls ok, 1 failed (note 1 ok, wipe 1 ok, explode 0 ok 1 failed)",
        " detent (main.2.0)",
        "approved by ann via ",
    ):
        assert piece in audit


def test_show_is_a_line_for_each_call_and_then_how_it_ended(desk: Desk) -> None:
    """What it did, in order, with who approved it and what failed; the answer or the reason; and how to see the rest. No digest, no JSON."""
    desk.steps("note", "wipe", "explode")
    desk.detent("run", "Clean")
    desk.detent("approve", "last", "main.2.0", "--by", "ann")
    done = desk.detent("show", "last")
    steps, _, end = done.out.partition("\nstatus ")
    assert [words[:3] for line in steps.splitlines() if (words := line.split())[2:] and words[2] in ("ok", "failed")] == [
        ["1", "note", "ok"],
        ["2", "wipe", "ok"],
        ["3", "explode", "failed"],
    ]
    assert "(approved by ann)" in steps and "the disk is on fire" in steps
    assert "failed: fatal_tool_error" in end and "error     " in end and "receipt   failed: 2 calls ok, 1 failed" in end
    assert '{"' not in done.out and "head" not in done.out
    assert "-v" in done.err


def _passes(tmp_path: Path, goal: str) -> None:
    """Run a strategy of several passes in the desk's store as "r"."""

    class Planner:
        async def plan(self, view: Any) -> Plan:
            async def send(limit: int | None) -> Any:
                raise AssertionError("nothing is sent")

            if view.scope == "tight":
                await view.models.call("fake:m", send, input_tokens=100)
            return Plan(actions=(FinalAnswer(content=f"said in {view.scope}"),))

    async def mine(run: Any) -> Any:
        for _ in range(2):
            draft = await run.kernel("draft")
            await run.kernel("judge")
        return await run.kernel("tight", limits=Budget(max_total_tokens=50)) if run.goal == "Spend" else draft

    engine = Engine(store=store_url(tmp_path), planner=Planner(), strategies={"mine": mine})
    engine.run_sync(Agent(name="a", strategy="mine"), goal, run_id="r")


def test_show_has_a_line_for_each_pass_of_a_strategy(desk: Desk, tmp_path: Path) -> None:
    """Passes that only answer were left out: one line of the last was all that was to be seen of four."""
    _passes(tmp_path, "Go")
    done = desk.detent("show", "r")
    said = [line.split(": final answer: ")[0].split()[-1] for line in done.out.splitlines() if "final answer: said in" in line]
    assert said == ["draft", "judge", "draft#2", "judge#2"], done.out


def test_a_bound_of_a_pass_is_not_said_to_be_raised_by_reopening(desk: Desk, tmp_path: Path) -> None:
    """`reopen --budget` raises bounds of the run; the strategy gave this one, so the run would end in the same way again."""
    _passes(tmp_path, "Spend")
    done = desk.detent("show", "r")
    assert "budget_exhausted total_tokens of a pass, which its strategy sets" in done.out
    assert "reopen" not in done.out + done.err


def test_show_of_a_bound_names_limit_and_use(desk: Desk) -> None:
    """A run that a bound stopped says which one, its limit and the use."""
    desk.steps("note", "second", "answer")
    desk.detent("run", "Go", "--budget", "tool_calls=1")
    for words in ((), ("-v",)):
        out = desk.detent("show", "last", *words).out
        assert "bound     max_tool_calls: limit 1, used 1" in out
        assert "budget_exhausted" in out


def test_show_takes_one_iteration_and_leaves_nothing_out_with_v(desk: Desk) -> None:
    """`--iteration` inspects one step; long values are cut unless `-v` is given."""
    desk.write("rules.yaml", f"- name: long\n  call: {{tool: note, args: {{text: {'x' * 900}}}}}\n- name: end\n  answer: done\n")
    desk.detent("run", "Go")
    assert "x" * 900 not in desk.detent("show", "last").out
    assert "x" * 900 in desk.detent("show", "last", "-v").out
    one = desk.detent("show", "last", "--iteration", "2").out
    assert "iteration 2" in one
    assert "iteration 1" not in one
    assert desk.detent("show", "last", "--iteration", "9").code == 2


def test_what_a_tool_says_cannot_steer_the_terminal(desk: Desk) -> None:
    """Control characters of a run are shown as escapes."""
    desk.write("rules.yaml", '- name: end\n  answer: "\\e[2J\\e]0;title\\a gone"\n')
    done = desk.detent("run", "Go")
    shown = desk.detent("show", "last")
    assert "gone" in done.out
    assert "\x1b" not in done.out + done.err + shown.out


def test_a_unique_beginning_of_an_id_is_enough(desk: Desk) -> None:
    """More than one run fits: they are named; none fits: unknown."""
    for run_id in ("alpha-1", "alpha-2", "beta-1"):
        desk.detent("run", "--run-id", run_id, "Go")
    assert desk.detent("verify", "beta").code == 0
    both = desk.detent("verify", "alpha")
    assert both.code == 2
    assert "alpha-1" in both.err
    assert "alpha-2" in both.err
    assert desk.detent("verify", "gamma").code == 2


def test_tail_follows_a_run_of_another_process_to_its_end(desk: Desk) -> None:
    """It shows what is there and what comes, says what the run waits for, and exits like the run."""
    desk.steps("note", "ask", "pause", "answer")
    assert desk.detent("run", "Go").code == 3
    tail = desk.start("tail", "last")
    assert tail.stderr is not None
    seen = ""
    while "detent reply" not in seen:
        seen += tail.stderr.readline()
    assert "note ok" in seen
    replied = desk.start_and_wait_for_the_tool("reply", "last", "go on")
    desk.write("go", "")
    assert ended(replied).code == 0
    done = ended(tail)
    assert (done.code, done.out) == (0, "all done\n")
    assert "completed" in done.err


def test_tail_says_what_may_be_the_matter_where_nothing_comes(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, of a run that is not waiting: a killed process leaves nobody who could say so; `tail` goes on following."""
    monkeypatch.chdir(desk.home)
    monkeypatch.setattr(looking, "QUIET_S", 0.0)
    monkeypatch.setattr(looking, "POLL_S", 0.0)
    invocation, said = Invocation(Setup()), list[str]()
    monkeypatch.setattr(invocation.output, "say", lambda text="", _style="": said.append(text))

    async def main() -> None:
        async with Engine(store="ram:", planner=ScriptedPlanner([Thought(content="hm")] * 9), approver="caller") as engine:
            await engine.run(Agent(name="a", tools=[]), "go", run_id="r", turns=1)
            progress = Progress(invocation.output, verbosity=0, shown=True)
            following = asyncio.ensure_future(looking._follow(engine, "r", invocation, progress.on_record))
            while not any("detent resume r continues it" in line for line in said):
                await asyncio.sleep(0)
            for _ in range(100):  # it looks again and again
                await asyncio.sleep(0)
            await engine.cancel("r")
            assert (await following).reason == "cancelled"

    asyncio.run(main())
    assert [line.strip()[:15] for line in said].count("nothing new for") == 1


def test_ctrl_c_in_tail_stops_looking_and_not_the_run(desk: Desk) -> None:
    """The run goes on in its own process."""
    desk.steps("note", "pause", "answer")
    process = desk.start_and_wait_for_the_tool("run", "Go")
    tail = desk.start("tail", "last")
    assert tail.stderr is not None
    while "note ok" not in tail.stderr.readline():
        pass
    tail.send_signal(signal.SIGINT)
    assert ended(tail).code == 5
    desk.write("go", "")
    assert ended(process).code == 0


def test_verify_compares_with_a_head_that_was_kept(desk: Desk) -> None:
    """The digest of the last record is accepted, any other is not: exit 1."""
    desk.detent("run", "Go")
    found = desk.detent("verify", "last", "--json").json
    assert desk.detent("verify", "last", "--head", found["digest"]).code == 0
    wrong = desk.detent("verify", "last", "--head", "0" * 64)
    assert wrong.code == 1
    assert found["digest"] in wrong.out


def test_replay_names_the_record_where_code_and_log_part(desk: Desk) -> None:
    """The same code: identical. A tool with another declaration is named; one that refuses what it took is another code."""
    desk.detent("run", "Go")
    same = desk.detent("replay", "last")
    assert same.code == 0
    assert "identical" in same.out
    text = (desk.home / "tools.py").read_text()
    desk.write("tools.py", text.replace('side_effect="write"', 'side_effect="write", idempotent=True'))
    declared = desk.detent("replay", "last")
    assert (declared.code, "declaration of the tool has changed: 1 calls (main.1.0)" in declared.out) == (0, True), declared.out
    refusing = "from typing import Annotated\nfrom pydantic import AfterValidator\n\n\ndef refuse(text):\n    raise ValueError(text)\n"
    desk.write("tools.py", refusing + text.replace("note(text: str)", "note(text: Annotated[str, AfterValidator(refuse)])"))
    other = desk.detent("replay", "last")
    assert other.code == 1
    assert "differs at record" in other.out


def test_export_writes_the_stored_lines(desk: Desk) -> None:
    """One JSON object a line, to stdout or to a file, in sequence."""
    desk.detent("run", "Go")
    out = desk.detent("export", "last").out
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["envelope"]["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert desk.detent("export", "last", "-o", "log.jsonl").out == ""
    assert (desk.home / "log.jsonl").read_text() == out


def test_tools_lists_the_workspace_and_the_agent_s_own(desk: Desk) -> None:
    """Name, side effect, first line of the description."""
    out = desk.detent("tools").out
    assert "read_file" in out
    assert any(line.split()[:2] == ["wipe", "destructive"] for line in out.splitlines())


def commands(run: str) -> dict[str, tuple[str, ...]]:
    return {
        "list": ("list",),
        "show": ("show", run),
        "verify": ("verify", run),
        "replay": ("replay", run),
        "approvals": ("approvals",),
        "tools": ("tools",),
        "gc": ("gc", "--yes"),
        "resume": ("resume", run),
        "approve": ("approve", run, "main.1.0", "--no-resume"),
        "cancel": ("cancel", run),
        "erase": ("erase", run, "--yes"),
        "delete": ("delete", run, "--yes"),
        "init": ("init", "new"),
        "unknown run": ("show", "nothing"),
        "unknown option": ("show", run, "--colour"),
        "no goal": ("run",),
        "mistyped": ("run", "Go", "--budget", "max_iteration=3"),
    }


@thinned
@pytest.mark.parametrize("name", sampled(commands(""), few=9))
def test_json_is_one_document_and_nothing_else(desk: Desk, name: str) -> None:
    """On success and on failure alike; an error is {"error": {"code", "message"}}."""
    desk.steps("wipe", "answer")
    desk.detent("run", "--run-id", "mine", "Clean")
    done: Done = desk.detent(*commands("mine")[name], "--json")
    data: Any = done.json
    failed = name in ("unknown run", "unknown option", "no goal", "mistyped")
    assert ("error" in data and bool(data["error"]) and done.code == 2) == failed, done
    if failed:
        assert {"code", "message"} <= set(data["error"])
        assert data["error"]["message"]


def test_help_is_one_screen_with_the_beginner_s_commands_first(desk: Desk) -> None:
    """24 lines of 80 columns hold it with the prompt; every command is named; what a beginner needs is explained before the groups."""
    done = desk.detent("--help")
    lines = done.out.splitlines()
    assert done.code == 0 and len(lines) < 24 and max(map(len, lines)) < 80
    assert [line.split()[0] for line in lines[3 : 3 + len(BEGINNERS)]] == list(BEGINNERS)
    assert [name for name in EVERY if f" {name} " not in done.out] == []
    bare = desk.detent()
    assert (bare.code, bare.out) == (2, done.out)


@pytest.mark.parametrize("group", GROUPS)
def test_help_of_a_group_explains_each_of_its_commands(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On lines of 80 columns; no group is called like a command, whose help would be out of reach."""
    assert run(["help", group.lower()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(GROUPS[group])]] == list(GROUPS[group])
    assert max(map(len, lines)) < 80 and group.lower() not in EVERY


def test_help_explains_settings_and_commands_and_names_what_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    """Every variable but those of bounds, the exit codes; a wrong topic or command is a usage error."""
    assert run(["help", "settings"]) == 0
    told = capsys.readouterr().out
    assert "DETENT_STORE" in told and "DETENT_CONFIG" in told and "5 suspended" in told
    assert run(["help", "list"]) == 0
    assert "--limit" in capsys.readouterr().out
    assert (run(["help", "setings"]), run(["lst"]), run(["frobnicate"])) == (2, 2, 2)
    said = capsys.readouterr().err
    assert "'settings'" in said and "did you mean 'list'?" in said and "`detent --help`" in said
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("detent ")


def test_help_imports_no_command(tmp_path: Path) -> None:
    """It answers in a fraction of the time that loading what runs an agent takes."""
    code = "import sys; from detent.__main__ import main; sys.argv[1:] = ['--help']; main(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "detent.cli.main" in loaded
    assert not loaded & {"typer", "rich", "asyncio", "pydantic", "detent.engine", "detent.cli.invocation", "detent.cli.running"}


def test_each_call_of_a_batch_is_shown_with_its_own_reason() -> None:
    """Also the last one."""

    @tool(side_effect="read")
    async def look(n: int) -> int:
        """Look."""
        return n

    async def main() -> list[str]:
        plan = tuple(ToolCall(tool="look", args={"n": n}, reason=f"because of {n}") for n in range(3))
        async with Engine(store="ram:", planner=ScriptedPlanner([plan, FinalAnswer(content="done")])) as engine:
            result = await engine.run(Agent(name="a", tools=[look]), "go")
            trace = make_trace(list(read_log(result.run_id, await engine.store.read(result.run_id))))
        return [call.why for call in trace.iterations[0].calls]

    assert asyncio.run(main()) == ["because of 0", "because of 1", "because of 2"]
