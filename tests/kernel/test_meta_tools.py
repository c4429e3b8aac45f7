"""Meta-tools: answered inside the kernel, on the same path of decisions (rows S1-1, S1-6)."""

from __future__ import annotations

import asyncio
from typing import Any

from detent import Agent, Engine, FinalAnswer, PushGoal, ToolCall, tool
from detent.core.codec import encode_event
from detent.core.events import MetaToolAnswered, ToolFinished
from detent.core.state import KernelState
from detent.kernel.kernel import make_kernel
from detent.policies.tiers import TieredPolicy
from detent.ports import Answer, Block, Call, MetaTool, ToolSpec, Verdict
from detent.testing import ScriptedPlanner

SPEC = ToolSpec(name="brief", description="Say where the run stands.", side_effect="none")


async def brief(args: dict[str, Any], state: KernelState, context: Any) -> Answer:
    """Count what was observed so far."""
    if args.get("fail"):
        raise ValueError("no such section")
    return Answer(content=f"{len(state.results)} observed in turn {state.iteration}")


@tool(side_effect="read")
async def look(n: int) -> int:
    """Look at something."""
    return n


END = FinalAnswer(content="done")
SCRIPT = [
    ToolCall(tool="look", args={"n": 1}),
    (ToolCall(tool="look", args={"n": 2}), ToolCall(tool="brief"), ToolCall(tool="brief", args={"fail": True})),
    FinalAnswer(content="done"),
]


def run(script: list[Any], **options: Any) -> Any:
    """Run a script with the meta-tool; return engine's result, its events and whether the log replays."""

    async def main() -> Any:
        guards = options.pop("guards", None)
        kernel = make_kernel(meta_tools=(MetaTool(spec=SPEC, handler=brief),), guards=guards)
        async with Engine(planner=ScriptedPlanner(script), tools=[look], kernel=kernel, **options) as engine:
            result = await engine.run(Agent(name="a", tools=["look", "brief"]), "go")
            events = [record.event for record in await engine.records(result.run_id)]
            return result, events, (await engine.replay(result.run_id)).identical

    return asyncio.run(main())


def test_a_meta_tool_answers_from_state_and_nothing_is_started() -> None:
    """Its answer is an observation for the planner, in order; it is no tool call, no work and no progress; the log replays."""
    result, events, identical = run(SCRIPT)
    assert result.status == "completed" and identical
    answers = [(e.content, e.success) for e in events if isinstance(e, MetaToolAnswered)]
    assert answers == [("2 observed in turn 2", True), ("ValueError: no such section", False)]
    assert [e.call for e in events if isinstance(e, ToolFinished)] == ["main.1.0", "main.2.0"]
    assert [item.tool for item in result.tool_calls] == ["look", "look"] and result.usage.tool_calls == 2
    seen = [(item.tool, item.ok, item.content) for item in result.state.passes["main"].results]
    assert seen[2:] == [("brief", True, "2 observed in turn 2"), ("brief", False, None)]


def test_a_meta_tool_passes_guards_and_policy_like_any_call() -> None:
    """A guard that blocks it, or a policy that denies it, keeps the handler from being asked."""

    def no_brief(call: Call, state: Any, run: Any) -> Block | None:
        return Block("not now") if call.tool.name == "brief" else None

    class NoBrief(TieredPolicy):
        def decide(self, call: Call, state: Any) -> Verdict:
            return Verdict(decision="deny", rule="r", reason="no") if call.tool.name == "brief" else super().decide(call, state)

    for options, code in (({"guards": (no_brief,)}, "guard_blocked"), ({"policy": NoBrief()}, "policy_denied")):
        result, events, identical = run([ToolCall(tool="brief"), FinalAnswer(content="done")], **options)
        assert identical and [item.error.code for item in result.state.passes["main"].results] == [code]
        assert not any(isinstance(e, MetaToolAnswered) for e in events)


def test_a_refused_meta_tool_is_no_call_that_anybody_counts() -> None:
    """Blocked, with bad arguments, or beside a control action: observed by the planner, but neither in the receipt nor among the tool calls."""

    def no_brief(call: Call, state: Any, run: Any) -> Block | None:
        return Block("not now")

    script = [(PushGoal(goal="look first"), ToolCall(tool="brief")), ToolCall(tool="brief"), ToolCall(tool="brief", args="["), END]
    result, events, identical = run(script, guards=(no_brief,))
    refused = [item.error.code for item in result.state.passes["main"].results]
    assert identical and refused == ["not_run", "guard_blocked", "schema_validation_failed"]
    assert result.tool_calls == () and (result.receipt.calls_failed, result.receipt.verdict) == (0, "ungrounded")
    real, events, _ = run([ToolCall(tool="look", args={"n": 1}), END], guards=(no_brief,))
    assert len(real.tool_calls) == real.receipt.calls_failed == 1
    assert b'"meta"' not in b"".join(encode_event(event) for event in events if isinstance(event, ToolFinished))


def test_meta_tools_alone_are_no_progress() -> None:
    """A run that only looks at itself reflects and then stops."""
    result, _, identical = run([ToolCall(tool="brief", args={"turn": n}) for n in range(20)])
    assert (result.status, result.reason) == ("stopped", "no_progress") and identical
