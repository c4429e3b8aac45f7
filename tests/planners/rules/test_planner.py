"""What rules do: order, once, repeat, for_each, batch, branching, errors of calls; and that nothing but the view decides."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from detent import Agent, Engine, tool
from detent.core.actions import Abstain, AskUser, FinalAnswer, Schedule, Stop, Thought, ToolCall
from detent.core.errors import PlannerFailed, ToolFailed
from detent.core.events import ArtifactRef, Planned
from detent.core.state import Item
from detent.planners.rules.files import FORMS
from planners.rules.views import Desk, answer, rules

COUNT = """
- {name: list, call: {tool: ls}, as: names}
- {name: measure, for_each: results.names.value, call: {tool: size, args: {name: "${item}", at: "${index}"}}, as: sizes}
- {name: report, answer: "sizes ${join(results.sizes.value, ', ')}"}
"""
TOOLS: dict[str, Any] = {"ls": lambda: ["a", "b", "c"], "size": lambda name, at: ord(name) + at}


def test_rules_fire_in_order_each_once() -> None:
    """Each rule that fits fires once, from the top, and the run ends with the answer."""
    desk = Desk({"one": lambda: 1, "two": lambda: 2})
    plans = desk.run(rules("- {name: first, call: {tool: one}}\n- {name: second, call: {tool: two}}\n- {name: end, answer: fin}"))
    assert [getattr(p[0], "tool", "end") for p in plans] == ["one", "two", "end"]
    assert [p[0].reason for p in plans] == ["rule:first", "rule:second", "rule:end"]


def test_for_each_fires_once_for_each_item_and_its_values_stand_in_order() -> None:
    """Items have their index; results are a list in the items' order."""
    plans = Desk(TOOLS).run(rules(COUNT))
    assert [p[0].args for p in plans[1:4]] == [{"name": "a", "at": 0}, {"name": "b", "at": 1}, {"name": "c", "at": 2}]
    assert answer(plans) == "sizes 97, 99, 101"


@pytest.mark.parametrize(("batch", "shape"), [("true", [1, 3, 1]), ("2", [1, 2, 1, 1]), ("false", [1, 1, 1, 1, 1])])
def test_batch_puts_calls_of_for_each_together(batch: str, shape: list[int]) -> None:
    """`true` is one plan, a number at most so many calls a plan; the result is the same."""
    plans = Desk(TOOLS).run(rules(COUNT.replace("as: sizes", f"as: sizes, batch: {batch}")))
    assert [len(p) for p in plans] == shape
    assert answer(plans) == "sizes 97, 99, 101"


def test_items_that_were_done_are_skipped_when_the_list_grows() -> None:
    """A list that grows at its end is worked on from where it was."""
    desk, planner = (
        Desk({"t": lambda n: n}, variables={"xs": [1, 2]}),
        rules("- {name: each, for_each: variables.xs, call: {tool: t, args: {n: '${item}'}}}"),
    )
    desk.turn(planner)
    desk.turn(planner)
    desk.variables["xs"] = [1, 2, 3]
    (call,) = desk.turn(planner)
    assert isinstance(call, ToolCall) and call.args == {"n": 3} and call.reason == "rule:each:2"


def test_repeat_fires_while_its_condition_holds_and_at_most_as_often_as_it_says() -> None:
    """`repeat: N` is a bound; `repeat: true` has none but the condition; the latest result is the value."""
    polled = iter(range(10))
    desk = Desk({"poll": lambda: {"ready": next(polled) >= 3}})
    text = """
    - {name: poll, when: '!results.p.ok || !results.p.value.ready', repeat: true, call: {tool: poll}, as: p}
    - {name: end, answer: '${results.p.count}'}
    """
    plans = desk.run(rules(text))
    assert answer(plans) == "4"
    bounded = Desk({"poll": lambda: {"ready": False}}).run(
        rules("- {name: poll, repeat: 2, call: {tool: poll}}\n- {name: end, answer: fin}")
    )
    assert [len(p) for p in bounded] == [1, 1, 1]


def test_rules_branch_on_what_was_found() -> None:
    """`when` reads earlier results; before a rule has fired its result is there and not ok."""
    text = """
    - {name: look, call: {tool: look}, as: seen}
    - {name: many, when: results.seen.value.n > 3, answer: "many (${results.never.ok})"}
    - {name: few, when: results.seen.value.n <= 3, answer: few}
    - {name: never, when: false, call: {tool: look}, as: never}
    """
    assert answer(Desk({"look": lambda: {"n": 5}}).run(rules(text))) == "many (false)"
    assert answer(Desk({"look": lambda: {"n": 1}}).run(rules(text))) == "few"


def test_without_a_rule_that_fits_the_default_is_taken_and_without_one_the_run_abstains() -> None:
    """The default is an action; without one the planner says that no rule fits."""
    assert (
        answer(Desk().run(rules("- {name: never, when: false, answer: x}\n- default: {answer: 'nothing about ${goal}'}")))
        == "nothing about g"
    )
    (said,) = Desk().turn(rules("- {name: never, when: false, answer: x}"))
    assert isinstance(said, Abstain) and "no rule fits" in said.reason


