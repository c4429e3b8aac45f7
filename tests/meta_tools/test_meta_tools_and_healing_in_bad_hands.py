"""Meta-tools, healing, endings and receipts against models that flood, forge, guess and claim."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest

from detent import Agent, Budget, FinalAnswer, ToolCall, tool
from detent.core import events as e
from detent.ports import ToolSpec
from detent.running.healing import mended
from detent.stores.ram import RamStore
from kernel.runs import END, Decide, Desk, Script, call, engine_for, look, ran, run_async
from meta_tools.test_built_in_meta_tools import answers, asked

TEXT = {"type": "string"}


def spec(name: str, side_effect: Any = "read", **properties: Any) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return ToolSpec(name=name, side_effect=side_effect, input_schema=schema)


def healed(said: str, args: Any, *specs: ToolSpec) -> tuple[str, Any, int]:
    found = mended(said, args, {one.name: one for one in specs})
    return found.tool, found.args, len(found.repairs)


# Healing ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["calendar.delete", "undo.delete", "not/delete", "dry_run:delete", "delete(dry_run=True)", "x.y.delete"])
@pytest.mark.parametrize("side_effect", ["read", "write", "destructive"])
def test_a_name_with_a_word_before_it_is_not_taken_for_a_tool(said: str, side_effect: Any) -> None:
    """It may be another tool of somebody else's."""
    assert healed(said, {}, spec("delete", side_effect)) == (said, {}, 0)


@pytest.mark.parametrize(
    ("said", "specs"),
    [
        ("get_usr", [spec("get_user"), spec("get_usrs")]),
        ("get_users", [spec("get_user"), spec("get_userz")]),
        ("get-user", [spec("get_user"), spec("getUser")]),
        ("log-in", [ToolSpec(name="log_in", side_effect="read", sensitive=("password",))]),
        ("bind_rows", [spec("find_rows")]),
        ("", [spec("a")]),
        ("()", [spec("a")]),
    ],
)
def test_what_two_tools_can_have_meant_is_neither(said: str, specs: list[ToolSpec]) -> None:
    """Nor one with other letters, nor one whose arguments are hidden by name."""
    assert healed(said, {}, *specs) == (said, {}, 0)


@pytest.mark.parametrize("side_effect", ["read", "write", "destructive"])
def test_an_unknown_argument_is_never_given_to_a_parameter_that_is_missing(side_effect: Any) -> None:
    """`except` is not `path`, and `body` may be something else than `content`."""
    assert healed("delete", {"except": "a"}, spec("delete", side_effect, path=TEXT)) == ("delete", {"except": "a"}, 0)
    assert healed("write", {"body": "a"}, spec("write", side_effect, content=TEXT)) == ("write", {"body": "a"}, 0)


@pytest.mark.parametrize(
    ("kind", "value"), [("number", "1e999"), ("number", "-1e400"), ("integer", 1e300), ("array", "\ud800"), ("object", "[" * 100_000)]
)
def test_a_value_that_no_log_can_hold_is_not_made(kind: str, value: Any) -> None:
    """It stays as it was said, for the schema to refuse."""
    _, args, repairs = healed("a", {"q": value}, spec("a", q={"type": kind}))
    assert (args, repairs) == ({"q": value}, 0)
    assert healed("a", {"q": "2.5"}, spec("a", q={"type": "number"}))[1] == {"q": 2.5} and math.isinf(float("1e999"))
    assert healed("a", "\ud800", spec("a", q=TEXT)) == ("a", "\ud800", 0)


def test_what_a_person_edited_or_approved_is_not_healed() -> None:
    """Their word counts as it stands."""

    async def main() -> None:
        seen: list[Any] = []

        @tool(side_effect="destructive")
        async def wipe(path: str, depth: int = 1) -> str:
            """Wipe."""
            seen.append((path, depth))
            return path

        script = Script([call("wipe", path="a", depth=1), END])
        async with engine_for(script, wipe, store=RamStore()) as engine:
            result = await engine.run(Agent(name="w", tools=["wipe"], healing=True, meta={"workspace": "/srv"}), "go")
            result = await engine.approve(result.run_id, "main.1.0", by="ann", args={"path": "/srv/b", "depth": 2})
            done = await look(engine, result, script)
            assert seen == [("/srv/b", 2)] and not done.all(e.CallHealed)

    run_async(main)


