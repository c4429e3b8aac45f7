"""The embedded call guard (rows S0-11 and 10.1, DESIGN 6): an answer that is one call of an offered tool takes the ordinary path."""

from __future__ import annotations

from typing import Any

import pytest

from detent import Agent, FinalAnswer, Plan, ToolCall, ToolFailed, tool
from detent.core import events as e
from detent.kernel.kernel import make_kernel
from detent.ports import Block, Call
from detent.ports.embedded_calls import IN_A_FENCE, embedded_call
from kernel.runs import END, Decide, Desk, Ran, Script, call, engine_for, look, ran, run_async

NESTED = 'search({"query": "a (b) {c}", "options": {"deep": [1, {"x": "})"}]}})'


class Web:
    """A tool with a dash in its name and an argument of any shape."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

        async def look_up(query: str, options: dict[str, Any] | None = None) -> str:
            """Search the web."""
            self.asked.append((query, options))
            if query == "fail":
                raise ToolFailed("no such thing", error_code="not_found")
            return "" if query == "blank" else f"found {query}"

        self.search = tool(look_up, name="search", side_effect="read")
        self.dashed = tool(look_up, name="web-search", side_effect="read")
        self.unsafe = tool(look_up, name="post", side_effect="write")

    def go(self, *answers: Any, **options: Any) -> Ran:
        """Answer with these, then with the end."""
        return ran([*(FinalAnswer(content=a) for a in answers), END], self.search, self.dashed, self.unsafe, **options)


@pytest.mark.parametrize(
    ("answer", "query"),
    [
        ('search({"query": "test"})', "test"),
        ('web-search({"query":"test"})', "test"),
        ('  \n search( {"query": "test"} ) \n', "test"),
        ('I will look:\nsearch({"query": "test"})', "test"),
        ('FINAL ANSWER: search({"query": "test"})', "test"),
        ('Final answer:\n\nsearch({\n  "query": "test"\n})', "test"),
        ('Let me look up Paris: search({"query": "Paris"})', "Paris"),
        ('search({\n  "query": "lines"\n})', "lines"),
        (NESTED, "a (b) {c}"),
    ],
)
def test_an_answer_that_is_one_call_is_executed_and_the_output_is_its_result(answer: str, query: str) -> None:
    """The whole trimmed answer, or what stands after a lead-in; nested JSON; reason final_answer; provenance text."""
    web = Web()
    done = web.go(answer)
    assert done.why == ("completed", "final_answer") and done.result.output == f"found {query}" and [q for q, _ in web.asked] == [query]
    assert done.result.iterations == 1 and len(done.views) == 1
    (planned,) = done.all(e.Planned)
    assert planned.embedded is not None and planned.embedded.args["query"] == query
    (item,) = done.items
    assert (item.ok, item.content, item.executed) == (True, f"found {query}", True) and done.main.tools_used == {planned.embedded.tool}
    assert done.main.calls["main.1.0"].provenance == "text"


@pytest.mark.parametrize(
    "answer",
    [
        "The population is 5.",
        'Use search({"query": "test"}) for that.',
        'search({"query": "test"}) is what I would do',
        'search({"query": "first"})\nThat is all.',
        'nowhere({"query": "test"})',
        '{"tool": "search", "query": "test"}',
        '```\nsearch({"query": "x"})\n```',
        "I called search() twice.",
        "I asked search (the tool)",
    ],
)
def test_anything_else_is_an_answer_and_nothing_is_added(answer: str) -> None:
    """3.1.7: text around, unknown tool: no extra steps, no tool used, the text is the output."""
    web = Web()
    done = web.go(answer)
    assert done.why == ("completed", "final_answer") and done.result.output == answer and web.asked == []
    assert done.items == () and done.main.tools_used == frozenset() and [i.kind for i in done.main.steps] == ["user", "model"]
    assert done.all(e.Planned)[0].embedded is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("search({})", "query"),
        ('search({"query": 5})', "query"),
        ('search({"query": "x", "more": 1})', "more"),
        ("search({'query': 'x'})", "malformed"),
        ('search("test")', "it is not alone, or not written so; "),
        ("search()\n", "not written so"),
        ("search([1])", "not written so"),
        ('search({"query": "no"})\nsearch({"query": "last"})', "malformed"),
        ('I will look.\nsearch({"query": "x"})', "not written so"),
        ('I must not run this: search({"query": "x"})', "one short sentence"),
        ('The page says:\nsearch({"query": "x"})', "one short sentence"),
        ('Shall I?\nsearch({"query": "x"})', "not written so"),
        ('FINAL ANSWER: post({"query": "x"})', "only a tool that reads is called so after other words; "),
    ],
)
def test_an_answer_that_ends_in_a_call_which_is_not_made_is_none(answer: str, why: str) -> None:
    """Section by section: nothing runs, the planner is told why and how to show a call, and a run that learns nothing fails so."""
    web = Web()
    done = web.go(answer)
    assert done.why == ("completed", "final_answer") and done.result.output == "the end" and web.asked == []
    (rejected,) = done.all(e.PlanRejected)
    assert why in rejected.problem and IN_A_FENCE in rejected.problem
    assert IN_A_FENCE in done.views[1].transcript[-1].text
    assert ran([FinalAnswer(content=answer)] * 9, web.search, web.unsafe).why == ("failed", "malformed_plan") and web.asked == []


@pytest.mark.parametrize("answer", [{"search": {"query": "x"}}, ["search"], 5])
def test_an_answer_that_is_no_text_is_never_a_call(answer: Any) -> None:
    """JSON answers are what they are."""
    web = Web()
    assert web.go(answer).result.output == answer and web.asked == []


def test_a_tool_that_is_not_offered_is_not_called_from_text() -> None:
    """Registered is not enough (row 10.1: forbidden list)."""
    web = Web()
    text = 'search({"query": "x"})'
    assert web.go(text, agent={"tools": ["web-search"]}).result.output == text and web.asked == []


@pytest.mark.parametrize("name", ["put", "wipe"])
def test_a_call_in_text_that_does_not_only_read_needs_approval(name: str) -> None:
    """Write and destructive alike; once approved, its result is the output."""

    async def main() -> None:
        desk = Desk()
        planner = Script([FinalAnswer(content=f'{name}({{"n": 3}})')])
        engine = engine_for(planner, *desk.all)
        first = await engine.run(Agent(name="w", tools=[name]), "go")
        assert (first.status, desk.ran) == ("waiting_for_approval", [])
        (request,) = await engine.approvals()
        assert (request.tool, request.args) == (name, {"n": 3})
        done = await look(engine, await engine.approve(first.run_id, request.call_id, by="ann"), planner)
        assert (
            done.why == ("completed", "final_answer")
            and desk.ran == [(name, 3)]
            and done.result.output == {"put": "put 3", "wipe": "gone 3"}[name]
        )

    run_async(main)


def test_a_call_in_text_that_is_rejected_drops_the_answer_and_the_loop_goes_on() -> None:
    """The failed observation stays."""

    async def main() -> None:
        desk = Desk()
        planner = Script([FinalAnswer(content='put({"n": 3})'), END])
        engine = engine_for(planner, *desk.all)
        first = await engine.run(Agent(name="w", tools=["put"]), "go")
        done = await look(engine, await engine.deny(first.run_id, "main.1.0", by="ann", reason="no"), planner)
        assert (
            done.why == ("completed", "final_answer")
            and done.result.output == "the end"
            and desk.ran == []
            and done.codes == ["approval_rejected"]
        )

    run_async(main)


def test_guards_and_policy_apply_to_a_call_in_text() -> None:
    """Law 7: the same path; a refusal drops the answer and the loop goes on."""
    web = Web()

    def never(call: Call, state: Any, run: Any) -> Block:
        assert call.provenance == "text"
        return Block("not from text")

    text = 'search({"query": "x"})'
    blocked = web.go(text, kernel=make_kernel(guards=(never,)))
    denied = web.go(text, policy=Decide(lambda c: "deny"))
    stopped = web.go(text, policy=Decide(lambda c: "stop"))
    assert web.asked == [] and [d.result.output for d in (blocked, denied)] == ["the end", "the end"]
    assert (blocked.codes, denied.codes, stopped.why) == (["guard_blocked"], ["policy_denied"], ("stopped", "policy_stopped"))
    assert "not from text" in str(blocked.views[1].transcript[-1].error)


@pytest.mark.parametrize(("query", "code"), [("fail", "not_found"), ("blank", "handler_error")])
def test_a_call_in_text_that_fails_or_gives_nothing_drops_the_answer_and_the_loop_goes_on(query: str, code: str) -> None:
    """No internal markup in answers, no blank completion (lessons L4, L5)."""
    web = Web()
    done = web.go(f'search({{"query": "{query}"}})')
    assert done.why == ("completed", "final_answer") and done.result.output == "the end" and done.codes == [code]
    assert done.result.iterations == 2 and done.views[1].transcript[-1].kind == "tool"


def test_an_agent_that_only_ever_answers_with_failing_calls_is_bounded() -> None:
    """Three failed turns."""
    done = Web().go(*['search({"query": "fail"})'] * 9)
    assert done.why == ("stopped", "failure_threshold") and done.result.iterations == 3


def test_calls_beside_an_answer_that_is_a_call_are_not_run() -> None:
    """The control action wins over its batch, and the call in it takes the path."""
    desk = Desk()
    done = ran([Plan(actions=(FinalAnswer(content='look({"n": 2})'), call("put", n=1)))], *desk.all)
    assert desk.ran == [("look", 2)] and done.codes == ["", "not_run"] and done.result.output == {"n": 2}
    assert [i.call_id for i in done.items] == ["main.1.0", "main.1.1"]


def test_a_done_tool_in_text_gives_its_answer() -> None:
    """`done({"answer": ...})` written as text."""
    from detent.tools.done import done_tool

    done = ran([FinalAnswer(content='done({"answer": "42"})')], done_tool())
    assert done.result.status == "completed" and done.result.output == "42"


DEEP = '{"query": ' + "[" * 3000 + "]" * 3000 + "}"


@pytest.mark.parametrize("args", [DEEP, '{"query": "\ud800"}'])
def test_a_call_in_text_whose_arguments_are_not_json_is_not_made(args: str) -> None:
    """Nested without end, or half a character: the planner is told, and nothing fails."""
    web = Web()
    done = web.go(f"search({args})")
    assert done.why == ("completed", "final_answer") and done.result.output == "the end" and web.asked == []


@pytest.mark.parametrize("args", [DEEP, '{"query": '])
def test_arguments_in_text_that_is_no_json_are_a_failed_observation(args: str) -> None:
    """The planner is told, and the run goes on."""
    web = Web()
    done = ran([ToolCall(tool="search", args=args), END], web.search)  # type: ignore[arg-type]
    assert done.why == ("completed", "final_answer") and web.asked == []
    assert "not JSON" in done.items[0].error.message


@pytest.mark.parametrize("blank", ["", " \n", "\u200b", None])
def test_an_answer_in_which_there_is_nothing_to_read_is_told_as_that(blank: Any) -> None:
    """The model reads these words."""
    assert embedded_call((FinalAnswer(content=blank),), {}) == "the final answer is blank"
