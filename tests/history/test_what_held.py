"""A log is replayed with what held when its calls were decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from amounts import thinned
from detent import Agent, AskUser, Budget, Engine, FinalAnswer, NotExecuted, Plan, Stop, ToolCall, Usage, View, tool
from detent.core.codec import read_record
from detent.core.state import RunState
from detent.history.replaying import replay
from detent.policies import (
    BasicPolicy,
    DelegationLimits,
    DelegationPolicy,
    PermissionPolicy,
    PolicyPipeline,
    Rule,
    RulePolicy,
    TieredPolicy,
    load_policy,
)
from detent.ports import Call, ToolSpec, Verdict
from detent.running.results import Replay
from detent.stores.ram import RamStore
from detent.tools.functions.schema import schema_digest

pytestmark = thinned


@pytest.mark.parametrize("again", ["resumed", "reopened"])
def test_a_run_that_went_on_under_another_policy_replays_with_what_held_then(again: str) -> None:
    """Decisions of another version are taken from the log and named; those of this one are judged again, and must come out."""

    class Says:
        """Says the same of every call."""

        def __init__(self, version: str, decision: Any) -> None:
            self.version, self.decision = version, decision

        def decide(self, call: Call, state: RunState) -> Verdict:
            """See `Policy.decide`."""
            return Verdict(decision=self.decision, rule=self.version)

        def may_ask(self, tool: ToolSpec) -> bool:
            """Whether it may ask."""
            return True

    @tool(side_effect="read")
    async def look(n: int) -> int:
        """Look."""
        return n

    class Plans:
        """Looks, asks or stops, looks again, and answers."""

        async def plan(self, view: View) -> Plan:
            """See `Planner.plan`."""
            middle = Stop(reason="later") if again == "reopened" else AskUser(question="well?")
            steps = (ToolCall(tool="look", args={"n": 1}), middle, ToolCall(tool="look", args={"n": 2}), FinalAnswer(content="done"))
            return Plan(actions=(steps[view.iteration - 1],))

    store = RamStore()

    def under(policy: Says) -> Engine:
        return Engine(store=store, planner=Plans(), tools=[look], policy=policy, approver="caller")

    async def main() -> None:
        first = await under(Says("one", "deny")).run(Agent(name="a", tools=["look"]), "go", run_id="r", budget=Budget(max_failed_turns=5))
        second = under(Says("two", "allow"))
        result = await (second.reply("r", "well") if first.status == "waiting_for_user" else second.reopen("r", by="ann"))
        assert (result.output, [item.ok for item in result.tool_calls]) == ("done", [False, True])
        for policy, taken in (
            (Says("two", "allow"), ("main.1.0",)),
            (Says("one", "deny"), ("main.3.0",)),
            (Says("3", "deny"), ("main.1.0", "main.3.0")),
        ):
            replayed = await under(policy).replay("r")
            assert (replayed.identical, replayed.not_judged) == (True, taken), replayed.divergence
        changed = await under(Says("two", "deny")).replay("r")
        assert changed.divergence is not None and changed.divergence.actual.count('"decision":"deny"') == 1

    asyncio.run(main())


class Plans:
    """Calls `look` with some arguments, asks, calls it with others, and answers."""

    def __init__(
        self, first: Sequence[Any] = ({"n": 1},), then: Sequence[Any] = ({"n": 2},), *, tool: str = "look", model: str = ""
    ) -> None:
        calls = [tuple(ToolCall(tool=tool, args=args) for args in batch) for batch in (first, then)]
        self._steps, self._model = (calls[0], (AskUser(question="well?"),), calls[1], (FinalAnswer(content="done"),)), model

    async def plan(self, view: View) -> Plan:
        """See `Planner.plan`."""
        return Plan(actions=self._steps[view.iteration - 1], model=self._model, usage=Usage(input_tokens=len(self._model)))


@tool(side_effect="write")
async def put(n: int) -> int:
    """Put."""
    return n


RULES = [
    Rule(id="big", tool=("put",), when="args.n > 1", decision="deny", reason="too big", source="house.toml:7"),
    Rule(id="ok", decision="allow"),
]
OTHERS: dict[str, Callable[[Path], Any]] = {
    "rules": lambda _: RulePolicy(RULES, name="house"),
    "file": lambda path: load_policy(
        _written(path, '[[rules]]\nid = "big"\ntool = "put"\nwhen = "args.n > 1"\ndecision = "deny"\n[tiers]\n')
    ),
    "broken": lambda path: load_policy(
        _written(path, '[[rules]]\nid = "big"\ntool = "put"\nwhen = "args.m > 1"\ndecision = "deny"\n[tiers]\n')
    ),
    "tiers": lambda _: TieredPolicy(tools={"put": "deny"}),
    "basic": lambda _: BasicPolicy(max_steps=1),
    "permission": lambda _: PermissionPolicy("headless"),
    "pipeline": lambda _: PolicyPipeline([RulePolicy(RULES), DelegationPolicy(DelegationLimits())], default=TieredPolicy()),
}


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


async def reopened(store: Any, first: Callable[[], Engine], second: Callable[[], Engine], agent: Agent, **options: Any) -> Any:
    """Return what a run came to that waited under one engine and went on under another; what is asked is approved."""
    for engine, begin in ((first(), True), (second(), False)):
        result = await (engine.run(agent, "go", run_id="r", **options) if begin else engine.reply("r", "well"))
        while result.status == "waiting_for_approval":
            result = await engine.approve("r", (await engine.approvals(run_id="r"))[0].call_id, by="ann")
    return result


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", OTHERS)
def test_what_a_policy_that_is_data_decided_is_judged_again_by_it(kind: str, own: bool, tmp_path: Path) -> None:
    """It is kept with the run, beside an agent's own policy, too; an altered one would come to something else, and the replay says so."""
    store, policy = RamStore(), OTHERS[kind](tmp_path / "policy.toml")
    agent = Agent(name="a", tools=["put"], policy=[Rule(id="mine", decision="allow")] if own else {})

    def under(policy: Any) -> Engine:
        return Engine(store=store, planner=Plans(tool="put"), tools=[put], policy=policy, approver="caller")

    async def main() -> None:
        await reopened(store, lambda: under(policy), lambda: under(None), agent, budget=Budget(max_failed_turns=9))
        kept = [line.count(b'"policy":{"kind"') for line in await store.read("r")]
        assert sum(kept) == kept[0] == 1, "it is kept once"
        there = await under(None).replay("r")
        assert (there.identical, there.not_judged) == (True, ()), there.divergence
        assert len(there.judged_by) == 1 and there.judged_by[0].startswith(policy.version)
        assert (await under(OTHERS["tiers" if kind != "tiers" else "basic"](tmp_path / "x")).replay("r")).identical
        lines = await store.read("r")
        kind_of = lines[0].replace(b'"policy":{"kind"', b'"policy":{"kin_"')
        assert (await _judged(under(None), [kind_of, *lines[1:]])).not_judged == ("main.1.0",)

    asyncio.run(main())


