"""The meta-tools that every engine knows: each answers from state, keeps nothing outside the log, and is neither work nor progress."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from detent import Agent, Budget, Engine, FinalAnswer, ToolCall, tool
from detent.core import events as e
from detent.core.errors import ToolsMissing
from detent.core.state import KernelState
from detent.kernel.kernel import make_kernel
from detent.meta_tools import BUILT_IN
from detent.meta_tools.declaring import declared
from detent.ports import Answer
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner
from kernel.runs import END, Decide, Desk, Script, call, engine_for, look, ran, run_async

ROWS = [{"row": n, "text": f"entry number {n}"} for n in range(400)]


def line(n: int) -> str:
    """Return row number n as it is read."""
    return f'{{"row":{n},"text":"entry number {n}"}}'


@tool(side_effect="read", max_result_bytes=2000)
async def table() -> list[dict[str, Any]]:
    """Give many rows."""
    return ROWS


def asked(*names: str, **more: Any) -> dict[str, Any]:
    """Return an agent with these meta-tools beside look, put and slip."""
    return {"tools": ["look", "put", "slip", *names], **more}


def answers(done: Any) -> list[tuple[bool, str]]:
    """Return what the meta-tools said."""
    return [(event.success, event.content) for event in done.all(e.MetaToolAnswered)]


def test_they_are_off_unless_the_agent_lists_them() -> None:
    """Nobody is shown one that was not asked for."""
    done = ran([call("brief"), END], *Desk().all)
    assert done.codes == ["tool_not_found"] and "brief" not in [spec.name for spec in done.views[0].tools]


def told(done: Any) -> str:
    """Return the code of the first observation."""
    return done.result.state.passes["main"].results[0].error.code


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_each_passes_policy_and_starts_nothing(name: str) -> None:
    """A policy that denies it is asked, and its refusal is an observation; the schema takes no unknown argument."""
    done = ran([call(name), END], *Desk().all, agent=asked(name), policy=Decide(lambda c: "deny" if c.tool.name == name else "allow"))
    assert not done.all(e.MetaToolAnswered) and told(done) in ("policy_denied", "schema_validation_failed")
    assert BUILT_IN[name].spec.input_schema["additionalProperties"] is False and BUILT_IN[name].spec.read_only
    wrong = ran([call(name, strange=1), END], *Desk().all, agent=asked(name))
    assert told(wrong) == "schema_validation_failed" and wrong.result.tool_calls == ()


def test_they_are_no_work_and_no_progress() -> None:
    """No tool call is counted, nothing is in `tools_used`, and looking at oneself alone ends as no progress."""
    done = ran([call("pulse", question=str(n)) for n in range(20)], *Desk().all, agent=asked("pulse"))
    assert done.why == ("stopped", "no_progress") and all(ok for ok, _ in answers(done))
    assert done.result.usage.tool_calls == 0 and done.result.tools_used == frozenset() and done.result.receipt.calls_ok == 0


def test_brief_says_where_the_run_stands() -> None:
    """Tools, results by key, goals, what is left."""
    done = ran([call(n=1), call("brief"), call("brief", section="results"), END], *Desk().all, agent=asked("brief"))
    (_, page), (_, part) = answers(done)
    assert (
        "look (1 ok), put, slip, brief" in page and "main.1.0 look" in page and "goals: go" in page and "iterations 48 of 50 left" in page
    )
    assert part == "results: main.1.0 look 7 bytes"
    script = [call("recall", key="a", content="half"), call("brief", section="notes"), call("brief", section="budget"), END]
    (_, notes), (_, left) = answers(ran(script, *Desk().all, agent=asked("brief", "recall"), budget=Budget(max_iterations=6)))[1:]
    assert notes == "notes: a" and "iterations 3 of 6 left (50 % used)" in left


def test_pulse_says_whether_it_is_getting_anywhere() -> None:
    """Failing, then moving; what is still required blocks."""
    script = [call("slip"), call("pulse"), call(n=1), call("pulse"), (call("put"), call(n=2), call(n=3)), call("pulse"), END]
    done = ran(script, *Desk().all, agent=asked("pulse", required_tools={"look": 3}))
    first, second, third = (json.loads(content) for _, content in answers(done))
    assert first["signal"] == "failing" and "slip: handler_error" in first["blockers"] and not first["ready_to_answer"]
    assert second["signal"] == "moving" and "required: look" in second["blockers"]
    assert third["blockers"] == [] and third["ready_to_answer"] and third["behaviour"]["success_rate"] == 0.8


def test_recall_gives_back_exactly_what_was_cut() -> None:
    """A result over its tool's cap is shown in part and recalled whole; the log replays."""
    script = [call("table"), call("recall", key="main.1.0", full=True), call("recall"), END]
    done = ran(script, table, agent={"tools": ["table", "recall"]})
    (ok, whole), (_, listed) = answers(done)
    assert listed == f"main.1.0 (table, {len(whole)} bytes)" and ok and json.loads(whole) == ROWS and done.items[0].artifact is not None


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (
            {"unit": "items", "start": 3, "end": 5},
            '[{"row":3,"text":"entry number 3"},{"row":4,"text":"entry number 4"}]\n[items 3 to 5 of 400]',
        ),
        ({"unit": "lines", "start": 399}, '{"row":399,"text":"entry number 399"}\n[lines 399 to 400 of 400]'),
        ({"unit": "characters", "end": 9}, '[{"row":0\n[characters 0 to 9 of 14271]'),
        ({"unit": "lines", "start": 300}, "\n".join(map(line, range(300, 350))) + "\n[lines 300 to 350 of 400]"),
        ({"query": "number 77"}, '{"row":77,"text":"entry number 77"}'),
    ],
)
def test_recall_reads_pieces(args: dict[str, Any], expected: str) -> None:
    """Items, lines, characters, or what contains a text; each piece says what it is a piece of."""
    done = ran([call("table"), call("recall", key="main.1.0", **args), END], table, agent={"tools": ["table", "recall"]})
    told = answers(done)[0][1]
    assert told == expected or told.rpartition(" of ")[0] == expected.rpartition(" of ")[0]