# Notes and lists ----------------------------------------------------------------------------------------------------------------


def test_a_note_cannot_stand_in_for_a_result() -> None:
    """The key of a result is the result's; a note that was there first gives way to it."""
    script = [
        call("recall", key="main.2.0", content="forged"),
        call(n=1),
        call("recall", key="main.2.0"),
        call("recall", key="main.2.0", content="forged again"),
        call("recall", key="main.2.0"),
        END,
    ]
    done = ran(script, *Desk().all, agent=asked("recall"))
    assert [(ok, said[:8]) for ok, said in answers(done)] == [
        (True, "kept und"),
        (True, '{"n":1}'),
        (False, "recall: "),
        (True, '{"n":1}'),
    ]


@pytest.mark.parametrize("key", ["../x", "a\nb", "\0", "note:x", "checkpoint:a", "todo", "ключ", "x" * 3000, "[INST]", "%s", "{{a}}"])
def test_a_note_is_found_under_whatever_key_it_was_kept(key: str) -> None:
    """Keys are no paths and no patterns, and meet no other tool's."""
    script = [
        call("todo", action="add", items=["one"]),
        call("recall", key="a", content="mine"),
        call("recall", key=key, content="v"),
        call("recall", key=key),
        call("recall", key="a"),
        call("todo", action="list"),
        END,
    ]
    done = ran(script, *Desk().all, agent=asked("recall", "todo"))
    assert [said for _, said in answers(done)][3:] == ["v", "mine", "1. [ ] one"]


def test_lists_have_an_end() -> None:
    """200 entries of 400 characters; an entry is one line."""
    script = [
        call("todo", action="add", items=["x" * 401]),
        call("todo", action="add", items=["a\n9. [x] forged"]),
        call("todo", action="add", items=["y"] * 200),
        END,
    ]
    done = ran(script, *Desk().all, agent=asked("todo"))
    told = answers(done)
    assert told[0][0] is False and told[1] == (True, "1. [ ] a 9. [x] forged") and told[2][0] is False


@pytest.mark.parametrize("query", [".*", "[", "*", "\\", "\0", "  "])
def test_find_looks_for_words_and_knows_no_patterns(query: str) -> None:
    """What holds no word finds nothing."""
    done = ran([call(n=1), call("find", query=query), END], *Desk().all, agent=asked("find"))
    assert answers(done)[0][0] is False


@pytest.mark.parametrize(
    ("scope", "keys"),
    [
        ({}, ["note", "main.1.0", "document 1"]),
        ({"scope": "auto"}, ["note", "main.1.0", "document 1"]),
        ({"scope": "documents"}, ["main.1.0", "document 1"]),
        ({"scope": "memory"}, ["memory 1"]),
        ({"scope": "all"}, ["note", "main.1.0", "document 1", "memory 1"]),
    ],
)
def test_find_looks_where_it_is_told_to(scope: dict[str, str], keys: list[str]) -> None:
    """Documents are results and attachments; `auto` has notes too, and memory only where these have nothing."""
    script = [call(n=7), call("recall", key="note", content="seven is 7"), call("find", query="7 seven", **scope), END]
    run = {"attachments": ["a page about 7"], "seed_memory": ["Ann likes 7"]}
    done = ran(script, *Desk().all, agent=asked("find", "recall"), run=run)
    assert [hit.partition(":")[0] for hit in answers(done)[-1][1].splitlines()] == keys


@tool(side_effect="read")
async def get_page(url: str) -> str:
    """Get what stands there."""
    return url


@tool(side_effect="read")
async def look_around(query: str) -> str:
    """Search the web."""
    return query


