"""What a strategy hands on: each wire is cut once to see that somebody notices. Required tools, results, guards, critics, remarks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from amounts import thinned
from detent import Agent, Budget, Engine, FinalAnswer, Plan, ToolCall, ToolFailed, Usage, View, tool
from detent.core import events as e
from detent.core.errors import ConfigError, UnknownName
from detent.ports import Branch, Passed, StrategyRun
from detent.strategies.plans import read_plan
from detent.strategies.reflexion import same
from detent.strategies.wording import CRITIC
from strategies.scenarios import GOAL, Model, events, passes, scores, thoughts
from strategies.test_each_strategy import Generic, go

pytestmark = thinned


class Desk:
    """Tools that keep what they did."""

    def __init__(self) -> None:
        self.sent: list[str] = []

        @tool(side_effect="write")
        async def send(to: str) -> str:
            """Send."""
            self.sent.append(to)
            return f"sent to {to}"

        @tool(side_effect="write", idempotent=True)
        async def put(n: int) -> str:
            """Put."""
            self.sent.append(str(n))
            return "put"

        @tool(side_effect="read")
        async def look(n: int = 0) -> int:
            """Look."""
            return n

        self.send, self.put, self.look = send, put, look


def call(name: str, **args: Any) -> ToolCall:
    return ToolCall(tool=name, args=args)


def prompts(model: Model, scope: str) -> list[View]:
    return [view for view in model.views if view.scope == scope]


# Required tools -----------------------------------------------------------------------------------------------------------------

IDLE: dict[str, Any] = {
    "plan": {"steps": [{"id": "a", "kind": "analysis", "task": "t"}, {"id": "b", "kind": "analysis", "task": "t"}]},
    "patch": {"steps": [{"id": "c", "kind": "analysis", "task": "t"}]},
    "step": "v",
    "reflect": "SATISFIED",
    "answer": "ok",
    "generate": "g",
    "critique": "SATISFIED",
    "improve": "i",
    "expand": thoughts("a"),
    "score": scores(0.9),
    "main": "m",
    "classify": {"strategy": "tree-of-thought"},
}


ANSWERING = {
    **dict.fromkeys(("reactive", "tree-of-thought", "adaptive"), "main"),
    "reflexion": "generate",
    "plan-execute": "answer",
    "plan-then-execute": "answer",
}
"""The pass that gives the answer, or the first draft of it."""


def idle(strategy: str) -> dict[str, Any]:
    return {**IDLE, "plan": {"steps": ["one", "two"]}} if strategy == "plan-then-execute" else IDLE


@pytest.mark.parametrize("strategy", ANSWERING)
def test_no_strategy_answers_without_its_required_tools_and_each_says_that_they_are_required(strategy: str) -> None:
    """Two answers that rest on nothing are an abstention, whatever the strategy; the planner was told before."""
    desk = Desk()
    result, _, model = go(strategy, Generic(idle(strategy)), desk.look, fields={"required_tools": {"look": 2}})
    assert (result.output, result.receipt.missing) == (None, ("look",))
    assert (result.status, result.reason, result.receipt.verdict) == ("stopped", "abstained", "abstained")
    told = [view.task + " ".join(item.text for item in view.transcript) + " ".join(view.guidance) for view in model.views]
    assert any("look (2 more" in text or "look (2 times more)" in text for text in told)


@pytest.mark.parametrize("strategy", ANSWERING)
@pytest.mark.parametrize(("looks", "ends"), [(1, ("failed", "missing_required_tool", None)), (2, ("completed", "final_answer", "ok"))])
def test_what_is_still_required_is_asked_for_before_the_answer_and_can_still_be_done(strategy: str, looks: int, ends: Any) -> None:
    """Too few calls are a failure, enough of them an answer: in each strategy as in ReAct."""
    said = [call("look", n=n) for n in range(1, looks + 1)] + ["ok"] * (3 - looks)
    answers = {**idle(strategy), ANSWERING[strategy]: lambda view: said[view.iteration - 1]}
    desk = Desk()

    class Acting(Generic):
        async def plan(self, view: View) -> Plan:
            plan = await super().plan(view)
            one = plan.actions[0]
            return Plan(actions=(one.content,)) if isinstance(one, FinalAnswer) and isinstance(one.content, ToolCall) else plan

    result, _, _ = go(strategy, Acting(answers), desk.look, fields={"required_tools": {"look": 2}})
    assert (result.status, result.reason, result.output) == ends, result.error
    assert result.receipt.tools["look"].ok == looks


def test_a_lone_analysis_does_not_answer_for_tools_that_are_required() -> None:
    """The plan is patched first, and the required call is made."""
    desk = Desk()
    lone = {"steps": [{"id": "a", "kind": "analysis", "task": "t"}]}
    patch = {"steps": [{"id": "b", "kind": "tool", "tool": "look", "args": {"n": 1}}]}
    answers = {"plan": lone, "step-a": "guess", "patch": patch, "reflect": "SATISFIED", "answer": "ok"}
    result, _, model = go("plan-execute", answers, desk.look, fields={"required_tools": {"look": 1}})
    assert (result.output, passes_of(model)) == ("ok", ["plan", "step-a", "patch", "reflect", "answer"])


def test_a_lone_analysis_that_failed_is_not_the_answer_of_the_plan_that_replaced_it() -> None:
    """What the patched plan gives is."""
    desk = Desk()
    plan = {"steps": [{"id": "a", "kind": "analysis", "task": "t"}]}
    patch = {"steps": [{"id": "b", "kind": "tool", "tool": "look", "args": {"n": 1}}]}
    answers = {"plan": plan, "step-a": " ", "step-a#2": " ", "patch": patch, "reflect": "SATISFIED", "answer": "ok"}
    result, _, _ = go("plan-execute", answers, desk.look)
    assert result.output == "ok", result.error


def test_a_plan_is_patched_until_its_required_tools_have_succeeded_often_enough() -> None:
    """What is required and not done is a remark on the plan; with it done the answer counts."""
    desk = Desk()
    plan = {"steps": [{"id": "a", "kind": "tool", "tool": "look", "args": {"n": 1}}, {"id": "b", "kind": "analysis", "task": "t"}]}
    patch = {"steps": [{"id": "c", "kind": "tool", "tool": "look", "args": {"n": 2}}]}
    answers = {"plan": plan, "patch": patch, "step-b": "b", "reflect": "SATISFIED", "answer": "ok"}
    result, _, model = go("plan-execute", answers, desk.look, fields={"required_tools": {"look": 2}})
    assert (result.output, passes_of(model)) == ("ok", ["plan", "step-b", "patch", "reflect", "answer"])
    assert "look (2 more)" in model.views[0].task and "required, and not done: look (1 more)" in prompts(model, "patch")[0].task


def test_a_required_call_that_failed_is_still_required() -> None:
    """It was made and gave nothing: the patch is told, and another call counts."""

    @tool(side_effect="write")
    async def book(n: int) -> str:
        """Book."""
        if n == 1:
            raise ToolFailed("closed", error_code="closed")
        return "booked"

    def step(n: int) -> dict[str, Any]:
        return {"steps": [{"id": f"b{n}", "kind": "tool", "tool": "book", "args": {"n": n}}]}

    answers = {"plan": step(1), "patch": step(2), "reflect": "SATISFIED", "answer": "ok"}
    result, _, model = go("plan-execute", answers, book, fields={"required_tools": {"book": 1}})
    assert result.output == "ok" and "required, and not done: book (1 more)" in prompts(model, "patch")[0].task


def passes_of(model: Model) -> list[str]:
    return [view.scope for view in model.views]


@pytest.mark.parametrize("strategy", ["plan-execute", "plan-then-execute"])
def test_a_plan_is_told_of_the_tools_that_its_steps_are_offered_and_of_no_other(strategy: str) -> None:
    """Not of one that the policy would always deny; a step that calls it all the same is refused before anything runs. It stays so on record."""
    desk = Desk()
    steps = {"steps": [{"id": "a", "kind": "tool", "tool": "send", "args": {"to": "ann"}}]}
    answers = {"plan": {"steps": ["one", "two"]}, "step": "v", "answer": "ok"}
    if strategy == "plan-execute":
        answers = {
            "plan": steps,
            "plan#2": {"steps": [{"id": "w", "kind": "work", "task": "look"}]},
            "step-w": "v",
            "reflect": "SATISFIED",
            "answer": "ok",
        }
    model = Generic(answers) if strategy == "plan-then-execute" else Model(answers)
    tools = (desk.send, desk.look)
    result, engine, _ = go(
        strategy,
        model,
        *tools,
        goal="Tell me",
        fields={"policy": [{"id": "no-mail", "tool": "send", "decision": "deny"}, {"id": "rest", "tool": "*", "decision": "allow"}]},
    )
    assert result.output == "ok", result.error
    told, shown = prompts(model, "plan")[0].task, next(view for view in model.views if view.scope.startswith("step-"))
    assert [spec.name for spec in shown.tools] == ["look"] and "look" in told and "send" not in told
    assert strategy == "plan-then-execute" or "there is no tool 'send'" in prompts(model, "plan#2")[0].task
    assert [event.value for event in events(engine, e.EffectRecorded)] == [["look"]]


def test_a_plan_with_discovery_is_told_of_no_tool_that_nobody_has_found() -> None:
    """As every other prompt: of those that are required, and of what the steps find for themselves."""
    desk = Desk()
    plan = {"steps": [{"id": "w", "kind": "work", "task": "look"}]}
    answers = {"plan": plan, "step-w": [call("look", n=1), "v"], "reflect": "SATISFIED", "answer": "ok"}
    fields = {"tools": ["send", "look", "discover_tools"], "required_tools": {"look": 1}}
    model = Model(answers)
    engine = Engine(planner=model, tools=(desk.send, desk.look), approver="caller")
    result = asyncio.run(engine.run(Agent(name="a", strategy="plan-execute", **fields), "Tell me", run_id="r"))
    assert result.output == "ok", result.error
    assert "- look:" in model.views[0].task and "send" not in model.views[0].task
    assert {spec.name for spec in prompts(model, "step-w")[0].tools} == {"look", "discover_tools"}


# What is handed on --------------------------------------------------------------------------------------------------------------


def test_critics_are_told_that_they_are_critics() -> None:
    """Other instructions than those of the agent, in reflexion and in plan-execute."""
    plan = {"steps": [{"id": "a", "kind": "analysis", "task": "t"}, {"id": "b", "kind": "analysis", "task": "t"}]}
    answers = {"plan": plan, "step": "v", "reflect": "SATISFIED", "answer": "ok"}
    _, _, model = go("plan-execute", Generic(answers), fields={"instructions": "You are Ann."})
    assert prompts(model, "reflect")[0].agent.instructions == CRITIC and prompts(model, "answer")[0].agent.instructions == "You are Ann."
    _, _, model = go("reflexion", Generic({"generate": "v", "critique": "SATISFIED"}), fields={"instructions": "You are Ann."})
    assert [view.agent.instructions for view in model.views] == ["You are Ann.", CRITIC]


@pytest.mark.parametrize("remark", ["UNSATISFIED: the sum is missing", "UNSATISFIED:"])
def test_a_reflection_that_is_not_satisfied_costs_a_patch(remark: str) -> None:
    """Its remark is in the prompt of the patch; what failed is in that of the answer."""
    plan = {"steps": [{"id": "a", "kind": "analysis", "task": "t"}, {"id": "b", "kind": "analysis", "task": "t"}]}
    patch = {"steps": [{"id": "c", "kind": "work", "task": "t"}]}
    answers = {"plan": plan, "patch": patch, "step-a": "v", "step-b": "w", "step-c": [call("none")] * 9, "reflect": remark, "answer": "ok"}
    result, _, model = go("plan-execute", answers, options={"refinements": 1, "retries": 0})
    assert result.output == "ok" and passes_of(model).count("patch") == 1
    assert (remark.partition(": ")[2] or "it is not enough") in prompts(model, "patch")[0].task
    assert "What did not work:\nc: " in prompts(model, "answer")[0].task


def test_a_step_that_thinks_is_one_call_whatever_that_comes_to() -> None:
    """Where a model calls something instead, the step has failed, and is tried once more."""
    plan = {"steps": [{"id": "a", "kind": "analysis", "task": "t"}]}
    result, _, model = go("plan-execute", {"plan": plan, "step-a": [call("none"), "late"], "step-a#2": "thought"})
    assert (result.output, passes_of(model)) == ("thought", ["plan", "step-a", "step-a#2"])


def test_a_reflection_that_fails_holds_nothing_up() -> None:
    """The answer is given."""
    plan = {"steps": [{"id": "a", "kind": "analysis", "task": "t"}, {"id": "b", "kind": "analysis", "task": "t"}]}
    answers = {"plan": plan, "step-a": "v", "step-b": "w", "reflect": lambda view: 1 / 0, "answer": "ok"}
    assert go("plan-execute", answers)[0].output == "ok"


def test_one_analysis_does_not_answer_a_run_that_wants_a_typed_answer() -> None:
    """Its text fits no schema: the answer is a call of its own, with the schema."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answers = {"plan": {"steps": [{"id": "a", "kind": "analysis", "task": "t"}]}, "step-a": "v", "reflect": "SATISFIED", "answer": {"n": 1}}
    result, _, model = go("plan-execute", answers, fields={"output_schema": schema})
    assert result.output == {"n": 1} and prompts(model, "answer")[0].output_schema == schema
    assert prompts(model, "step-a")[0].output_schema is None


