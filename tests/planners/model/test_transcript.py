"""The transcript as messages: append-only, the same bytes with and without what was kept, and what providers need back, byte for byte."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
)

from detent import Agent, Engine, tool
from detent.core import actions as a
from detent.core.agent import AgentSpec
from detent.core.events import ArtifactRef, Planned, ToolError
from detent.core.history import Seq
from detent.core.state import Item
from detent.planners.model.messages import UNKNOWN_RESULT, Renderer, Rendering
from detent.planners.model.planner import ModelPlanner
from detent.planners.trimming import WHOLE
from detent.ports import ToolSpec, View
from planners.model.chat_server import ChatServer, says
from planners.model.function_models import LOOK, Asked, a_view, calls, dumped

GOAL = Item(kind="user", text="g")


def rendered(view: View, done: Rendering | None = None, *, model: str = "m") -> list[Any]:
    """Return the messages of a view, rendered anew or from what is done."""
    done = done or Rendering()
    asyncio.run(Renderer(system="s", model=model, compression=WHOLE).extend(done, view))
    return done.messages()


def plan(iteration: int, *actions: a.AnyAction, **fields: Any) -> Item:
    """Return a plan as it stands in a transcript."""
    made = Planned(actions=actions, **fields)
    return Item(kind="model", iteration=iteration, text=made.text, plan=made)


def seen(iteration: int, index: int, value: Any = 1, **fields: Any) -> Item:
    """Return an observation of call `index`."""
    raw = msgspec.Raw(msgspec.json.encode(value))
    given: dict[str, Any] = {"ok": True, "result": raw, "arguments": {"x": 1}, **fields}
    return Item(kind="tool", iteration=iteration, call_id=f"main.{iteration}.{index}", tool="look", **given)


def look(provider_id: str = "", **args: Any) -> a.ToolCall:
    return a.ToolCall(tool="look", args=args, provider_id=provider_id)


# Append-only ------------------------------------------------------------------------------------------------------------------


@st.composite
def transcripts(draw: st.DrawFn) -> tuple[list[Item], list[int]]:
    """Return a transcript of some turns, and the places in it at which a planner was asked."""
    items, asked = [GOAL], [1]
    for iteration in range(1, draw(st.integers(1, 6)) + 1):
        text = draw(st.sampled_from(["", "I think", "ok\n\nthen"]))
        kind = draw(st.sampled_from(["calls", "ask", "thought", "rejected", "embedded"]))
        if kind == "calls":
            count = draw(st.integers(1, 3))
            ids = draw(st.lists(st.sampled_from(["c0", "c1", "", "dup"]), min_size=count, max_size=count))
            items.append(plan(iteration, *(look(i, x=n) for n, i in enumerate(ids)), text=text))
            for n in range(draw(st.integers(0, count))):
                error = draw(st.sampled_from([None, ToolError(code="timeout", message="late")]))
                items.append(seen(iteration, n, [n], error=error, ok=error is None))
        elif kind == "ask":
            items.append(plan(iteration, a.AskUser(question="Which?"), text=text, dropped=(look("c9"),)))
            items.append(seen(iteration, 0, error=ToolError(code="not_run", message="no"), ok=False))
            items.append(Item(kind="user", iteration=iteration, text="that one"))
        elif kind == "thought":
            items.append(plan(iteration, a.Thought(content="hm"), text=text))
        elif kind == "rejected":
            items.append(Item(kind="note", iteration=iteration, text="That was not a plan."))
        else:
            items.append(plan(iteration, a.FinalAnswer(content="look({})"), text="look({})", embedded=look()))
            items.append(seen(iteration, 0, error=ToolError(code="handler_error", message="no"), ok=False))
        if draw(st.booleans()):
            items.append(Item(kind="note", iteration=iteration, text="told"))
        asked.append(len(items))
    return items, asked


def parts_of(messages: list[Any]) -> list[str]:
    return [f"{m.kind} {part!r}" for m in messages for part in m.parts]


@given(transcripts())
def test_what_was_sent_once_is_the_beginning_of_what_is_sent_next(case: tuple[list[Item], list[int]]) -> None:
    """The messages of a turn begin with those of the turn before, part by part: a provider can keep them."""
    items, asked = case
    before: list[str] = []
    for end in asked:
        now = parts_of(rendered(a_view(items[:end])))
        closed = [p for p in before if UNKNOWN_RESULT not in p]
        assert [p for p in now if UNKNOWN_RESULT not in p][: len(closed)] == closed
        before = now


@given(transcripts())
def test_what_is_kept_changes_no_byte(case: tuple[list[Item], list[int]]) -> None:
    """Rendering turn by turn and rendering the whole transcript at once give the same messages, from the log's sequence and from a list."""
    items, asked = case
    log: Seq[Item] = Seq()
    kept, listed, at = Rendering(), Rendering(), 0
    for end in asked:
        for item in items[at:end]:
            log = log.append(item)
        at = end
        whole = dumped(rendered(a_view(items[:end])))
        view = msgspec.structs.replace(a_view(), transcript=log)
        assert kept.covers(log)
        assert dumped(rendered(view, kept)) == whole
        assert listed.covers(items[:end])
        assert dumped(rendered(a_view(items[:end]), listed)) == whole