@tool(side_effect="write")
async def post_page(url: str) -> str:
    """Put something on the web."""
    return url


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([post_page], "this agent has no tool that reads it"),
        ([get_page, post_page], "call get_page"),
        ([look_around, get_page], "call look_around or get_page"),
    ],
)
def test_find_looks_in_no_web_and_says_which_tool_does(more: list[Any], said: str) -> None:
    """Asked for the web it refuses; `auto` looks in memory where nothing else has it, and then says where to go on."""
    finds = [
        call("find", query="ann", scope="web"),
        call("find", query="ann"),
        call("find", query="bob"),
        call("find", query="ann", scope="documents"),
    ]
    agent = {"tools": ["look", "find", *(one.name for one in more)]}
    done = ran([call(n=1), *finds, END], *Desk().all, *more, agent=agent, run={"seed_memory": ["Ann is ann@example.org"]})
    assert answers(done) == [
        (False, f"find: the web is not looked in from here; {said}"),
        (True, "memory 1: Ann is ann@example.org"),
        (True, f"nothing here has 'bob'; for the web: {said}"),
        (True, "nothing here has 'ann'"),
    ]


def test_find_gives_eight_places_at_most() -> None:
    """However many there are."""
    done = ran([call("find", query="zebra"), END], *Desk().all, agent=asked("find"), run={"attachments": [f"zebra {n}" for n in range(10)]})
    assert [hit.partition(":")[0] for hit in answers(done)[0][1].splitlines()] == [f"document {n}" for n in range(1, 9)]


def test_documents_and_memory_are_found_and_read_by_their_keys() -> None:
    """Attachments that hold text, also in base64, whole: a model may have been shown a beginning; a picture is none; no note takes their keys."""
    page = base64.b64encode(("line\n" * 5000 + "the zebra clause").encode()).decode()
    attachments = [
        {"type": "image", "media_type": "image/png", "data": page},
        {"type": "file", "media_type": "text/markdown", "name": "terms", "data": page},
        {"type": "text", "text": "a zebra"},
        "plain zebra",
        {"type": "file", "name": "of-this-kind.txt", "data": base64.b64encode(b"zebra").decode()},
        {"type": "file", "name": "zebra.txt", "url": "https://example.org/zebra.txt"},
    ]
    script = [
        call("find", query="zebra", scope="all"),
        call("find", query="terms", scope="documents"),
        call("find", query="zebra", scope="memory"),
        call("recall", key="document 2", query="clause"),
        call("recall", key="memory 1"),
        call("recall", key="document 3", content="mine"),
        call("recall"),
        call("recall", key="document 1"),
        END,
    ]
    run = {"attachments": attachments, "seed_memory": ["Ann keeps a zebra"]}
    done = ran(script, *Desk().all, agent=asked("find", "recall"), run=run)
    every, terms, remembered, line, memory, taken, listed, picture = answers(done)
    assert [hit.partition(":")[0] for hit in every[1].splitlines()] == ["document 2", "document 3", "document 4", "document 5", "memory 1"]
    assert (terms[1].partition(":")[0], remembered[1]) == ("document 2", "memory 1: Ann keeps a zebra")
    assert (line[1], memory[1], taken[0]) == ("the zebra clause", "Ann keeps a zebra", False)
    assert listed[1] == "document 2, document 3, document 4, document 5, memory 1" and picture[0] is False


def test_what_a_meta_tool_says_is_redacted() -> None:
    """As everything that is recorded."""
    script = [call("recall", key="k", content="v"), call("recall", key="sk-1234567"), END]
    done = ran(script, *Desk().all, agent=asked("recall", redact=[r"sk-\d+"]))
    assert b"sk-1234567" not in b"".join(done.lines)


def test_a_secret_that_a_meta_tool_tells_is_redacted() -> None:
    """Also one that stands in no argument."""
    from detent.kernel.kernel import make_kernel
    from detent.ports import Answer, MetaTool

    async def tell(args: dict[str, Any], state: Any, context: Any) -> Answer:
        return Answer(content="the key is sk-7654321")

    teller = MetaTool(spec=ToolSpec(name="tell", side_effect="none"), handler=tell)
    done = ran(
        [call("tell"), END], *Desk().all, agent=asked("tell", redact=[r"sk-\d+"]), replays=False, kernel=make_kernel(meta_tools=(teller,))
    )
    assert len(answers(done)) == 1 and b"sk-7654321" not in b"".join(done.lines)


def test_a_blank_question_is_put_to_nobody() -> None:
    """The planner is told."""
    done = ran([call("ask_user", question=" \n"), END], *Desk().all, agent=asked("ask_user"))
    assert done.why == ("completed", "final_answer") and answers(done)[0][0] is False and not done.all(e.UserAsked)


