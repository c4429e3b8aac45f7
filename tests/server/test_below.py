"""What a sub-agent asks people reaches the clients of the run at the top: AG-UI and the `openai` package, at any depth."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as t
import openai
import pytest
from mcp.client import Client as Host
from mcp.client.streamable_http import streamable_http_client

from amounts import in_check
from detent import Agent, AskUser, Engine, FinalAnswer, ToolCall, tool
from detent.server.agui_events import plain
from detent.testing import ScriptedPlanner
from server.serving import ALL, EVERYBODY, Caller, Client, callers, pay, serving
from server.test_agui import stretch, user
from server.test_mcp_tasks import Tasks, about, connected, until


class Team:
    """A boss whose clerk, through a middleman, pays twice; and one whose helper asks and says what it was told."""

    async def plan(self, view: Any) -> Any:
        """Return the next step."""
        last = view.results[-1].content if view.results else ""
        steps: dict[str, list[Any]] = {
            "boss": [ToolCall(tool="agent_middle", args={"goal": "pay"}), FinalAnswer(content=f"done: {last}")],
            "middle": [ToolCall(tool="agent_clerk", args={"goal": "pay"}), FinalAnswer(content=str(last or "nothing"))],
            "clerk": [
                ToolCall(tool="pay", args={"amount": 7}),
                ToolCall(tool="pay", args={"amount": 8}),
                FinalAnswer(content="paid twice"),
            ],
            "chief": [ToolCall(tool="agent_helper", args={"goal": "ask"}), FinalAnswer(content=f"done: {last}")],
            "leader": [ToolCall(tool="agent_worker", args={"goal": "work"}), FinalAnswer(content=f"done: {last}")],
            "worker": [ToolCall(tool="rest", args={}), FinalAnswer(content="worked")],
        }
        if view.agent.name == "helper":
            step: Any = FinalAnswer(content=view.transcript[-1].text) if len(view.transcript) > 1 else AskUser(question="Which colour?")
        else:
            step = steps[view.agent.name][len(view.results)]
        return await ScriptedPlanner([step]).plan(view)


def team(tmp_path: Path) -> Engine:
    """Return an engine with it."""

    @tool(side_effect="read")
    async def rest() -> None:
        """Work until the log of the leader says that it waits."""
        while not any(head.status == "waiting_for_subagent" for head in await engine.list_runs(agent="leader")):
            await asyncio.sleep(0)

    clerk, helper, worker = Agent(name="clerk", tools=[pay]), Agent(name="helper", tools=()), Agent(name="worker", tools=[rest])
    middle = Agent(name="middle", tools=(), subagents={"clerk": clerk})
    agents = [
        Agent(name="boss", tools=(), subagents={"middle": middle}),
        Agent(name="chief", tools=(), subagents={"helper": helper}),
        Agent(name="leader", tools=(), subagents={"worker": worker}),
        clerk,
    ]
    engine = Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=agents, planner=Team())
    return engine


def led(tmp_path: Path, body: Callable[[Engine, str, Client], Awaitable[None]], **options: Any) -> None:
    """Do something with a server of the team."""

    async def run() -> None:
        engine = team(tmp_path)
        async with asyncio.timeout(110), serving(engine, **options) as url, Client(url, "ann") as client:
            await body(engine, url, client)

    asyncio.run(run())


def answer(interrupt: dict[str, Any], **payload: Any) -> list[dict[str, Any]]:
    """Return the answer to an interrupt."""
    return [{"interruptId": interrupt["id"], "status": "resolved", "payload": payload}]


async def paid(engine: Engine) -> list[str]:
    """Return what was paid in all runs."""
    found: list[str] = []
    for head in await engine.list_runs():
        found += [plain(call.result) for call in (await engine.load(head.run_id)).tool_calls if call.tool == "pay" and call.error is None]
    return sorted(found)


def test_an_approval_of_a_grandchild_is_an_interrupt_of_the_thread(tmp_path: Path) -> None:
    """It names the run and who asks; each answer begins a stretch, which ends with the next approval, or with the answer of the boss."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        first = await stretch(client, "boss", "r1", messages=[user("pay")])
        (interrupt,) = first[-1]["outcome"]["interrupts"]
        asked = interrupt["metadata"]
        assert (asked["tool"], asked["args"], asked["path"]) == ("pay", {"amount": 7}, ["boss", "middle", "clerk"])
        assert interrupt["message"].startswith("boss / middle / clerk: pay: ") and asked["runId"] in interrupt["id"]
        assert (await stretch(client, "boss", "r1", messages=[user("pay")]))[-1]["outcome"]["interrupts"] == [interrupt]
        second = await stretch(client, "boss", "r2", resume=answer(interrupt, approved=True))
        (further,) = second[-1]["outcome"]["interrupts"]
        assert further["metadata"]["args"] == {"amount": 8}
        again = await stretch(client, "boss", "r2", resume=answer(interrupt, approved=True))
        assert again[-1]["outcome"]["interrupts"] == [further], "sent again, it joins what it began"
        third = await stretch(client, "boss", "r3", resume=answer(further, approved=False, reason="enough"))
        assert (third[-1]["outcome"], third[-1]["result"]["output"]) == ({"type": "success"}, "done: paid twice")
        assert await paid(engine) == ["paid 7"]
        events = [one.event for one in await engine.records(asked["runId"])]
        assert [one.by for one in events if type(one).__name__ == "ApprovalResolved"] == ["ann", "ann"]  # type: ignore[union-attr]

        assert (await engine.load("t.1")).status == "completed"

    led(tmp_path, body)


