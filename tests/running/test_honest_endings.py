"""Honest endings: required tools, deliverables, forced abstention, answer hygiene, and the receipt of every run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent import Abstain, Agent, AskUser, Budget, Engine, FinalAnswer, Plan, tool
from detent.core import events as e
from detent.core.errors import ConfigError
from detent.expressions.markup import clean
from detent.running.endings import has_section, same_file
from detent.running.people import poster
from detent.running.receipts import lines_of
from detent.stores.ram import RamStore
from detent.tools.done import done_tool
from kernel.runs import END, Decide, Desk, Script, call, engine_for, look, ran, run_async


@tool(side_effect="write")
async def save(path: str, text: str = "") -> dict[str, Any]:
    """Save a file."""
    return {"path": path, "bytes": len(text)}


@tool(side_effect="read")
async def fetch_file(path: str) -> str:
    """Read a file."""
    return f"content of {path}"


LOOK_TWICE: dict[str, Any] = {"required_tools": {"look": 2}}


def test_an_answer_without_its_required_tools_is_refused_once_and_then_counts() -> None:
    """The planner is told what is missing, does it, and its next answer ends the run; the log replays."""
    done = ran([call(n=1), END, call(n=2), FinalAnswer(content="two")], *Desk().all, agent=LOOK_TWICE)
    assert done.why == ("completed", "final_answer") and done.result.output == "two"
    refused = [p.refused for p in done.all(e.Planned)]
    assert [bool(r) for r in refused] == [False, True, False, False] and "requires look; call it first" in refused[1]
    assert refused[1] in [item.text for item in done.views[2].transcript]  # the planner saw it
    assert done.result.receipt.verdict == "grounded" and done.result.receipt.missing == ()


def test_two_answers_without_all_required_tools_fail_the_run() -> None:
    """One of two looks: `missing_required_tool`, no output."""
    done = ran([call(n=1), END, END], *Desk().all, agent=LOOK_TWICE)
    assert done.why == ("failed", "missing_required_tool") and done.result.output is None
    assert "look" in (done.result.error or "") and done.result.receipt.missing == ("look",)
    finished = done.all(e.PassFinished)[-1]
    assert (finished.status, finished.reason) == ("failed", "missing_required_tool")  # no hook hears of an answer


def test_two_answers_that_rest_on_nothing_are_an_abstention() -> None:
    """Forced: no call succeeded, and two answers were given."""
    done = ran([END, END], *Desk().all, agent=LOOK_TWICE)
    assert done.why == ("stopped", "abstained") and done.result.receipt.verdict == "abstained"
    assert done.result.receipt.missing == ("look",) and "requires look (2 times more);" in done.all(e.Planned)[0].refused


def test_the_last_turn_is_not_spent_on_a_refusal() -> None:
    """Where no turn is left, the answer ends the run as what it is."""
    last = ran([END], *Desk().all, agent=LOOK_TWICE, budget=Budget(max_iterations=1))
    assert last.why == ("failed", "missing_required_tool") and last.result.iterations == 1


def test_done_is_held_to_the_same() -> None:
    """The call is refused as an observation once; a batch that does the missing work first is fine."""
    good = ran([(call("look", n=1), call("look", n=2), call("done", answer="ok"))], *Desk().all, done_tool(), agent=LOOK_TWICE)
    assert good.why == ("completed", "done_tool")
    bad = ran([call("done", answer="x"), call("look", n=1), call("done", answer="x")], *Desk().all, done_tool(), agent=LOOK_TWICE)
    assert bad.codes[0] == "answer_refused" and bad.why == ("failed", "missing_required_tool")


def test_only_successful_calls_count_and_denied_ones_do_not() -> None:
    """A required tool that the policy denies was not used."""
    done = ran([call(n=1), END, END], *Desk().all, agent={"required_tools": {"look": 1}}, policy=Decide(lambda c: "deny"))
    assert done.why == ("stopped", "abstained")


def test_an_abstention_must_have_tried() -> None:
    """Refused while a required tool was never called; accepted once it was, with what was missing."""
    give_up = Abstain(reason="no data", missing=("the archive",))
    done = ran([give_up, call("slip"), give_up], *Desk().all, agent={"required_tools": {"slip": 1}})
    assert done.why == ("stopped", "abstained") and [bool(p.refused) for p in done.all(e.Planned)] == [True, False, False]
    assert done.result.receipt.missing == ("slip", "the archive") and done.result.receipt.verdict == "abstained"


def test_an_abstention_that_has_tried_some_of_it_is_accepted_at_once() -> None:
    """Only one that tried nothing of what is missing is refused."""
    done = ran([call("slip"), Abstain(reason="no data")], *Desk().all, agent={"required_tools": {"slip": 1, "look": 1}})
    assert done.why == ("stopped", "abstained") and not any(plan.refused for plan in done.all(e.Planned))


def test_an_answer_that_is_a_required_call_is_made_and_counts() -> None:
    """It is held against what is required when the call is over."""
    done = ran([FinalAnswer(content='look({"n": 3})')], *Desk().all, agent={"required_tools": {"look": 1}})
    assert done.why == ("completed", "final_answer") and done.result.output == {"n": 3} and not done.all(e.Planned)[0].refused


def test_without_required_tools_nothing_is_asked() -> None:
    """The default costs nothing: an abstention and an ungrounded answer end the run at once."""
    assert ran([Abstain(reason="no")]).why == ("stopped", "abstained")
    done = ran([END])
    assert done.why == ("completed", "final_answer") and done.result.receipt.verdict == "ungrounded"


# Deliverables -------------------------------------------------------------------------------------------------------------------

WANTED: dict[str, Any] = {"deliverables": [{"file": "out/a.md"}, {"file": "out/b.md"}, {"section": "Risks"}]}


def test_missing_deliverables_are_named_once_and_then_stand_in_the_receipt() -> None:
    """One of three is produced: completed, partially, and the rest is listed."""
    done = ran([call("save", path="./out/a.md"), call("fetch_file", path="out/b.md"), END, END], save, fetch_file, agent=WANTED)
    assert done.why == ("completed", "final_answer")
    receipt = done.result.receipt
    assert [(one.name, one.produced) for one in receipt.deliverables] == [("out/a.md", True), ("out/b.md", False), ("Risks", False)]
    assert receipt.verdict == "partially" and receipt.missing == ("out/b.md", "Risks")
    assert "file 'out/b.md'" in done.all(e.Planned)[2].refused and "out/a.md" not in done.all(e.Planned)[2].refused


def test_a_file_in_a_list_of_paths_is_produced_too() -> None:
    """Wherever in the arguments or the result it is named."""

    @tool(side_effect="write")
    async def save_all(paths: list[str]) -> dict[str, Any]:
        """Save files."""
        return {"saved": [{"path": "out/b.md"}]}

    done = ran([call("save_all", paths=["out/a.md"]), FinalAnswer(content="Risks: none")], save_all, agent=WANTED)
    assert done.result.receipt.missing == () and done.result.receipt.verdict == "grounded"


def test_a_section_can_be_asked_for_where_no_tool_writes() -> None:
    """A file cannot."""
    wanted = {"deliverables": [{"file": "a.md"}, {"section": "Risks"}]}
    done = ran([END, FinalAnswer(content="# Risks\n\nnone")], Desk().look, agent=wanted)
    assert "section 'Risks'" in done.all(e.Planned)[0].refused and "a.md" not in done.all(e.Planned)[0].refused
    assert done.result.receipt.missing == ("a.md",)


def test_all_deliverables_make_up_for_a_failed_call() -> None:
    """What was wanted is there."""
    script = [call("save", path="/srv/out/a.md"), call("save", path="out/b.md"), call("slip"), FinalAnswer(content="# Risks\n\nnone")]
    done = ran(script, save, Desk().slip, agent=WANTED)
    assert done.result.receipt.verdict == "grounded" and len(done.all(e.Planned)) == 4


@pytest.mark.parametrize(
    ("declared", "said", "same"),
    [
        ("a.md", "a.md", True),
        ("a.md", "./a.md", True),
        ("a.md", "out/a.md", False),
        ("out/a.md", "/work/out/a.md", True),
        ("/work/out/a.md", "out/a.md", True),
        ("out/a.md", "/work/about/a.md", False),
        ("out/a.md", "text that names out/a.md", False),
        ("out/a.md", "/a text\n/that ends with/out/a.md", False),
    ],
)
def test_paths_are_reconciled_at_their_parts(declared: str, said: str, same: bool) -> None:
    """Absolute and relative ones meet; a name inside another name does not."""
    assert same_file(declared, said) is same


@pytest.mark.parametrize(
    ("output", "there"),
    [
        ("## Risks\nnone", True),
        ("**Risks:** none", True),
        ("risks: none", True),
        ("# Risks", False),
        ("# Risks\n# Next\nx", False),
        ("the risks are small", False),
        ({"risks": ["a"]}, True),
        ({"risks": []}, False),
        ({"chances": ["a"]}, False),
        (None, False),
    ],
)
def test_a_section_is_a_heading_with_something_below(output: Any, there: bool) -> None:
    """Or a key of a typed answer that has a value."""
    assert has_section(output, "Risks") is there


# Hygiene ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("<think>hm</think>42", "42"),
        ("hm, so</think>\n42", "42"),
        ("42<|im_end|>", "42"),
        ('42\n<tool_call>{"name": "x"}</tool_call>', "42"),
        ('42\n<tool_call>{"name": "x"}', "42"),
        ("<tool_call> is the tag that starts a call.", "<tool_call> is the tag that starts a call."),
        ("<reflection>a</reflection>\n42", "42"),
        ("see <reflection>light</reflection> here", "see <reflection>light</reflection> here"),
        ("write `<think>` or\n```\n<think>x</think>\n```", "write `<think>` or\n```\n<think>x</think>\n```"),
        ("<think>x</think>write `<think>` as it is", "write `<think>` as it is"),
        ("rows\n[the first 3 of 40 items; the rest is not shown]", "rows"),
        ("a < b and [1] stays ", "a < b and [1] stays "),
        ({"answer": "<think>a</think>b", "n": 1}, {"answer": "b", "n": 1}),
        (["<think>a</think>b", {"n": [1]}], ["b", {"n": [1]}]),
    ],
)
def test_no_internal_markup_leaves(said: Any, told: Any) -> None:
    """It is taken out at the one exit, and only it; code stays as it is."""
    assert clean(said) == told
    done = ran([FinalAnswer(content=said)])
    assert done.result.output == told and done.all(e.PassFinished)[0].output == told


MARKUP = FinalAnswer(content="<think>I do not know</think>")


def test_an_answer_that_is_nothing_but_markup_is_not_accepted() -> None:
    """The planner is told, once; what it says then counts."""
    done = ran([MARKUP, END])
    assert done.why == ("completed", "final_answer")
    assert "has only internal markup" in done.all(e.Planned)[0].refused


@pytest.mark.parametrize("said", [MARKUP, FinalAnswer(content="<think>x</think>\u200b")])
def test_an_answer_that_is_nothing_but_markup_is_no_answer(said: FinalAnswer) -> None:
    """No false success, also where what is left cannot be seen: the second one fails the run."""
    done = ran([said, said])
    assert done.why == ("failed", "planner_error") and done.result.output is None
    assert done.all(e.PassFinished)[0].status == "failed"
    assert ran([said, END]).why == ("completed", "final_answer")


def test_a_strategy_that_returns_what_cannot_be_seen_has_no_answer() -> None:
    """The one exit looks at what any strategy gives."""

    async def mute(run: Any) -> str:
        return "\ufeff\u200b"

    result = asyncio.run(Engine(strategies={"mute": mute}).run(Agent(name="m", strategy="mute"), "go"))
    assert (result.status, result.reason, result.output) == ("failed", "planner_error", None)


def test_what_a_strategy_returns_is_held_to_the_same() -> None:
    """No markup leaves, and nothing counts that does not rest on what is required."""

    async def mine(run: Any) -> str:
        return "<think>hm</think>42"

    own = {"strategies": {"mine": mine}, "agent": {"strategy": "mine"}}
    assert ran([], *Desk().all, **own).result.output == "42"
    short = ran([], *Desk().all, strategies=own["strategies"], agent={"strategy": "mine", **LOOK_TWICE})
    assert short.why == ("failed", "missing_required_tool") and short.result.output is None


def test_no_markup_leaves_with_the_best_text_so_far() -> None:
    """What a run that was stopped had; its receipt says what of the deliverables is in it."""
    plan = Plan(actions=(call(n=1),), text="<think>hm</think># Risks\n\nnone so far")
    done = ran([plan], *Desk().all, budget=Budget(max_iterations=1), agent={"deliverables": [{"section": "Risks"}]})
    assert done.why == ("stopped", "max_iterations") and done.result.partial == "# Risks\n\nnone so far"
    assert done.result.receipt.deliverables[0].produced and done.result.receipt.verdict == "failed"
    assert done.result.receipt.ended_by == "max_iterations: iterations"


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", "<thi", "nk>", "`", "```", "[/INST]", "a", "\n"]),
        max_size=12,
    )
)
def test_what_was_cleaned_is_clean(parts: list[str]) -> None:
    """An answer passes two exits, a pass's and the run's: the second finds nothing more."""
    once = clean("".join(parts))
    assert clean(once) == once


# Receipt ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "verdict"),
    [
        ([END], "ungrounded"),
        ([call(n=1), END], "grounded"),
        ([call("slip"), END], "partially"),
        ([call(n=1), call("slip"), END], "partially"),
        ([Abstain(reason="no")], "abstained"),
        ([call("end")], "failed"),
        ([(call("done", answer="x"),)], "ungrounded"),
    ],
)
def test_the_verdict_follows_the_table(script: list[Any], verdict: str) -> None:
    """From the calls and the end alone."""
    result = ran(script, *Desk().all, done_tool()).result
    assert (result.receipt.verdict, result.receipt.ended_by) == (verdict, result.reason)


def test_a_receipt_reads_as_lines() -> None:
    """Calls by tool, each deliverable, what else was missing, who intervened."""

    async def main() -> None:
        desk = Desk()
        script = Script([call("save", path="out/a.md"), (call("slip"), call("slip", n=1)), call("wipe"), END, END])
        wanted = {"deliverables": [{"file": "out/a.md"}, {"file": "b.md"}]}
        async with engine_for(script, *desk.all, save, store=RamStore()) as engine:
            result = await engine.run(Agent(name="w", tools=["save", "slip", "wipe"], **wanted), "go", run_id="r")
            assert lines_of(result.receipt)[0] == "not over: 1 calls ok, 2 failed (save 1 ok, slip 0 ok 2 failed)"
            result = await engine.approve("r", "main.3.0", by="ann")
            assert lines_of(result.receipt) == [
                "partially: 2 calls ok, 2 failed (save 1 ok, slip 0 ok 2 failed, wipe 1 ok)",
                "produced: file out/a.md",
                "missing: file b.md",
                f"approved by ann via {poster()} (main.3.0)",
            ]

    run_async(main)
    given_up = ran([Abstain(reason="no data", missing=("the archive",))])
    assert lines_of(given_up.result.receipt) == ["abstained: 0 calls ok, 0 failed", "missing: the archive"]


def test_the_receipt_names_who_intervened() -> None:
    """Approvals, edits, replies, reopenings, in their order; the same from the log as from the run."""

    async def main() -> None:
        desk = Desk()
        script = Script([call("wipe", n=1), call("wipe", n=2), AskUser(question="sure?"), call("end"), END])
        async with engine_for(script, *desk.all, store=RamStore()) as engine:
            result = await engine.run(Agent(name="w", tools=["wipe", "end"]), "go")
            assert result.receipt.verdict == "" and result.status == "waiting_for_approval"
            result = await engine.approve(result.run_id, "main.1.0", by="ann")
            result = await engine.approve(result.run_id, "main.2.0", by="ann", args={"n": 3})
            result = await engine.reply(result.run_id, "yes", by="bob")
            assert result.status == "failed"
            result = await engine.reopen(result.run_id, by="eve")
            told = [(one.kind, one.by, one.about) for one in result.receipt.interventions]
            assert told == [
                ("approved", "ann", "main.1.0"),
                ("approval_edited", "ann", "main.2.0"),
                ("user_replied", "bob", "main.3"),
                ("run_reopened", "eve", ""),
            ]
            done = await look(engine, result, script)
            assert result.receipt.calls_ok == 2 and result.receipt.tools["wipe"].ok == 2 and done.why[0] == "completed"

    run_async(main)


def test_a_requirement_that_cannot_be_met_is_refused_before_anything_runs() -> None:
    """A tool that the agent does not list, a count below one, a deliverable that is none."""
    for options in ({"required_tools": {"x": 1}}, {"tools": ["x"], "required_tools": {"x": 0}}, {"deliverables": [{"thing": "a"}]}):
        with pytest.raises(ConfigError):
            Agent(name="a", **options)  # type: ignore[arg-type]
