"""What every strategy promises: exact use, governance in every pass, crashes that repeat nothing, replay, divergence. One suite for all."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import msgspec
import pytest

from amounts import stride, thinned
from detent import Agent, Budget, Engine, Plan, ToolCall, View
from detent.core import events as e
from detent.core.codec import read_log
from detent.core.errors import ConfigError, Divergence
from detent.core.state import transition
from detent.kernel.act import act
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.ports import Block, KernelHooks, Skip, Verdict
from detent.stores.ram import RamStore
from detent.strategies import BUILT_IN
from detent.testing.faults import Crash, CrashingStore
from strategies.scenarios import GOAL, SCENARIOS, TOKENS, Model, Scenario, World, agent_of, engine_of, events, passes, run

pytestmark = thinned

EVERY = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
WORKING = pytest.mark.parametrize(
    "scenario", [s for s in SCENARIOS.values() if s.works], ids=[s.strategy for s in SCENARIOS.values() if s.works]
)


def test_every_built_in_strategy_has_its_scenario() -> None:
    """Whoever adds a strategy adds it here."""
    assert set(SCENARIOS) == set(BUILT_IN)


@EVERY
def test_it_makes_exactly_its_model_calls_and_every_token_is_on_record(scenario: Scenario) -> None:
    """Section 16 of the catalogue; tokens are the sum of the records', a step of each kind stands for what was done, and the log replays."""
    model, world = Model(scenario.answers), World()
    engine = engine_of(scenario, model=model, world=world)
    result = run(engine, scenario)
    assert (result.status, result.reason, result.output) == ("completed", "final_answer", scenario.output), result.error
    assert result.usage.model_calls == len(model.views) == scenario.calls
    planned = events(engine, e.Planned)
    kinds = {"user": len(scenario.scopes), "model": len(planned), "tool": len(result.tool_calls)}
    assert Counter(step.kind for step in result.steps) == Counter(kinds)
    assert result.usage.total_tokens == sum(p.usage.total_tokens for p in planned) == TOKENS * scenario.calls
    assert passes(engine) == scenario.scopes
    assert world.sent == (["ann: 2620000"] if scenario.sends else [])
    replayed = asyncio.run(engine.replay("r"))
    assert replayed.identical, replayed.divergence


@EVERY
def test_a_crash_at_any_write_repeats_no_pass_and_pays_nothing_twice(scenario: Scenario) -> None:
    """Killed before or after each append and resumed by another engine: the same answer, each recorded plan asked for once, each effect once."""

    async def crashed(at: int, when: Any) -> bool:
        inner, world = RamStore(), World()
        store = CrashingStore(inner, at=at, when=when, operations=("append",))
        agent = agent_of(scenario)
        with contextlib.suppress(Crash):
            await engine_of(scenario, world=world, store=store).run(agent, scenario.goal, run_id="r")
        before = [(r.envelope.scope, r.event) for r in read_log("r", await inner.read("r"))]
        recorded = sum(isinstance(event, e.Planned) and bool(event.model) for _, event in before)
        model = Model(scenario.answers)
        engine = engine_of(scenario, model=model, world=world, store=inner)
        await inner.release("r")
        result = await (engine.resume("r") if before else engine.run(agent, scenario.goal, run_id="r"))
        assert (result.status, result.output) == ("completed", scenario.output), (at, when, result.error)
        assert recorded + len(model.views) == scenario.calls == result.usage.model_calls, (at, when, model.asked)
        assert len(world.sent) == scenario.sends, (at, when)
        after = [record.event for record in await engine.records("r")]
        keys = [event.key for event in after if isinstance(event, e.PassStarted)]
        assert keys == scenario.scopes, (at, when)
        replayed = await engine.replay("r")
        assert replayed.identical, (at, when, replayed.divergence)
        return store.crashed

    async def main() -> int:
        for at in range(1, 60, stride(9 * scenario.costly, many=2)):
            if not any([await crashed(at, "before"), await crashed(at, "after")]):
                return at
        return 0

    assert asyncio.run(main()) > 2


@EVERY
def test_two_runs_at_once_share_nothing(scenario: Scenario) -> None:
    """Passes, occurrences and results are counted in each run apart."""

    async def main() -> None:
        world = World()
        engine = engine_of(scenario, world=world)
        both = await asyncio.gather(*(engine.run(agent_of(scenario), scenario.goal, run_id=f"r{n}") for n in (1, 2)))
        assert [r.output for r in both] == [scenario.output] * 2
        assert [r.usage.model_calls for r in both] == [scenario.calls] * 2
        assert len(world.sent) == 2 * scenario.sends

    asyncio.run(main())