def test_a_server_that_does_not_advance_the_runs_shows_what_they_ask(tmp_path: Path) -> None:
    """It hears of it from the store."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        async with serving(team(tmp_path), works=False) as elsewhere, Client(elsewhere, "ann") as there:
            first = await stretch(client, "boss", "r1", messages=[user("pay")])
            (interrupt,) = (await stretch(there, "boss", "r1", messages=[user("pay")]))[-1]["outcome"]["interrupts"]
            assert [interrupt] == first[-1]["outcome"]["interrupts"]
            second = await stretch(there, "boss", "r2", resume=answer(interrupt, approved=True))
            (further,) = second[-1]["outcome"]["interrupts"]
            assert further["metadata"]["args"] == {"amount": 8}

    led(tmp_path, body)


def test_a_question_of_a_child_is_an_interrupt_of_the_thread(tmp_path: Path) -> None:
    """The reply goes to the child, and the chain continues."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        first = await stretch(client, "chief", "r1", messages=[user("paint")])
        (interrupt,) = first[-1]["outcome"]["interrupts"]
        assert (interrupt["reason"], interrupt["message"]) == ("question", "chief / helper: Which colour?")
        second = await stretch(client, "chief", "r2", resume=answer(interrupt, reply="blue"))
        assert second[-1]["result"]["output"] == "done: blue"
        late = {"threadId": "t", "runId": "r3", "messages": [], "resume": answer(interrupt, reply="red")}
        assert (await client.post("/agents/chief/agui", json=late)).status_code == 409

    led(tmp_path, body)