@pytest.mark.parametrize(
    ("strategy", "answers"),
    [
        (
            "plan-execute",
            {
                "plan": {
                    "steps": [{"id": "a", "kind": "tool", "tool": "look", "args": {"n": 7}}, {"id": "b", "kind": "analysis", "task": "t"}]
                },
                "step-b": "b",
                "reflect": "SATISFIED",
                "answer": "ok",
            },
        ),
        ("plan-then-execute", {"plan": {"steps": ["a", "b"]}, "step-1": [call("look", n=7), "a"], "step-2": "b", "answer": "ok"}),
        ("reflexion", {"generate": [call("look", n=7), "v"], "critique": "UNSATISFIED: no", "improve": "v2", "critique#2": "SATISFIED"}),
    ],
)
def test_what_the_calls_of_all_passes_gave_comes_back_with_the_answer(strategy: str, answers: dict[str, Any]) -> None:
    """A strategy that calls another finds every result, not only those of its last pass."""
    from detent.strategies import BUILT_IN

    seen: list[Passed] = []

    async def around(run: StrategyRun) -> Passed:
        seen.append(await BUILT_IN[strategy](run))
        return seen[-1]

    desk = Desk()
    engine = Engine(planner=Model(answers), tools=[desk.look], strategies={"around": around})
    result = engine.run_sync(Agent(name="a", strategy="around", tools=["look"]), GOAL)
    assert result.status == "completed" and [item.content for item in seen[-1].results] == [7]