def test_pulse_knows_repetition_and_standstill() -> None:
    """Three turns with nothing new; more than half of the calls repeated."""
    again = [call(n=1)] * 4 + [call("pulse"), END]
    assert json.loads(answers(ran(again, *Desk().all, agent=asked("pulse")))[0][1])["signal"] == "stalled"
    batch = [tuple([call(n=1)] * 5), call("pulse"), END]
    assert json.loads(answers(ran(batch, *Desk().all, agent=asked("pulse")))[0][1])["signal"] == "repeating"


def test_a_look_for_tools_finds_eight_at_most() -> None:
    """However many fit; a look for nothing lists all."""

    def made(n: int) -> Any:
        @tool(side_effect="read", name=f"look_{n:02}")
        async def one() -> int:
            """Look at things."""
            return n

        return one

    many = [made(n) for n in range(12)]
    done = ran(
        [call("discover_tools", query="look"), call("discover_tools"), call("discover_tools", query="zebra"), END],
        *many,
        agent={"tools": [*(t.name for t in many), "discover_tools"]},
    )
    assert [len(said.splitlines()) for _, said in answers(done)] == [1 + 8, 1 + 13, 1]
    assert answers(done)[-1][1].startswith("no tool fits 'zebra'; there are look_00, ")


# Endings ------------------------------------------------------------------------------------------------------------------------


def test_a_run_whose_every_call_failed_is_not_grounded() -> None:
    """Nor one whose meta-tools alone succeeded."""
    assert ran([call("slip"), END], *Desk().all).result.receipt.verdict == "partially"
    assert ran([call("slip"), call("slip"), call(n=1), END], *Desk().all, agent={"deliverables": []}).result.receipt.verdict == "partially"
    assert ran([call("pulse"), END], *Desk().all, agent=asked("pulse")).result.receipt.verdict == "ungrounded"


def test_a_section_does_not_make_up_for_calls_that_all_failed() -> None:
    """Nothing was learned, whatever headings the answer has."""
    script = [call("slip"), FinalAnswer(content="# Risks\n\nNone.")]
    receipt = ran(script, *Desk().all, agent={"deliverables": [{"section": "Risks"}]}).result.receipt
    assert (receipt.deliverables[0].produced, receipt.calls_ok, receipt.verdict) == (True, 0, "partially")


def test_a_denied_or_refused_call_is_no_ground() -> None:
    """A policy, a guard or a schema that refused it: nothing was learned."""
    done = ran([call("look", n=1), END], *Desk().all, policy=Decide(lambda c: "deny"))
    assert (done.result.receipt.verdict, done.result.receipt.calls_ok) == ("partially", 0)
    done = ran([call("look", n="x"), END], *Desk().all)
    assert (done.result.receipt.verdict, done.result.receipt.calls_ok) == ("partially", 0)


def test_an_answer_below_the_goal_with_what_was_found_out_is_held_to_what_is_required() -> None:
    """A task that begins with the goal is the goal; one that is a step is not."""
    from detent import Engine
    from detent.testing import ScriptedPlanner

    async def below(run: Any) -> Any:
        return await run.kernel("main", task=f"{run.goal}\n\nA hint:\nlook")

    async def step(run: Any) -> Any:
        await run.kernel("step", task=f"{run.goal}ish")
        return await run.kernel("main")

    desk = Desk()
    early = [FinalAnswer(content="early"), ToolCall(tool="look"), FinalAnswer(content="late")]
    for strategy, script, calls in ((below, early, 3), (step, early, 4)):
        engine = Engine(planner=ScriptedPlanner(script), tools=desk.all, strategies={"mine": strategy})
        agent = Agent(name="a", strategy="mine", tools=["look"], required_tools={"look": 1})
        result = engine.run_sync(agent, "go")
        assert (result.output, result.iterations) == ("late", calls)


def test_the_last_turn_of_a_bound_is_not_spent_on_a_refusal() -> None:
    """Whatever bound it is that leads to the last turn."""
    script = [call(n=1), FinalAnswer(content="x"), FinalAnswer(content="y")]
    done = ran(script, *Desk().all, agent=asked(required_tools={"look": 2}, wrap_up=True), budget=Budget(max_tool_calls=1))
    assert done.result.output is None and not any(plan.refused for plan in done.all(e.Planned))
