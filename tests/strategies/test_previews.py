"""How much of what came before stands in a prompt of a strategy: previews with keys, and no more than the model's window has room for."""

from __future__ import annotations

from typing import Any

import pytest

from detent import ToolCall, View, tool
from detent.config.profile import PROFILES
from detent.expressions.markup import clean
from strategies.scenarios import GOAL, Model
from strategies.test_each_strategy import go

LONG = 24_000
WINDOW = PROFILES["mid"].window_tokens * 4
"""In characters: 131,072."""


@tool(side_effect="read")
async def pages(n: int) -> str:
    """Many pages."""
    return f"page {n} begins " + "x" * LONG + f" page {n} ends"


def reading(*numbers: int) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(tool="pages", args={"n": n}) for n in numbers)


def longest(model: Model) -> int:
    """Return how long the longest prompt was."""
    return max(len(view.task) for view in model.views)


FORTY = reading(*range(40))
"""They give 960,000 characters."""
PLAN = {"steps": [{"id": f"p{n}", "kind": "tool", "tool": "pages", "args": {"n": n}} for n in range(19)]}
NO_MORE = {"id": "sum", "kind": "analysis", "task": "Sum up {{p0}}.", "after": [f"p{n}" for n in range(1, 19)]}


@pytest.mark.parametrize(
    ("strategy", "answers", "scopes"),
    [
        (
            "reflexion",
            {"generate": [FORTY, "v1"], "critique": "UNSATISFIED: more", "improve": "v2", "critique#2": "SATISFIED"},
            ["critique", "improve", "critique#2"],
        ),
        (
            "plan-execute",
            {
                "plan": {"steps": [*PLAN["steps"], NO_MORE]},
                "step-sum": "y" * 100_000,
                "reflect": "UNSATISFIED: more",
                "patch": {"steps": [{"id": "again", "kind": "analysis", "task": "Look at {{sum}} and {{p1}} again."}]},
                "step-again": "z",
                "reflect#2": "SATISFIED",
                "answer": "ok",
            },
            ["step-sum", "reflect", "patch", "step-again", "answer"],
        ),
        (
            "plan-then-execute",
            {"plan": {"steps": ["read", "sum up"]}, "step-1": "y" * 300_000, "step-2": "z" * 300_000, "answer": "ok"},
            ["step-2", "answer"],
        ),
        (
            "adaptive",
            {"classify": {"strategy": "reflexion"}, "generate": [FORTY, FORTY, FORTY], "improve": [FORTY] * 3, "main": "ok"},
            ["improve", "main"],
        ),
    ],
)
def test_no_prompt_holds_more_than_the_window_has_room_for(strategy: str, answers: dict[str, Any], scopes: list[str]) -> None:
    """960,000 characters of results reached a critic with a window of 131,000."""
    options = {"reflexion": {"rounds": 1}} if strategy == "adaptive" else {}
    result, _, model = go(strategy, answers, pages, options=options)
    told = {view.scope: view.task for view in model.views}
    assert result.status == "completed" and longest(model) < 0.75 * WINDOW
    for scope in scopes:
        assert "the rest is not shown]" in told[scope], scope


def test_a_preview_names_the_key_under_which_the_rest_is_kept() -> None:
    """A pass that has `recall` is told that it can read the rest; what is read under the key is the whole result."""
    answers = {
        "generate": [reading(7), "v1"],
        "critique": "UNSATISFIED: what does the page end with?",
        "improve": [ToolCall(tool="recall", args={"key": "generate.1.0", "query": "ends"}), "v2"],
        "critique#2": "SATISFIED",
    }
    result, _, model = go("reflexion", answers, pages, fields={"tools": ["pages", "recall"]})
    told = {(view.scope, view.iteration): view for view in model.views}
    assert '[kept under the key "generate.1.0"]' in told["critique", 1].task
    assert '[recall with key "generate.1.0" gives the rest]' in told["improve", 1].task
    assert told["improve", 2].results[0].content.endswith("page 7 ends") and result.output == "v2"