def test_a_schema_of_the_run_is_none_of_a_step() -> None:
    """Steps answer in words."""
    answers = {"plan": {"steps": ["a", "b"]}, "step-1": "a", "step-2": "b", "answer": {"n": 1}}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    result, _, model = go("plan-then-execute", answers, fields={"output_schema": schema})
    assert result.output == {"n": 1} and [view.output_schema for view in model.views[1:3]] == [None, None]
    plan = {"steps": [{"id": "w", "kind": "work", "task": "t"}]}
    result, _, model = go(
        "plan-execute", {"plan": plan, "step-w": "a", "reflect": "SATISFIED", "answer": {"n": 1}}, fields={"output_schema": schema}
    )
    assert result.output == {"n": 1} and prompts(model, "step-w")[0].output_schema is None


def test_a_list_of_steps_names_the_tools_that_work_and_is_cut_at_its_most() -> None:
    """A tool that only hands the answer over is no step; at most eight steps, or as many as the options say."""
    from detent.tools.done import done_tool

    desk = Desk()
    answers = {"plan": {"steps": [f"s{n}" for n in range(20)]}, "step": "v", "answer": "ok"}
    result, _, model = go("plan-then-execute", Generic(answers), desk.look, done_tool(), options={"steps": 3})
    assert (result.output, result.usage.model_calls) == ("ok", 1 + 3 + 1)
    assert model.views[0].task.endswith("Tools that the steps can use:\nlook")