def test_each_opening_is_judged_again_by_the_policy_that_it_had() -> None:
    """A policy that came with a later opening is kept there; one that did not change is not kept again."""
    store, one, two = RamStore(), RulePolicy(RULES, name="one"), RulePolicy(RULES, name="two")

    def under(policy: Any) -> Engine:
        return Engine(store=store, planner=Plans(tool="put"), tools=[put], policy=policy, approver="caller")

    async def main() -> None:
        await reopened(store, lambda: under(one), lambda: under(two), Agent(name="a", tools=["put"]), budget=Budget(max_failed_turns=9))
        assert b"".join(await store.read("r")).count(b'"policy":{"kind"') == 2
        found = await under(None).replay("r")
        assert (found.identical, found.not_judged, found.judged_by) == (True, (), (one.version, two.version))

    asyncio.run(main())


async def _judged(engine: Engine, lines: list[bytes]) -> Replay:
    """Replay records whose bytes were changed, without looking at their digests."""
    return await replay([read_record(line) for line in lines], engine.runtime.parts)


def test_a_kept_policy_that_decides_otherwise_is_a_divergence() -> None:
    """Who altered the policy in the log, or the code that judges by it, is found."""
    store = RamStore()

    def under(policy: Any) -> Engine:
        return Engine(store=store, planner=Plans(first=({"n": 5},), tool="put"), tools=[put], policy=policy, approver="caller")

    async def main() -> None:
        bounds = Budget(max_failed_turns=9)
        await reopened(store, lambda: under(RulePolicy(RULES)), lambda: under(None), Agent(name="a", tools=["put"]), budget=bounds)
        lines = await store.read("r")
        found = await _judged(under(None), [lines[0].replace(b"args.n > 1", b"args.n > 9"), *lines[1:]])
        assert found.not_judged == ("main.1.0",), "its version is another one then"
        asked = lines[4].replace(b'"decision":"deny"', b'"decision":"stop"')
        assert asked != lines[4]
        found = await _judged(under(None), [*lines[:4], asked, *lines[5:]])
        assert found.divergence is not None and '"decision":"deny"' in found.divergence.actual

    asyncio.run(main())


