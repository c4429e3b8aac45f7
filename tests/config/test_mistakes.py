"""Mistakes of programs are told where they are made, with the class, what was expected and the nearest name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import detent
import detent.extend
from detent import Agent, Bounds, Budget, Engine, FinalAnswer, Host, McpServer, Models, Plan, ToolCall, tool
from detent.core.errors import ConfigError
from detent.core.records import Record
from detent.extend import Block, KernelHooks, MetaTool, ToolSpec, make_kernel
from kernel.runs import run_async


class Wrong:
    """Can be no part of an engine."""


class Planner:
    """Plans."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def plan(self, view: Any) -> Any:
        self.seen.append(repr(view))
        return FinalAnswer(content="x " * 5000)


CONSTRUCTED: dict[str, tuple[Callable[[], Any], str]] = {
    "missing": (lambda: FinalAnswer(reason="x"), "FinalAnswer needs 'content'"),  # type: ignore[call-arg]
    "missing of an agent": (lambda: Agent(tools=[]), "Agent needs 'name'"),  # type: ignore[call-arg]
    "near": (lambda: Agent(name="a", tool=["x"]), "Agent has no argument 'tool'; did you mean 'tools'?"),  # type: ignore[call-arg]
    "near of an action": (lambda: ToolCall(tool="x", arg={}), "ToolCall has no argument 'arg'; did you mean 'args'?"),  # type: ignore[call-arg]
    "near of a plan": (lambda: Plan(action=()), "Plan has no argument 'action'; did you mean 'actions'?"),  # type: ignore[call-arg]
    "near of a bound": (lambda: Budget(max_iteration=3), "did you mean 'max_iterations'?"),  # type: ignore[call-arg]
    "not near": (lambda: Host(colour="red"), "Host has no argument 'colour'; it has: tenant, workspace"),  # type: ignore[call-arg]
    "positional": (lambda: FinalAnswer("x"), r"takes no positional arguments; write FinalAnswer\(content=...\)"),  # type: ignore[call-arg]
    "of an engine": (lambda: Engine(stor="ram:"), "Engine has no argument 'stor'; did you mean 'store'?"),  # type: ignore[call-arg]
    "of a method": (lambda: Engine(planner=Planner()).run_sync(Agent(name="a"), "go", varaibles={}), "did you mean 'variables'?"),
    "of a group": (lambda: Bounds(grace=1), "Bounds has no argument 'grace'; did you mean 'grace_s'?"),  # type: ignore[call-arg]
    "of models": (lambda: Models(limit={}), "did you mean 'limits'?"),  # type: ignore[call-arg]
    "of a server": (lambda: McpServer(comand="x"), "did you mean 'command'?"),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("mistake", list(CONSTRUCTED))
def test_a_missing_or_extra_argument_is_told_with_the_class_and_the_nearest_name(mistake: str) -> None:
    """Python's "missing required argument" would not say of what, in a line that makes three things."""
    make, said = CONSTRUCTED[mistake]
    with pytest.raises(TypeError, match=said):
        make()


class Blind:
    """A planner that cannot be shown anything."""

    async def plan(self) -> None:
        """Plan."""


class Deaf:
    """An observer that cannot be told anything."""

    def on_record(self) -> None:
        """Hear nothing."""

    def on_chunk(self, chunk: Any) -> None:
        """Hear."""


def plain(x: int) -> int:
    """Is no tool, no guard and no strategy."""
    return x


@tool(side_effect="read")
def look() -> str:
    """Look."""
    return "seen"


PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "planner": ({"planner": Wrong()}, r"which has no plan\(view: View\) -> Plan"),
    "a class": ({"planner": Planner}, r"planner is the class Planner; give an object of it: Planner\(...\)"),
    "store": ({"store": Wrong()}, "see detent.extend.EventStore for what it needs"),
    "policy": ({"policy": Wrong()}, r"which has no decide\(call: Call, state: RunState\) -> Verdict, may_ask"),
    "tools": ({"tools": [Wrong()]}, "is not a tool; decorate it with @tool"),
    "clock": ({"clock": 3}, r"clock is 3, which has no now\(\) -> datetime"),
    "ids": ({"ids": 3}, "detent.extend.Ids"),
    "secrets": ({"secrets": {"KEY": "x"}}, "detent.extend.SecretSource"),
    "capabilities": ({"capabilities": 3}, "detent.extend.Capabilities"),
    "scheduler": ({"scheduler": 3}, "detent.extend.Scheduler"),
    "worker host": ({"worker_host": 3}, "detent.extend.WorkerHost"),
    "hooks": ({"hooks": 3}, "hooks is 3; give a KernelHooks"),
    "models": ({"models": {"titles": True}}, "give a Models"),
    "bounds": ({"bounds": 3}, "bounds is 3; give a Bounds"),
    "kernel": ({"kernel": 3}, "kernel is 3; give a Kernel"),
    "verifiers": ({"verifiers": {"x": 3}}, r"verifiers\['x'\] is an int; expected a function \(answer, view\) that returns what is wrong"),
}