def test_another_transcript_is_not_taken_for_the_one_that_was_rendered() -> None:
    """A branch, a compacted transcript or an edited item is rendered from the start."""
    items = [GOAL, plan(1, look("c0", x=1)), seen(1, 0, 1)]
    done = Rendering()
    rendered(a_view(items), done)
    assert done.covers([*items, Item(kind="note", text="n")])
    assert not done.covers(items[:2])
    assert not done.covers([GOAL, items[1], seen(1, 0, 2)])
    assert not done.covers(Seq([Item(kind="note", text="summary"), *items[1:]]))
    assert done.covers(Seq(items))


@given(transcripts())
def test_every_call_is_followed_by_one_result_each(case: tuple[list[Item], list[int]]) -> None:
    """Providers refuse a call without a result, a result without a call, and two of either under one id."""
    messages = rendered(a_view(case[0]))
    for message, following in zip(messages, [*messages[1:], None], strict=True):
        if isinstance(message, ModelResponse):
            wanted = [p.tool_call_id for p in message.parts if isinstance(p, ToolCallPart)]
            assert len(set(wanted)) == len(wanted)
            got = [p.tool_call_id for p in following.parts if isinstance(p, ToolReturnPart)] if following is not None else []
            assert got == wanted
        else:
            before_text = [isinstance(p, ToolReturnPart) for p in message.parts]
            assert before_text == sorted(before_text, reverse=True), "results stand before anything else"


def test_over_the_wire_each_request_begins_with_the_one_before() -> None:
    """What an OpenAI-compatible server receives: the same head, the same tools, and messages that only grow."""

    @tool(side_effect="read")
    def look(x: int) -> dict[str, int]:
        """Look at x."""
        return {"seen": x}

    turns = [says("Looking.", ("c1", "look", {"x": 1}), ("c2", "look", {"x": 2})), says(None, ("c1", "look", '{"x": "no"}')), says("done")]

    async def go(url: str) -> Any:
        async with Engine(store="ram:", planner=ModelPlanner(settings={"base_url": url})) as engine:
            return await engine.run(Agent(name="a", model="openai:served", tools=[look], instructions="Be brief."), "g")

    with ChatServer(turns) as server:
        result = asyncio.run(go(server.url))
    assert (result.status, result.output) == ("completed", "done")
    first, second, third = server.requests
    assert first["tools"] == second["tools"] == third["tools"]
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert third["messages"][: len(second["messages"])] == second["messages"]
    assert first["messages"][0] == {"role": "system", "content": first["messages"][0]["content"]}
    assert first["messages"][0]["content"].startswith("Be brief.")
    assert [m["role"] for m in third["messages"]] == ["system", "user", "assistant", "tool", "tool", "assistant", "tool"]
    assert [m["content"] for m in third["messages"][3:5]] == ['{"seen":1}', '{"seen":2}']
    assert "schema_validation_failed" in third["messages"][6]["content"]


# What providers need back -----------------------------------------------------------------------------------------------------

RICH = ModelResponse(
    parts=[
        ThinkingPart("First I think.", id="rs_1", signature="sig+/=é", provider_name="function", provider_details={"k": [1, 2]}),
        TextPart("Let me ", id="msg_1", provider_name="function", provider_details={"phase": "commentary"}),
        TextPart("look."),
        ThinkingPart("", signature="ENCRYPTED==", provider_name="function"),
        ToolCallPart(
            "look",
            '{"x": 1, "b": {"z": 1, "a": 2}}',
            "toolu_1",
            id="fc_1",
            provider_name="function",
            provider_details={"thought_signature": "AAEC"},
        ),
        TextPart("and then"),
        ToolCallPart("look", {"x": 2}, "toolu_2"),
    ],
    provider_name="function",
    provider_url="http://x",
    provider_response_id="resp_1",
    provider_details={"container": "c_1"},
    finish_reason="tool_call",
)


