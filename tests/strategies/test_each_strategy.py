"""What only one strategy does: rounds, references, patches, trees, choices. Numbers are those of section 16 of the catalogue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from detent import Abstain, Agent, Budget, Engine, FinalAnswer, Plan, ToolCall, ToolFailed, Usage, View, tool
from detent.core import events as e
from detent.core.errors import ConfigError
from detent.strategies.plan_then_execute import listed
from detent.strategies.plans import Unresolved, read_plan, resolved
from detent.strategies.reflexion import same
from detent.strategies.thoughts import Thought, pruned
from strategies.scenarios import GOAL, Model, events, passes, scores, thoughts


def go(
    strategy: str,
    answers: dict[str, Any] | Any,
    *tools: Any,
    goal: str = GOAL,
    options: dict[str, Any] | None = None,
    replays: bool = True,
    **more: Any,
) -> Any:
    """Run as "r", and replay that; return (result, engine, model)."""
    model = answers if hasattr(answers, "plan") else Model(answers)
    engine = Engine(planner=model, tools=tools, approver="caller")
    fields = {"tools": [t.name for t in tools], **more.pop("fields", {})}
    agent = Agent(name="a", strategy=strategy, strategy_options=options or {}, **fields)
    result = asyncio.run(engine.run(agent, goal, run_id="r", **more))
    if replays:
        replayed = asyncio.run(engine.replay("r"))
        assert replayed.identical, replayed.divergence
    return result, engine, model


class Generic(Model):
    """Answers by the beginning of the scope."""

    async def plan(self, view: View) -> Plan:
        self.views.append(view)
        said = next(said for start, said in self.answers.items() if view.scope.startswith(start))
        said = said(view) if callable(said) else said
        return Plan(actions=(FinalAnswer(content=said),), usage=Usage(input_tokens=10), model="m")


# Direct -------------------------------------------------------------------------------------------------------------------------


def test_direct_asks_for_less_than_100_tokens_beyond_the_question() -> None:
    """One request, no tools, nothing in it but who the agent is and the question; measured where the model is asked."""
    from detent.planners.model.planner import ModelPlanner
    from planners.model.function_models import Asked

    asked = Asked(["Paris"])
    engine = Engine(planner=ModelPlanner(asked.model))
    result = asyncio.run(engine.run(Agent(name="quiz", strategy="direct"), "What is the capital of France?"))
    parts = [part for message in asked.messages[0] for part in message.parts]
    text = asked.head + "".join(str(part.content) for part in parts)  # type: ignore[union-attr]
    assert (result.output, result.usage.model_calls, asked.infos[0].function_tools) == ("Paris", 1, [])
    assert len(text) - len("What is the capital of France?") < 4 * 100


def test_direct_may_take_up_to_three_turns() -> None:
    """With more than one turn the tools are offered; the last turn is the last."""

    @tool(side_effect="read")
    async def look() -> str:
        """Look."""
        return "seen"

    result, _, model = go("direct", {"main": [ToolCall(tool="look"), "seen it"]}, look, options={"turns": 2})
    assert (result.output, result.usage.model_calls, [t.name for t in model.views[0].tools]) == ("seen it", 2, ["look"])
    result, _, _ = go("direct", {"main": [ToolCall(tool="look")] * 3}, look, options={"turns": 2})
    assert (result.status, result.reason, result.usage.model_calls) == ("stopped", "max_iterations", 2)


def test_direct_with_one_turn_refuses_an_agent_that_requires_tools_before_anything_is_paid() -> None:
    """Nobody could call them; with a second turn they can be called."""

    @tool(side_effect="read")
    async def look() -> str:
        """Look."""
        return "seen"

    model, fields = Model({"main": [ToolCall(tool="look"), "seen it"]}), {"required_tools": {"look": 1}}
    with pytest.raises(ConfigError, match=r"requires look.*turns = 2"):
        go("direct", model, look, fields=fields)
    assert model.views == []
    assert go("direct", model, look, fields=fields, options={"turns": 2})[0].output == "seen it"


# Reflexion ----------------------------------------------------------------------------------------------------------------------


def test_reflexion_makes_k_plus_n_times_one_plus_k_calls() -> None:
    """Never satisfied: three rounds, and the last improvement is the answer."""
    remarks = iter(["first", "second thing", "third, another"])
    answers = {"generate": "v1", "critique": lambda view: f"UNSATISFIED: {next(remarks)}", "improve": lambda view: f"better {view.scope}"}
    result, engine, _ = go("reflexion", Generic(answers))
    assert (result.output, result.usage.model_calls) == ("better improve#3", 1 + 3 * 2)
    assert passes(engine) == ["generate", "critique", "improve", "critique#2", "improve#2", "critique#3", "improve#3"]


def test_reflexion_stops_when_the_critic_repeats_itself_or_fails() -> None:
    """Equal critiques, or 80 % of the same beginning, end it; a critic that fails costs nobody the draft."""
    long = "the answer gives no exact number and no source for it"
    answers = {"generate": "v1", "critique": f"UNSATISFIED: {long}", "improve": "v2"}
    result, _, _ = go("reflexion", Generic(answers))
    assert (result.output, result.usage.model_calls) == ("v2", 4)
    broken = {"generate": "v1", "critique": lambda view: 1 / 0}
    assert go("reflexion", Generic(broken))[0].output == "v1"
    assert same(long, long + "!") and not same("", "") and not same(long, "something else")


@pytest.mark.parametrize(("block", "sent"), [("tools", ["ann"]), ("calls", ["ann", "bob"])])
def test_reflexion_does_nothing_twice_that_had_an_effect(block: str, sent: list[str]) -> None:
    """A tool that is not idempotent and has worked is blocked in later passes; with `calls` only the same call is. The model is told why."""
    done: list[str] = []

    @tool(side_effect="write")
    async def mail(to: str) -> str:
        """Send a mail."""
        done.append(to)
        return "sent"

    @tool(side_effect="read")
    async def look() -> int:
        """Look."""
        return 7

    def call(name: str, **args: Any) -> ToolCall:
        return ToolCall(tool=name, args=args)

    answers = {
        "generate": [(call("mail", to="ann"), call("look")), "v1"],
        "critique": "UNSATISFIED: bob?",
        "improve": [(call("mail", to="ann"), call("mail", to="bob"), call("look")), "v2"],
        "critique#2": "SATISFIED",
    }
    result, engine, model = go("reflexion", answers, mail, look, options={"block": block})
    assert (result.output, done) == ("v2", sent)
    assert len(events(engine, e.GuardBlocked)) == 3 - len(sent)
    task = next(view.task for view in model.views if view.scope == "improve")
    assert "look({}) -> 7" in task and 'mail({"to":"ann"}) -> sent' in task and "bob?" in task


def test_reflexion_goes_on_from_a_pass_that_came_to_no_end() -> None:
    """Without a draft no critic is asked; what the tools gave is handed on; an abstention is final."""

    @tool(side_effect="read")
    async def look(n: int) -> int:
        """Look."""
        return n

    looks = [ToolCall(tool="look", args={"n": n}) for n in range(3)]
    result, engine, model = go("reflexion", {"generate": looks, "improve": "v", "critique": "SATISFIED"}, look)
    assert (result.output, result.usage.model_calls, passes(engine)) == ("v", 5, ["generate", "improve", "critique"])
    assert 'look({"n":2}) -> 2' in model.views[3].task


# Plan and execute ---------------------------------------------------------------------------------------------------------------


def test_a_reference_is_the_whole_value_of_a_step() -> None:
    """Also where the planner would see only a preview: in arguments as data, in tasks as text, by field, live and in replay (L10)."""
    got: list[Any] = []

    @tool(side_effect="read", max_result_bytes=200)
    async def rows() -> dict[str, Any]:
        """Give rows."""
        return {"rows": [{"n": n} for n in range(500)], "name": "t"}

    @tool(side_effect="write")
    async def store(rows: list[Any], title: str) -> str:
        """Store rows."""
        got.append((rows, title))
        return "stored"

    plan = {
        "steps": [
            {"id": "a", "kind": "tool", "tool": "rows"},
            {"id": "b", "kind": "tool", "tool": "store", "args": {"rows": "{{a.rows}}", "title": "table {{ a.name }}: {{a.rows.3.n}}"}},
            {"id": "c", "kind": "analysis", "task": "Count {{a.rows}}"},
        ]
    }
    result, engine, model = go("plan-execute", {"plan": plan, "step-c": "500", "reflect": "SATISFIED", "answer": "ok"}, rows, store)
    assert (result.output, result.usage.model_calls) == ("ok", 4)
    assert got == [([{"n": n} for n in range(500)], "table t: 3")]
    assert '{"n":499}' in model.views[1].task and "limits" not in model.views[1].task
    assert result.usage.tool_calls == 2 and len(events(engine, e.PassStarted)) == 6


def test_steps_that_need_nothing_of_each_other_run_at_the_same_time() -> None:
    """All four are in their pass before any of them answers; the fifth comes after."""
    inside, together = 0, asyncio.Event()

    class Waiting(Model):
        async def plan(self, view: View) -> Plan:
            nonlocal inside
            if view.scope.startswith("step-s"):
                inside += 1
                if inside == 4:
                    together.set()
                await together.wait()
            return await super().plan(view)

    plan = {
        "steps": [{"id": f"s{n}", "kind": "analysis", "task": "t"} for n in range(4)]
        + [{"id": "z", "kind": "analysis", "task": "{{s0}}{{s3}}"}]
    }
    answers = {"plan": plan, **{f"step-s{n}": f"v{n}" for n in range(4)}, "step-z": "z", "reflect": "SATISFIED", "answer": "ok"}
    result, _, model = go("plan-execute", Waiting(answers))
    assert (result.output, result.usage.model_calls) == ("ok", 3 + 5)
    assert next(v.task for v in model.views if v.scope == "step-z").startswith("v0v3")


def test_a_plan_of_one_analysis_is_answered_by_it() -> None:
    """Two calls."""
    plan = {"steps": [{"id": "a", "kind": "analysis", "task": "think"}]}
    result, _, _ = go("plan-execute", {"plan": plan, "step-a": "thought"})
    assert (result.output, result.usage.model_calls) == ("thought", 2)


def test_a_failed_step_is_tried_once_more_then_patched_and_what_is_done_stays_done() -> None:
    """A harmless failure is retried without a model; a lasting one costs one patch call; completed steps are not run again."""
    calls: list[str] = []

    @tool(side_effect="read")
    async def fetch(url: str) -> str:
        """Fetch."""
        calls.append(url)
        if url == "down":
            raise RuntimeError("no route")
        return f"content of {url}"

    @tool(side_effect="write")
    async def post(text: str) -> str:
        """Post."""
        calls.append(f"post {text}")
        raise ToolFailed("closed", error_code="closed")

    plan = {
        "steps": [
            {"id": "good", "kind": "tool", "tool": "fetch", "args": {"url": "up"}},
            {"id": "bad", "kind": "tool", "tool": "fetch", "args": {"url": "down"}},
            {"id": "shut", "kind": "tool", "tool": "post", "args": {"text": "hi"}},
            {"id": "use", "kind": "analysis", "task": "{{good}} {{bad}}"},
        ]
    }
    patch = {
        "steps": [
            {"id": "other", "kind": "tool", "tool": "fetch", "args": {"url": "mirror"}},
            {"id": "use2", "kind": "analysis", "task": "{{good}} {{other}}"},
        ]
    }
    answers = {"plan": plan, "patch": patch, "step-use2": "both", "reflect": "SATISFIED", "answer": "ok"}
    result, _, model = go("plan-execute", answers, fetch, post)
    assert (result.output, result.usage.model_calls) == ("ok", 5)
    assert calls == ["up", "down", "post hi", "down", "mirror"]
    patched = next(view.task for view in model.views if view.scope == "patch")
    assert (
        "good: content of up" in patched and "bad: handler_error" in patched and "shut: closed" in patched and "use: not begun" in patched
    )
    assert next(view.task for view in model.views if view.scope == "step-use2").startswith("content of up content of mirror")


def test_a_step_of_a_patch_has_its_own_tries_also_under_the_id_of_one_that_failed() -> None:
    """Its first failure is not its last: what the step before it used up is not taken off."""
    tried: list[str] = []

    @tool(side_effect="read")
    async def fetch(url: str) -> str:
        """Fetch; a mirror answers the second time."""
        tried.append(url)
        if url == "down" or tried.count(url) == 1:
            raise RuntimeError("no route")
        return f"content of {url}"

    def step(url: str) -> dict[str, Any]:
        return {"steps": [{"id": "a", "kind": "tool", "tool": "fetch", "args": {"url": url}}]}

    answers = {"plan": step("down"), "patch": step("mirror"), "reflect": "SATISFIED", "answer": "ok"}
    result, _, _ = go("plan-execute", answers, fetch)
    assert (result.output, tried) == ("ok", ["down", "down", "mirror", "mirror"])


def test_a_plan_that_cannot_be_carried_out_is_asked_for_again_with_the_reason() -> None:
    """Twice; then there is no plan, and the run says so."""
    bad = {"steps": [{"id": "a", "kind": "tool", "tool": "fetsh"}]}
    good = {"steps": [{"id": "a", "kind": "analysis", "task": "t"}]}

    @tool(side_effect="read")
    async def fetch() -> str:
        """Fetch."""
        return "x"

    result, _, model = go("plan-execute", {"plan": bad, "plan#2": good, "step-a": "ok"}, fetch)
    assert (result.output, result.usage.model_calls) == ("ok", 3) and "did you mean 'fetch'" in model.views[1].task
    assert "cannot be carried out" not in model.views[0].task
    result, _, _ = go("plan-execute", {"plan": bad, "plan#2": bad, "plan#3": bad}, fetch)
    assert (result.status, result.reason, result.usage.model_calls) == ("failed", "output_schema_failed", 3)


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([], "0 steps"),
        ([{"id": "a", "kind": "analysis", "task": "{{a}}"}], "needs 'a'"),
        ([{"id": "a", "kind": "analysis", "task": "{{b}}"}, {"id": "b", "kind": "analysis", "task": "t"}], "needs 'b'"),
        ([{"id": "a", "kind": "analysis", "task": "t", "after": ["x"]}], "needs 'x'"),
        ([{"id": "a", "kind": "analysis", "task": "t"}] * 2, "another step has this id"),
        ([{"id": "a b", "kind": "analysis", "task": "t"}], "its id must be"),
        ([{"id": "a", "kind": "analysis"}], "says no task"),
        ([{"id": "a", "kind": "guess"}], "not the right form"),
        ("nonsense", "not the right form"),
    ],
)
def test_a_plan_is_checked_before_anything_runs(steps: Any, problem: str) -> None:
    """References lead backwards only, ids are unique, tools are there."""
    found, said = read_plan({"steps": steps}, tools=["fetch"])
    assert found == () and problem in said


def test_references_resolve_to_values_or_say_what_is_missing() -> None:
    """A reference that stands alone keeps its type; a field that is not there fails the step."""
    done = {"a": {"n": [1, 2]}, "b": None}
    assert resolved({"x": "{{a.n}}", "y": ["{{b}}", "n={{a.n.1}}"]}, done) == {"x": [1, 2], "y": [None, "n=2"]}
    for reference, said in (
        ("a.m", "a has no 'm'"),
        ("a.n.2", "a.n has no '2'"),
        ("a.n.0.0", "a.n.0 has no '0'"),
        ("t.0", "t has no '0'"),
        ("t.ex", "t has no 'ex'"),
    ):
        with pytest.raises(Unresolved, match=said):
            resolved("{{" + reference + "}}", {**done, "t": "text"})
    steps, problem = read_plan('```json\n{"steps":[{"id":"s","kind":"analysis","task":"{{a}}"}]}\n```', tools=(), known=["a"])
    assert not problem and steps[0].needs == {"a"}


def test_when_no_step_succeeds_there_is_no_answer() -> None:
    """No answer is made up from nothing (L4)."""

    @tool(side_effect="read")
    async def fetch() -> str:
        """Fetch."""
        raise RuntimeError("no route")

    plan = {"steps": [{"id": "a", "kind": "tool", "tool": "fetch"}]}
    result, _, _ = go("plan-execute", {"plan": plan}, fetch, options={"refinements": 0, "retries": 0})
    assert (result.status, result.reason, result.output) == ("stopped", "failure_threshold", None) and "no route" in result.error


# Tree of Thoughts ---------------------------------------------------------------------------------------------------------------


def test_a_full_tree_makes_two_calls_for_each_of_its_thirteen_thoughts() -> None:
    """2·(1 + 3 + 9) + k, within the default bounds."""
    tree = Generic(
        {
            "expand": lambda view: thoughts("a", "b", "c", "d"),
            "score": lambda view: scores(*(0.5 + 0.02 * len(view.scope) - 0.01 * n for n in range(3))),
            "main": "done",
        }
    )
    result, engine, model = go("tree-of-thought", tree)
    assert (result.output, result.usage.model_calls) == ("done", 2 * (1 + 3 + 9) + 1)
    assert "1. a\n2. a\n3. a" in model.views[-1].task
    assert events(engine, e.PassStarted)[-1].limits.max_iterations == 8


def test_a_tree_is_pruned_and_the_threshold_falls_where_nothing_survives() -> None:
    """Below 0.5 is dropped; where all is below, by 0.15 a step down to 0.15."""
    given = [Thought(("a",), (1,), 0.4), Thought(("b",), (2,), 0.2), Thought(("c",), (3,), 0.1)]
    assert [t.score for t in pruned([*given, Thought(("d",), (4,), 0.5)], 0.5)] == [0.5]
    assert [t.score for t in pruned(given, 0.5)] == [0.4]
    assert [t.score for t in pruned(given[1:], 0.5)] == [0.2]
    assert pruned(given[2:], 0.5) == []
    tree = Generic({"expand": thoughts("a", "b", "c"), "score": scores(0.9, 0.2, 0.1), "main": "done"})
    assert go("tree-of-thought", tree)[0].usage.model_calls == 2 * 3 + 1


def test_exploring_stops_when_nothing_is_worth_it_and_what_cannot_be_scored_together_is_scored_alone() -> None:
    """A hopeless tree costs two calls; a critic that gives the wrong number of scores is asked for each."""
    assert go("tree-of-thought", Generic({"expand": thoughts("a"), "score": scores(0.1), "main": "x"}))[0].usage.model_calls == 3
    tree = Generic({"expand": thoughts("a", "b"), "score-1": scores(0.1), "score-2": scores(0.1), "score": scores(0.5), "main": "x"})
    assert go("tree-of-thought", tree, options={"depth": 1})[0].usage.model_calls == 1 + 1 + 2 + 1


def test_a_tree_leaves_what_the_work_needs() -> None:
    """Cost floor: no level is explored that would leave less than 40 % of a bound; time: none after 120 seconds."""
    from detent.testing.clocks import FakeClock

    tree = {"expand": thoughts("a", "b", "c"), "score": scores(0.9, 0.9, 0.9), "main": "x"}
    assert go("tree-of-thought", Generic(tree), budget=Budget(max_model_calls=10))[0].usage.model_calls == 2 + 1
    clock = FakeClock()

    def late(view: View) -> Any:
        clock.advance(121)
        return thoughts("a", "b", "c")

    engine = Engine(planner=Generic({**tree, "expand": late}), clock=clock)
    result = asyncio.run(engine.run(Agent(name="a", strategy="tree-of-thought"), GOAL))
    assert result.usage.model_calls == 3


def test_a_trivial_goal_is_not_explored_unless_that_is_wanted() -> None:
    """At most 12 words and 80 characters: straight to work."""
    tree = {"expand": thoughts("a"), "score": scores(0.9), "main": "x"}
    assert go("tree-of-thought", Generic(tree), goal="Make 24 of 4 9 10 13")[0].usage.model_calls == 1
    options = {"skip_trivial": False, "depth": 1}
    assert go("tree-of-thought", Generic(tree), goal="Make 24 of 4 9 10 13", options=options)[0].usage.model_calls == 3


# Plan, then execute -------------------------------------------------------------------------------------------------------------


def test_each_step_is_a_small_task_that_knows_its_place() -> None:
    """One plan, one pass a step with the marked list as guidance and what came before, one answer; a failed step is told, not hidden."""
    answers = {
        "plan": "1. find it\n2. use it\n3. tell it",
        "step-1": "found",
        "step-2": [ToolCall(tool="none")] * 3,
        "step-3": "told",
        "answer": "ok",
    }
    result, _, model = go("plan-then-execute", answers)
    assert (result.output, result.usage.model_calls) == ("ok", 1 + 1 + 3 + 1 + 1)
    third = next(view for view in model.views if view.scope == "step-3")
    assert third.guidance == ("Your plan:\n1. find it (done)\n2. use it (done)\n3. tell it (now)",)
    assert "1. find it: found" in third.task and "2. use it: FAILED: 3 turns in a row" in third.task


def test_a_model_that_lists_no_steps_works_on_the_whole() -> None:
    """A list of one is no list either."""
    for said in ("I do not know", {"steps": ["just do it"]}):
        result, engine, _ = go("plan-then-execute", {"plan": said, "main": "done"})
        assert (result.output, passes(engine)) == ("done", ["plan", "main"])
    assert (
        listed('["a", "b"]') == ["a", "b"]
        and listed({"steps": ["a", 1, " "]}) == ["a"]
        and listed("- a\n- b") == ["a", "b"]
        and listed(7) == []
    )


# Adaptive -----------------------------------------------------------------------------------------------------------------------

SO_LONG = " and consider what that would mean for somebody who reads it for the first time without knowing anything of it"


@pytest.mark.parametrize(
    ("goal", "telling"),
    [
        ("Explain what a pension plan is" + SO_LONG, "plan"),
        ("Find out when the next review of the bridge is due" + SO_LONG, "review"),
        ("Say what the word compare means" + SO_LONG, "compare"),
        ("What is wrong with this list?\n1. bread\n2. milk\n3. step by step" + SO_LONG, "a list"),
    ],
)
def test_no_word_of_a_goal_chooses_a_strategy(goal: str, telling: str) -> None:
    """A "pension plan" went to plan-execute: the small model is asked what is meant, and told the goal."""
    result, engine, model = go(
        "adaptive", {"classify": {"strategy": "reactive"}, "main": "done"}, goal=goal, fields={"small_model": "small"}
    )
    assert (result.output, model.asked, model.views[0].small) == ("done", [("classify", 1), ("main", 1)], True), telling
    (switched,) = events(engine, e.StrategySwitched)
    assert (switched.new, switched.why) == ("reactive", "the model chose it") and goal in model.views[0].task


@pytest.mark.parametrize(
    ("fields", "options", "goal", "why"),
    [
        ({}, {}, "What is the capital of France?", "it is short"),
        ({"profile": {"tier": "local"}}, {}, GOAL, "the model is small"),
        ({}, {"classify": False}, GOAL, "no model is to be asked"),
        ({"budget": Budget(max_model_calls=1)}, {}, GOAL, "the budget has no call to spare for a choice"),
        ({"budget": Budget(max_iterations=1)}, {}, GOAL, "the budget has no call to spare for a choice"),
    ],
)
def test_adaptive_asks_nobody_where_the_choice_is_not_worth_a_call(
    fields: dict[str, Any], options: dict[str, Any], goal: str, why: str
) -> None:
    """ReAct it is then, and the log says why."""
    result, engine, _ = go("adaptive", {"main": "Paris"}, goal=goal, options=options, fields=fields)
    (switched,) = events(engine, e.StrategySwitched)
    assert (result.output, result.usage.model_calls) == ("Paris", 1)
    assert (switched.old, switched.new, switched.why) == ("adaptive", "reactive", why)


@pytest.mark.parametrize(
    ("said", "new", "why"),
    [
        ({"strategy": "reflexion"}, "reflexion", "the model chose it"),
        ("Plan-Execute.", "plan-execute", "the model chose it"),
        ('"tree_of_thought"', "tree-of-thought", "the model chose it"),
        ({"strategy": "magic"}, "reactive", "the model named no strategy"),
        ("plan-execute is what I would not take, but reflexion", "reactive", "the model named no strategy"),
        (lambda view: 1 / 0, "reactive", "the model gave no answer: planner_error"),
    ],
)
def test_adaptive_takes_a_name_for_a_choice_and_nothing_else(said: Any, new: str, why: str) -> None:
    """In whatever spelling; what is no name leaves ReAct, after one call."""
    answers = {"classify": said, "main": "x", "generate": "x", "critique": "SATISFIED", "plan": "no", "expand": "no"}
    _, engine, model = go("adaptive", Generic(answers), options={"fall_back": False})
    (switched,) = events(engine, e.StrategySwitched)
    assert (switched.new, switched.why) == (new, why) and [scope for scope, _ in model.asked].count("classify") == 1


def test_the_model_that_chooses_is_shown_the_beginning_of_a_long_goal() -> None:
    """A goal may hold a document, and the small model has a small window."""
    _, _, model = go("adaptive", {"classify": {"strategy": "reactive"}, "main": "x"}, goal=f"Sum up: {'w ' * 50_000}")
    assert len(model.views[0].task) < 5_000 and "Sum up: w w" in model.views[0].task and len(model.views[1].task) > 100_000


@pytest.mark.parametrize("crash", [False, True])
def test_adaptive_falls_back_once_keeps_what_was_found_and_counts_everything(crash: bool) -> None:
    """A strategy that comes to no end hands on its results; its calls stay in the sum; a crash in the fallback changes nothing."""
    looked: list[int] = []

    @tool(side_effect="read")
    async def look(n: int) -> int:
        """Look."""
        looked.append(n)
        return n * 100

    answers = {
        "classify": {"strategy": "reflexion"},
        "generate": [ToolCall(tool="look", args={"n": n}) for n in (1, 2, 3)],
        "improve": [ToolCall(tool="look", args={"n": n}) for n in (4, 5, 6)],
        "main": "there",
    }
    options = {"reflexion": {"rounds": 1}}
    if not crash:
        result, engine, model = go("adaptive", answers, look, options=options)
    else:
        model = Model(answers)
        engine = Engine(planner=model, tools=[look])
        agent = Agent(name="a", strategy="adaptive", strategy_options=options, tools=["look"])
        for _ in range(1 + 3 + 3 + 1):
            result = asyncio.run(engine.run(agent, GOAL, run_id="r", turns=1))
        assert asyncio.run(engine.replay("r")).identical
    assert (result.status, result.output, result.usage.model_calls) == ("completed", "there", 1 + 3 + 3 + 1)
    assert looked == [1, 2, 3, 4, 5, 6] and 'look({"n":6}) -> 600' in model.views[-1].task
    assert [(s.old, s.new) for s in events(engine, e.StrategySwitched)] == [("adaptive", "reflexion"), ("reflexion", "reactive")]


def test_adaptive_leaves_an_honest_end_alone() -> None:
    """What a strategy was asked to leave off is not tried again; neither where falling back is off."""
    abstaining = {"classify": {"strategy": "reflexion"}, "generate": (Abstain(reason="nobody can know"),)}
    result, _, _ = go("adaptive", abstaining)
    assert (result.status, result.reason, result.usage.model_calls) == ("stopped", "abstained", 2)
    answers = {"classify": {"strategy": "plan-execute"}, "plan": "no", "plan#2": "no", "plan#3": "no"}
    result, _, _ = go("adaptive", answers, options={"fall_back": False})
    assert (result.status, result.reason, result.usage.model_calls) == ("failed", "output_schema_failed", 4)