def test_when_every_step_fails_no_answer_is_made_up() -> None:
    """Nothing is asked of a model that has nothing to say it from."""
    answers = {"plan": {"steps": ["a", "b"]}, "step": lambda view: 1 / 0, "answer": "made up"}
    result, _, model = go("plan-then-execute", Generic(answers))
    assert result.output is None and "answer" not in passes_of(model)


# Effects ------------------------------------------------------------------------------------------------------------------------


def test_a_later_step_does_not_send_again_what_an_earlier_one_sent() -> None:
    """Another recipient is served."""
    desk = Desk()
    again = [(call("send", to="ann"), call("send", to="bob")), "done"]
    answers = {"plan": {"steps": ["a", "b"]}, "step-1": [call("send", to="ann"), "a"], "step-2": again, "answer": "ok"}
    result, engine, _ = go("plan-then-execute", answers, desk.send)
    assert (result.output, desk.sent) == ("ok", ["ann", "bob"]) and len(events(engine, e.GuardBlocked)) == 1


def test_a_fallback_does_not_send_again_what_was_sent() -> None:
    """Adaptive hands on what was done, and guards it."""
    desk = Desk()
    answers = {
        "classify": {"strategy": "reflexion"},
        "generate": [call("send", to="ann"), call("look", n=1), call("look", n=2)],
        "improve": [call("look", n=n) for n in (3, 4, 5)],
        "main": [(call("send", to="ann"), call("look", n=9)), "there"],
    }
    result, engine, _ = go("adaptive", answers, desk.send, desk.look, options={"reflexion": {"rounds": 1}})
    assert (result.output, desk.sent) == ("there", ["ann"]) and len(events(engine, e.GuardBlocked)) == 1


