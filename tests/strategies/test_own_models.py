"""A pass with a model, a planner or settings of its own: asked, priced, bounded and recorded like any choice of a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from detent import Agent, Budget, Engine, FinalAnswer, View
from detent.core import events as e
from detent.core.errors import ConfigError, Divergence, Suspended
from detent.metering.pricing import ModelPrice
from detent.planners.fallback import FallbackPlanner
from detent.planners.model.planner import ModelPlanner
from detent.planners.raw_text.planner import OnDevicePlanner
from detent.planners.rules.planner import RulePlanner
from detent.ports import Branch, StrategyRun
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner
from planners.model.chat_server import ChatServer, says
from planners.model.function_models import Asked
from strategies.test_passes import Answers, events


@pytest.fixture
def server() -> Iterator[ChatServer]:
    """A server that answers with the name of the model that was asked."""
    with ChatServer([lambda asked: says(f"by {asked['model']}")]) as answering:
        yield answering


def asked(server: ChatServer, *keys: str) -> list[tuple[Any, ...]]:
    """Return what the requests said."""
    return [tuple(request.get(key) for key in ("model", *keys)) for request in server.requests]


def go(strategy: Any, agent: dict[str, Any], *, store: Any = None, **options: Any) -> tuple[Any, Engine]:
    """Run as "r" without a planner of the engine, unless one is given."""
    bounds = options.pop("budget", None)
    engine = Engine(store=store or RamStore(), strategies={"mine": strategy}, approver="caller", **options)
    return asyncio.run(engine.run(Agent(name="a", strategy="mine", **agent), "go", run_id="r", budget=bounds)), engine


def test_a_judge_is_another_model_and_samples_differ(server: ChatServer) -> None:
    """Each request has the model and the settings of its pass; a model of its own has none of the agent's settings, and the log has them all."""

    async def mine(run: StrategyRun) -> Any:
        samples = [Branch(label=f"s{t}", settings={"temperature": t}, tools=()) for t in (0.1, 0.9)]
        said = [passed.output for passed in await run.parallel(*samples)]
        judged = await run.ask(
            "judge", "Which is best?", model="judge", settings={"base_url": server.url, "temperature": 0.0, "max_tokens": 7}
        )
        return [*said, judged, (await run.kernel("main")).output]

    agent = {"model": "writer", "model_settings": {"base_url": server.url, "max_tokens": 50, "temperature": 0.4}}
    result, engine = go(mine, agent)
    assert result.output == ["by writer", "by writer", "by judge", "by writer"], result.error
    assert sorted(asked(server, "temperature", "max_completion_tokens")[:2]) == [("writer", 0.1, 50), ("writer", 0.9, 50)]
    assert asked(server, "temperature", "max_completion_tokens")[2:] == [("judge", 0.0, 7), ("writer", 0.4, 50)]
    recorded = [(p.key, p.model, p.settings.get("temperature")) for p in events(engine, e.PassStarted)]
    assert recorded == [("s0.1", "", 0.1), ("s0.9", "", 0.9), ("judge", "judge", 0.0), ("main", "", None)]
    assert [p.model for p in events(engine, e.ModelCallStarted)] == ["writer", "writer", "judge", "writer"]
    assert asyncio.run(engine.replay("r")).identical and len(server.requests) == 4