def test_a_policy_in_which_something_is_to_be_hidden_is_not_kept() -> None:
    """Patterns of `redact` hold for it, too: its decisions are taken from the log then, and nothing of it is there."""
    store, secret = RamStore(), [Rule(id="key", decision="deny", when="args.n == 4 && 'hunter2' != ''"), Rule(id="ok", decision="allow")]

    def under(policy: Any) -> Engine:
        return Engine(store=store, planner=Plans(tool="put"), tools=[put], policy=policy, redact=["hunter2"], approver="caller")

    async def main() -> None:
        await reopened(
            store, lambda: under(RulePolicy(secret)), lambda: under(RulePolicy(secret, name="b")), Agent(name="a", tools=["put"])
        )
        assert b"hunter2" not in b"".join(await store.read("r"))
        found = await under(None).replay("r")
        assert (found.identical, found.not_judged) == (True, ("main.1.0", "main.3.0"))

    asyncio.run(main())


def test_a_fork_is_judged_again_by_the_policy_that_its_parent_was_opened_with() -> None:
    """What was kept stands in the parent's log; the fork repeats nothing of it."""
    store = RamStore()

    def under(policy: Any) -> Engine:
        return Engine(store=store, planner=Plans(tool="put"), tools=[put], policy=policy, approver="caller")

    async def main() -> None:
        house = under(RulePolicy(RULES))
        await house.run(Agent(name="a", tools=["put"]), "go", run_id="r")
        await house.reply("r", "well")
        fork = await house.fork("r", at=3, effects="redo", resume=False)
        await house.resume(fork.run_id)
        await house.reply(fork.run_id, "well")
        assert b'"kind":"rules"' not in b"".join(await store.read(fork.run_id))
        found = await under(None).replay(fork.run_id)
        assert (found.identical, found.not_judged, len(found.judged_by)) == (True, (), 1), found

    asyncio.run(main())


# Tools and models ----------------------------------------------------------------------------------------------------------------------


async def number(n: int = 0) -> int:
    """Look."""
    return n


async def other(m: int) -> int:
    """Take an argument of another name."""
    return m


async def text(n: str) -> str:
    """Take text."""
    return n


async def busy(n: int = 0) -> int:
    """Never begin."""
    raise NotExecuted("busy")


def look(function: Any = number, side: Any = "read", **options: Any) -> Any:
    """Return a version of the tool."""
    return tool(function, side_effect=side, name="look", **options)