def test_a_strategy_that_has_no_plan_is_fallen_back_from() -> None:
    """Three plans that cannot be carried out are as good as none."""
    result, _, _ = go("adaptive", Generic({"classify": {"strategy": "plan-execute"}, "plan": "no", "main": "there"}))
    assert (result.output, result.usage.model_calls) == ("there", 1 + 3 + 1)


def test_adaptive_works_with_the_options_of_what_it_chose() -> None:
    """Those of plan-execute and of the tree as much as those of reflexion."""
    plan = {"steps": [{"id": "a", "kind": "analysis", "task": "t"}, {"id": "b", "kind": "analysis", "task": "t"}]}
    answers = {
        "classify": {"strategy": "plan-execute"},
        "plan": plan,
        "patch": plan,
        "step": "v",
        "reflect": "UNSATISFIED: no",
        "answer": "ok",
    }
    _, engine, _ = go("adaptive", Generic(answers), options={"plan_execute": {"refinements": 0}})
    assert "patch" not in passes(engine)
    tree = {"classify": {"strategy": "tree-of-thought"}, "expand": thoughts("a", "b"), "score": scores(0.9, 0.9), "main": "m"}
    result, _, _ = go("adaptive", Generic(tree), options={"tree_of_thought": {"depth": 1}})
    assert result.usage.model_calls == 1 + 2 + 1


def test_an_idempotent_tool_and_one_that_failed_may_be_called_again() -> None:
    """Only what had an effect, and would have it again, is blocked in the passes that improve."""
    desk = Desk()

    @tool(side_effect="write")
    async def shaky(n: int) -> str:
        """Fail at first."""
        from detent import ToolFailed

        desk.sent.append(f"shaky {n}")
        if n == 1:
            raise ToolFailed("closed", error_code="closed")
        return "open"

    answers = {
        "generate": [(call("put", n=1), call("shaky", n=1)), "v1"],
        "critique": "UNSATISFIED: more",
        "improve": [(call("put", n=2), call("shaky", n=2)), "v2"],
        "critique#2": "SATISFIED",
    }
    result, _, _ = go("reflexion", answers, desk.put, shaky)
    assert (result.output, desk.sent) == ("v2", ["1", "shaky 1", "2", "shaky 2"])


