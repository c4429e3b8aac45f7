"""Law 6: an opening has at most one RunFinished and ends only by it; completed has an output, nothing else has one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from detent import Abstain, FinalAnswer, Plan, Stop, ToolCall, View, tool
from detent.core import events as e
from detent.core.errors import FatalToolError, NotAllowedNow, PlannerFailed
from detent.core.settle import REASONS
from detent.kernel.act import act as act_phase
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.ports import Verdict
from laws.checks import check_laws
from laws.places import Place, agent_of, engine_on


@tool(side_effect="read", ends_turn=True)
async def done(answer: Any) -> Any:
    """Answer."""
    return answer


@tool(side_effect="write")
async def break_it() -> str:
    """Break everything."""
    raise FatalToolError("it is broken")


@tool(side_effect="destructive")
async def wipe() -> str:
    """Wipe."""
    return "wiped"


@tool(side_effect="read")
async def tell(what: str) -> str:
    """Tell."""
    return what


class StrictPolicy:
    """Denies `wipe` for agents that fail on it, stops at `break_it` never."""

    version = "strict-1"

    def __init__(self, decision: Any) -> None:
        self.decision = decision

    def decide(self, call: Any, state: Any) -> Verdict:
        """Decide on wiping."""
        return Verdict(decision=self.decision if call.tool.name == "wipe" else "allow", rule="strict", reason="no wiping")

    def may_ask(self, spec: Any) -> bool:
        """Never."""
        return False


def answer(content: Any) -> Any:
    """Return a plan function that answers once with `content` and then gives up."""
    return lambda view: FinalAnswer(content=content) if view.iteration == 1 and view.attempt == 1 else Stop(reason="gave up")


def raising(view: View) -> Any:
    """Have no plan."""
    raise PlannerFailed("no model")


async def breaking(state: Any, context: Any) -> Any:
    """A phase that fails."""
    raise RuntimeError("a phase broke")


ENDS: list[tuple[str, Any, dict[str, Any], str, Any]] = [
    ("answer", answer("yes"), {}, "final_answer", "yes"),
    ("data", answer({"a": [1]}), {}, "final_answer", {"a": [1]}),
    ("zero", answer(0), {}, "final_answer", 0),
    ("false", answer(False), {}, "final_answer", False),
    ("blank", answer("  \n"), {}, "stop_action", None),
    ("none", answer(None), {}, "stop_action", None),
    ("done", lambda _: ToolCall(tool="done", args={"answer": "yes"}), {}, "done_tool", "yes"),
    ("done_blank", lambda _: ToolCall(tool="done", args={"answer": " "}), {}, "failure_threshold", None),
    ("done_none", lambda _: ToolCall(tool="done", args={"answer": None}), {}, "failure_threshold", None),
    ("done_data", lambda _: ToolCall(tool="done", args={"answer": {"x": 1}}), {}, "done_tool", {"x": 1}),
    ("embedded", answer('tell({"what": "inside"})'), {}, "final_answer", "inside"),
    ("stop", lambda _: Stop(reason="enough"), {}, "stop_action", None),
    ("abstain", lambda _: Abstain(missing=("data",)), {}, "abstained", None),
    ("fatal", lambda _: ToolCall(tool="break_it"), {}, "fatal_tool_error", None),
    ("planner", raising, {}, "planner_error", None),
    ("no_plan", lambda _: Plan(actions=()), {}, "malformed_plan", None),
    ("phase", answer("yes"), {"kernel": make_kernel((think, breaking, act_phase))}, "final_answer", "yes"),
    ("first_phase", answer("yes"), {"kernel": make_kernel((breaking, think, act_phase))}, "kernel_error", None),
    ("stopped_by_policy", lambda _: ToolCall(tool="wipe"), {"policy": StrictPolicy("stop")}, "policy_stopped", None),
    ("denied", lambda _: ToolCall(tool="wipe"), {"policy": StrictPolicy("deny"), "on_deny": "fail"}, "policy_denied", None),
    ("rejected", lambda _: ToolCall(tool="wipe"), {"on_reject": "stop", "approver": lambda _: False}, "approval_rejected", None),
]


@pytest.mark.parametrize(("name", "plan", "options", "reason", "output"), ENDS, ids=[x[0] for x in ENDS])
def test_every_way_to_end_has_one_exit(name: str, plan: Any, options: dict[str, Any], reason: str, output: Any, tmp_path: Path) -> None:
    """Its reason gives its status, an output stands beside completed alone, nothing follows it, and it replays."""

    async def main() -> None:
        place = Place("ram", tmp_path)
        agent = agent_of(done, break_it, wipe, tell, **{k: v for k, v in options.items() if k.startswith("on_")})
        engine = engine_on(
            place.store(), plan, [done, break_it, wipe, tell], **{k: v for k, v in options.items() if not k.startswith("on_")}
        )
        async with engine:
            result = await engine.run(agent, "end", run_id="run")
            assert (result.reason, result.status, result.output) == (reason, REASONS[reason], output)
            assert bool(result.error) == (result.status != "completed")
            lines = await place.lines("run")
            assert (await engine.resume("run")).reason == reason
            assert (await engine.cancel("run")).reason == reason
            assert await place.lines("run") == lines, "nothing follows the exit"
            again = await engine.replay("run")
            assert again.identical, again.divergence
            if result.status == "completed":
                with pytest.raises(NotAllowedNow, match="only a failed or stopped run"):
                    await engine.reopen("run")
        exits = [r.event for r in await place.records("run") if isinstance(r.event, e.RunFinished)]
        assert len(exits) == 1
        check_laws(lines)

    asyncio.run(main())


def test_each_opening_has_its_own_exit(tmp_path: Path) -> None:
    """A run that is opened again ends again, once; usage is kept and consecutive counters are not."""

    def plan(view: View) -> Any:
        return FinalAnswer(content="done") if view.iteration > 2 else Stop(reason="not yet")

    async def main() -> None:
        place = Place("sqlite", tmp_path)
        async with engine_on(place.store(), plan) as engine:
            result = await engine.run(agent_of(), "end", run_id="run")
            while result.status == "stopped":
                result = await engine.reopen("run", by="ann", why="go on")
            assert (result.output, result.state.openings, result.iterations) == ("done", 3, 3)
            assert (await engine.replay("run")).identical
        exits = [r.event.reason for r in await place.records("run") if isinstance(r.event, e.RunFinished)]
        assert exits == ["stop_action", "stop_action", "final_answer"]
        check_laws(await place.lines("run"))
        await place.close()

    asyncio.run(main())


def test_a_cancel_that_comes_too_late_does_not_end_the_next_opening(tmp_path: Path) -> None:
    """A signal to a run that has ended is dropped with it."""
    from detent.ports import Signal

    def plan(view: View) -> Any:
        return FinalAnswer(content="done") if view.iteration > 1 else Stop(reason="not yet")

    async def main() -> None:
        place = Place("sqlite", tmp_path)
        async with engine_on(place.store(), plan) as engine:
            await engine.run(agent_of(), "end", run_id="run")
            await engine.store.post("run", Signal(id="late", kind="cancel", by="ann"))
            assert (await engine.reopen("run")).output == "done"
            assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"))
        await place.close()

    asyncio.run(main())


@pytest.mark.parametrize("result", [None, "", "  ", {"answer": ""}], ids=repr)
def test_a_blank_answer_does_not_complete_whoever_gives_it(result: Any, tmp_path: Path) -> None:
    """A person who says that the call that ends the run happened, with nothing as its result, has not answered for it."""

    @tool(side_effect="write", ends_turn=True)
    async def submit() -> str:
        """Submit, in a way that nobody knows."""
        raise OSError("the line broke")

    def plan(view: View) -> Any:
        return ToolCall(tool="submit") if view.iteration == 1 else Stop(reason="gave up")

    async def main() -> None:
        place = Place("ram", tmp_path)
        async with engine_on(place.store(), plan, [submit]) as engine:
            assert (await engine.run(agent_of(submit), "end", run_id="run")).status == "waiting_for_reconciliation"
            ended = await engine.reconcile("run", "main.1.0", happened=True, result=result, by="ann")
            assert ended.status in ("failed", "stopped")
            assert ended.output is None
            assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"))

    asyncio.run(main())
