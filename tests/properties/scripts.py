"""Random scripts for the whole engine: plans of every kind, tools that end in every way, and answers from outside at random.

Everything that happens is decided by the example, so that a failing one can be tried again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from hypothesis import strategies as st

from detent import Agent, Budget, Engine, Plan, Tool, ToolCall, Usage, tool
from detent.core.actions import Abstain, AskUser, CompleteGoal, FinalAnswer, PushGoal, Schedule, Stop, Thought
from detent.core.errors import FatalToolError, MalformedPlan, NotAllowedNow, NotExecuted, ToolFailed
from detent.core.state import RunState
from detent.policies.tiers import TieredPolicy
from detent.ports import Call, ToolContext, ToolSpec, Verdict
from detent.testing import ScriptedPlanner
from detent.testing.clocks import FakeClock

ENDS = ("ok", "ok", "ok", "failed", "not_executed", "untyped", "fatal", "never", "says_no", "big", "surrogate", "blank")


class CautiousPolicy(TieredPolicy):
    """The tiers, with rules by argument: n = 13 is denied, n = 17 stops the run, n = 19 is asked for."""

    version = "cautious-1"

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Return the verdict by the number in the arguments, else by tier."""
        number = call.args.get("n")
        if number == 13:
            return Verdict(decision="deny", rule="thirteen", reason="13 brings bad luck")
        if number == 17:
            return Verdict(decision="stop", rule="seventeen", reason="17 is too much")
        if number == 19:
            return Verdict(decision="require_approval", rule="nineteen", reason="19 needs a second look")
        return super().decide(call, state)

    def may_ask(self, tool: ToolSpec) -> bool:
        """Any call may be the nineteenth."""
        return True


async def behave(how: str, n: int, context: ToolContext) -> Any:
    """End as `how` says."""
    if n % 3 == 0:
        await asyncio.sleep(0)
    match how:
        case "failed":
            raise ToolFailed(f"no {n}", error_code="handler_error" if n % 2 else "not_found", details={"n": n})
        case "not_executed":
            raise NotExecuted(f"not now: {n}")
        case "untyped":
            raise ValueError(f"strange {n}")
        case "fatal":
            raise FatalToolError(f"the end: {n}")
        case "never" if context.attempt == 1:
            return await asyncio.sleep(3600)
        case "says_no":
            return {"success": False, "error": "refused", "message": f"no {n}"}
        case "big":
            return ["x" * 40] * 40
        case "surrogate":
            raise ToolFailed(f"bad name \udcff{n}")
        case "blank":
            return ""
        case _:
            return {"n": n, "how": how}


def make_tools() -> list[Tool[..., Any]]:
    """Return tools of every declared kind; each ends as its `how` argument says."""

    def make(name: str, **options: Any) -> Tool[..., Any]:
        async def function(how: str, n: int, context: ToolContext) -> Any:
            return await behave(how, n, context)

        function.__name__ = name
        function.__doc__ = f"End as told ({name})."
        return tool(function, timeout_s=0.02, max_result_bytes=400, **options)

    return [
        make("look", side_effect="read"),
        make("poll", side_effect="none", volatile=True),
        make("peek", side_effect="read", concurrency_safe=False, retries=1),
        make("price", side_effect="read", cost_usd=0.01),
        make("put", side_effect="write"),
        make("set", side_effect="write", idempotent=True, retries=2),
        make("wipe", side_effect="destructive"),
        make("again", side_effect="write", retries=1),
        make("close", side_effect="read", ends_turn=True),
    ]


NAMES = tuple(t.name for t in make_tools())

usages = st.sampled_from(
    [Usage(), Usage(input_tokens=3, output_tokens=2, cost_usd=0.01), Usage(input_tokens=1), Usage(model_calls=1, output_tokens=5)]
)
numbers = st.integers(0, 20)
arguments = st.one_of(
    st.fixed_dictionaries({"how": st.sampled_from(ENDS), "n": numbers}),
    st.fixed_dictionaries({"how": st.just("ok"), "n": numbers}),
    st.sampled_from(
        [
            {},
            {"how": 5, "n": 1},
            {"how": "ok", "n": 1, "x": 2},
            "{",
            '{"how": "ok", "n": 2}',
            "[1]",
            None,
            [1],
            7,
            {"how": "ok", "n": 2**70},
        ]
    ),
)
calls = st.builds(ToolCall, tool=st.sampled_from((*NAMES, *NAMES, "nowhere", "no such")), args=arguments)
controls = st.one_of(
    st.builds(Thought, content=st.text(max_size=10)),
    st.builds(PushGoal, goal=st.text(max_size=10)),
    st.builds(CompleteGoal, goal_id=st.sampled_from(["", "main.1", "x"])),
    st.builds(AskUser, question=st.just("how many?")),
    st.builds(Schedule, delay_s=st.sampled_from([0.0, 5.0, 3600.0, None]), at=st.sampled_from(["", "tomorrow", "2026-01-01T00:00:30Z"])),
)
ends = st.one_of(
    st.builds(
        FinalAnswer,
        content=st.sampled_from(["done", "", "   ", None, 0, {"a": 1}, 'look({"how": "ok", "n": 3})', 'put({"how": "failed", "n": 3})']),
    ),
    st.builds(Stop, reason=st.just("enough")),
    st.builds(Abstain, missing=st.just(("data",))),
)
broken = st.sampled_from(["none", "text", "empty", "malformed", "raises", "two"])