def test_an_improvement_that_comes_to_nothing_leaves_the_answer_that_there_was() -> None:
    """The last pass that had an answer counts, and the next critic is shown that one."""
    answers = {"generate": "v1", "critique": "UNSATISFIED: a", "improve": [call("none")] * 3, "critique#2": "SATISFIED"}
    result, _, model = go("reflexion", answers, options={"rounds": 2})
    assert (result.status, result.output) == ("completed", "v1") and "Answer:\nv1" in prompts(model, "critique#2")[0].task


# What a strategy may ask for ----------------------------------------------------------------------------------------------------


def test_direct_offers_no_tool_whose_result_nobody_would_read() -> None:
    """With one turn there is none to read it."""
    desk = Desk()
    _, _, model = go("direct", {"main": "x"}, desk.look)
    assert model.views[0].tools == ()


async def twice(run: StrategyRun) -> Any:
    await run.kernel("a")
    return (await run.kernel("a#2")).output


async def unlabelled(run: StrategyRun) -> Any:
    return (await run.kernel(" ")).output


async def misnaming(run: StrategyRun) -> Any:
    return (await run.kernel("a", tools=("lok",))).output


async def returning_an_object(run: StrategyRun) -> Any:
    return object()


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (twice, "cannot be labelled 'a#2'"),
        (unlabelled, "cannot be labelled ' '"),
        (misnaming, "unknown tool 'lok'; did you mean 'look'"),
        (returning_an_object, "returned a value that is not JSON: object"),
    ],
)
def test_what_a_strategy_cannot_ask_for_ends_the_run_and_says_why(strategy: Any, said: str) -> None:
    """A label that is the key of another pass, a tool that is not there, an answer that no log can hold; and the log replays."""
    desk = Desk()
    engine = Engine(planner=Generic({"a": "x"}), tools=[desk.look], strategies={"mine": strategy})
    result = engine.run_sync(Agent(name="a", strategy="mine", tools=["look"]), GOAL)
    assert result.reason == "kernel_error" and said in (result.error or "")
    import asyncio

    assert asyncio.run(engine.replay(result.run_id)).identical


def test_no_passes_side_by_side_are_none() -> None:
    """Nothing is divided among nobody."""

    async def none(run: StrategyRun) -> Any:
        return len(await run.parallel())

    engine = Engine(planner=Model({}), strategies={"none": none})
    assert engine.run_sync(Agent(name="a", strategy="none"), GOAL).output == 0


@pytest.mark.parametrize("options", [{"strategies": {"x": 5}}, {"guards": {"x": 5}}, {"kernels": {"x": 5}}])
def test_what_is_registered_must_be_of_its_kind(options: dict[str, Any]) -> None:
    """Said when the engine is made, not when the run has begun."""
    with pytest.raises(ConfigError, match=r"'x'\]? is an int"):
        Engine(planner=Model({}), **options)


def test_two_things_under_one_name_are_refused() -> None:
    """Nothing is replaced by accident."""

    async def mine(run: StrategyRun) -> Any:
        return "x"

    engine = Engine(planner=Model({}))
    engine.strategies.register("mine", mine)
    engine.strategies.register("mine", mine)
    with pytest.raises(ConfigError, match="already exists"):
        engine.strategies.register("mine", twice)


def test_a_registry_takes_only_what_has_a_name_and_is_of_its_kind() -> None:
    """Added or put in the place of what is there; what is not there is not replaced, and the nearest name is said."""

    async def mine(run: StrategyRun) -> Any:
        return "x"

    names = Engine(planner=Model({})).strategies
    for change in (lambda: names.register("mine", 5), lambda: names.replace("direct", 5)):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="is an int; expected an async function"):
            change()
    with pytest.raises(ConfigError, match="a strategy needs a name"):
        names.register(" ", mine)
    with pytest.raises(UnknownName, match="did you mean 'direct'"):
        names.replace("dirct", mine)
    names.replace("direct", mine)
    assert names.get("direct") is mine and "dirct" not in names