def test_a_question_of_a_child_that_nobody_wants_to_answer_ends_that_child(tmp_path: Path) -> None:
    """The run at the top continues without it."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        first = await stretch(client, "chief", "r1", messages=[user("paint")])
        (interrupt,) = first[-1]["outcome"]["interrupts"]
        second = await stretch(client, "chief", "r2", resume=[{"interruptId": interrupt["id"], "status": "cancelled"}])
        assert second[-1]["type"] == "RUN_FINISHED", second[-1]
        heads = {head.agent: head.status for head in await engine.list_runs()}
        assert heads == {"chief": "completed", "helper": "stopped"}

    led(tmp_path, body)


def test_an_answer_to_a_run_below_is_checked_as_to_any_run(tmp_path: Path) -> None:
    """Without the role, for other arguments, of another tenant, or for a run that is not below: refused at both doors, and nothing is paid."""
    known = callers(**{name: EVERYBODY(name) for name in ("ann", "cal", "eve")}, fay=Caller(principal="fay", tenant="other", roles=ALL))

    async def body(engine: Engine, url: str, client: Client) -> None:
        first = await stretch(client, "boss", "r1", messages=[user("pay")])
        (interrupt,) = first[-1]["outcome"]["interrupts"]
        (other,) = (await stretch(client, "clerk", "x", threadId="u", messages=[user("pay")]))[-1]["outcome"]["interrupts"]
        response = (await client.post("/v1/responses", json={"model": "boss", "input": "pay"})).json()
        request = response["output"][-1]["id"]
        run_id, about = interrupt["id"].removeprefix("approval~").split(":", 1)
        elsewhere = (await engine.session(None, "u").runs())[0].run_id
        theirs = request.removeprefix("mcpr_").partition("~")[0]
        assert other["id"].startswith("approval:") and theirs != run_id

        async def agui(name: str, thread: str = "t", *, who: Client = client) -> int:
            body = {"threadId": thread, "runId": f"n{len(name)}{thread}", "resume": answer({"id": name}, approved=True)}
            return (await who.post("/agents/boss/agui", json=body)).status_code

        async def responses(name: str, *, who: Client = client) -> int:
            item = {"type": "mcp_approval_response", "approval_request_id": name, "approve": True}
            body = {"model": "boss", "input": [item], "previous_response_id": response["id"]}
            return (await who.post("/v1/responses", json=body)).status_code

        async with Client(url, "cal") as cal, Client(url, "eve") as eve, Client(url, "fay") as fay:
            assert (await agui(interrupt["id"], who=cal), await responses(request, who=cal)) == (403, 403)
            assert (await agui(interrupt["id"], who=eve), await responses(request, who=eve)) == (404, 404)
            mine = await stretch(fay, "boss", "r1", messages=[user("pay")])
            (hers,) = mine[-1]["outcome"]["interrupts"]
            assert await agui(interrupt["id"], who=fay) == 409, "her thread, and a run of another tenant"
            assert await agui(hers["id"]) == await responses(hers["id"].replace("approval~", "mcpr_").replace(":", "~", 1)) == 409
        for forged in (
            f"approval~{elsewhere}:{about}",
            f"approval~{theirs}:{about}",
            "approval~nope:main.1.0:0",
            interrupt["id"][:-4] + "0000",
        ):
            assert await agui(forged) == 409, forged
        assert await agui(f"approval:{about}") == 409, "the run at the top asks nothing"
        assert await agui(f"approval~{run_id}") == await agui(f"ask~{run_id}:main.1.0") == 409
        for forged in (
            f"mcpr_{elsewhere}~{about}",
            f"mcpr_{run_id}~{about}",
            request[:-4] + "0000",
            f"mcpr_{theirs}~main.9.0:{about[-8:]}",
        ):
            assert await responses(forged) == 409, forged
        assert await paid(engine) == []
        assert await agui(interrupt["id"]) == 200

    led(tmp_path, body, tokens=known)


@pytest.mark.parametrize("streamed", [False, True])
def test_an_approval_of_a_grandchild_is_an_approval_request_of_the_response(tmp_path: Path, streamed: bool) -> None:
    """Its label has who asks. What was answered is another response, and the one before has ended there."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="ann", max_retries=0) as sdk:

            async def made(**asked: Any) -> Any:
                if not streamed:
                    return await sdk.responses.create(model="boss", **asked)
                events = [event async for event in await sdk.responses.create(model="boss", stream=True, **asked)]
                numbers = [event.sequence_number for event in events]
                assert numbers == sorted(set(numbers))
                if events[-1].type == "response.output_item.done":
                    found = [
                        event async for event in await sdk.responses.retrieve(events[0].response.id, stream=True, starting_after=numbers[2])
                    ]
                    assert found[-1].item == events[-1].item  # type: ignore[union-attr]
                return await sdk.responses.retrieve(events[0].response.id)

            async def answered(response: Any, approve: bool) -> Any:
                item: Any = {"type": "mcp_approval_response", "approval_request_id": response.output[-1].id, "approve": approve}
                once, again = [await made(input=[item], previous_response_id=response.id) for _ in range(2)]
                assert (once.id, once.output) == (again.id, again.output)
                return once

            first = await made(input="pay")
            request = first.output[-1]
            assert (first.status, request.type, request.name, request.arguments) == (
                "in_progress",
                "mcp_approval_request",
                "pay",
                '{"amount":7}',
            )
            assert request.server_label == "detent/boss/middle/clerk"
            second = await answered(first, approve=True)
            assert (second.status, second.output[-1].arguments) == ("in_progress", '{"amount":8}')
            third = await answered(second, approve=True)
            assert (third.status, third.output_text) == ("completed", "done: paid twice")
            before = await sdk.responses.retrieve(first.id)
            assert (before.status, [one for one in before.output if one.type == "message"]) == ("completed", [])
            assert await paid(engine) == ["paid 7", "paid 8"]

    led(tmp_path, body)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_chat_completion_waits_for_what_works_below_and_says_what_asks(tmp_path: Path, streamed: bool) -> None:
    """That a run waits for its children is no answer: the answer is that of the whole tree, or what somebody below waits for."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="ann", max_retries=0) as sdk:

            async def answered(model: str) -> str:
                messages: Any = [{"role": "user", "content": "go"}]
                if not streamed:
                    return (await sdk.chat.completions.create(model=model, messages=messages)).choices[0].message.content or ""
                pieces = [one async for one in await sdk.chat.completions.create(model=model, messages=messages, stream=True)]
                return "".join(one.choices[0].delta.content or "" for one in pieces if one.choices)

            assert await answered("leader") == "done: worked"
            assert (await answered("boss")).startswith("This waits for approval of pay (boss / middle / clerk). See ")
            assert (await answered("chief")).startswith("This waits for an answer: Which colour? (chief / helper). See ")
            made = (await client.post("/runs", json={"agent": "leader", "goal": "go", "wait_s": 50})).json()
            assert (made["status"], made["output"]) == ("completed", "done: worked")

    led(tmp_path, body)


@in_check
@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_an_mcp_host_is_asked_what_a_child_asks(tmp_path: Path, mode: Any) -> None:
    """By elicitation, as a result that asks for input, or as a task, as the host has it; the reply goes to the child. All turns are told."""
    asked: list[str] = []
    told: list[str | None] = []

    async def answered(context: Any, params: Any) -> t.ElicitResult:
        asked.append(params.message)
        return t.ElicitResult(action="accept", content={"reply": "blue"})

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async def body(engine: Engine, url: str, client: Client) -> None:
        async with (
            httpx2.AsyncClient(headers={"Authorization": "Bearer ann"}, timeout=30) as http,
            Host(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode, elicitation_callback=answered) as host,
        ):
            made = await host.call_tool("chief", {"goal": "paint"})
            assert (made.content[0].text, asked) == ("done: blue", ["Which colour?"])  # type: ignore[union-attr]
            made = await host.call_tool("leader", {"goal": "go"}, progress_callback=progressed)
            assert (made.content[0].text, told) == ("done: worked", ["turn 1", "turn 2"])  # type: ignore[union-attr]
            waits = await host.call_tool("boss", {"goal": "pay"})
            assert "waits for approval of pay (boss / middle / clerk)" in waits.content[0].text  # type: ignore[union-attr]

    led(tmp_path, body)


def test_a_task_asks_what_a_child_asks(tmp_path: Path) -> None:
    """Each question has a key of its own, which names the run."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        async with connected(url, "ann", Tasks()) as host:
            made = await host.call_tool("chief", {"goal": "paint"})
            task_id = made.content[0].text  # type: ignore[union-attr]
            asking = await until(host, task_id, "input_required")
            ((key, request),) = asking["inputRequests"].items()
            assert request["params"]["message"] == "Which colour?"
            assert asking["statusMessage"] == "waits for an answer: Which colour? (chief / helper)"
            await about(host, "update", task_id, input_responses={key: t.ElicitResult(action="accept", content={"reply": "red"})})
            assert (await until(host, task_id, "completed"))["result"]["content"][0]["text"] == "done: red"

    led(tmp_path, body)