def plan_of(actions: tuple[Any, ...], usage: Usage, text: str) -> Plan:
    """Return a plan of these actions."""
    return Plan(actions=actions, usage=usage, text=text, model="scripted" if usage.total_tokens else "")


plans = st.one_of(
    st.builds(plan_of, st.lists(calls, min_size=1, max_size=5).map(tuple), usages, st.sampled_from(["", "so far"])),
    st.builds(plan_of, st.lists(calls, min_size=1, max_size=3).map(tuple), usages, st.just("")),
    st.builds(plan_of, st.tuples(controls), usages, st.just("")),
    st.builds(plan_of, st.tuples(st.one_of(controls, ends), calls), usages, st.just("")),
)
entries = st.lists(st.one_of(plans, plans, plans, broken), max_size=9)
lasts = st.one_of(st.builds(plan_of, st.tuples(ends), usages, st.just("")), st.just(Plan(actions=(FinalAnswer(content="done"),))))
answers = st.lists(
    st.sampled_from(["approve", "deny", "edit", "edit_badly", "happened", "not", "cancel", "reply", "step", "wait"]), max_size=12
)
budgets = st.one_of(
    st.just(Budget()),
    st.builds(
        Budget,
        max_tool_calls=st.sampled_from([None, 1, 2, 5]),
        max_failures=st.sampled_from([None, 2, 6]),
        max_total_tokens=st.sampled_from([None, 6, 30]),
        max_cost_usd=st.sampled_from([None, 0.02]),
        max_model_calls=st.sampled_from([None, 3]),
        max_goal_depth=st.sampled_from([None, 1]),
        max_iterations=st.sampled_from([None, 2, 7]),
    ),
)
agents = st.builds(
    dict,
    on_deny=st.sampled_from(["observe", "observe", "fail"]),
    on_reject=st.sampled_from(["observe", "stop"]),
    on_unknown=st.sampled_from(["wait", "tell"]),
)


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One random run: what is planned, what the agent is told, what people answer."""

    entries: tuple[Any, ...]
    last: Any
    answers: tuple[str, ...]
    budget: Budget
    agent: dict[str, Any]


examples = st.builds(Example, entries=entries.map(tuple), last=lasts, answers=answers.map(tuple), budget=budgets, agent=agents)


def as_entry(given: Any) -> Any:
    """Return what a planner does for one entry of an example."""
    if not isinstance(given, str):
        return given

    def act(view: Any) -> Any:
        match given:
            case "none":
                return Plan(actions=())
            case "text":
                return Plan(actions=("do it",))  # type: ignore[arg-type]
            case "empty":
                return Plan(actions=(ToolCall(tool=" "),))
            case "malformed":
                raise MalformedPlan("no JSON", raw="{{", usage=Usage(input_tokens=2))
            case "raises":
                raise RuntimeError("the planner broke")
            case _:
                return Plan(actions=(Thought(content="a"), Thought(content="b")))

    return act


class GoingOnPlanner(ScriptedPlanner):
    """A script that goes on where it was when a run is resumed: one engine after another plans from one script."""

    def begin_run(self, run_id: str) -> None:
        """Keep the place in the script."""


def planner_for(example: Example) -> GoingOnPlanner:
    """Return the planner of an example; after its entries it answers for good."""
    return GoingOnPlanner([*map(as_entry, example.entries), example.last, *[FinalAnswer(content="the end")] * 30])


async def drive(engine: Engine, example: Example, clock: FakeClock) -> Any:
    """Run an example and answer what it waits for as the example says, until it finishes or nobody answers any more."""
    agent = Agent(name="random", tools=list(NAMES), **example.agent)
    result = await engine.run(agent, "do what you must", run_id="run", budget=example.budget)
    for answer in (*example.answers, *["approve", "happened", "reply", "wait"] * 8):
        if result.state.terminal:
            break
        result = await respond(engine, result, answer, clock)
    return result


async def respond(engine: Engine, result: Any, answer: str, clock: FakeClock) -> Any:
    """Give one answer if it fits what the run waits for; return how the run stands then."""
    state, run_id = result.state, result.run_id
    approval, doubt = next(iter(state.approvals), None), next(iter(state.in_doubt), None)
    if approval and answer in ("approve", "deny", "edit", "edit_badly"):
        try:
            return await decide(engine, run_id, approval, answer, alone=len(state.approvals) == 1)
        except NotAllowedNow as refused:  # the request is still open
            if refused.reason_code != "arguments_invalid":
                raise
            return result
    match answer:
        case "happened" | "not" if doubt:
            happened = answer == "happened"
            return await engine.reconcile(run_id, doubt, happened=happened, result={"n": 1} if happened else None, by="ann")
        case "reply" if state.asks:
            return await engine.reply(run_id, "three")
        case "cancel":
            return await engine.cancel(run_id, why="enough")
        case "step":
            return await engine.step(run_id=run_id)
        case "wait":
            clock.advance(7200)
            return await engine.resume(run_id)
        case _:
            return result


async def decide(engine: Engine, run_id: str, call: str, answer: str, *, alone: bool) -> Any:
    """Approve, deny or edit one call; an edit may be one that the policy denies, or no valid arguments at all."""
    if answer == "deny":
        return await engine.deny(run_id, call, by="ann", reason="no")
    args = {"edit": {"how": "ok", "n": 2 if alone else 13}, "edit_badly": {"what": "?"}}.get(answer)
    return await engine.approve(run_id, call, by="ann", args=args)