class Charging:
    """Answers everything and charges."""

    async def plan(self, view: View) -> Plan:
        return Plan(actions=(FinalAnswer(content=view.scope),), usage=Usage(input_tokens=10), model="m")


@pytest.mark.parametrize("most", range(1, 4))
def test_a_budget_that_ends_in_a_wave_ends_the_run_there(most: int) -> None:
    """Four passes, fewer calls: exactly so many are made, the other passes end with the run, and the log replays."""
    import asyncio

    async def wide(run: StrategyRun) -> Any:
        return [passed.output for passed in await run.parallel(*(Branch(label=f"b{n}") for n in range(4)))]

    engine = Engine(planner=Charging(), strategies={"wide": wide})
    agent = Agent(name="a", strategy="wide")
    result = asyncio.run(engine.run(agent, GOAL, run_id="r", budget=Budget(max_model_calls=most)))
    assert (result.reason, result.state.dimension, result.usage.model_calls) == ("budget_exhausted", "model_calls", most)
    assert len(events(engine, e.PassFinished)) == 4
    assert asyncio.run(engine.replay("r")).identical


def test_no_more_steps_run_at_a_time_than_the_options_say() -> None:
    """Two by two; the next begin when both have ended."""
    plan = {"steps": [{"id": f"s{n}", "kind": "analysis", "task": "t"} for n in range(5)]}
    answers = {"plan": plan, "step": "v", "reflect": "SATISFIED", "answer": "ok"}
    _, engine, _ = go("plan-execute", Generic(answers), options={"parallel": 2})
    import asyncio

    open_now, most = 0, 0
    for record in asyncio.run(engine.records("r")):
        open_now += isinstance(record.event, e.PassStarted) - isinstance(record.event, e.PassFinished)
        most = max(most, open_now)
    assert most == 2


def test_a_critic_sees_what_the_tools_gave_and_nothing_of_calls_that_failed() -> None:
    """An error is no evidence."""

    @tool(side_effect="read")
    async def rows() -> list[str]:
        """A few rows."""
        return [f"row {n}" for n in range(20)]

    answers = {"generate": [(call("rows"), call("rows", n=1)), "v"], "critique": "SATISFIED"}
    result, _, model = go("reflexion", answers, rows)
    told = prompts(model, "critique")[0].task
    assert result.output == "v" and "row 19" in told and told.count("rows(") == 1


@pytest.mark.parametrize("ended", ["failure_threshold", "no_progress"])
def test_a_pass_that_failed_or_stood_still_is_not_the_end_of_reflexion(ended: str) -> None:
    """Another pass may do better, and is told why the one before came to no end."""
    desk = Desk()
    stuck = [call("none")] * 4 if ended == "failure_threshold" else [call("look", n=1)] * 20
    answers = {"generate": stuck, "improve": "v", "critique": "SATISFIED"}
    result, engine, model = go("reflexion", answers, desk.look, options={"turns": 20})
    first = next(event for event in events(engine, e.PassFinished))
    assert (first.reason, result.output) == (ended, "v")
    assert f"What is wrong with it:\nThere is no answer yet: {first.error}." in prompts(model, "improve")[0].task and first.error


def test_the_pass_that_makes_up_for_required_tools_does_nothing_twice_and_hands_on_what_it_found() -> None:
    """What a step had sent stays sent once; where the pass comes to no end either, the fallback knows its results."""
    desk = Desk()
    plan = {"steps": [{"id": "a", "kind": "tool", "tool": "send", "args": {"to": "ann"}}]}
    late = [(call("send", to="ann"), call("look", n=1)), *[call("look", n=1)] * 20]
    answers = {"classify": {"strategy": "plan-execute"}, "plan": plan, "patch": plan, "answer": late, "main": [call("look", n=2), "ok"]}
    fields = {"required_tools": {"look": 2}}
    result, _, model = go("adaptive", answers, desk.send, desk.look, options={"plan_execute": {"refinements": 0}}, fields=fields)
    assert (result.output, desk.sent) == ("ok", ["ann"]), result.error
    making_up = prompts(model, "answer")[0].task
    assert "found out:\na: sent to ann\n\n" in making_up and making_up.endswith("must succeed before you answer:\nlook (2 more)")
    told = prompts(model, "main")[0].task
    assert 'send({"to":"ann"}) -> sent to ann' in told and 'look({"n":1}) -> 1' in told