def test_recall_keeps_notes_and_says_what_there_is() -> None:
    """An unknown key is an error that lists the known ones; a call that failed has left nothing."""
    script = [
        call("slip"),
        call("recall", key="plan", content="do b"),
        call("recall", key="plan"),
        call("recall", key="nope"),
        call("recall"),
        call("recall", key="plan", start=3),
        END,
    ]
    done = ran(script, *Desk().all, agent=asked("recall"))
    assert answers(done) == [
        (True, "kept under 'plan'"),
        (True, "do b"),
        (False, "recall: nothing is kept under 'nope'; there is: plan (note)"),
        (True, "plan (note)"),
        (True, "b\n[characters 3 to 4 of 4]"),
    ]


def test_find_looks_in_whole_results_and_notes() -> None:
    """Ranked by how many of the words are there, with the key and the place."""
    script = [
        call("table"),
        call("recall", key="n", content="number theory"),
        call("find", query="399 theory"),
        call("find", query="zebra"),
        END,
    ]
    done = ran(script, table, agent={"tools": ["table", "recall", "find"]})
    _, (_, hits), (_, none) = answers(done)
    assert (
        hits.splitlines()[0].startswith("main.1.0: ") and hits.splitlines()[1].startswith("n: number theory") and none.startswith("nothing")
    )


def test_whatever_was_written_down_is_found_listed_and_recalled_under_one_key() -> None:
    """Notes and the list; which tools were found is no note."""
    script = [
        call("recall", key="n", content="a zebra"),
        call("todo", action="add", items=["feed the zebra"]),
        call("discover_tools", query="zebra"),
        call("find", query="zebra"),
        call("recall"),
        call("brief", section="notes"),
        *(call("recall", key=key) for key in ("todo", "n")),
        END,
    ]

    @tool(side_effect="read")
    def zebra() -> str:
        """Look for a zebra."""
        return ""

    told = answers(ran(script, zebra, agent={"tools": ["zebra", "recall", "todo", "discover_tools", "find", "brief"]}))
    assert sorted(line.partition(": ")[0] for line in told[3][1].splitlines()) == ["n", "todo"]
    assert told[4:6] == [(True, "todo (note), n (note)"), (True, "notes: todo, n")]
    assert told[6:] == [(True, '[{"text":"feed the zebra","state":"open"}]'), (True, "a zebra")]