def failing(times: int, code: str = "busy") -> Any:
    """Return a tool that fails so many times."""
    left = iter([True] * times + [False] * 100)

    def tool() -> str:
        if next(left):
            raise ToolFailed("not now", error_code=code)
        return "fine"

    return tool


def test_a_failed_call_is_a_result_that_is_not_ok() -> None:
    """By default rules go on and can read code and message."""
    text = "- {name: t, call: {tool: t}, as: r}\n- {name: end, answer: '${results.r.ok} ${results.r.error.code} ${results.r.value}'}"
    assert answer(Desk({"t": failing(9)}).run(rules(text))) == "false busy null"


@pytest.mark.parametrize(
    ("on_error", "fails", "calls", "last"),
    [
        ("retry", 2, 3, FinalAnswer),
        ("retry", 9, 3, FinalAnswer),
        ("{retry: 1, then: stop}", 9, 2, Stop),
        ("{retry: 1, then: stop}", 1, 2, FinalAnswer),
        ("stop", 1, 1, Stop),
        ("continue", 1, 1, FinalAnswer),
    ],
)
def test_on_error_says_what_a_failed_call_means(on_error: str, fails: int, calls: int, last: type) -> None:
    """`retry` tries again a bounded number of times, `stop` ends the run with the error, `continue` goes on."""
    plans = Desk({"t": failing(fails)}).run(rules(f"- {{name: t, call: {{tool: t}}, on_error: {on_error}}}\n- {{name: end, answer: fin}}"))
    assert len([p for p in plans if isinstance(p[0], ToolCall)]) == calls and isinstance(plans[-1][0], last)
    if last is Stop:
        assert "rule:t: call of t failed: busy: not now" in plans[-1][0].reason


@pytest.mark.parametrize("code", ["policy_denied", "approval_rejected", "in_doubt", "tool_result_unknown_after_resume", "guard_blocked"])
def test_a_call_that_was_refused_or_is_in_doubt_is_not_tried_again(code: str) -> None:
    """Retrying is for failures only: never for a refusal, never where nobody knows whether it happened."""
    plans = Desk({"t": failing(9, code)}).run(rules("- {name: t, call: {tool: t}, on_error: retry}\n- {name: end, answer: fin}"))
    assert [type(p[0]).__name__ for p in plans] == ["ToolCall", "FinalAnswer"]


def test_a_run_that_stopped_for_a_failure_tries_again_when_it_is_opened_again() -> None:
    """The failure that the stop answered counts no longer: whoever reopens the run has changed something."""
    desk, planner = Desk({"t": failing(1)}), rules("- {name: t, call: {tool: t}, on_error: stop}\n- {name: end, answer: fin}")
    assert [type(p[0]).__name__ for p in desk.run(planner)] == ["ToolCall", "Stop"]
    assert [type(p[0]).__name__ for p in desk.run(planner)] == ["ToolCall", "FinalAnswer"]


def test_for_each_retries_only_the_items_that_failed() -> None:
    """Attempts are counted for each item."""
    seen: list[str] = []

    def tool(n: str) -> str:
        seen.append(n)
        if n == "b" and seen.count("b") < 3:
            raise ToolFailed("later", error_code="busy")
        return n * 2

    text = """
    - {name: e, for_each: '["a", "b", "c"]', batch: true, on_error: retry, call: {tool: t, args: {n: '${item}'}}, as: r}
    - {name: end, answer: '${results.r.value}'}
    """
    assert answer(Desk({"t": tool}).run(rules(text))) == '["aa","bb","cc"]'
    assert seen == ["a", "b", "c", "b", "b"]


def test_other_actions_than_calls() -> None:
    """Questions bring their reply, thoughts their value, timers a pause; each fires once."""
    text = """
    - {name: ask, ask: {question: "how many, ${goal}?", expected: {type: integer}}, as: n}
    - {name: note, think: {n: "${results.n.value}", twice: "${results.n.value * 2}"}, as: note}
    - {name: nap, schedule: {delay_s: 5}}
    - {name: end, answer: "${results.note.value.twice}"}
    """
    plans = Desk(reply=21).run(rules(text))
    kinds = [type(p[0]) for p in plans]
    assert kinds == [AskUser, Thought, Schedule, FinalAnswer] and answer(plans) == "42"
    assert plans[0][0].question == "how many, g?" and plans[1][0].content == '{"n":21,"twice":42}' and plans[2][0].delay_s == 5.0


