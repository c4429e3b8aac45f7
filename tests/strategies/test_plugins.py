"""A plug-in package brings strategies, kernels, guards, tools, planners, stores and policies by entry points; nothing here is changed for it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, ToolCall
from detent.config.assembly import store_at
from detent.config.loading import load_agent
from detent.core.errors import ConfigError, UnknownName
from detent.testing import ScriptedPlanner

MODULE = '''
"""A plug-in."""
from detent import FinalAnswer, Plan, ToolCall, tool
from detent.kernel.kernel import make_kernel
from detent.ports import Block, Verdict
from detent.stores.ram import RamStore

async def twice(run):
    """Run two passes."""
    await run.kernel("first")
    return await run.kernel("second")

KERNEL = make_kernel(name="plain")

def never(call, state, run):
    """Refuse everything."""
    return Block("never")

@tool(side_effect="read")
async def greet(name: str) -> str:
    """Greet."""
    return f"hello {name}"

@tool(side_effect="read", name="other")
async def misnamed() -> str:
    """Be called something else."""
    return ""

class Greeting:
    """A planner."""
    async def plan(self, view):
        if view.results:
            return Plan(actions=(FinalAnswer(content=view.results[0].content if view.results[0].ok else "refused"),))
        return Plan(actions=(ToolCall(tool="greet", args={"name": "ann"}),))

class Closed:
    """A policy."""
    version = "closed"
    def decide(self, call, state):
        return Verdict(decision="deny", rule="closed", reason="closed")
    def may_ask(self, tool):
        return False

class Shelf(RamStore):
    """A store."""
    def __init__(self, url, **options):
        super().__init__()
        self.url, self.options = url, options
'''
POINTS = """
[detent.strategies]
twice = detent_plug:twice
broken = detent_nowhere:thing

[detent.kernels]
plain = detent_plug:KERNEL

[detent.guards]
never = detent_plug:never

[detent.tools]
greet = detent_plug:greet
wrong = detent_plug:misnamed

[detent.planners]
greeting = detent_plug:Greeting

[detent.stores]
shelf = detent_plug:Shelf

[detent.policies]
closed = detent_plug:Closed
"""


@pytest.fixture
def plug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package that is installed for the test, as pip would leave it."""
    (tmp_path / "detent_plug.py").write_text(MODULE, encoding="utf-8")
    info = tmp_path / "detent_plug-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: detent-plug\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(POINTS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("detent_plug", None)


def go(engine: Engine, **fields: Any) -> Any:
    return asyncio.run(engine.run(Agent(name="a", **fields), "greet", run_id="r"))


def test_strategies_and_kernels_of_a_plug_in_run_by_name(plug: None) -> None:
    """They are listed beside the built-in ones, and unknown names see them too."""
    engine = Engine(planner=ScriptedPlanner([FinalAnswer(content="x")]))
    assert "twice" in engine.strategies.names() and "plain" in engine.kernels.names()
    result = go(engine, strategy="twice", kernel="plain")
    assert [(p.scope, p.kernel_type) for p in result.state.passes.values()] == [("first", "plain"), ("second", "plain")]
    assert engine.strategies.names().count("twice") == 1, "also once it has been loaded"
    with pytest.raises(UnknownName, match="did you mean 'twice'"):
        go(engine, strategy="twise")
    with pytest.raises(ConfigError, match=r"'broken' of package 'detent-plug' cannot be loaded: ModuleNotFoundError"):
        go(engine, strategy="broken")


def test_tools_and_guards_of_a_plug_in_are_listed_by_name(plug: None, tmp_path: Path) -> None:
    """An agent lists the names; a tool that calls itself otherwise is refused; agent files may name them."""
    planner = ScriptedPlanner([ToolCall(tool="greet", args={"name": "ann"}), FinalAnswer(content="done")])
    (call,) = go(Engine(planner=planner), tools=["greet"]).tool_calls
    assert call.content == "hello ann"
    (call,) = go(Engine(planner=planner), tools=["greet"], guards=["never"]).tool_calls
    assert call.error.code == "guard_blocked"
    with pytest.raises(ConfigError, match="'wrong', but the tool's own name is 'other'"):
        go(Engine(planner=planner), tools=["wrong"])
    with pytest.raises(UnknownName, match="unknown tool"):
        go(Engine(planner=planner), tools=["great"])
    (tmp_path / "agent.toml").write_text('name = "a"\ntools = ["greet"]\nguards = ["never"]\nstrategy = "twice"\n', encoding="utf-8")
    assert load_agent(tmp_path / "agent.toml").guards == ("never",)


def test_a_run_with_a_plug_ins_tool_is_taken_on_by_a_fresh_engine(plug: None) -> None:
    """Resuming finds the tool the same way."""
    store = store_at("shelf://top")

    async def main() -> Any:
        planner = ScriptedPlanner([ToolCall(tool="greet", args={"name": "ann"}), FinalAnswer(content="done")])
        agent = Agent(name="a", tools=["greet"])
        await Engine(store=store, planner=planner).run(agent, "greet", run_id="r", turns=1)
        return await Engine(store=store, planner=ScriptedPlanner([FinalAnswer(content="done")])).resume("r")

    assert asyncio.run(main()).output == "done"


def test_a_configuration_names_planners_policies_and_stores_of_a_plug_in(plug: None, tmp_path: Path) -> None:
    """A plain name is a plug-in's, a name with a colon an import path; a scheme that Detent does not have is a plug-in's store."""
    config = tmp_path / "detent.toml"
    config.write_text('planner = "greeting"\npolicy = "closed"\nstore = "shelf://top"\n', encoding="utf-8")
    engine = Engine.from_config(config, trust=True)
    result = go(engine, tools=["greet"])
    assert (result.output, engine.store.url) == ("refused", "shelf://top")
    assert Engine(store="shelf://other").store.url == "shelf://other"
    config.write_text('planner = "greting"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="failed to create planner: unknown planner 'greting'; did you mean 'greeting'"):
        Engine.from_config(config, trust=True)
    with pytest.raises(ConfigError, match="unknown scheme 'shelv'"):
        store_at("shelv://x")