def sent_back(messages: list[Any]) -> ModelResponse:
    (response,) = [m for m in messages if isinstance(m, ModelResponse)]
    return response


def test_what_a_provider_gave_goes_back_unchanged_after_a_resume_in_another_process(tmp_path: Path) -> None:
    """Signatures, encrypted reasoning and ids pass through the log of a real store and stand where they stood, in the same order."""

    @tool(side_effect="read")
    def look(x: int, b: dict[str, int] | None = None) -> int:
        """Look."""
        return x

    store, agent = f"sqlite:///{tmp_path}/runs.db", Agent(name="a", tools=[look])

    async def first() -> str:
        async with Engine(store=store, planner=ModelPlanner(Asked([RICH]).model)) as engine:
            return (await engine.step(agent, "g")).run_id

    second = Asked(["done"])

    async def resumed(run_id: str) -> None:
        async with Engine(store=store, tools=[look], planner=ModelPlanner(second.model)) as engine:
            assert (await engine.resume(run_id)).output == "done"

    asyncio.run(resumed(asyncio.run(first())))
    back = sent_back(second.messages[0])
    assert [type(p) for p in back.parts] == [type(p) for p in RICH.parts]
    for mine, theirs in zip(back.parts, RICH.parts, strict=True):
        for field in ("content", "id", "signature", "provider_name", "provider_details", "tool_call_id"):
            assert getattr(mine, field, None) == getattr(theirs, field, None)
    args = [p.args_as_json_str() for p in back.parts if isinstance(p, ToolCallPart)]
    assert args == [p.args_as_json_str() for p in RICH.parts if isinstance(p, ToolCallPart)]
    for field in ("provider_name", "provider_url", "provider_response_id", "provider_details", "finish_reason"):
        assert getattr(back, field) == getattr(RICH, field)


def test_arguments_and_text_stand_in_the_log_once() -> None:
    """The provider's part of a plan refers to them and does not repeat them."""
    made = asyncio.run(ModelPlanner(Asked([RICH]).model).plan(a_view(tools=(LOOK,))))
    kept = json.dumps(made.provider_data)
    assert "First I think" not in kept
    assert "Let me" not in kept
    assert '"z"' not in kept
    assert "ENCRYPTED==" in kept


def test_an_answer_that_needs_nothing_back_stores_nothing() -> None:
    """Text and calls are in the plan already."""
    made = asyncio.run(ModelPlanner(Asked([calls(("look", {"x": 1}), text="hm")]).model).plan(a_view(tools=(LOOK,))))
    assert made.provider_data is None


def test_another_model_gets_the_portable_part_alone() -> None:
    """Text and calls with their ids; no thinking, no signatures of somebody else."""
    made = asyncio.run(ModelPlanner(Asked([RICH]).model).plan(a_view(tools=(LOOK,))))
    planned = Planned(actions=made.actions, text=made.text, thinking=made.thinking, provider_data=made.provider_data)
    items = [GOAL, Item(kind="model", iteration=1, plan=planned), seen(1, 0), seen(1, 1)]
    own = sent_back(rendered(a_view(items), model="other"))
    assert [(p.part_kind, getattr(p, "tool_call_id", p.__dict__.get("content"))) for p in own.parts] == [
        ("text", "Let me look.\n\nand then"),
        ("tool-call", "toolu_1"),
        ("tool-call", "toolu_2"),
    ]
    assert "ENCRYPTED" not in dumped([own])


def test_control_actions_of_another_model_have_ids_that_no_call_has() -> None:
    """Each call and each control action has its own, whatever ids the calls came with."""
    item = plan(1, look("control_1", x=1), look("control_1_", x=2), a.AskUser(question="Which?"), a.Stop(reason="x"))
    back = sent_back(rendered(a_view([GOAL, item, seen(1, 0), seen(1, 1)])))
    ids = [p.tool_call_id for p in back.parts if p.part_kind == "tool-call"]
    assert len(ids) == len(set(ids)) == 4 and {"control_1", "control_1_"} <= set(ids)


