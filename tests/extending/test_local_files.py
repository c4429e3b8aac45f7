"""Parts of one's own that files name by import path: every kind runs, in any process, and nothing is imported in a directory that is not trusted."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from cli.desk import Desk
from detent import Engine
from detent.config.demands import agent_demands, config_demands, listing
from detent.core.errors import ConfigError
from detent.extend import RunState, load_agent

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "extending"

PARTS = '''\
from detent import FinalAnswer, tool
from detent.extend import Answer, MetaTool, ToolSpec, Verdict, make_kernel, transition

print("imported")


@tool(side_effect="read")
def look() -> str:
    """Look."""
    return "seen"


async def turns(args, state, context):
    return Answer(content=f"turn {state.iteration}")


TURNS = MetaTool(spec=ToolSpec(name="turns", description="Which turn it is.", side_effect="none"), handler=turns)
KERNEL = make_kernel(meta_tools=(TURNS,), name="with-turns")


def once(call, state, run):
    return None


async def careful(run):
    tone = await run.ask_user("tone", "How should it sound?")
    return await run.kernel("work", guidance=(tone,))


async def count(state, context):
    return transition(state, meta={**state.meta, "turns": state.iteration})


def not_empty(answer, view):
    return None if answer else "say something"


def too_few(call):
    return None


class Unmade:
    def __call__(self, call, state, run):
        return None


class Counting:
    name = "counting"

    def due(self, measured):
        return "turns" if measured.turns > 2 else ""

    async def compact(self, dropped, *, ask):
        return f"{len(dropped.items)} more"


COUNTING = Counting()
'''
RULES = 'rules = [{name = "look", call = {tool = "look"}}, {name = "say", answer = "seen"}]\n'
AGENT = f"""\
name = "local"
tools = ["./parts.py:look"]
guards = ["./parts.py:once"]
strategy = "./parts.py:careful"
phases = ["think", "act", "./parts.py:count"]
{RULES}
[[verify]]
function = "./parts.py:not_empty"
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A directory with an agent all of whose parts are of one file; its commands trust it unless a test says otherwise."""
    (tmp_path / "work").mkdir()
    made = Desk(tmp_path / "work")
    made.write("parts.py", PARTS)
    made.write("agent.toml", AGENT)
    return made


RUN = {
    "agent": ("tool, meta-tool, guard, verifier; planner, policy, store and observer of detent.toml", "the list has milk"),
    "strategy": ("strategy", "42"),
    "kernel": ("kernel", "Paris"),
    "phases": ("phases", "seen"),
}


@pytest.mark.parametrize("name", list(RUN))
def test_a_file_names_a_part_of_every_kind(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples' own files, each with the program that explains it."""
    shutil.copytree(EXAMPLES, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")

    async def run() -> Any:
        async with Engine.from_config("detent.toml", trust=True) as engine:
            agent = load_agent(f"{name}.toml")
            result = await engine.run(agent, "Remember the milk")
            return result, (await engine.replay(result.run_id)).identical, engine

    result, identical, engine = asyncio.run(run())
    assert (result.status, result.output, identical) == ("completed", RUN[name][1], True)
    here = str(tmp_path / "work")
    parts = {"agent": result.state.agent.guards[:1], "strategy": [result.state.agent.strategy]}.get(name, [result.state.agent.kernel])
    assert all(part.startswith(here) and type(part) is str for part in parts), "the log has the path, and nothing of the code"
    told = engine.runtime._observers[0].observers[0]
    assert (Path("runs").exists(), type(told).__name__) == (True, "Diary")
    if name == "agent":
        assert result.state.calls_of == {"remember": 1} and result.state.passes["main"].results[0].tool == "remember"
        assert (engine.runtime.parts.policy.version, type(engine.planner).__name__) == ("few-notes-1", "Clerk")
        assert set(result.state.agent.tools) == {"remember", "remaining"}
    if name == "phases":
        assert result.state.passes["main"].scratchpad["diary"] == "turn 2: seen"


LONG = """\
name = "long"
tools = ["./parts.py:look"]
compaction = { use = "./parts.py:COUNTING", keep_turns = 1 }
"""
CLERK = """\
from detent import FinalAnswer, ToolCall


class Clerk:
    async def plan(self, view):
        return FinalAnswer(content="seen") if view.iteration > 6 else ToolCall(tool="look", args={})
"""


def test_a_file_names_a_compactor_and_another_process_imports_it_again(desk: Desk) -> None:
    """A name of the file alone would leave the run to those who started it."""
    desk.write("agent.toml", LONG)
    desk.write("clerk.py", CLERK)
    desk.write("detent.toml", 'planner = "./clerk.py:Clerk"\nagent = "agent.toml"\n')
    assert desk.detent("run", "Look").code == 0
    state = asyncio.run(_state(desk))
    assert state.agent.compaction["use"] == f"{desk.home / 'parts.py'}:COUNTING"
    assert "more" in state.passes["main"].summary
    assert desk.detent("replay", "last").code == 0
    assert desk.detent("submit", "Look").code == 0
    assert desk.detent("worker", "--until-idle").code == 0
    assert [run["status"] for run in desk.detent("list", "--json").json] == ["completed", "completed"]


async def _state(desk: Desk) -> RunState:
    async with Engine(store=f"sqlite:///{desk.store}") as engine:
        return await engine.load((await engine.list_runs())[0].run_id)


def test_another_process_continues_with_the_same_parts(desk: Desk) -> None:
    """What the log names is imported again where its directory is trusted, and nowhere else."""
    waiting = desk.detent("run", "Look")
    assert waiting.code == 3, waiting.err
    refused = desk.detent("reply", "last", "kind", DETENT_TRUST="")
    assert refused.code == 2 and "is not trusted" in refused.err and "imported" not in refused.out, refused.err
    done = desk.detent("reply", "last", "kind")
    assert (done.code, done.out.splitlines()[-1]) == (0, "seen"), done.err
    assert desk.detent("replay", "last").code == 0
    state = asyncio.run(_state(desk))
    assert (state.passes["work"].meta, state.agent.strategy) == ({"turns": 2}, f"{desk.home / 'parts.py'}:careful")


def test_a_worker_imports_what_its_own_agent_files_name(desk: Desk) -> None:
    """The log alone is not believed: without the agent file the run is left to others."""
    assert desk.detent("submit", "Look").code == 0
    (desk.home / "agent.toml").rename(desk.home / "away.toml")
    left = desk.detent("worker", "--until-idle")
    assert left.code == 2, left.err
    (desk.home / "away.toml").rename(desk.home / "agent.toml")
    done = desk.detent("worker", "--until-idle")
    assert desk.detent("list", "--json").json[0]["status"] == "waiting_for_user", done.err


def test_a_kernel_brings_its_meta_tools(desk: Desk) -> None:
    """An agent file lists them like any tool."""
    rules = 'rules = [{name = "ask", call = {tool = "turns"}}, {name = "say", answer = "asked"}]'
    desk.write("agent.toml", f'name = "local"\nkernel = "./parts.py:KERNEL"\ntools = ["turns"]\n{rules}\n')
    done = desk.detent("run", "Look")
    assert (done.code, done.out.splitlines()[-1:]) == (0, ["asked"]), done.err


def test_each_of_these_keys_needs_trust_and_belongs_to_what_trust_is_bound_to(tmp_path: Path) -> None:
    """Else a file that changed after it was trusted would be imported all the same."""
    (tmp_path / "agent.toml").write_text(AGENT)
    (tmp_path / "other.toml").write_text('name = "o"\nkernel = "./kernels.py:K"\n')
    (tmp_path / "long.toml").write_text('name = "l"\ncompaction = { use = "./compactors.py:C" }\n')
    (tmp_path / "detent.toml").write_text('store = "./stores.py:here"\n')
    asked = {(one.does, one.key, one.what) for one in agent_demands(tmp_path / "agent.toml")}
    keys = {"tools": "look", "guards": "once", "strategy": "careful", "phases": "count", "verify.function": "not_empty"}
    assert asked == {("import", key, f"./parts.py:{name}") for key, name in keys.items()}
    assert [(one.does, one.what) for one in agent_demands(tmp_path / "other.toml")] == [("import", "./kernels.py:K")]
    assert [(one.does, one.what) for one in agent_demands(tmp_path / "long.toml")] == [("import", "./compactors.py:C")]
    assert [(one.does, one.key) for one in config_demands(tmp_path / "detent.toml")] == [("import", "store.url")]
    for name in ("parts.py", "kernels.py", "stores.py", "compactors.py"):
        (tmp_path / name).write_text("")
    assert {"parts.py", "kernels.py", "stores.py", "compactors.py"} <= set(listing(tmp_path).files)


MISTAKES = {
    "no such file": ('guards = ["./part.py:once"]', r"guards: there is no file '.*/part\.py'; did you mean 'parts\.py'\?"),
    "no such name": ('guards = ["./parts.py:onse"]', r"guards: '.*' *: there is no 'onse' in .*/parts\.py; did you mean 'once'\?"),
    "no attribute": ('guards = ["./parts.py:"]', "is not an import path; write 'module:attribute' or './file.py:attribute'"),
    "not a guard": (
        'guards = ["./parts.py:too_few"]',
        r"takes \(call\); expected a function \(call, state, run\) that returns a Block or None",
    ),
    "a class": ('guards = ["./parts.py:Unmade"]', r"is the class Unmade; expected .*: give an object of it, Unmade\(\.\.\.\)"),
    "not a strategy": ('strategy = "./parts.py:TURNS"', "strategy: '.*' is a MetaTool; expected an async function of a StrategyRun"),
    "not a kernel": (
        'kernel = "./parts.py:careful"',
        r"kernel: '.*' is a function and has no phases; expected a kernel, made with make_kernel",
    ),
    "not a phase": ('phases = ["./parts.py:careful"]', r"phases: '.*' takes \(run\); expected an async function \(state, context\)"),
    "a phase by name": ('phases = ["thinks", "act"]', r"phases: 'thinks' is not a phase; write think, act, or './file\.py:function'"),
    "both": ('kernel = "react"\nphases = ["act"]', "phases: kernel is 'react', which has its own phases"),
    "a planner": ('planner = "./parts.py:look"', r"planner: your own planner .* detent\.toml"),
    "not a tool": ('tools = ["./parts.py:once"]', r"is the function 'once', not a tool; decorate it with @tool"),
    "not a compactor": ('compaction = "./parts.py:look"', r"expected an object with name, due\(measured\) and compact"),
    "not a verifier": ('[[verify]]\nfunction = "./parts.py:too_few"', r"expected a function \(answer, view\)"),
}


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_a_wrong_import_path_says_which_file_which_name_and_what_was_expected(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each begins with the agent file and the key."""
    text, said = MISTAKES[mistake]
    monkeypatch.chdir(tmp_path)
    Path("parts.py").write_text(PARTS)
    Path("agent.toml").write_text(f'name = "a"\n{text}\n')
    with pytest.raises(ConfigError, match=rf"agent\.toml: .*{said}"):
        load_agent("agent.toml")


CONFIGURED = {
    "store": r"failed to create store: store is .*, which has no open\(\), close\(\), append\(\)",
    "planner": r"failed to create planner: \./parts\.py:look: planner is .*, which has no plan\(view: View\) -> Plan",
    "policy": r"failed to create policy: .*which has no decide\(call: Call, state: RunState\) -> Verdict, may_ask",
    "observers": r"failed to create observers: .*which has no on_record\(.*\) -> Any, on_chunk",
}


@pytest.mark.parametrize("key", list(CONFIGURED))
def test_a_wrong_part_of_the_configuration_says_what_its_seam_needs(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything runs."""
    monkeypatch.chdir(tmp_path)
    Path("parts.py").write_text(PARTS)
    said = '["./parts.py:look"]' if key == "observers" else '"./parts.py:Unmade"' if key == "store" else '"./parts.py:look"'
    Path("detent.toml").write_text(f"{key} = {said.replace('Unmade', 'KERNEL')}\n")
    with pytest.raises(ConfigError, match=CONFIGURED[key]):
        Engine.from_config("detent.toml", trust=True)