def test_todo_keeps_what_it_is_told() -> None:
    """In the log: another process, and a replay, finds it. What says too little is refused with what there is."""
    script = [
        call("todo", action="add", items=["first", "second"]),
        call("todo", action="done", number=1),
        call("todo", action="done"),
        call("todo", action="start", number=9),
        call("todo", action="start", number=2),
        call("todo", action="list"),
        END,
    ]
    told = answers(ran(script, *Desk().all, agent=asked("todo"), budget=None))
    assert told[1] == (True, "1. [x] first\n2. [ ] second") and [ok for ok, _ in told[2:4]] == [False] * 2
    assert told[4] == told[5] == (True, "1. [x] first\n2. [>] second")


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What `checkpoint`, a meta-tool of earlier versions, took."""

    name: str
    content: str


async def _save(args: Saved, state: KernelState, context: Any) -> Answer:
    return Answer(content="saved", notes={"checkpoint:" + args.name: args.content})


def test_a_run_that_called_a_meta_tool_that_is_gone_is_read_and_says_what_is_missing() -> None:
    """`checkpoint` was one: its records fold, what it kept is recalled, and going on or replaying names the tool that is not there."""
    store = RamStore()
    old = make_kernel(meta_tools=(*BUILT_IN.values(), declared("checkpoint", "Keep.", Saved, _save)))
    script = [ToolCall(tool="checkpoint", args={"name": "a", "content": "half way"}), call("recall", key="checkpoint:a"), END]

    async def main() -> None:
        engine = engine_for(Script(script), *Desk().all, store=store, kernel=old)
        done = await engine.run(Agent(name="w", tools=["look", "checkpoint", "recall"]), "go", run_id="r")
        assert done.status == "completed" and (await engine.replay("r")).identical
        now = engine_for(Script([]), *Desk().all, store=store)
        state = await now.load("r")
        assert [item.content for item in state.passes["main"].results if item.meta] == ["saved", "half way"]
        with pytest.raises(ToolsMissing, match="checkpoint"):
            await now.replay("r")

    asyncio.run(main())


def test_two_runs_at_once_share_nothing() -> None:
    """What one writes down, the other does not see."""

    async def main() -> None:
        async with Engine(planner=ScriptedPlanner([call("recall", key="k", content="mine"), END])) as engine:
            agent = Agent(name="a", tools=["recall"])
            await asyncio.gather(engine.run(agent, "one", run_id="one"), engine.run(agent, "two", run_id="two"))
            states = [await engine.load(name) for name in ("one", "two")]
            assert all(state.passes["main"].meta["meta_tools"] == {"note:k": "mine"} for state in states)
        async with Engine(planner=ScriptedPlanner([call("recall"), END])) as engine:
            result = await engine.run(agent, "three")
            assert result.state.passes["main"].results[0].content == "nothing yet"

    run_async(main)


def test_discover_tools_offers_what_it_finds_from_the_next_turn_on() -> None:
    """Until then only the meta-tools and what is required are shown; what was found stays."""
    script = [call("discover_tools", query="remove"), call("discover_tools", query="look at"), END, END]
    done = ran(script, *Desk().all, agent={"tools": ["look", "put", "wipe", "slip", "discover_tools"], "required_tools": {"put": 1}})
    shown = [sorted(spec.name for spec in view.tools) for view in done.views]
    assert shown == [["discover_tools", "put"], ["discover_tools", "put", "wipe"], *[["discover_tools", "look", "put", "wipe"]] * 2]


# Endings ------------------------------------------------------------------------------------------------------------------------


def test_final_answer_ends_the_run_as_an_answer_does() -> None:
    """The calls behind it are not run; a blank or unfit one is refused."""
    script = [
        call("final_answer", answer=" "),
        call("final_answer", answer="\u200b"),
        call("final_answer", answer="{", format="json"),
        (call("final_answer", answer="42"), call(n=1)),
    ]
    done = ran(script, *Desk().all, agent=asked("final_answer"))
    assert done.why == ("completed", "final_answer") and done.result.output == "42" and done.codes[-1] == "not_run"
    assert (done.result.receipt.calls_failed, done.result.receipt.verdict) == (0, "ungrounded")
    assert [ok for ok, _ in answers(done)] == [False, False, False, True]


def test_final_answer_must_fit_the_schema() -> None:
    """A typed run takes no other."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    script = [
        call("final_answer", answer='{"n": "x"}'),
        call("final_answer", answer='{"n": 1, "n": 2}'),  # of two values none was chosen
        call("final_answer", answer={"n": 3}),
    ]
    done = ran(script, *Desk().all, agent=asked("final_answer", output_schema=schema))
    assert done.result.output == {"n": 3} and "answer['n']" in answers(done)[0][1]


def test_final_answer_and_abstain_are_held_to_required_tools() -> None:
    """The same objection as to the planner's own; the second ends the run."""
    agent = asked("final_answer", "abstain", required_tools={"look": 1})
    done = ran([call("final_answer", answer="x"), call("final_answer", answer="x")], *Desk().all, agent=agent)
    assert done.why == ("stopped", "abstained") and "requires look" in answers(done)[0][1]
    give_up = call("abstain", reason="no data", missing=["data"])
    tried = ran([give_up, call(n=1), give_up], *Desk().all, agent=agent)
    assert tried.why == ("stopped", "abstained") and [ok for ok, _ in answers(tried)] == [False, True]
    assert "missing: data" in (tried.result.error or "")


def test_a_failed_call_in_the_batch_holds_the_answer_back() -> None:
    """As with done; abstaining because of it is allowed."""
    done = ran([(call("slip"), call("final_answer", answer="x")), END], *Desk().all, agent=asked("final_answer"))
    assert done.codes[:1] == ["handler_error"] and done.result.output == "the end"
    assert ran([(call("slip"), call("abstain", reason="it slips"))], *Desk().all, agent=asked("abstain")).why == ("stopped", "abstained")


@pytest.mark.parametrize(("choices", "expected"), [({"choices": ["a", "b"]}, {"enum": ["a", "b"]}), ({}, None)], ids=["choices", "free"])
def test_ask_user_waits_for_the_reply(choices: dict[str, Any], expected: Any) -> None:
    """The run waits, the reply is in the transcript, and the log replays."""

    async def main() -> None:
        script = Script([call("ask_user", question="which?", **choices), FinalAnswer(content="b it is")])
        async with engine_for(script, store=RamStore()) as engine:
            result = await engine.run(Agent(name="a", tools=["ask_user"]), "go")
            assert result.status == "waiting_for_user"
            (ask,) = result.state.asks.values()
            assert (ask.question, ask.expected) == ("which?", expected)
            result = await engine.reply(result.run_id, "b", by="ann")
            done = await look(engine, result, script)
            assert done.why == ("completed", "final_answer") and script.views[1].transcript[-1].text == "b"

    run_async(main)