@WORKING
def test_a_denied_tool_never_runs(scenario: Scenario) -> None:
    """The policy decides in every pass, whoever asks: it is on record, and nothing is sent."""

    class NoMail:
        version = "no-mail"

        def decide(self, call: Any, state: Any) -> Verdict:
            return Verdict(decision="deny" if call.tool.name == "send" else "allow", rule="no-mail", reason="no mail today")

        def may_ask(self, tool: Any) -> bool:
            return False

    world = World()
    engine = engine_of(scenario, world=world, policy=NoMail())
    run(engine, scenario)
    decided = [d for d in events(engine, e.PolicyDecided) if d.decision == "deny"]
    assert world.sent == [] and decided and all(d.rule == "no-mail" for d in decided)
    assert asyncio.run(engine.replay("r")).identical


@WORKING
@pytest.mark.parametrize("whose", ["kernel", "agent"])
def test_guards_are_checked_in_every_pass(scenario: Scenario, whose: str) -> None:
    """A guard of the kernel or of the agent sees the calls of passes, batches and improvements alike."""
    seen: list[str] = []

    def watching(call: Any, state: Any, whole: Any) -> Block | None:
        seen.append(call.tool.name)
        return Block("not now") if call.tool.name == "send" else None

    world = World()
    options: dict[str, Any] = {"kernel": make_kernel(guards=(watching,))} if whose == "kernel" else {"guards": {"watching": watching}}
    engine = engine_of(scenario, world=world, **options)
    run(engine, scenario, fields={"guards": ["watching"]} if whose == "agent" else {})
    assert {"population", "send"} <= set(seen) and world.sent == []
    assert any(block.guard == "watching" and block.reason == "not now" for block in events(engine, e.GuardBlocked))


@EVERY
def test_hooks_fire_in_every_pass(scenario: Scenario) -> None:
    """on_thought for each plan, on_action and on_observation for each call, on_done for each pass that ended well."""
    heard: list[tuple[str, str]] = []

    def hook(name: str) -> Any:
        return lambda state, *_: heard.append((name, state.scope))

    names = ("on_thought", "on_action", "on_observation", "on_done")
    engine = engine_of(scenario, hooks=KernelHooks(**{name: hook(name) for name in names}))
    assert run(engine, scenario).status == "completed"
    asked = [scope for name, scope in heard if name == "on_thought"]
    assert set(asked) == set(scenario.scopes), "calls that a strategy makes are thoughts too"
    calls = sum(name == "on_observation" for name, _ in heard)
    assert calls == len(events(engine, e.ToolFinished))
    assert {scope for name, scope in heard if name == "on_done"} >= set(scenario.scopes) - {"main", "answer"}


@EVERY
def test_hooks_of_phases_are_asked_in_every_pass(scenario: Scenario) -> None:
    """Before each plan that a planner is asked for; a hook before `act` keeps every call from being made, also those that a strategy makes."""
    asked: list[str] = []
    world, model = World(), Model(scenario.answers)
    before = {"think": lambda state: asked.append(state.scope), "act": lambda state: Skip("not now")}
    result = run(engine_of(scenario, model=model, world=world, hooks=KernelHooks(before=before)), scenario)
    assert asked == [view.scope for view in model.views]
    refused = {item.error.code for item in result.tool_calls if item.error is not None}
    assert (world.looked, world.sent, refused) == ([], [], {"hook_refused"} if scenario.works or scenario.sends else set())


@EVERY
def test_a_budget_stops_it_at_every_size(scenario: Scenario) -> None:
    """No strategy lifts a bound: with fewer model calls than it needs the run stops, with exactly that many made, and nothing goes on.

    A tree is not explored, and a strategy not chosen, where that would eat what the work itself needs; these may so come to an answer with less.
    """
    for most in range(1, scenario.calls):
        model = Model(scenario.answers)
        engine = engine_of(scenario, model=model)
        result = run(engine, scenario, budget=Budget(max_model_calls=most))
        if scenario.strategy in ("tree-of-thought", "adaptive") and result.status == "completed":
            assert len(model.views) <= most and len(passes(engine)) < len(scenario.scopes)
        elif scenario.strategy == "switching" and most == 3:  # one call is left when the first way is stuck: nothing could take over
            assert (result.status, result.reason, len(model.views)) == ("stopped", "max_iterations", 2)
        else:
            assert (result.status, result.state.dimension, len(model.views)) == ("stopped", "model_calls", most), most
        assert asyncio.run(engine.replay("r")).identical


