"""The `openai` package's responses and conversations, unchanged: a conversation is a session, a response a stretch of one of its runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from detent import Agent, AskUser, Engine, FinalAnswer, ToolCall, tool
from detent.core.budget import Usage
from detent.extend import Plan
from server.serving import Client, engine_of, serving
from server.test_openai import asked


def test_a_response_continues_the_one_before(tmp_path: Path) -> None:
    """`previous_response_id` and `conversation` are a session; a response in the middle is a fork."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        first = await client.responses.create(model="talker", input="one")
        assert (first.status, first.output_text) == ("completed", "you said: one")
        second = await client.responses.create(model="talker", input="two", previous_response_id=first.id)
        assert second.output_text == "you said: two"
        assert first.conversation is not None
        third = await client.responses.create(model="talker", input="three", conversation=first.conversation.id)
        assert third.conversation == second.conversation == first.conversation
        other = await client.responses.create(model="talker", input="instead", previous_response_id=first.id)
        assert other.conversation != first.conversation
        items = [one async for one in client.conversations.items.list(first.conversation.id)]
        texts = [one.content[0].text for one in items]  # type: ignore[union-attr]
        assert texts == ["one", "you said: one", "two", "you said: two", "three", "you said: three"]
        assert (await client.responses.retrieve(second.id)).output_text == "you said: two"
        assert [one.content[0].text async for one in client.responses.input_items.list(second.id)] == ["two"]  # type: ignore[union-attr]

    asked(tmp_path, body)