def test_the_action_is_a_function_of_the_view() -> None:
    """Equal views give equal plans: again, in a planner made anew, in one that did other runs before, and in any order of asking."""
    desk, planner = Desk(TOOLS), rules(COUNT)
    views = []
    while not isinstance(planner.decide(desk.view()).actions[0], FinalAnswer):
        views.append(desk.view())
        desk.turn(planner)
    views.append(desk.view())
    expected = [rules(COUNT).decide(view) for view in views]
    used = rules(COUNT)
    Desk({"ls": lambda: ["z"], "size": lambda name, at: 0}).run(used)
    assert [used.decide(view) for view in reversed(views)] == expected[::-1]
    assert [used.decide(view) for view in views] == expected


def test_a_planner_changes_nothing_in_the_view() -> None:
    """The view after a plan equals the view before."""
    desk = Desk(TOOLS)
    desk.turn(rules(COUNT))
    view = desk.view()
    before = msgspec.json.encode((view.variables, view.transcript, view.results))
    rules(COUNT).decide(view)
    assert msgspec.json.encode((view.variables, view.transcript, view.results)) == before


def test_maps_are_written_with_sorted_keys() -> None:
    """CEL's maps have no order; arguments, whose digest is the identity of a call, have one."""
    keys = "zyxwvutsrqponmlkjihgfedcba"
    literal = "{" + ", ".join(f'"{k}": 1' for k in keys) + "}"
    planner = rules(f"- {{name: t, call: {{tool: t, args: {{m: '${{{literal}}}', s: '= ${{{literal}}}'}}}}}}")
    (call,) = planner.decide(Desk().view()).actions
    assert isinstance(call, ToolCall)
    assert list(call.args["m"]) == sorted(keys) and call.args["s"].startswith('= {"a":1,"b":1')


def test_a_compacted_transcript_is_refused() -> None:
    """Rules that cannot see what they did would do it again: the run fails instead."""
    desk, planner = Desk(TOOLS), rules(COUNT)
    desk.run(planner, turns=2)
    desk.transcript = [Item(kind="note", text="summary")]
    with pytest.raises(PlannerFailed, match="turn compaction off"):
        planner.decide(desk.view())


def test_a_result_that_is_stored_apart_is_read_whole_and_never_taken_from_its_preview() -> None:
    """Where the transcript has a preview, expressions see the whole value; without a way to it the planner refuses to decide."""
    desk, planner = Desk(), rules("- {name: t, call: {tool: t}, as: r}\n- {name: end, answer: '${results.r.value}'}")
    (call,) = planner.decide(desk.view()).actions
    artifact = ArtifactRef(key="k", size_bytes=9)
    preview = Item(
        kind="tool", iteration=1, call_id="main.1.0", tool="t", arguments={}, ok=True, result=msgspec.Raw(b'"par"'), artifact=artifact
    )
    desk.transcript += [Item(kind="model", iteration=1, plan=Planned(actions=(call,))), preview]
    desk.results.append(preview)
    with pytest.raises(PlannerFailed, match="only its preview is available"):
        planner.decide(desk.view())
    with pytest.raises(PlannerFailed, match="only its preview is available"):
        asyncio.run(planner.plan(desk.view()))

    async def full(item: Item) -> Any:
        return f"the whole of {item.artifact.key}" if item.artifact else None

    plan = asyncio.run(planner.plan(msgspec.structs.replace(desk.view(), full=full)))
    assert answer([plan.actions]) == "the whole of k"


def test_rules_that_share_a_result_name_give_that_of_the_one_that_fired() -> None:
    """Branches may name their result alike."""
    text = """
    - {name: a, when: variables.x == 1, call: {tool: a}, as: r}
    - {name: b, when: variables.x == 2, call: {tool: b}, as: r}
    - {name: end, answer: "${results.r.value}"}
    """
    assert [answer(Desk({"a": lambda: "A", "b": lambda: "B"}, variables={"x": x}).run(rules(text))) for x in (1, 2)] == ["A", "B"]


def test_a_reason_given_by_the_rule_stands_beside_its_mark() -> None:
    """`why` is for people; the rule is still known by its mark."""
    desk, planner = Desk({"t": lambda: 1}), rules("- {name: t, call: {tool: t}, why: 'because of ${goal}'}\n- {name: end, answer: fin}")
    plans = desk.run(planner)
    assert plans[0][0].reason == "rule:t: because of g" and len(plans) == 2


MINIMAL: dict[str, Any] = {"call": {"tool": "look"}, "schedule": {"delay_s": 0}}


@pytest.mark.parametrize("action", sorted(FORMS))
def test_every_action_that_a_rule_may_have_is_carried_out(action: str) -> None:
    """What nothing carries out is refused when the rules are read: no run ever answers a rule that its action is not available."""

    @tool(side_effect="read")
    async def look() -> str:
        """Look."""
        return "seen"

    rules = [{"name": "open", "push_goal": "a part"}, {"name": "one", action: MINIMAL.get(action, "text")}]
    agent = Agent(name="w", tools=[look], rules=rules)
    result = Engine(store="ram:").run_sync(agent, "go")
    assert result.status in ("completed", "stopped", "waiting_for_user", "waiting_for_schedule"), result.error
    assert [item.text for item in result.state.passes["main"].steps if "not available" in item.text] == []