@EVERY
def test_a_cancellation_stops_it_in_every_pass(scenario: Scenario) -> None:
    """Whatever is being planned when it comes: the call is interrupted, the run ends as cancelled, no pass follows."""

    async def main() -> None:
        for at in range(1, scenario.calls + 1):
            model = Model(scenario.answers)

            class Cancelling:
                async def plan(self, view: View) -> Plan:
                    if len(model.views) == at - 1:  # noqa: B023 - used within this turn of the loop
                        await engine.cancel("r", by="ann", why="enough")  # noqa: B023
                        await asyncio.Event().wait()
                    return await model.plan(view)  # noqa: B023

            engine = engine_of(scenario, model=Cancelling())  # type: ignore[arg-type]
            result = await engine.run(agent_of(scenario), scenario.goal, run_id="r")
            assert (result.status, result.reason, len(model.views)) == ("stopped", "cancelled", at - 1)

    asyncio.run(main())


class Changed:
    """Hands on to what a strategy was given, with other words or another label for each pass."""

    def __init__(self, given: Any, what: str) -> None:
        self.given, self.what = given, what

    def __getattr__(self, name: str) -> Any:
        return getattr(self.given, name)

    def changed(self, label: str, task: str) -> tuple[str, str]:
        return (label, f"{task} and hurry") if self.what == "input" else (f"my-{label}", task)

    async def kernel(self, label: str, **options: Any) -> Any:
        label, task = self.changed(label, options.pop("task", ""))
        return await self.given.kernel(label, task=task, **options)

    async def ask(self, label: str, prompt: str, *args: Any, **options: Any) -> Any:
        return await self.given.ask(*self.changed(label, prompt), *args, **options)

    async def parallel(self, *branches: Any) -> Any:
        pairs = [(branch, self.changed(branch.label, branch.task)) for branch in branches]
        return await self.given.parallel(*(msgspec.structs.replace(branch, label=label, task=task) for branch, (label, task) in pairs))


@EVERY
@pytest.mark.parametrize("what", ["input", "label"])
def test_another_input_or_label_is_a_divergence(scenario: Scenario, what: str) -> None:
    """Code that gives passes other words or labels than the log has stops with the ways out, records nothing, and the old code goes on."""

    async def main() -> None:
        agent, whole, inner = agent_of(scenario), CrashingStore(RamStore(), operations=("append",)), RamStore()
        await engine_of(scenario, store=whole).run(agent, scenario.goal, run_id="r")
        with contextlib.suppress(Crash):  # before its end is on record
            await engine_of(scenario, store=CrashingStore(inner, at=whole.calls, operations=("append",))).run(
                agent, scenario.goal, run_id="r"
            )
        await inner.release("r")
        length = len(await inner.read("r"))
        model = Model(scenario.answers)
        other = engine_of(scenario, store=inner, model=model)
        other.strategies.replace(scenario.strategy, lambda given: BUILT_IN[scenario.strategy](Changed(given, what)))  # type: ignore[arg-type]
        with pytest.raises(Divergence, match=rf"pass '{scenario.scopes[0]}'.*check-upgrade.*fork"):
            await other.resume("r")
        assert len(await inner.read("r")) == length and model.views == []
        assert (await engine_of(scenario, store=inner).resume("r")).output == scenario.output

    asyncio.run(main())


# What the planner is shown ------------------------------------------------------------------------------------------------------


@EVERY
def test_what_holds_for_the_run_is_shown_in_every_pass(scenario: Scenario) -> None:
    """Profile, memory, variables, budget and the task arrive in the view of each plan, whatever the strategy."""
    model = Model(scenario.answers)
    fields = {"profile": {"tool_result_max_chars": 77}, "variables": {"unit": "people"}}
    run(engine_of(scenario, model=model), scenario, fields=fields, seed_memory=["Ann is ann@example.org"], budget=Budget(max_iterations=40))
    assert len(model.views) == scenario.calls
    for view in model.views:
        assert (view.profile.tool_result_max_chars, view.compression.budget_chars) == (77, 77)
        assert (view.memory, view.variables, view.goal) == (("Ann is ann@example.org",), {"unit": "people"}, GOAL)
        assert view.budget_remaining.max_iterations is not None and view.budget_remaining.max_iterations < 40
        assert view.transcript[0].kind == "user" and view.transcript[0].text == view.task
        assert GOAL in view.task, view.scope


@WORKING
def test_guidance_of_a_phase_arrives_and_is_gone(scenario: Scenario) -> None:
    """What a phase says for the next turn is shown in that turn only, in the passes of the agent's kernel."""

    async def advise(state: Any, context: Any) -> Any:
        return transition(state, guidance=(f"after turn {state.iteration}",))

    model = Model(scenario.answers)
    run(engine_of(scenario, model=model, kernel=make_kernel(phases=(think, act, advise))), scenario)
    second = [view for view in model.views if view.iteration == 2]
    assert second and all("after turn 1" in view.guidance and "after turn 0" not in view.guidance for view in second)