def test_a_conversation_exists_once_it_was_made_or_has_a_message(tmp_path: Path) -> None:
    """Nobody gets one that does not exist, or that another tenant made. A session that was created with context takes its first message here, too."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        made = await client.conversations.create(extra_headers={"Idempotency-Key": "k"})
        assert await _texts(client, made.id) == []
        assert (await client.conversations.create(extra_headers={"Idempotency-Key": "k"})).id == made.id
        assert (await client.conversations.retrieve(made.id)).id == made.id
        eve = openai.AsyncOpenAI(base_url=client.base_url, api_key="eve", max_retries=0)
        for who, name in ((eve, made.id), (client, "conv_nobody-made-it"), (client, "conv_-not-an-id"), (client, "conv_s@other")):
            for ask in (who.conversations.retrieve(name), who.conversations.delete(name), _texts(who, name)):
                with pytest.raises(openai.NotFoundError):
                    await ask
        assert (await client.responses.create(model="talker", input="one", conversation=made.id)).output_text == "you said: one"
        assert (await client.conversations.create(extra_headers={"Idempotency-Key": "k"})).id == made.id
        assert await _texts(client, made.id) == ["one", "you said: one"]
        async with Client(str(client.base_url).removesuffix("/v1/"), "ann") as rest:
            await rest.post("/sessions", json={"agent": "talker", "session_id": "s", "context": ["the boat is red"]})
            assert (await client.conversations.retrieve("conv_s")).id == "conv_s"
            await client.responses.create(model="talker", input="what is it?", conversation="conv_s")
            said = (await rest.get("/sessions/s/messages")).json()["messages"]
            assert [one["text"] for one in said] == ["the boat is red", "what is it?", "you said: what is it?"]
            new = (await client.conversations.create()).id
            at = f"/sessions/{new.removeprefix('conv_')}"
            context = await rest.post(f"{at}/context", json={"entries": ["x"]})
            assert (context.status_code, context.json()["code"]) == (409, "no_agent")
            assert (await rest.post(f"{at}/messages", json={"text": "x"})).status_code == 422
            assert (await rest.post(f"{at}/messages", json={"text": "x", "agent": "talker", "wait_s": 20})).status_code == 202
            assert await _texts(client, new) == ["x", "you said: x"]
        gone = await client.conversations.create()
        assert (await client.conversations.delete(gone.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(gone.id)
        await eve.close()

    asked(tmp_path, body)


async def _texts(client: openai.AsyncOpenAI, conversation_id: str) -> list[str]:
    return [one.content[0].text async for one in client.conversations.items.list(conversation_id)]  # type: ignore[union-attr]


def test_an_approval_is_asked_and_answered(tmp_path: Path) -> None:
    """`in_progress` with the request, bound to the call's digest; the answer's response has what follows, and the log names who approved."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        first = await client.responses.create(model="payer", input="pay")
        assert first.status == "in_progress"
        request: Any = first.output[-1]
        assert (request.type, request.name, request.arguments) == ("mcp_approval_request", "pay", '{"amount":7}')
        answer: Any = [{"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}]
        forged: Any = [answer[0] | {"approval_request_id": request.id[:-4] + "0000"}]
        with pytest.raises(openai.ConflictError):
            await client.responses.create(model="payer", input=forged, previous_response_id=first.id)
        with pytest.raises(openai.PermissionDeniedError):
            await client.with_options(api_key="cal").responses.create(model="payer", input=answer, previous_response_id=first.id)
        second = await client.responses.create(model="payer", input=answer, previous_response_id=first.id)
        assert (second.status, second.output_text) == ("completed", "paid 7")
        assert [one.type for one in second.output] == ["mcp_call", "message"]
        before = await client.responses.retrieve(first.id)
        assert (before.status, [one.type for one in before.output]) == ("completed", ["mcp_approval_request"])
        records = await engine.records(first.id.removeprefix("resp_"))
        assert [one.event.by for one in records if type(one.event).__name__ == "ApprovalResolved"] == ["ann"]  # type: ignore[union-attr]

    asked(tmp_path, body)


def test_a_stream_has_numbers_that_every_server_gives(tmp_path: Path) -> None:
    """`retrieve` with `starting_after`, at another server of the store, has the events behind that number."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        events = [event async for event in await client.responses.create(model="talker", input="one", stream=True)]
        assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == "you said: one"
        numbers = [event.sequence_number for event in events]
        assert numbers == sorted(set(numbers))
        made = events[-1].response
        async with (
            serving(engine_of(engine.store.url), works=False) as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="ann") as other,
        ):
            rest = [event async for event in await other.responses.retrieve(made.id, stream=True, starting_after=numbers[3])]
        assert [(event.type, event.sequence_number) for event in rest] == [(event.type, event.sequence_number) for event in events[4:]]

    asked(tmp_path, body)


def test_a_response_in_the_background_is_found_later_cancelled_and_erased(tmp_path: Path) -> None:
    """`background` answers at once; `cancel` ends the run; `delete` erases what it said."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        made = await client.responses.create(model="payer", input="pay", background=True)
        assert made.status == "in_progress"
        assert (await client.responses.cancel(made.id)).status == "cancelled"
        await client.responses.delete(made.id)
        with pytest.raises(openai.APIStatusError) as gone:
            await client.responses.retrieve(made.id)
        assert gone.value.status_code == 410

    asked(tmp_path, body)


def test_what_the_sdk_sends_again_is_one_message(tmp_path: Path) -> None:
    """By its key, or as the repetition that the SDK says it is."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        async def ids(**headers: str) -> str:
            return (await client.responses.create(model="talker", input="one", extra_headers=headers)).id

        first = await ids()
        assert await ids(**{"x-stainless-retry-count": "1"}) == first
        one, two = await asyncio.gather(ids(**{"Idempotency-Key": "k"}), ids(**{"Idempotency-Key": "k"}))
        assert one == two != first
        with pytest.raises(openai.ConflictError, match="another body"):
            await client.responses.create(model="talker", input="two", extra_headers={"Idempotency-Key": "k"})
        again: Any = {"model": "talker", "input": "more", "previous_response_id": first}
        for headers in ({"Idempotency-Key": "m"}, {}):
            made = await client.responses.create(**again, extra_headers=headers)
            key = headers or {"x-stainless-retry-count": "1"}
            assert (await client.responses.create(**again, extra_headers=key)).id == made.id
        assert len(await engine.list_runs()) == 4, "one, one by its key, and more twice: in the conversation, and beside it"
        for param, more in (("tools", {"tools": [{"type": "web_search"}]}), ("max_output_tokens", {"max_output_tokens": 7})):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(model="talker", input="x", **more)  # type: ignore[call-overload]
            assert refused.value.param == param

    asked(tmp_path, body)


class Asking:
    """Asks for a colour, looks at two things at once, and says both."""

    async def plan(self, view: Any) -> Any:
        """Return the next plan."""
        used = Usage(input_tokens=10, output_tokens=3, reasoning_tokens=2, cached_tokens=4)
        if view.agent.name == "asker" and len(view.transcript) == 1:
            return Plan(actions=(AskUser(question="Which colour?"),), usage=used)
        if view.agent.name == "looker" and not view.results:
            return Plan(actions=(ToolCall(tool="look", args={"n": 1}), ToolCall(tool="look", args={"n": 2})), usage=used)
        said = ", ".join(str(one.content) for one in view.results) or f"painted {view.transcript[-1].text}"
        return Plan(actions=(FinalAnswer(content=said),), usage=used)


def talked(tmp_path: Path, body: Callable[[Engine, openai.AsyncOpenAI], Awaitable[None]]) -> None:
    """Do something with the SDK and a server whose agents ask, and look at two things at once."""

    async def run() -> None:
        agents = [Agent(name="asker", tools=()), Agent(name="looker", tools=[look])]
        engine = Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=agents, planner=Asking())
        async with serving(engine) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="ann", max_retries=0) as client:
            await body(engine, client)

    asyncio.run(run())


@tool(side_effect="read")
def look(n: int) -> str:
    """Look at something."""
    return f"saw {n}"


@pytest.mark.parametrize("headers", [{"Idempotency-Key": "k"}, {"x-stainless-retry-count": "1"}])
def test_a_question_ends_a_response_and_the_next_request_is_its_reply(tmp_path: Path, headers: Any) -> None:
    """The reply continues the run, once however often it is sent; each response has the usage of its own stretch."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        first = await client.responses.create(model="asker", input="Paint")
        assert (first.status, first.output_text) == ("completed", "Which colour?")
        reply: Any = {"model": "asker", "input": "blue", "previous_response_id": first.id, "extra_headers": headers}
        second = await client.responses.create(**reply)
        assert (second.status, second.output_text) == ("completed", "painted blue")
        again = await client.responses.create(**reply)
        assert (again.id, again.output_text) == (second.id, second.output_text)
        assert len(await engine.list_runs()) == 1
        for one in (first, second):
            assert one.usage is not None
            counted = one.usage
            assert (counted.input_tokens, counted.output_tokens, counted.total_tokens) == (10, 3, 13)
            assert (counted.output_tokens_details.reasoning_tokens, counted.input_tokens_details.cached_tokens) == (2, 4)

    talked(tmp_path, body)


def test_calls_side_by_side_are_items_each(tmp_path: Path) -> None:
    """Two tools of one plan run on the server; the response has both, streamed and as a whole, and a chat the answer."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        made = await client.responses.create(model="looker", input="Look")
        assert [(one.type, getattr(one, "output", "")) for one in made.output[:2]] == [("mcp_call", "saw 1"), ("mcp_call", "saw 2")]
        assert made.output_text == "saw 1, saw 2"
        events = [event async for event in await client.responses.create(model="looker", input="Look", stream=True)]
        done = [event.item.output for event in events if event.type == "response.output_item.done" and event.item.type == "mcp_call"]
        assert done == ["saw 1", "saw 2"]
        chat = await client.chat.completions.create(model="looker", messages=[{"role": "user", "content": "Look"}])
        assert chat.choices[0].message.content == "saw 1, saw 2"
        assert chat.usage is not None
        assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (20, 6)

    talked(tmp_path, body)


@pytest.mark.parametrize("token", ["ann", "eve"])
def test_an_approval_is_of_the_run_that_asked_and_sent_again_it_is_one(tmp_path: Path, token: str) -> None:
    """An answer beside another run's response decides nothing; the same answer again has the response of the first."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        first, other = [await client.responses.create(model="payer", input="pay") for _ in range(2)]
        answer: Any = [{"type": "mcp_approval_response", "approval_request_id": first.output[-1].id, "approve": True}]
        with pytest.raises(openai.ConflictError):
            await client.responses.create(model="payer", input=answer, previous_response_id=other.id)
        assert (await client.responses.retrieve(other.id)).status == "in_progress"
        made, again = [await client.responses.create(model="payer", input=answer, previous_response_id=first.id) for _ in range(2)]
        assert (made.id, made.output_text) == (again.id, again.output_text)
        assert made.output_text == "paid 7"

    asked(tmp_path, body, token=token)


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def test_an_image_comes_with_the_request(tmp_path: Path) -> None:
    """A chat, a response and a message of a chat front end attach it to their run; what names a media type that is none is refused."""

    async def body(engine: Engine, client: openai.AsyncOpenAI) -> None:
        url = f"data:image/png;base64,{PIXEL}"
        chat: Any = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
        made = await client.chat.completions.with_raw_response.create(model="talker", messages=[{"role": "user", "content": chat}])
        part: Any = [
            {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": url}]}
        ]
        response = await client.responses.create(model="talker", input=part)
        source = {"type": "data", "value": PIXEL, "mimeType": "image/png"}
        said = {"id": "u", "role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]}
        async with Client(str(client.base_url).removesuffix("/v1/"), "ann") as front_end:
            answer = await front_end.post("/agents/talker/agui", json={"threadId": "t", "runId": "r", "messages": [said]})
            assert answer.status_code == 200, answer.text
        for run_id in (made.headers["x-detent-run"], response.id.removeprefix("resp_"), "t.1"):
            state = (await engine.load(run_id)).state
            assert (state.goal, len(state.attachments)) == ("What is it?", 1), run_id
        for wrong in (f"data:image/png\r\nX: y;base64,{PIXEL}", f"data:text/html;base64,{PIXEL}", "data:image/png;base64,%%%"):
            chat[1]["image_url"]["url"] = wrong
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="talker", messages=[{"role": "user", "content": chat}])

    asked(tmp_path, body)