PARTS |= {
    "a planner that is shown nothing": (
        {"planner": Blind()},
        r"whose plan takes \(\) -> None; expected plan\(view: View\) -> Plan, see detent.extend.Planner",
    ),
    "guards in a list": ({"guards": [len]}, r"guards is a list; expected a table of names, \{NAME: guard\}"),
    "kernels in a list": ({"kernels": [make_kernel()]}, "kernels is a list; expected a table of names"),
    "strategies in a list": ({"strategies": [plain]}, "strategies is a list; expected a table of names"),
    "a guard of one argument": (
        {"guards": {"g": plain}},
        r"guards\['g'\] takes \(x: int\) -> int; expected a function \(call, state, run\)",
    ),
    "a strategy": ({"strategies": {"s": 3}}, r"strategies\['s'\] is an int; expected an async function of a StrategyRun"),
    "a phase": ({"kernel": make_kernel((plain,))}, r"the kernel: a phase takes \(x: int\) -> int; expected an async function"),  # type: ignore[arg-type]
    "a guard of a kernel": ({"kernels": {"k": make_kernel(guards=(3,))}}, "the kernel 'k': a guard is an int; expected a function"),  # type: ignore[arg-type]
    "a meta-tool": ({"kernel": make_kernel(meta_tools=(look,))}, "a meta-tool is a Tool; expected a MetaTool"),  # type: ignore[arg-type]
    "a hook": ({"hooks": KernelHooks(before={"act": 3})}, r"hooks\.before\['act'\] is an int; expected a function \(state\)"),  # type: ignore[dict-item]
    "a plain function as a tool": ({"tools": [plain]}, "the function 'plain' is not a tool; decorate it with @tool"),
    "an observer that takes nothing": ({"observers": [Deaf()]}, r"which has no on_record\(record, state\); see detent.extend.Observer"),
}