@WORKING
def test_only_passes_that_work_are_offered_tools(scenario: Scenario) -> None:
    """Critics, planners, thinkers and writers have none; a call of theirs runs nothing."""
    model = Model(scenario.answers)
    run(engine_of(scenario, model=model), scenario)
    offered = {view.scope: {spec.name for spec in view.tools} for view in model.views}
    assert offered[scenario.works] == {"population", "send"}
    assert {scope for scope, names in offered.items() if names} <= {"main", "generate", "improve", "step-1", "step-2", "step-mail"}


@EVERY
def test_small_calls_go_to_the_small_model(scenario: Scenario) -> None:
    """Critiques, scores, reflections and classifications may be small; what works, plans and answers may not."""
    model = Model(scenario.answers)
    run(engine_of(scenario, model=model), scenario)
    small = {view.scope.split("-")[0].split("#")[0] for view in model.views if view.small}
    assert small <= {"critique", "score", "reflect", "classify"}
    assert small or scenario.strategy in ("direct", "reactive", "plan-then-execute", "self-consistent", "blueprint", "code-action")


@EVERY
def test_an_output_schema_holds_for_the_answer(scenario: Scenario) -> None:
    """The pass that gives the run's output is shown the run's schema."""
    schema = {"type": "string"}
    model = Model(scenario.answers)
    run(engine_of(scenario, model=model), scenario, output_schema=schema)
    assert model.views[-1].output_schema == schema or (scenario.strategy == "reflexion" and model.views[-2].output_schema == schema)


# Options ------------------------------------------------------------------------------------------------------------------------


@EVERY
def test_an_unknown_option_is_refused_before_anything_is_recorded(scenario: Scenario) -> None:
    """With the nearest name, where the strategy has options at all."""
    engine = engine_of(scenario)
    wrong = {"turnz": 3, "roundz": 3}
    with pytest.raises(ConfigError, match="strategy_options"):
        asyncio.run(engine.run(agent_of(scenario, strategy_options=wrong), GOAL))
    assert asyncio.run(engine.list_runs()) == []


@pytest.mark.parametrize(
    ("strategy", "options", "said"),
    [
        ("reflexion", {"round": 2}, "did you mean 'rounds'"),
        ("reflexion", {"rounds": 0}, "rounds is 0; give at least 1"),
        ("reflexion", {"rounds": "two"}, "expected a whole number"),
        ("direct", {"turns": 4}, "direct allows 1 to 3"),
        ("tree-of-thought", {"breadht": 2}, "did you mean 'breadth'"),
        ("adaptive", {"reflexion": {"rouns": 2}}, "reflexion.rouns: unknown key; did you mean 'rounds'"),
        ("reactive", {"turns": 2}, "takes none"),
    ],
)
def test_options_say_what_is_wrong_with_them(strategy: str, options: dict[str, Any], said: str) -> None:
    """Names, types and least values are checked when a run is started."""
    engine = Engine(planner=Model({}))
    with pytest.raises(ConfigError, match=said):
        asyncio.run(engine.run(Agent(name="a", strategy=strategy, strategy_options=options), GOAL))


def test_a_call_of_a_strategy_waits_for_approval_like_any_other() -> None:
    """plan-execute calls a tool that asks: the run waits, an approval runs exactly that call, no model is asked again for it."""
    scenario = SCENARIOS["plan-execute"]
    plan = {"steps": [{"id": "mail", "kind": "tool", "tool": "send", "args": {"to": "ann", "text": "hello"}}]}
    answers = {"plan": plan, "reflect": "SATISFIED: done", "answer": "sent"}

    class Asking:
        version = "asking"

        def decide(self, call: Any, state: Any) -> Verdict:
            return Verdict(decision="require_approval", rule="ask", reason="mail")

        def may_ask(self, tool: Any) -> bool:
            return True

    world, model = World(), Model(answers)
    engine = engine_of(scenario, world=world, model=model, policy=Asking())
    result = run(engine, scenario)
    assert (result.status, world.sent, len(model.views)) == ("waiting_for_approval", [], 1)
    result = asyncio.run(engine.approve("r", "tools.1.0", by="ann"))
    assert (result.status, result.output, world.sent, len(model.views)) == ("completed", "sent", ["ann: hello"], 3)
    assert asyncio.run(engine.replay("r")).identical


def test_a_strategy_call_is_a_tool_call_with_its_own_bound() -> None:
    """Calls without a model count as tool calls and stop at max_tool_calls."""
    scenario = SCENARIOS["plan-execute"]
    engine = engine_of(scenario)
    result = run(engine, scenario, budget=Budget(max_tool_calls=1))
    assert (result.status, result.state.dimension, result.usage.tool_calls) == ("stopped", "tool_calls", 1)
    assert isinstance(events(engine, e.Planned)[1].actions[0], ToolCall)