@pytest.mark.parametrize("hidden", ["thinking", "signature"])
def test_what_redaction_has_touched_is_not_given_back_with_a_signature(hidden: str) -> None:
    """A signature over text that is not the same any more would be refused."""
    data = {
        "v": 1,
        "system": "s",
        "model": "m",
        "response": {},
        "parts": [["thinking", 0, 5, {"signature": "<secret:x>" if hidden == "signature" else "S"}]],
    }
    thinking = "<secret:0123>" if hidden == "thinking" else "hello"
    item = plan(1, look("c0", x=1), thinking=thinking, provider_data=data)
    back = sent_back(rendered(a_view([GOAL, item, seen(1, 0)])))
    assert [p.part_kind for p in back.parts] == ["tool-call"]


# Items ------------------------------------------------------------------------------------------------------------------------


def test_a_question_to_the_user_is_a_call_with_a_result_and_then_the_reply() -> None:
    """A synthetic tool gets its result, calls beside it are told that they were not run, and the user's words are the user's."""
    asked = Asked([calls(("ask_user", {"question": "Which?"}), ("look", {"x": 1})), "done"])

    @tool(side_effect="read")
    def look(x: int) -> int:
        """Look."""
        return x

    async def go() -> Any:
        async with Engine(store="ram:", planner=ModelPlanner(asked.model), approver="caller") as engine:
            waiting = await engine.run(Agent(name="a", tools=[look], actions=["ask_user"]), "g")
            assert waiting.status == "waiting_for_user"
            return await engine.reply(waiting.run_id, "the red one")

    assert asyncio.run(go()).output == "done"
    _, response, request = asked.messages[1]
    assert [(p.tool_name, p.tool_call_id) for p in response.parts] == [("ask_user", "c0"), ("look", "c1")]
    assert [type(p).__name__ for p in request.parts] == ["ToolReturnPart", "ToolReturnPart", "UserPromptPart"]
    assert "not_run" in request.parts[1].content or "not_run" in request.parts[0].content
    assert request.parts[2].content == "the red one"


def test_a_call_that_stood_in_text_is_shown_as_text() -> None:
    """The model made no call, so it gets no result of one, and is told what came of its words."""
    items = [
        GOAL,
        plan(1, a.FinalAnswer(content="look({})"), text="look({})", embedded=look()),
        seen(1, 0, error=ToolError(code="handler_error", message="broke"), ok=False),
    ]
    _, response, request = rendered(a_view(items))
    assert [p.content for p in response.parts] == ["look({})"]
    assert request.parts[0].content == '[result] look({"x":1}): handler_error: broke'


def test_a_compacted_transcript_keeps_the_goal_and_loses_no_result() -> None:
    """The task stands before the summary; a result whose call was compacted away is told as text."""
    items = [Item(kind="note", text="Summary: much was done."), seen(3, 0, "kept"), plan(4, look("c4", x=4)), seen(4, 0)]
    messages = rendered(a_view(items, task="count doors"))
    assert [p.content for p in messages[0].parts] == ["count doors", "[note] Summary: much was done.", '[result] look({"x":1}): kept']


def test_failures_are_marked_as_such() -> None:
    """A provider's own error channel is used; a denial is a decision, not a failure."""
    broke = ToolError(code="handler_error", message="broke")
    denied = ToolError(code="policy_denied", message="no")
    items = [
        GOAL,
        plan(1, look("a"), look("b"), look("c")),
        seen(1, 0),
        seen(1, 1, error=broke, ok=False),
        seen(1, 2, error=denied, ok=False),
    ]
    results = rendered(a_view(items))[-1].parts
    assert [p.outcome for p in results] == ["success", "failed", "denied"]


def test_bytes_of_results_are_those_of_the_log() -> None:
    """JSON is not parsed and written again: numbers and the order of keys stay as the tool gave them."""
    raw = msgspec.Raw(b'{"b":1.10,"a":[1e3,"\\u00e9"]}')
    items = [GOAL, plan(1, look("a")), seen(1, 0, result=raw)]
    assert rendered(a_view(items))[-1].parts[0].content == raw.__bytes__().decode() if hasattr(raw, "__bytes__") else bytes(raw).decode()


# Attachments ------------------------------------------------------------------------------------------------------------------

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
PICTURE = {"type": "image", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}


