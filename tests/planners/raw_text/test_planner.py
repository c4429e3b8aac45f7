"""The planner for raw-text models: what it asks, how it repairs, what it counts, and that it remembers nothing."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detent import Agent, Engine, FinalAnswer, Suspended, Thought, ToolCall, Usage, tool
from detent.core.actions import Abstain
from detent.core.agent import AgentSpec
from detent.core.budget import NOTHING, Budget
from detent.core.errors import ConfigError, MalformedPlan, ModelCallFailure, PlannerFailed, UnknownName
from detent.core.events import ModelCallFinished, ModelCallStarted, ToolError
from detent.core.records import Record
from detent.core.state import Item, RunState
from detent.expressions.markup import clean
from detent.planners.raw_text.compact_prompt import Example
from detent.planners.raw_text.generation import Generation, Request
from detent.planners.raw_text.planner import OnDevicePlanner, Repair
from detent.planners.trimming import count_by_length
from detent.planners.verifiers import answer_is_integer, require_tool_used
from detent.ports import Chunk, ToolSpec, View
from planners.gateways import KeepingGateway
from planners.raw_text.texts import ADD, READ, Says, agent_of, call, final, pieces, recording_tools, turn, view


def plan(planner: OnDevicePlanner, seen: View) -> Any:
    return asyncio.run(planner.plan(seen))


def shown(request: Request) -> str:
    return "\n".join(f"[{m.role}] {m.content}" for m in request.messages)


LONG = [item for i in range(1, 41) for item in turn(i, ToolCall(tool="read_file", args={"path": f"f{i}"}), f"text of file {i} " * 10)]


# The prompt -------------------------------------------------------------------------------------------------------------------


def test_everything_that_a_model_must_know_is_in_the_prompt() -> None:
    """Instructions, tools, action shapes, goal, variables, memory, notes, guidance, sub-goals, attachments: each reaches the text."""
    says = Says(final("x"))
    seen = view(
        Item(kind="note", text="be quick"),
        instructions="You are terse.",
        variables={"year": 2020},
        memory=({"fact": "blue"},),
        scratchpad={"draft": "abc"},
        guidance=("try another way",),
        goals=(("g1", "find the year"),),
        attachments=({"name": "a.txt", "text": "attached words"}, {"name": "b.png", "data": "AAAA"}),
        budget_remaining=Budget(max_iterations=1),
        output_schema={"type": "string"},
    )
    plan(OnDevicePlanner(says), seen)
    for said in (
        "You are terse.",
        "read_file(path: string, lines?: integer): Read a file.",
        '"final_answer"',
        "Goal: find it",
        '{"year":2020}',
    ):
        assert said in says.prompts[0]
    for said in (
        "be quick",
        '{"fact":"blue"}',
        "abc",
        "try another way",
        "find the year",
        "attached words",
        "b.png",
        "last turn",
        "JSON Schema",
    ):
        assert said in says.prompts[0]


def test_tools_are_shown_in_the_style_that_was_asked_for() -> None:
    """`name(p1, p2): description`, with types, or with the schema."""
    for style, said in (
        ("names", "- add(a, b): Add"),
        ("names-and-types", "- add(a: number, b: number)"),
        ("full", '"additionalProperties":false'),
    ):
        planner = OnDevicePlanner(Says(final("x")), tool_style=style)  # type: ignore[arg-type]
        assert said in shown(planner.request(view()))


def test_the_beginning_of_the_prompt_never_changes_and_history_is_only_appended() -> None:
    """Each turn's messages begin with the former turn's, up to the last one, whose text grows at its end."""
    planner = OnDevicePlanner(Says(final("x")), max_prompt_tokens=100_000)
    before: tuple[Any, ...] = ()
    for n in range(0, len(LONG), 2):
        now = planner.request(view(*LONG[:n], guidance=(f"hint {n}",))).messages
        assert now[: max(0, len(before) - 1)] == before[:-1]
        if before:
            assert now[len(before) - 1].content.startswith(before[-1].content.partition("\n\nNote:")[0])
        before = now


def test_messages_take_turns() -> None:
    """System first, then user and assistant in turn, whatever stands in the transcript: chat templates insist on it."""
    items = [
        Item(kind="note", text="first"),
        *turn(1, Thought(content="hm")),
        *turn(2, ToolCall(tool="add", args={"a": 1, "b": 2}), 3),
        Item(kind="note", text="n"),
        Item(kind="user", text="reply"),
        *turn(3, Thought(content="so")),
    ]
    roles = [m.role for m in OnDevicePlanner(Says("x")).request(view(*items)).messages]
    assert roles == ["system", "user", *["assistant", "user"] * 3]


def test_a_prompt_has_all_turns_or_is_refused_with_its_size() -> None:
    """What is left out of a prompt is decided in one place, and recorded: a planner that drops turns by itself does so in silence."""
    request = OnDevicePlanner(Says("x"), max_prompt_tokens=100_000).request(view(*LONG))
    counted = sum(count_by_length(m.content) for m in request.messages)
    assert abs(request.tokens - counted) <= 1
    assert [json.loads(m.content)["args"]["path"] for m in request.messages if m.role == "assistant"] == [f"f{i}" for i in range(1, 41)]
    assert OnDevicePlanner(Says("x"), max_prompt_tokens=request.tokens).request(view(*LONG)) == request
    with pytest.raises(PlannerFailed, match=f"the prompt has {request.tokens} tokens") as caught:
        OnDevicePlanner(Says("x"), max_prompt_tokens=request.tokens - 1).request(view(*LONG))
    assert caught.value.reason == "context_overflow"


@pytest.mark.parametrize("budget", [700, 3500])
def test_a_long_run_fits_the_token_budget_by_compaction(budget: int) -> None:
    """Results that are too long even alone, and many turns: each prompt fits, nobody set anything, and the model is told what is gone."""

    @tool(side_effect="read")
    def read_file(path: str) -> str:
        """Read a file."""
        return f"text of file {path} {'y' * 60_000 if path == '7' else 'z' * 400}"

    says = Says(*[call("read_file", path=str(n)) for n in range(30)], final("done"))
    planner = OnDevicePlanner(says, max_prompt_tokens=budget, max_observation_chars=50_000)

    async def main() -> None:
        async with Engine(planner=planner, tools=[read_file]) as engine:
            result = await engine.run(Agent(name="a", tools=["read_file"], budget=Budget(max_iterations=40)), "Read them.")
            assert (result.status, result.output) == ("completed", "done"), result.error
            assert (await engine.replay(result.run_id)).identical

    asyncio.run(main())
    assert all(sum(count_by_length(m.content) for m in request.messages) <= budget for request in says.asked)
    assert "text of file 29" in shown(says.asked[-1])
    assert "[context compacted]" in shown(says.asked[-1])


def test_a_goal_and_a_call_that_are_longer_than_the_prompt_are_cut_in_it() -> None:
    """A pasted document, and a file that the model writes: their ends are shown, and nobody had to set anything."""

    @tool(side_effect="read")
    def read_file(path: str) -> str:
        """Read a file."""
        return "short"

    says = Says(call("read_file", path=f"BEGIN{'p' * 30_000}END"), call("read_file", path="b"), final("done"))
    planner = OnDevicePlanner(says, max_prompt_tokens=900)

    async def main() -> None:
        async with Engine(planner=planner, tools=[read_file]) as engine:
            goal = f"HEAD {'word ' * 8000} TAIL"
            result = await engine.run(Agent(name="a", tools=["read_file"]), goal)
            assert (result.status, result.output) == ("completed", "done"), result.error
            assert (await engine.replay(result.run_id)).identical

    asyncio.run(main())
    assert all(sum(count_by_length(m.content) for m in request.messages) <= 900 for request in says.asked)
    for word in ("Goal: HEAD word", "word  TAIL", "BEGINppp", "pppEND"):
        assert word in shown(says.asked[1]).replace("\\n", "\n"), word


def test_results_are_shown_as_a_model_with_native_calls_sees_them() -> None:
    """Of a long list the first items, whole; of a failure its data, too; what is missing is said in the words that no answer may hold."""
    rows = [f"row {n}" for n in range(1000)]
    items = [
        *turn(1, ToolCall(tool="read_file", args={"path": "a"}), rows),
        *turn(2, ToolCall(tool="read_file", args={"path": "b"}), error="timeout"),
    ]
    items[-1] = msgspec.structs.replace(items[-1], error=ToolError(code="timeout", message="too slow", details={"s": 5}))
    said = shown(OnDevicePlanner(Says("x"), max_observation_chars=300).request(view(*items)))
    assert 'Observation (read_file): ["row 0","row 1","row 2","row 3","row 4"]\n[the first 5 of 1000 items; the rest is not shown]' in said
    assert 'Observation (read_file failed): timeout: too slow {"s":5}' in said
    assert clean("Done.\n[the first 5 of 1000 items; the rest is not shown]").strip() == "Done."


def test_a_prompt_that_cannot_fit_is_refused_with_what_to_do() -> None:
    """No history could make room: the run ends with `context_overflow`."""
    with pytest.raises(PlannerFailed, match="raise max_prompt_tokens") as caught:
        plan(OnDevicePlanner(Says("x"), max_prompt_tokens=50), view())
    assert caught.value.reason == "context_overflow"


def test_remembered_renderings_change_nothing() -> None:
    """A planner that saw every turn, one that sees only the last view, and one that was used for other runs between ask the same bytes."""
    warm, cold = OnDevicePlanner(Says("x")), OnDevicePlanner(Says("x"))
    for n in range(0, len(LONG) + 1, 2):
        warm.request(view(*LONG[:n]))
        warm.request(view(*LONG[: n // 2], run_id="other"))
    assert warm.request(view(*LONG)) == cold.request(view(*LONG))
    for other in (view(*LONG[10:]), view(*LONG[:20], *LONG[22:]), view(*LONG, goal="else"), view(*LONG[:7]), view(*LONG, tools=(ADD,))):
        assert warm.request(other) == OnDevicePlanner(Says("x")).request(other)


def test_a_compacted_transcript_shows_its_summary() -> None:
    """The note that stands for what was compacted is part of the prompt."""
    seen = msgspec.structs.replace(view(), transcript=(Item(kind="note", text="SUMMARY"), *LONG[-2:]))
    assert "SUMMARY" in shown(OnDevicePlanner(Says("x")).request(seen))


def test_examples_are_part_of_the_stable_beginning() -> None:
    """Few-shot examples show actions as they should be written."""
    example = Example(goal="add 1 and 2", steps=((ToolCall(tool="add", args={"a": 1, "b": 2}), "3"), (FinalAnswer(content="3"), "")))
    system = OnDevicePlanner(Says("x"), examples=[example]).request(view()).messages[0].content
    assert (
        'Goal: add 1 and 2\n{"type": "tool_call", "tool": "add", "args": {"a":1,"b":2}}\nObservation: 3\n{"type": "final_answer"' in system
    )


# Repair -----------------------------------------------------------------------------------------------------------------------


def test_a_bad_answer_is_shown_to_the_model_with_what_was_wrong() -> None:
    """Two repair turns; each is reported, stands in the log, and is counted."""
    told: list[Repair] = []
    says = Says("{nonsense: ", call("read_file"), call("read_file", path="a"))
    made = plan(OnDevicePlanner(says, on_repair=told.append), view())
    assert made.actions == (ToolCall(tool="read_file", args={"path": "a"}),)
    assert [(r.attempt, r.output) for r in told] == [(1, "{nonsense: "), (2, call("read_file"))]
    assert made.provider_data == {"on_device": {"repairs": [r.problem for r in told]}}
    assert "'path' is a required property" in says.prompts[2]
    assert says.prompts[2].startswith(says.prompts[1])
    assert made.usage.model_calls == 3


def test_repairs_are_bounded() -> None:
    """After two there is no plan; with none allowed, after the first answer."""
    for most in (0, 2):
        says = Says("")
        with pytest.raises(MalformedPlan) as caught:
            plan(OnDevicePlanner(says, max_repairs=most), view())
        assert len(says.asked) == most + 1
        assert caught.value.usage.model_calls == most + 1


def test_sound_calls_that_do_not_fit_become_failed_observations() -> None:
    """After the repairs the kernel refuses them and says why; nothing runs."""
    ran: list[Any] = []
    says = Says(*[call("read_file", path=5)] * 3, *[call("gone", x=1)] * 3, final("done"))
    tools = recording_tools(ran)
    result = Engine(store="ram:", planner=OnDevicePlanner(says)).run_sync(agent_of(tools[:1]), "g")
    assert (result.output, ran) == ("done", [])
    assert [item.error.code for item in result.tool_calls if item.error] == ["schema_validation_failed", "tool_not_found"]


def test_a_watcher_that_fails_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """What `on_repair` raises is logged."""

    def broken(_: Repair) -> None:
        raise RuntimeError("no")

    assert plan(OnDevicePlanner(Says("", final("x")), on_repair=broken), view()).actions == (FinalAnswer(content="x"),)
    assert "on_repair" in caplog.text


def test_truncated_output_is_asked_for_once_with_more_room_and_then_told() -> None:
    """Never twice with the same limit: first doubled, then the model is told to be shorter."""
    cut = Generation(text=call("read_file", path="a")[:-3], finish="length")
    says = Says(cut, cut, final("x"))
    made = plan(OnDevicePlanner(says, max_output_tokens=100), view())
    assert made.actions == (FinalAnswer(content="x"),)
    assert [r.max_tokens for r in says.asked] == [100, 200, 200]
    assert says.prompts[0] == says.prompts[1]
    assert "Be much shorter" in says.prompts[2]


def test_a_limit_of_the_budget_is_not_asked_against_again() -> None:
    """Where the run's budget cut the answer off, the model is told at once."""
    says = Says(Generation(text="so", finish="length"), final("x"))
    plan(OnDevicePlanner(says, max_output_tokens=100), view(models=KeepingGateway(cap=10)))
    assert [r.max_tokens for r in says.asked] == [10, 10]
    assert "Be much shorter" in says.prompts[1]