@pytest.mark.parametrize("strategy", ["plan-execute", "plan-then-execute"])
def test_the_answer_is_written_in_one_call_from_what_was_found_alone(strategy: str) -> None:
    """It is said so, and a model that would rather go on working is not let."""
    model = Generic({**idle(strategy), "answer": "ok"})
    result, _, _ = go(strategy, model)
    said = prompts(model, "answer")[0].task
    assert result.output == "ok" and "Give the answer now, from this alone" in said
    assert ("say what failed" in said) == (strategy == "plan-then-execute")

    class Working(Generic):
        async def plan(self, view: View) -> Plan:
            plan = await super().plan(view)
            return Plan(actions=(call("look", n=1),)) if view.scope == "answer" and view.iteration == 1 else plan

    result, _, _ = go(strategy, Working({**idle(strategy), "answer": "ok"}), Desk().look)
    assert (result.output, result.reason) == (None, "max_iterations")


def test_two_critiques_say_the_same_from_four_fifths_of_a_common_beginning_on() -> None:
    """Half of one is a new remark."""
    assert same("a" * 80 + "b" * 20, "a" * 80 + "c" * 20) and not same("a" * 79 + "b" * 21, "a" * 79 + "c" * 21)
    assert not same("a" * 50, "a" * 100)


# Limits and heuristics ----------------------------------------------------------------------------------------------------------


def test_a_step_of_work_that_is_tried_again_does_nothing_twice() -> None:
    """It may have had its effect before it came to no end."""
    desk = Desk()
    plan = {"steps": [{"id": "w", "kind": "work", "task": "send it"}]}
    answers = {
        "plan": plan,
        "step-w": [call("send", to="ann"), call("none")],
        "step-w#2": [call("send", to="ann"), "sent"],
        "reflect": "SATISFIED",
        "answer": "ok",
    }
    result, engine, _ = go("plan-execute", answers, desk.send, options={"turns": 2})
    assert (result.output, desk.sent) == ("ok", ["ann"]), result.error
    assert any(block.call == "step-w#2.1.0" for block in events(engine, e.GuardBlocked))


def test_a_writing_call_that_failed_is_not_made_again_unless_it_never_happened() -> None:
    """A time-out that a tool tells may have had its effect; `not_executed` says that it had none."""
    tried: list[str] = []

    @tool(side_effect="write")
    async def book(code: str) -> str:
        """Book."""
        tried.append(code)
        raise ToolFailed("no answer", error_code=code)

    plan = {"steps": [{"id": code, "kind": "tool", "tool": "book", "args": {"code": code}} for code in ("timeout", "not_executed")]}
    go("plan-execute", {"plan": plan}, book, options={"refinements": 0})
    assert sorted(tried) == ["not_executed", "not_executed", "timeout"]


def test_a_plan_has_at_most_twenty_steps() -> None:
    """One more is refused before anything runs."""
    steps = [{"id": f"s{n}", "kind": "analysis", "task": "t"} for n in range(21)]
    assert read_plan({"steps": steps[:20]}, tools=())[1] == "" and "21 steps" in read_plan({"steps": steps}, tools=())[1]


def test_of_equal_ways_the_longer_one_is_taken() -> None:
    """It has thought further."""
    tree = {"expand": thoughts("a"), "score": scores(0.9), "main": "x"}
    _, _, model = go("tree-of-thought", Generic(tree), options={"depth": 2})
    assert "1. a\n2. a" in prompts(model, "main")[0].task