def test_a_picture_that_a_tool_gave_reaches_the_model_as_a_picture() -> None:
    """Under `attachments` beside other data, or as the whole result."""
    for value, before in (({"title": "Chart", "attachments": [PICTURE]}, ['{"title":"Chart"}']), (PICTURE, []), ([PICTURE, PICTURE], [])):
        items = [GOAL, plan(1, look("a")), seen(1, 0, value)]
        content = rendered(a_view(items))[-1].parts[0].content
        assert content[: len(before)] == before
        assert all(isinstance(c, BinaryContent) and c.data == PNG for c in content[len(before) :])


def test_a_picture_over_the_cap_is_read_from_where_it_is_kept() -> None:
    """The log holds a preview; the model gets the picture."""

    async def full(item: Item) -> Any:
        return PICTURE

    preview = {"truncated": True, "preview": json.dumps(PICTURE)[:60]}
    item = seen(1, 0, preview, artifact=ArtifactRef(key="k", size_bytes=10**6))
    content = rendered(a_view([GOAL, plan(1, look("a")), item], full=full))[-1].parts[0].content
    assert content[0].data == PNG


def test_a_tool_cannot_make_the_program_open_files_or_addresses(tmp_path: Path) -> None:
    """What an untrusted tool gave names no file, and no URL; it is told as text. A trusted tool may give URLs, never paths."""
    secret = tmp_path / "key.png"
    secret.write_bytes(b"secret")
    file = {"type": "image", "path": str(secret)}
    link = {"type": "image", "media_type": "image/png", "url": "http://10.0.0.1/x.png"}
    for trust in ("untrusted", "trusted"):
        spec = ToolSpec(name="look", trust=trust)  # type: ignore[arg-type]
        items = [GOAL, plan(1, look("a")), seen(1, 0, {"attachments": [file, link]})]
        told, linked = rendered(a_view(items, tools=(spec,)))[-1].parts[0].content
        assert "not opened" in told
        assert isinstance(linked, str) == (trust == "untrusted")


def test_a_file_that_the_caller_names_is_read(tmp_path: Path) -> None:
    """By the path in the goal's attachments; one that is not there is told to the model, not left out."""
    path = tmp_path / "p.png"
    path.write_bytes(PNG)
    view = a_view(attachments=({"type": "image", "path": str(path), "name": "p"}, {"type": "file", "path": str(tmp_path / "gone.pdf")}))
    content = rendered(view)[0].parts[0].content
    assert content[1] == "[image p]"
    assert content[2].data == PNG
    assert "cannot be read" in content[3]


def test_a_reply_with_a_file_is_text_and_file() -> None:
    """The shape is the same everywhere; a reply that only looks like JSON is left as it is."""
    reply = Item(kind="user", text=json.dumps({"text": "this one", "attachments": [PICTURE]}))
    plain = Item(kind="user", text='{"type": "red"}')
    content = [p.content for p in rendered(a_view([GOAL, reply, plain]))[0].parts]
    assert content[1][0] == "this one"
    assert content[1][1].data == PNG
    assert content[2] == '{"type": "red"}'


def test_a_text_that_is_not_base64_is_told_and_not_sent() -> None:
    """A broken attachment fails no run."""
    broken = {"type": "image", "media_type": "image/png", "data": "%%%"}
    content = rendered(a_view(attachments=(broken, {"type": "text", "text": "hello"})))[0].parts[0].content
    assert "not base64" in content[1]
    assert content[2] == "hello"


def test_planning_again_after_a_rejected_plan_shows_why() -> None:
    """The note stands after what was sent before."""
    items = [GOAL, Item(kind="note", text="That was not a plan: no.")]
    (request,) = rendered(a_view(items))
    assert isinstance(request, ModelRequest)
    assert [p.content for p in request.parts] == ["g", "[note] That was not a plan: no."]


def test_a_run_of_another_agent_spec_is_headed_anew() -> None:
    """What is kept of a head is used only while agent, tools and schema are the same."""
    asked = Asked(["x"])
    planner = ModelPlanner(asked.model)

    async def go() -> None:
        for instructions in ("One.", "Two."):
            await planner.plan(a_view(agent=AgentSpec(name="a", instructions=instructions), run_id="r"))
            assert asked.head == instructions
        await planner.plan(a_view(agent=AgentSpec(name="a", instructions="Two."), run_id="r", tools=(LOOK,)))
        assert asked.head.startswith("Two.\n\nWork on")

    asyncio.run(go())