def test_corrections_that_do_not_fit_are_left_out_the_oldest_first() -> None:
    """A correction is worth less than the work: it never makes a prompt too long."""
    bad = "x" * 3000 + "{"
    size = OnDevicePlanner(Says("x")).request(view(*LONG[:20])).tokens
    for room, corrections in ((500, [0, 1, 1]), (50, [0, 0, 0])):
        says = Says(bad, bad, final("x"))
        plan(OnDevicePlanner(says, max_prompt_tokens=size + room, prose=False), view(*LONG[:20]))
        assert all(sum(count_by_length(m.content) for m in r.messages) <= size + room for r in says.asked)
        assert [(len(r.messages) - len(says.asked[0].messages)) // 2 for r in says.asked] == corrections


# Accounting and streaming -----------------------------------------------------------------------------------------------------


def test_every_generation_goes_through_the_gateway() -> None:
    """Repairs and guided retries too; the plan itself then charges nothing."""
    gateway = KeepingGateway()
    says = Says("", final("no number"), final("42"))
    planner = OnDevicePlanner(says, model="tiny", verify=answer_is_integer())
    made = plan(planner, view(models=gateway))
    assert made.actions == (FinalAnswer(content="42"),)
    assert [c["model"] for c in gateway.calls] == ["tiny"] * 3
    assert all(c["purpose"] == "plan" and c["input_tokens"] > 100 and c["limit"] == 1024 for c in gateway.calls)
    assert (made.usage, made.model) == (NOTHING, "")
    assert len(gateway.answers) == 3 and all(a.usage.estimated and a.usage.output_tokens >= 0 for a in gateway.answers)


def test_without_a_gateway_usage_stands_in_the_plan() -> None:
    """What the generator counted, or an estimate that says so."""
    told = Usage(input_tokens=10, output_tokens=5)
    made = plan(OnDevicePlanner(Says(Generation(text="", usage=told), Generation(text=final("x"), usage=told, model="m-1"))), view())
    assert made.usage == Usage(model_calls=2, input_tokens=20, output_tokens=10)
    assert made.model == "m-1"
    estimated = plan(OnDevicePlanner(Says(final("x"))), view())
    assert estimated.usage.estimated
    assert estimated.usage.output_tokens == count_by_length(final("x"))
    assert estimated.model == "says"


def test_what_a_rejected_plan_cost_is_charged() -> None:
    """The run's usage is the sum of all generations, those of rejected plans included."""
    says = Says(
        *[Generation(text="", usage=Usage(input_tokens=10, output_tokens=1))] * 3, Generation(text=final("x"), usage=Usage(input_tokens=7))
    )
    result = Engine(store="ram:", planner=OnDevicePlanner(says)).run_sync(agent_of(()), "g")
    assert result.output == "x"
    assert (result.usage.input_tokens, result.usage.output_tokens, result.usage.model_calls) == (37, 3, 4)


def test_the_next_attempt_is_told_why_the_last_plan_was_rejected() -> None:
    """The kernel's note reaches the prompt."""
    says = Says("", final("x"))
    Engine(store="ram:", planner=OnDevicePlanner(says, max_repairs=0)).run_sync(agent_of(()), "g")
    assert "That was not a plan: there was no action" in says.prompts[1]


@pytest.mark.parametrize("kind", ["sync", "sync_stream", "async", "async_stream", "generations", "returns_async", "object"])
def test_every_kind_of_generator_works(kind: str) -> None:
    """Blocking or not, whole or in pieces, functions or objects; pieces are streamed, thinking apart from text."""
    said = ["<think>h", "m</thi", "nk>", final("x")[:9], final("x")[9:]]

    def sync(_: Request) -> str:
        return "".join(said)

    def sync_stream(_: Request) -> Iterator[str]:
        yield from said

    async def async_whole(_: Request) -> str:
        return "".join(said)

    async def async_stream(_: Request) -> AsyncGenerator[str]:
        for piece in said:
            yield piece

    def generations(_: Request) -> Iterator[Generation]:
        yield Generation(thinking="hm")
        yield Generation(text=final("x"))
        yield Generation(usage=Usage(input_tokens=3), finish="stop")

    class Whole:
        async def __call__(self, _: Request) -> str:
            return "".join(said)

    made = {
        "sync": sync,
        "sync_stream": sync_stream,
        "async": async_whole,
        "async_stream": async_stream,
        "generations": generations,
        "returns_async": lambda _: pieces(*said),
        "object": Whole(),
    }[kind]
    gateway = KeepingGateway()
    got = plan(OnDevicePlanner(made), view(models=gateway))  # type: ignore[arg-type]
    assert (got.actions, got.thinking) == ((FinalAnswer(content="x"),), "hm")
    assert "".join(p for k, p in gateway.emitted if k == "thinking") == "hm"
    assert "".join(p for k, p in gateway.emitted if k == "text") == final("x")


def test_a_generator_that_gives_no_text_is_named() -> None:
    """A mistake of the program, not of the model."""
    with pytest.raises(ConfigError, match="gave int"):
        plan(OnDevicePlanner(lambda _: 5), view())  # type: ignore[arg-type, return-value]


def test_what_a_generator_raises_is_raised() -> None:
    """Also out of a thread."""

    def broken(_: Request) -> str:
        raise ModelCallFailure("no memory", kind="server")

    with pytest.raises(ModelCallFailure, match="no memory"):
        plan(OnDevicePlanner(broken), view())


def test_a_blocking_generator_holds_nothing_up() -> None:
    """It runs in a daemon thread; when the plan is cancelled, a stream ends at its next piece."""
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def endless(_: Request) -> Iterator[str]:
        try:
            while True:
                yield "x"
                begun.set()
                go.wait()
        finally:
            ended.set()

    async def main() -> None:
        task = asyncio.create_task(OnDevicePlanner(endless).plan(view()))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()

    asyncio.run(main())
    assert ended.wait(60)


# Verifiers --------------------------------------------------------------------------------------------------------------------


def test_an_answer_that_fails_its_check_is_asked_for_once_more() -> None:
    """The model is told what was wrong; a good second answer stands."""
    says = Says(final("about 4"), final("4"))
    made = plan(OnDevicePlanner(says, verify=answer_is_integer()), view())
    assert made.actions == (FinalAnswer(content="4"),)
    assert "whole number" in says.prompts[1]


def test_the_second_try_may_be_a_call() -> None:
    """A model that answered without looking is sent to look."""
    says = Says(final("4"), call("add", a=2, b=2))
    assert plan(OnDevicePlanner(says, verify=require_tool_used("add")), view()).actions == (ToolCall(tool="add", args={"a": 2, "b": 2}),)


def test_an_answer_that_fails_twice_is_what_the_option_says() -> None:
    """Rejected, given out with a mark, or an honest abstention; never given out unmarked."""
    check = answer_is_integer()
    with pytest.raises(MalformedPlan, match="checked twice"):
        plan(OnDevicePlanner(Says(final("no")), verify=check), view())
    taken = plan(OnDevicePlanner(Says(final("no")), verify=check, on_unverified="accept"), view())
    assert taken.actions == (FinalAnswer(content="no"),)
    assert "whole number" in taken.provider_data["on_device"]["unverified"]
    (abstained,) = plan(OnDevicePlanner(Says(final("no")), verify=check, on_unverified="abstain"), view()).actions
    assert isinstance(abstained, Abstain)


# Resume -----------------------------------------------------------------------------------------------------------------------


def test_a_run_that_is_resumed_elsewhere_sends_the_same_bytes(tmp_path: Path) -> None:
    """Stopped after any turn and taken on by a fresh engine and a fresh planner, the requests are those of the uninterrupted run."""
    script = [call("read_file", path="a"), "{bad", call("add", a=1.5, b=2), call("read_file", path='ü\n"x"'), final("done")]
    whole = Says(*script)
    Engine(store="ram:", planner=OnDevicePlanner(whole)).run_sync(agent_of(recording_tools([])[::2]), "g")
    for store in (f"sqlite:///{tmp_path}/runs.db", f"file:{tmp_path}/logs"):
        asked: list[Request] = []
        state = "running"
        while state == "running":
            says = Says(*script[len(asked) :])
            engine = Engine(store=store, planner=OnDevicePlanner(says))
            result = engine.run_sync(agent_of(recording_tools([])[::2]), "g", run_id="r", turns=1)
            asked += says.asked
            state = result.status
        assert state == "completed"
        assert asked == whole.asked


def test_a_kill_in_the_middle_of_a_generation_costs_only_that_one(tmp_path: Path) -> None:
    """Suspended while the model speaks: on resume the same request is made again, earlier ones are not."""
    store = f"sqlite:///{tmp_path}/runs.db"
    asked: list[Request] = []
    engine: Any = None

    async def first(request: Request) -> str:
        asked.append(request)
        if len(asked) == 2:
            engine.suspend("test")
            await asyncio.sleep(60)
        return call("read_file", path="a")

    engine = Engine(store=store, planner=OnDevicePlanner(first))
    with pytest.raises(Suspended):
        engine.run_sync(agent_of(recording_tools([])[:1]), "g", run_id="r")
    says = Says(final("x"))
    result = Engine(store=store, planner=OnDevicePlanner(says)).run_sync(agent_of(recording_tools([])[:1]), "g", run_id="r")
    assert result.output == "x"
    assert says.asked == asked[1:]


# Options ----------------------------------------------------------------------------------------------------------------------


def test_options_that_do_not_fit_are_refused_at_once() -> None:
    """Each names what to give instead."""
    with pytest.raises(UnknownName, match="final_answer"):
        OnDevicePlanner(Says(""), actions=["final_anwser"])
    with pytest.raises(ConfigError, match="ends a run"):
        OnDevicePlanner(Says(""), actions=["thought"])
    with pytest.raises(ConfigError, match="max_repairs"):
        OnDevicePlanner(Says(""), max_repairs=-1)
    with pytest.raises(ConfigError, match="takes a Request"):
        OnDevicePlanner("ollama")  # type: ignore[arg-type]


def test_without_constraints_the_schema_is_left_out_and_the_model_is_stopped() -> None:
    """A model that is not held to a schema is stopped where it begins to make observations up."""
    says = Says(final("x"))
    plan(OnDevicePlanner(says, constrain=False), view())
    assert says.asked[0].schema is None
    assert "\nObservation" in says.asked[0].stop


def test_a_prompt_can_be_one_text() -> None:
    """For models without a chat template."""
    prompt = OnDevicePlanner(Says("x")).request(view(*LONG[:2])).prompt
    assert prompt.endswith("\n\nAssistant: ")
    assert "User: Goal: find it" in prompt


def test_many_tools_and_none_make_a_prompt() -> None:
    """Without tools nothing is said of them."""
    assert "Tools:" not in shown(OnDevicePlanner(Says("x")).request(view(tools=())))
    many = tuple(ToolSpec(name=f"t{i}", input_schema=READ.input_schema) for i in range(50))
    assert "- t49(path" in shown(OnDevicePlanner(Says("x")).request(view(tools=many)))


@tool(side_effect="read", sensitive=["secret"])
async def login(secret: str) -> str:
    """Log in."""
    return "ok"


def test_sensitive_arguments_stay_out_of_log_and_prompt() -> None:
    """The model sees its own call with a placeholder."""
    says = Says(call("login", secret="hunter2"), final("x"))
    Engine(store="ram:", planner=OnDevicePlanner(says)).run_sync(agent_of([login]), "g")
    assert "hunter2" not in says.prompts[1]
    assert "<secret:" in says.prompts[1]


def test_what_the_agent_may_do_is_what_its_model_is_offered() -> None:
    """The agent's `actions`, unless the planner says otherwise; a sub-goal that can be opened can be closed."""
    agent = AgentSpec(name="a", actions=("push_goal",))
    system = OnDevicePlanner(Says("x")).request(view(agent=agent)).messages[0].content
    assert "push_goal" in system and "complete_goal" in system and "ask_user" not in system
    system = OnDevicePlanner(Says("x"), actions=["final_answer"]).request(view(agent=agent)).messages[0].content
    assert "push_goal" not in system and "tool_call" not in system


def test_each_generation_of_a_run_stands_in_its_log_and_replay_agrees() -> None:
    """Repairs, rejected plans and guided retries are model calls of their own; together they are the run's usage; text is streamed."""

    def used(text: str) -> Generation:
        return Generation(text=text, usage=Usage(input_tokens=10, output_tokens=2), finish="stop")

    says = Says(used("{bad"), used(call("add", a=1, b=2)), *[used("")] * 3, used(final("no number")), used(final("3")))
    streamed: list[str] = []

    class Watch:
        def on_record(self, record: Record, state: RunState) -> None:
            pass

        def on_chunk(self, chunk: Chunk) -> None:
            if chunk.kind in ("text", "thinking"):
                streamed.append(chunk.content)

    async def main() -> None:
        planner = OnDevicePlanner(says, verify=answer_is_integer())
        async with Engine(store="ram:", planner=planner, tools=recording_tools([]), observers=[Watch()]) as engine:
            result = await engine.run(Agent(name="desk", tools=["add"]), "g")
            assert result.output == "3"
            records = await engine.records(result.run_id)
            ended = [r.event.usage for r in records if isinstance(r.event, ModelCallFinished)]
            assert len([r for r in records if isinstance(r.event, ModelCallStarted)]) == len(ended) == len(says.asked) == 7
            assert (result.usage.model_calls, result.usage.input_tokens, result.usage.output_tokens) == (7, 70, 14)
            assert (await engine.replay(result.run_id)).identical
        assert "".join(streamed) == "".join(a.text for a in says.answers if isinstance(a, Generation))

    asyncio.run(main())
