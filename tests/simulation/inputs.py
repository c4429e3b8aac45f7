"""What a schedule runs: agents, plans, tools with effects in a world that is a ledger, strategies and policies, all drawn by its choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Literal

import msgspec

from detent import Agent, Budget, FinalAnswer, Plan, Thought, Tool, ToolCall, ToolContext, Usage, View, tool
from detent.core.actions import AskUser, Schedule
from detent.core.errors import FatalToolError, NotExecuted, PassFailed, ToolFailed
from detent.core.state import RunState
from detent.policies.tiers import TieredPolicy
from detent.ports import Branch, Call, StrategyRun, ToolSpec, Verdict
from detent.tools.functions.settlement import Happened, NotHappened
from simulation.choices import Choices
from simulation.loop import PROCESS

BIG = "x" * 150
READING = ("look", "big")


class Ledger:
    """The world: which effects happened, by tool and idempotency key."""

    def __init__(self) -> None:
        self.done: Counter[tuple[str, str]] = Counter()
        self.order: list[tuple[str, str]] = []

    def add(self, name: str, key: str) -> None:
        """Let an effect happen."""
        self.done[name, key] += 1
        self.order.append((name, key))

    def happened(self, key: str) -> bool:
        """Whether the effect with this key happened."""
        return any(known == key for _, known in self.done)


def _make(name: str, **options: Any) -> Tool[..., Any]:
    async def function(n: int, context: ToolContext) -> Any:
        process: Any = PROCESS.get()
        await process.before_tool(context)
        if name == "fatal":
            raise FatalToolError("the end")
        if name == "shaky" and context.attempt == 1 and n % 2:
            raise NotExecuted("not now") if n % 3 else ToolFailed("no")
        if options["side_effect"] != "read":
            process.has_effect(context)
            await process.after_tool(context)
        return f"{BIG} {n}" if name == "big" else f"{name} {n}"

    function.__doc__ = "Do it."
    return tool(function, name=name, timeout_s=None, **options)


async def _recorded(key: str) -> Any:
    process: Any = PROCESS.get()
    return Happened("it did") if process.schedule.ledger.happened(key) else NotHappened()


TOOLS = [
    _make("look", side_effect="read"),
    _make("put", side_effect="write"),
    _make("wipe", side_effect="destructive"),
    _make("big", side_effect="read", max_result_bytes=100),
    _make("set", side_effect="write", idempotent=True),
    _make("file", side_effect="write", reconcile=_recorded),
    _make("shaky", side_effect="write", retries=1),
    _make("pair", side_effect="destructive"),
    _make("fatal", side_effect="read"),
]
"""Made once, for all processes: each call finds its own."""
NAMES = tuple(made.name for made in TOOLS)
PLAIN = ("look", "put", "set", "big", "file", "shaky", "wipe")


class Plans:
    """Plans by the view alone, so that every process plans the same."""

    def __init__(self, scripts: dict[str, tuple[tuple[Any, ...], Usage]], breathe: Callable[[], Awaitable[None]]) -> None:
        self._scripts, self._breathe = scripts, breathe

    async def plan(self, view: View) -> Plan:
        """Return the plan of a turn: passes beside each other take the same turns."""
        await self._breathe()
        turns, usage = self._scripts[view.run_id.removesuffix("-fork")]
        if view.iteration > len(turns):
            said = [item.content if item.ok and item.artifact is None else item.tool for item in view.results]
            return Plan(actions=(FinalAnswer(content=said or "done"),), usage=usage)
        given = turns[view.iteration - 1]
        return Plan(actions=given if isinstance(given, tuple) else (given,), usage=usage)


class Policy:
    """Foreign code that goes by the tiers; `pair` needs two people, the request for one `wipe` in four expires, one kind of look is denied.

    It has no `offers`: what foreign code is shown are copies, and that it would be asked about each tool took a quarter of the time.
    """

    version = "simulated-1"
    _tiers = TieredPolicy()

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Return the verdict by tool and number."""
        number = call.args.get("n", 0) if isinstance(call.args, dict) else 0
        if call.tool.name == "pair":
            return Verdict(decision="require_approval", rule="two", reason="two must agree", approvers=2)
        if call.tool.name == "wipe" and number % 4 == 3:
            return Verdict(decision="require_approval", rule="soon", reason="decide soon", expires_s=20.0)
        if call.tool.name == "look" and number % 7 == 6:
            return Verdict(decision="deny", rule="six", reason="not this one")
        return self._tiers.decide(call, state)

    def may_ask(self, tool: ToolSpec) -> bool:
        """Whether a call of the tool may wait for people."""
        return tool.name == "pair" or self._tiers.may_ask(tool)


async def in_steps(run: StrategyRun) -> Any:
    """One pass after another, with recorded values and a pause between them; a first pass that failed is not asked for again."""
    began = await run.now()
    try:
        first: Any = await run.kernel("first", limits=Budget(max_iterations=3))
    except PassFailed as failed:
        first = failed.passed
    await run.sleep(0.5)
    lucky = await run.random() < 0.5
    second = await run.kernel("second" if lucky else "other", task="go on", limits=Budget(max_iterations=3))
    return [str(first.output), str(second.output), began > 0]


async def beside(run: StrategyRun) -> Any:
    """Two passes side by side."""
    passed = await run.parallel(
        Branch(label="left", limits=Budget(max_iterations=3)), Branch(label="right", limits=Budget(max_iterations=3))
    )
    return [one.status for one in passed]


STRATEGIES: dict[str, Any] = {"in_steps": in_steps, "beside": beside}


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One run as it is asked for. `scripts` has the turns of each run of a tree, by its goal."""

    run_id: str
    agent: Agent
    goal: str = "do it"
    turns: tuple[Any, ...]
    scripts: dict[str, tuple[Any, ...]] = {}
    usage: Usage
    budget: Budget


_USAGES = (Usage(), Usage(input_tokens=3, model_calls=1))
_BUDGETS = (Budget(), Budget(), Budget(max_tool_calls=2), Budget(max_model_calls=2), Budget(max_iterations=2))


@cache
def _agent(strategy: str, on_unknown: Literal["wait", "tell"], on_reject: Literal["observe", "stop"]) -> Agent:
    """Return the agent with these options: made once for all schedules, as a program does."""
    most = Budget(max_failed_turns=30, max_non_progress=30)
    return Agent(name="agent", tools=list(NAMES), strategy=strategy, on_unknown=on_unknown, on_reject=on_reject, budget=most)


def task_of(choices: Choices, number: int, *, small: bool = False) -> Task:
    """Draw a run: at most three turns of three calls each; `small`: two of two."""
    most_turns, most_calls = (2, 2) if small else (3, 3)

    def call() -> ToolCall:
        return ToolCall(tool=choices.one_of(NAMES[: 8 + choices.chance(0.1)]), args={"n": choices.below(12)})

    def turn() -> Any:
        kind = choices.below(10)
        if kind < 8:
            return tuple(call() for _ in range(1 + choices.below(most_calls)))
        return AskUser(question="well?") if kind == 8 else choices.one_of([Thought(content="hm"), Schedule(delay_s=7.0)])

    turns = tuple(turn() for _ in range(choices.below(most_turns + 1)))
    usage, most = choices.one_of(_USAGES), choices.one_of(_BUDGETS)
    strategy = choices.one_of(("reactive", "reactive", "in_steps", "beside"))
    agent = _agent(strategy, choices.one_of(("wait", "wait", "tell")), choices.one_of(("observe", "stop")))
    return Task(run_id=f"run-{number}", agent=agent, turns=turns, usage=usage, budget=most)