def test_a_pass_that_goes_on_asks_the_model_that_it_was_begun_with(server: ChatServer) -> None:
    """Another model under the same label is a divergence: nothing is asked, and the run stays as it is."""
    store, model = RamStore(), "judge"

    async def mine(run: StrategyRun) -> Any:
        judged = await run.ask("judge", "?", model=model, settings={"base_url": server.url})
        return [judged, await run.ask_user("q", "Go on?")]

    result, engine = go(mine, {}, store=store)
    assert result.status == "waiting_for_user"
    model = "another"
    with pytest.raises(Divergence, match="another kernel, limits or input"):
        asyncio.run(engine.reply("r", "yes", by="ann"))
    model = "judge"
    assert asyncio.run(engine.resume("r")).output == ["by judge", "yes"] and asked(server) == [("judge",)]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"temprature": 1.0}, "the pass 'x': settings: unknown setting 'temprature'; did you mean 'temperature'"),
        ({"temperature": "hot"}, "the pass 'x': settings: Expected `float | null`"),
        ({"api_key": "k"}, "unknown setting 'api_key'"),
    ],
)
@pytest.mark.parametrize("model", ["", "openai:gpt-5"])
def test_settings_that_no_model_has_are_refused_before_the_pass_begins(settings: dict[str, Any], problem: str, model: str) -> None:
    """A judge whose settings are misspelt would judge in another way than was meant."""

    async def mine(run: StrategyRun) -> Any:
        return await run.ask("x", "?", model=model, settings=settings)

    result, engine = go(mine, {}, planner=Answers({"x": "said"}))
    assert result.reason == "kernel_error" and problem in (result.error or "") and events(engine, e.PassStarted) == []


