"""Templates: types of placeholders, text, escapes, and that values are data."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.core.actions import ToolCall
from detent.planners import RulePlanner
from planners.rules.views import Desk, answer, value


def rendered(template: Any, **variables: Any) -> Any:
    """Return what a template gives as an argument."""
    planner = RulePlanner.from_rules([{"name": "r", "call": {"tool": "t", "args": {"it": template}}}])
    (call,) = planner.decide(Desk(variables=variables).view()).actions
    assert isinstance(call, ToolCall)
    return call.args["it"]


@pytest.mark.parametrize("kept", [1, 1.5, True, None, "x", [1, "a"], {"a": {"b": [None]}}, [], {}, "", 2**53])
def test_a_text_that_is_one_placeholder_keeps_the_type(kept: Any) -> None:
    """Numbers stay numbers, lists lists; an integer does not become a float, nor a truth value a number."""
    given = rendered("${variables.x}", x=kept)
    assert given == kept and type(given) is type(kept)


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (1, "<1>"),
        (1.5, "<1.5>"),
        (True, "<true>"),
        (None, "<null>"),
        ("x", "<x>"),
        ([1, "a"], '<[1,"a"]>'),
        ({"b": 1, "a": 2}, '<{"a":2,"b":1}>'),
    ],
)
def test_inside_a_text_values_are_written_out(shown: Any, said: str) -> None:
    """As JSON, but texts as they are."""
    assert rendered("<${variables.x}>", x=shown) == said


def test_times_and_durations_become_text() -> None:
    """JSON has neither."""
    assert value('timestamp("2025-03-18T14:12:00Z") + duration("90s")') == "2025-03-18T14:13:30Z"
    assert value('timestamp("2025-03-18T14:12:00+02:00")') == "2025-03-18T14:12:00+02:00"
    assert value('duration("90s")') == "90s"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("$${goal}", "${goal}"),
        ("a $${ ${goal} $5 } {", "a ${ g $5 } {"),
        ("${'}'}${\"{\"}", "}{"),
        ("${ {'a': {'b': 1}}['a']['b'] }", 1),
        ("${ r'\\}' }", "\\}"),
        ("${ '''it's }''' }", "it's }"),
        ("${goal // a } comment\n}", "g"),
        ("line\n${goal}\n", "line\ng\n"),
        ("no placeholder", "no placeholder"),
    ],
)
def test_braces_quotes_and_escapes_are_told_apart(template: str, said: Any) -> None:
    """A placeholder ends at its own brace, not at one in a text of the expression."""
    assert rendered(template) == said


@given(text=st.text(max_size=40) | st.sampled_from(["${goal}", "$${goal}", "${1+1}", "'] + goal + ['", '"}${goal}', "${variables}"]))
def test_values_are_never_evaluated(text: str) -> None:
    """Whatever a file, a reply or a tool says: it arrives as it is, in arguments and in texts."""
    assert rendered("${variables.x}", x=text) == text
    assert rendered("[${variables.x}]", x=text) == f"[{text}]"
    desk = Desk({"t": lambda: text})
    planner = RulePlanner.from_rules([{"name": "a", "call": {"tool": "t"}, "as": "r"}, {"name": "b", "answer": "> ${results.r.value}"}])
    assert answer(desk.run(planner)) == f"> {text}"


def test_an_answer_that_is_no_text_is_written_as_json_unless_a_schema_asks_for_data() -> None:
    """Where the run has an output schema the answer keeps its type."""
    planner, desk = RulePlanner.from_rules([{"name": "a", "answer": {"n": "${1 + 1}"}}]), Desk()
    assert planner.decide(desk.view()).actions[0].content == '{"n":2}'
    desk.output_schema = {"type": "object"}
    assert planner.decide(desk.view()).actions[0].content == {"n": 2}


def test_expressions_see_only_the_projection() -> None:
    """Each name has what the guide says."""
    names = "[goal, iteration, variables.a, host.tenant, host.scopes, budget.iterations, has(budget.cost_usd)]"
    assert value(names, a=1) == ["g", 1, 1, "acme", ["read"], 49, False]


def test_named_values_may_use_those_above_and_are_evaluated_only_where_used() -> None:
    """A value that would fail does no harm where nobody asks for it."""
    entries = [{"values": {"bad": "variables.nope", "two": "1 + 1", "four": "values.two * 2"}}, {"name": "a", "answer": "${values.four}"}]
    assert answer(Desk().run(RulePlanner.from_rules(entries))) == "4"