ONE, TWO = ({"n": 1},), ({"n": 2},)
VERSIONS: dict[str, tuple[Any, Any, Any, Any]] = {
    "another name of an argument": (look(), look(other), ONE, ({"m": 2},)),
    "another type of an argument": (look(), look(text), ({"n": "x"},), ({"n": "2"},)),
    "arguments that were sanitised": (look(), look(text), ({"n": 1.0},), ({"n": "2"},)),
    "a stricter level": (look(), look(side="write"), ONE, TWO),
    "a lower level": (look(side="destructive"), look(), ONE, TWO),
    "idempotent": (look(side="write"), look(side="write", idempotent=True), ONE, TWO),
    "volatile": (look(), look(volatile=True), ONE, TWO),
    "a price": (look(), look(cost_usd=0.5), ONE, TWO),
    "trusted": (look(), look(trust="trusted"), ONE, TWO),
    "scopes": (look(), look(scopes=("s",)), ONE, TWO),
    "no scopes": (look(scopes=("s",)), look(), ONE, TWO),
    "no attempts more": (look(busy, retries=1), look(), ONE, TWO),
    "more attempts": (look(), look(busy, retries=1), ONE, TWO),
    "one at a time": (look(concurrency_safe=True), look(concurrency_safe=False), ONE * 2, TWO * 2),
    "sensitive": (look(text), look(text, sensitive=("n",)), ({"n": "aaaa"},), ({"n": "bbbb"},)),
    "not sensitive": (look(text, sensitive=("n",)), look(text), ({"n": "aaaa"},), ({"n": "bbbb"},)),
    "asks": (look(), look(asks=lambda args: "hm"), ONE, TWO),
    "asks no more": (look(asks=lambda args: "hm"), look(), ONE, TWO),
    "ends the turn": (look(), look(ends_turn=True), ONE, TWO),
}


@pytest.mark.parametrize("change", VERSIONS)
def test_a_run_that_went_on_with_another_version_of_a_tool_replays_with_both(change: str) -> None:
    """What was declared, and found of the arguments, at each opening is taken from the log; calls of a tool that changed are named."""
    first, second, *args = VERSIONS[change]
    store = RamStore()

    def using(version: Any) -> Engine:
        return Engine(store=store, planner=Plans(*args), tools=[version], approver="caller")

    async def main() -> None:
        agent = Agent(name="a", tools=["look"], healing=True)
        await reopened(store, lambda: using(first), lambda: using(second), agent, budget=Budget(max_failed_turns=9))
        for version, others in ((first, ("main.3.",)), (second, ("main.1.",))):
            found = await using(version).replay("r")
            assert found.identical, found.divergence
            declared = schema_digest(first.spec) != schema_digest(second.spec)
            assert all(call.startswith(others) for call in found.not_checked) and bool(found.not_checked) == declared

    asyncio.run(main())


def test_a_run_that_went_on_with_another_model_replays() -> None:
    """Who planned, and what that cost, is taken from the log of each opening; neither model is asked."""
    store = RamStore()

    def asking(model: str) -> Engine:
        return Engine(store=store, planner=Plans(model=model), tools=[look()], approver="caller")

    async def main() -> None:
        await reopened(store, lambda: asking("small"), lambda: asking("much larger"), Agent(name="a", tools=["look"]))
        for engine in (asking("small"), asking("much larger"), Engine(store=store, tools=[look()])):
            assert (await engine.replay("r")).identical

    asyncio.run(main())


def test_a_tool_that_is_held_to_a_stricter_level_still_asks() -> None:
    """What a tool says of its calls (`asks`) holds whatever level the run holds it to; else a lowered level took a question away."""
    store = RamStore()

    def using(side: Any) -> Engine:
        version = look(side=side, asks=lambda args: "hm" if args["n"] == 2 else "")
        return Engine(store=store, planner=Plans(), tools=[version], policy=TieredPolicy({"write": "allow"}), approver="caller")

    async def main() -> None:
        await using("write").run(Agent(name="a", tools=["look"]), "go", run_id="r")
        result = await using("read").reply("r", "well")
        assert result.status == "waiting_for_approval" and (await using("read").replay("r")).identical

    asyncio.run(main())