def test_a_model_that_cannot_be_asked_here_suspends_the_run(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its key is missing the pass has not failed: a strategy would go on without its judge. The run goes on where the key is."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", "")

    async def mine(run: StrategyRun) -> Any:
        first = await run.kernel("first")
        return [first.output, await run.ask("judge", "?", model="openai-chat:judge")]

    agent = Agent(name="a", strategy="mine", model="writer", model_settings={"base_url": server.url})
    engine = Engine(strategies={"mine": mine})
    with pytest.raises(Suspended, match=r"pass 'judge' cannot be planned here: model 'openai-chat:judge' needs a key: set OPENAI_API_KEY"):
        asyncio.run(engine.run(agent, "go", run_id="r"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    result = asyncio.run(engine.resume("r"))
    assert (result.status, result.output) == ("completed", ["by writer", "by judge"])
    assert asked(server) == [("writer",), ("judge",)] and asyncio.run(engine.replay("r")).identical


@pytest.mark.parametrize("model", ["nonsense", "nope:x"])
def test_a_model_that_no_provider_takes_fails_its_pass(server: ChatServer, model: str) -> None:
    """It suspended the run, and no process could ever take it on: the name stays what it is."""

    async def mine(run: StrategyRun) -> Any:
        (judged,) = await run.parallel(Branch(label="judge", model=model))
        return [judged.status, judged.reason, judged.error]

    result, engine = go(mine, {"model": "writer", "model_settings": {"base_url": server.url}})
    assert result.output[:2] == ["failed", "planner_error"] and f"unknown model '{model}': " in result.output[2]
    assert asyncio.run(engine.replay("r")).identical
    result, _ = go(lambda run: run.ask("judge", "?", model=model), {"model": "writer", "model_settings": {"base_url": server.url}})
    assert result.status == "failed" and f"unknown model '{model}': " in result.error


def test_a_model_without_a_price_is_not_asked_where_cost_is_bounded(server: ChatServer) -> None:
    """Its calls would cost nothing that is known; with a price they count in the one sum."""
    prices = {"writer": ModelPrice(input_usd=1_000, output_usd=0)}

    async def mine(run: StrategyRun) -> Any:
        return await run.ask("judge", "?", model="judge", settings={"base_url": server.url})

    agent: dict[str, Any] = {"model": "writer", "model_settings": {"base_url": server.url}}
    with pytest.raises(Suspended, match="there is no price for its model 'judge'"):
        go(mine, agent, model_prices=prices, budget=Budget(max_cost_usd=1))
    assert server.requests == []
    prices["judge"] = ModelPrice(input_usd=2_000, output_usd=0)
    result, _ = go(mine, agent, model_prices=prices, budget=Budget(max_cost_usd=10))
    assert (result.output, result.usage.cost_usd) == ("by judge", pytest.approx(0.2))
    result, _ = go(mine, agent, model_prices={**prices, "judge": ModelPrice(input_usd=10**7, output_usd=0)}, budget=Budget(max_cost_usd=1))
    assert (result.reason, result.state.dimension, len(server.requests)) == ("budget_exhausted", "cost_usd", 1)


RULES = [{"name": "say", "answer": "by rules"}]


def test_rules_and_planners_of_another_model_leave_the_pass_to_its_model(server: ChatServer) -> None:
    """An agent with rules can have a judge; so can an engine whose planner was given a model."""

    async def mine(run: StrategyRun) -> Any:
        judged = await run.ask("judge", "?", model="judge", settings={"base_url": server.url})
        return [(await run.kernel("main")).output, judged]

    assert go(mine, {"rules": RULES})[0].output == ["by rules", "by judge"]
    assert go(mine, {"rules": RULES, "model": "judge"})[0].output == ["by rules", "by judge"]
    assert go(mine, {}, planner=RulePlanner.from_rules(RULES))[0].output == ["by rules", "by judge"]
    assert go(mine, {}, planner=ModelPlanner(Asked(["by an object"]).model))[0].output == ["by an object", "by judge"]
    either = FallbackPlanner([ModelPlanner(Asked(["by an object"]).model), ScriptedPlanner([])])
    assert go(mine, {}, planner=either)[0].output == ["by an object", "by judge"]
    raw = OnDevicePlanner(lambda prompt: "by a generator", prose=True)
    assert go(mine, {}, planner=raw)[0].output == ["by a generator", "by judge"]
    named = go(mine, {"model": "writer"}, planner=ModelPlanner(settings={"base_url": server.url}))[0]
    assert named.output == ["by writer", "by judge"]


def test_a_script_and_a_planner_of_ones_own_plan_every_pass_and_are_told_the_model() -> None:
    """A test of a strategy needs no key, and who brings a planner brings all models."""
    seen: list[tuple[str, str, float]] = []

    async def mine(run: StrategyRun) -> Any:
        return await run.ask("judge", "?", model="openai:judge", settings={"temperature": 0.5})

    def answer(view: View) -> FinalAnswer:
        seen.append((view.scope, view.agent.model, view.agent.model_settings["temperature"]))
        return FinalAnswer(content="judged")

    assert go(mine, {"model": "openai:writer"}, planner=ScriptedPlanner([answer]))[0].output == "judged"
    assert go(mine, {}, planner=Answers({"judge": lambda view: answer(view).content}))[0].output == "judged"
    assert seen == [("judge", "openai:judge", 0.5)] * 2


def test_a_pass_is_shown_as_much_as_its_own_model_takes() -> None:
    """The tier is that of the model that is asked, where the agent has a profile."""

    async def mine(run: StrategyRun) -> Any:
        await run.kernel("main")
        return await run.ask("judge", "?", model="ollama:llama3.2:3b")

    planner, seen = Answers({}), dict[str, tuple[str, int]]()

    def answer(view: View) -> str:
        seen[view.scope] = view.profile.tier, view.compression.budget_chars
        return "x"

    planner.answers = {"main": answer, "judge": answer}
    go(mine, {"model": "openai:gpt-5", "profile": {"tier": "frontier"}}, planner=planner)
    assert seen == {"main": ("frontier", 600), "judge": ("local", 4000)}


def test_a_pass_can_be_planned_by_a_model_that_writes_text(server: ChatServer) -> None:
    """Whatever plans for the agent."""

    async def mine(run: StrategyRun) -> Any:
        return await run.ask(
            "judge", "?", model="judge", planner="on-device", settings={"base_url": server.url, "on_device": {"constrain": False}}
        )

    result, engine = go(mine, {"rules": RULES})
    assert result.output == "by judge" and [p.planner for p in events(engine, e.PassStarted)] == ["on-device"]
    assert "final_answer" in json.dumps(server.requests[0]["messages"]), "it is told how to write what it wants"

    async def nameless(run: StrategyRun) -> Any:
        return await run.ask("judge", "?", planner="on-device")

    assert "planner 'on-device' needs a model, and agent 'a' has none" in go(nameless, {"rules": RULES})[0].error


# As an option of the strategies that judge ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "options", "judges"),
    [
        ("reflexion", {"rounds": 1}, ["judge"]),
        ("tree-of-thought", {"depth": 1, "skip_trivial": False}, ["judge"]),
        ("plan-execute", {"refinements": 0}, ["judge"]),
        ("adaptive", {"classify": False}, []),
    ],
)
def test_strategies_that_judge_take_the_model_that_does(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch, strategy: str, options: dict[str, Any], judges: list[str]
) -> None:
    """Of critiques and scores; it is checked before the run starts, like the agent's own."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    steps = [{"id": name, "kind": "analysis", "task": "think"} for name in "ab"]
    forms = {"Propose": {"thoughts": ["a way"]}, "Make a plan": {"steps": steps}}

    def said(asked: dict[str, Any]) -> Any:
        form = next((form for word, form in forms.items() if word in str(asked)), None)
        return says(f"by {asked['model']}" if form is None else json.dumps(form))

    server.script[:] = [said]
    judge = {"model": "openai-chat:judge", "settings": {"temperature": 0.2}}
    options = {**options, "reflexion": {"judge": judge}} if strategy == "adaptive" else {**options, "judge": judge}
    agent = Agent(name="a", model="openai-chat:writer", small_model="openai-chat:small", strategy=strategy, strategy_options=options)
    engine = Engine()
    asyncio.run(engine.run(agent, "Write a long poem about the sea and what lies below it", run_id="r"))
    assert list(dict.fromkeys(model for model, heat in asked(server, "temperature") if heat == 0.2)) == judges
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    wrong = Agent(name="a", strategy=strategy, strategy_options=options, rules=RULES)
    with pytest.raises(ConfigError, match="model 'openai-chat:judge' needs a key"):
        asyncio.run(engine.run(wrong, "go", run_id="r2"))
    with pytest.raises(ConfigError, match="there is no price for its model 'openai-chat:judge'"):
        asyncio.run(Engine(planner=Answers({})).run(wrong, "go", run_id="r2", budget=Budget(max_cost_usd=1)))


@pytest.mark.parametrize(
    ("judge", "problem"),
    [
        ({"model": "openai:gpt-5", "settings": {"temprature": 1}}, "unknown setting 'temprature'; did you mean 'temperature'"),
        ({"model": "gpt-5", "settings": {"base_url": "http://127.0.0.1:1/v1"}}, "base_url cannot be an option of a strategy"),
        ({"model": "gpt-5", "settings": {"api_key_env": "HOME"}}, "api_key_env cannot be an option of a strategy"),
        ({"modle": "gpt-5"}, "modle"),
        ({"planner": "on-device"}, "needs a model"),
    ],
)
def test_a_judge_that_cannot_be_one_is_refused_before_the_run_starts(judge: dict[str, Any], problem: str) -> None:
    """An agent's file cannot send a goal to a server of its own in this way: what it may send, and where, is asked of a person elsewhere."""
    engine = Engine(planner=Answers({}))
    agent = Agent(name="a", strategy="reflexion", strategy_options={"judge": judge})
    with pytest.raises(ConfigError, match=problem):
        asyncio.run(engine.run(agent, "go", run_id="r"))
    assert asyncio.run(engine.store.read("r")) == []


def test_a_key_of_extra_that_no_model_knows_is_refused_in_the_settings_of_a_pass_too() -> None:
    """It was named in a warning and left out, as nobody who wrote it would expect."""

    async def mine(run: StrategyRun) -> Any:
        return await run.kernel("judge", settings={"extra": {"temprature": 1}})

    planner = Asked(["ok"])
    result, engine = go(mine, {}, planner=ModelPlanner(planner.model))
    assert result.reason == "planner_error" and "extra: unknown setting 'temprature'" in result.error and planner.infos == []
    assert asyncio.run(engine.replay("r")).identical