AGENTS: dict[str, tuple[Callable[[], Any], str]] = {
    "a plain function": (
        lambda: Agent(name="a", tools=[plain]),
        "tools has the function 'plain'; expected names of tools, or functions with the decorator",
    ),
    "a class": (lambda: Agent(name="a", tools=[Wrong]), "tools has the class Wrong; expected names"),
    "a strategy": (lambda: Agent(name="a", strategy=plain), r"strategy has a function; expected a name: give Engine\(strategies="),  # type: ignore[arg-type]
    "a kernel": (lambda: Agent(name="a", kernel=make_kernel()), "kernel has a Kernel; expected a name"),  # type: ignore[arg-type]
    "a guard": (lambda: Agent(name="a", guards=[plain]), "guards has a function; expected a name"),  # type: ignore[list-item]
    "a policy": (lambda: Agent(name="a", policy=Wrong()), r"policy is a Wrong; expected rules.*Engine\(policy="),  # type: ignore[arg-type]
    "a verifier": (lambda: Agent(name="a", verify=[plain]), r"verify 1 takes \(x: int\) -> int; expected a function \(answer, view\)"),
    "a goal": (lambda: Engine(planner=Planner()).run_sync(Agent(name="a"), 3), "the goal is 3; give a text"),  # type: ignore[arg-type]
    "an observer": (
        lambda: Engine(planner=Planner()).run_sync(Agent(name="a"), "go", observers=Wrong()),
        "observers must be a list",
    ),
    "a meta-tool": (lambda: MetaTool(spec=ToolSpec(name="x"), handler=3), "expected a ToolSpec and a function"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("part", list(AGENTS))
def test_what_cannot_be_a_part_is_refused_when_the_agent_is_made(part: str) -> None:
    """With what was expected, and where an object of this kind belongs."""
    make, said = AGENTS[part]
    with pytest.raises(ConfigError, match=said):
        make()


MADE_BY_DETENT = (
    "Answered Approval Backtest CallState Chunk Diff Doubt Erasure Job Kernel KernelInput KernelState Item LoadedRun NotHappened Parting Passed "
    "PhaseContext Planned Receipt Record Replay Result Retained RunHead RunState SessionHead ToolError Tree Upgrade Upgraded Verification View "
    "Worked AnswerView Call"
)


def test_every_struct_that_programs_make_tells_what_it_has() -> None:
    """A missing or misspelt argument is told with the class: Python's own message leaves it out."""
    doors = {name: getattr(door, name) for door in (detent, detent.extend) for name in door.__all__}
    structs = {name: made for name, made in doors.items() if isinstance(made, type) and issubclass(made, msgspec.Struct)}
    for name in set(structs) - set(MADE_BY_DETENT.split()):
        with pytest.raises(TypeError, match=rf"{name} has no argument 'xyzzy'"):
            structs[name](xyzzy=1)
    with pytest.raises(TypeError, match="Block needs 'reason'"):
        Block()  # type: ignore[call-arg]


@pytest.mark.parametrize("part", list(PARTS))
def test_what_cannot_be_a_part_is_refused_when_the_engine_is_made(part: str) -> None:
    """Else it is an AttributeError in the middle of the first run."""
    options, said = PARTS[part]
    with pytest.raises(ConfigError, match=said):
        Engine(**options)


def test_what_cannot_be_an_observer_is_refused_when_the_engine_is_made() -> None:
    """It says which method it lacks."""
    with pytest.raises(ConfigError, match=r"which has no on_record\(record, state\) and no on_chunk\(chunk\); see detent.extend.Observer"):
        Engine(observers=[Wrong()])  # type: ignore[list-item]


def test_what_the_message_names_can_be_imported_from_there() -> None:
    """A pointer to where nothing is would be worse than none."""
    import detent.extend
    from detent.config.names import SEAMS

    assert [seam.__name__ for seam in SEAMS.values() if not hasattr(detent.extend, seam.__name__)] == []


def test_run_sync_in_a_running_loop_says_what_to_write() -> None:
    """A notebook has a loop: "asyncio.run() cannot be called from a running event loop" says nothing about this method."""

    async def main() -> None:
        engine = Engine(planner=Planner())
        with pytest.raises(ConfigError, match=r"in a notebook; write `await engine.run\(...\)`"):
            engine.run_sync(Agent(name="a"), "go")

    run_async(main)
    engine = Engine(planner=Planner())
    assert [engine.run_sync(Agent(name="a"), "go").status for _ in range(2)] == ["completed", "completed"]


def test_what_is_printed_is_at_most_five_lines() -> None:
    """A state of 8,000 characters on a console shows nothing. At 80 columns, whatever the run holds."""

    async def main() -> None:
        planner = Planner()
        async with Engine(planner=planner) as engine:
            result = await engine.run(Agent(name="a" * 70, instructions="x\n" * 500), "go\n" * 500, run_id="r")
            records: list[Record] = await engine.records("r")
            plan = Plan(actions=tuple(ToolCall(tool="look", args={"n": n, "text": "x" * 500}) for n in range(50)))
            for shown in (repr(result), repr(result.state), repr(plan), *map(repr, records), *planner.seen):
                assert sum(1 + (len(line) - 1) // 80 for line in shown.splitlines()) <= 5, shown
            assert len(str(result).splitlines()) <= 5 and len(str(result)) < 2_500
            assert "completed (final_answer)" in str(result) and "iterations 1" in str(result)
            assert "<td>r: completed (final_answer)</td>" in result._repr_html_()

    run_async(main)


def test_a_result_in_a_notebook_is_escaped() -> None:
    """An answer is a model's: markup in it would run in the notebook."""

    class Says:
        async def plan(self, view: Any) -> Any:
            return FinalAnswer(content="<script>alert(1)</script>")

    result = Engine(planner=Says()).run_sync(Agent(name="a"), "go")
    assert "<script>" not in result._repr_html_() and "&lt;script&gt;" in result._repr_html_()


def test_a_state_that_was_loaded_and_an_agent_are_shown_short() -> None:
    """Whatever they hold."""

    async def go() -> Any:
        async with Engine(planner=Planner()) as engine:
            result = await engine.run(Agent(name="a", instructions="long\n" * 9000), "go\n" * 9000)
            return await engine.load(result.run_id)

    for thing in (run_async(go), Agent(name="a", instructions="long\n" * 9000)):
        assert len(repr(thing).splitlines()) <= 5 and len(repr(thing)) <= 400 and len(str(thing)) < 2_500