def test_the_arguments_of_a_step_get_the_whole_value_and_its_task_a_preview() -> None:
    """A tool works with what was found; a prompt shows a part of it, with the key."""
    got: list[str] = []

    @tool(side_effect="read")
    async def count(text: str) -> int:
        """Count characters."""
        got.append(text)
        return len(text)

    @tool(side_effect="read", max_result_bytes=500_000)
    async def book() -> str:
        """A book."""
        return "b" * 200_000

    plan = {
        "steps": [
            {"id": "all", "kind": "tool", "tool": "book"},
            {"id": "n", "kind": "tool", "tool": "count", "args": {"text": "{{all}}"}},
            {"id": "say", "kind": "analysis", "task": "Sum up {{all}} ({{n}} characters)."},
        ]
    }
    answers = {"plan": plan, "step-say": "a book", "reflect": "SATISFIED", "answer": "ok"}
    _, _, model = go("plan-execute", answers, book, count)
    task = next(view.task for view in model.views if view.scope == "step-say")
    assert list(map(len, got)) == [200_000] and "(200000 characters)" in task and len(task) < WINDOW / 4
    assert '[kept under the key "tools.1.0"]' in task and "of 200000 characters; the rest is not shown]" in task


def test_what_is_short_is_shown_as_it_is_and_the_latest_of_many() -> None:
    """A profile says how much of one result is shown; where all do not fit, the latest stand there, and how many are left out."""
    many = {"generate": [tuple(ToolCall(tool="number", args={"n": n}) for n in range(100)), "v"], "critique": "SATISFIED"}

    @tool(side_effect="read")
    async def number(n: int) -> str:
        """Say a number."""
        return f"number {n}."

    def critic(fields: dict[str, Any]) -> str:
        _, _, model = go("reflexion", many, number, fields=fields)
        return next(view.task for view in model.views if view.scope == "critique")

    told = critic({})
    assert "[46 earlier ones are left out]" in told and "number 45." not in told
    assert all(f'number({{"n":{n}}}) -> number {n}.\n' in f"{told}\n" for n in range(46, 100))
    assert "earlier ones" not in critic({"profile": {"window_tokens": 128_000}})
    assert "-> numb\n[the first 4 of 10 characters" in critic({"profile": {"tool_result_max_chars": 4}})


def test_arguments_and_failures_are_shown_in_part_too() -> None:
    """A file that was written stands in the arguments of a call, and an error may say much, too."""

    @tool(side_effect="write")
    async def write(text: str) -> str:
        """Write."""
        return "written"

    answers = {"generate": [ToolCall(tool="write", args={"text": "t" * 500_000}), "v"], "critique": "SATISFIED"}
    _, _, model = go("reflexion", answers, write)
    assert len(model.views[-1].task) < 2_000 and "…) -> written" in model.views[-1].task

    @tool(side_effect="read")
    async def broken() -> str:
        """Break."""
        raise ValueError("e" * 500_000)

    plan = {"steps": [{"id": "b", "kind": "tool", "tool": "broken"}, {"id": "t", "kind": "analysis", "task": "think"}]}
    answers = {"plan": plan, "step-t": "thought", "patch": "no", "patch#2": "no", "patch#3": "no", "answer": "ok"}
    result, _, model = go("plan-execute", answers, broken)
    assert result.status == "completed" and longest(model) < WINDOW / 4
    assert "[the first 1200 of " in model.views[-1].task


def test_an_answer_that_repeats_a_key_reaches_nobody_with_it() -> None:
    """What a prompt says of previews is for the model alone."""
    said = 'It says so.\n[the first 4 of 10 characters; the rest is not shown]\n[kept under the key "main.1.0"]\nDone.'
    assert clean(said) == "It says so.\nDone."


def test_the_draft_of_a_critic_is_shown_in_part_where_it_is_longer_than_its_share() -> None:
    """An answer may be what a tool gave."""

    def draft(view: View) -> str:
        return "d" * 400_000

    answers = {"generate": draft, "critique": "UNSATISFIED: shorter", "improve": "ok", "critique#2": "SATISFIED"}
    _, _, model = go("reflexion", answers)
    assert longest(model) < WINDOW / 2 and GOAL in model.views[1].task
