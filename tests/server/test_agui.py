"""AG-UI over a real server: its events as the protocol's own package reads them, interrupts, and clients that come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import Event
from pydantic import TypeAdapter

from detent import Agent, FinalAnswer
from detent.core.records import Record
from detent.engine import Engine
from detent.extend import Plan
from server.serving import Client, engine_of, serving

EVENTS: TypeAdapter[Any] = TypeAdapter(Event)


async def stretch(client: Client, agent: str, run_id: str, **more: Any) -> list[dict[str, Any]]:
    """Return the events of a stretch; each is one that the protocol has, and nothing is left open at the end."""
    body: dict[str, Any] = {
        "threadId": "t",
        "runId": run_id,
        "messages": [],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
    } | more
    answer = await client.post(f"/agents/{agent}/agui", json=body)
    assert answer.status_code == 200, answer.text
    assert "\r" not in answer.text, "the parser of @ag-ui/client takes no other end of a line than \\n"
    found = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: ")]
    opened: set[tuple[str, str]] = set()
    for one in found:
        EVENTS.validate_python(one)
        kind = one["type"]
        name = one.get("messageId") or one.get("toolCallId") or one.get("stepName") or ""
        for what in ("TEXT_MESSAGE", "TOOL_CALL", "REASONING_MESSAGE"):
            if kind == f"{what}_START":
                opened.add((what, name))
            elif kind.startswith(what) and not kind.endswith("RESULT"):
                assert (what, name) in opened, f"{kind} of {name!r} without its START"
                if kind.endswith("_END"):
                    opened.remove((what, name))
        if kind == "STEP_STARTED":
            opened.add(("STEP", name))
        elif kind == "STEP_FINISHED":
            opened.remove(("STEP", name))
    assert opened == set(), "something is open at the end"
    return found


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Return the types of the events."""
    return [one["type"] for one in events]


def talked(tmp_path: Path, body: Callable[[Engine, Client], Awaitable[None]], *, token: str = "ann") -> None:
    """Do something with a server of its own."""

    async def run() -> None:
        engine = engine_of(f"sqlite:///{tmp_path}/runs.db")
        async with serving(engine) as url, Client(url, token) as client:
            await body(engine, client)

    asyncio.run(run())


def user(text: str) -> dict[str, Any]:
    """Return a message of the user."""
    return {"id": "u", "role": "user", "content": text}


def test_a_thread_is_a_session_and_a_message_a_run(tmp_path: Path) -> None:
    """Steps, text and the end; the next message continues the thread; the same run id joins what it began."""

    async def body(engine: Engine, client: Client) -> None:
        first = await stretch(client, "talker", "r1", messages=[user("one")])
        assert kinds(first) == [
            "RUN_STARTED", "STEP_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "STEP_FINISHED", "STATE_SNAPSHOT", "RUN_FINISHED",
        ]  # fmt: skip
        assert "".join(one.get("delta", "") for one in first) == "you said: one"
        assert first[-1]["outcome"] == {"type": "success"}
        again = await stretch(client, "talker", "r1", messages=[user("one")])
        assert kinds(again)[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
        assert [one["content"] for one in again[1]["messages"]] == ["one", "you said: one"]
        await stretch(client, "talker", "r2", messages=[user("two")])
        assert [head.run_id for head in await engine.session(None, "t").runs()] == ["t.1", "t.2"]

    talked(tmp_path, body)


@pytest.mark.parametrize("approved", [True, False])
def test_an_approval_is_an_interrupt(tmp_path: Path, approved: bool) -> None:
    """It ends the stretch; `resume` answers it, with the role for it, and begins the next one, which has only what is new."""

    async def body(engine: Engine, client: Client) -> None:
        first = await stretch(client, "payer", "r1", messages=[user("pay")])
        assert "TOOL_CALL_START" in kinds(first)
        (interrupt,) = first[-1]["outcome"]["interrupts"]
        assert interrupt["metadata"] == {"tool": "pay", "args": {"amount": 7}}
        answer = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": approved, "reason": "no"}}
        async with Client(str(client.base_url), "cal") as cal:
            assert (await cal.post("/agents/payer/agui", json={"threadId": "t", "runId": "r2", "resume": [answer]})).status_code == 403
        forged = answer | {"interruptId": interrupt["id"][:-4] + "0000"}
        assert (await client.post("/agents/payer/agui", json={"threadId": "t", "runId": "r2", "resume": [forged]})).status_code == 409
        second = await stretch(client, "payer", "r2", resume=[answer])
        assert "TOOL_CALL_START" not in kinds(second), "a call of the first stretch is told again"
        results = [one["content"] for one in second if one["type"] == "TOOL_CALL_RESULT"]
        assert results == (["paid 7"] if approved else results)
        assert second[-1]["outcome"] == {"type": "success"}

    talked(tmp_path, body)


def test_what_cannot_be_honoured_is_refused(tmp_path: Path) -> None:
    """Tools of the client, an unknown agent, no message."""

    async def body(engine: Engine, client: Client) -> None:
        many = {"resume": [{"interruptId": f"ask:{n}", "status": "resolved"} for n in range(101)]}
        for agent, more, status in (
            ("talker", many, 422),
            ("talker", {"tools": [{"name": "f"}]}, 422),
            ("nobody", {}, 404),
            ("talker", {"messages": []}, 422),
        ):
            answer = await client.post(f"/agents/{agent}/agui", json={"threadId": "t", "runId": "r", "messages": [user("x")]} | more)
            assert answer.status_code == status, answer.text
        assert await engine.list_runs() == []

    talked(tmp_path, body)


@pytest.mark.parametrize("asked", [True, False])
def test_a_disconnect_cancels_only_where_that_was_asked_for(tmp_path: Path, asked: bool) -> None:
    """A client that goes in the middle of a stretch leaves a run that continues, or ends it, as it said."""
    going = asyncio.Event()

    class Slow:
        async def plan(self, view: Any) -> Any:
            await going.wait()
            return Plan(actions=(FinalAnswer(content="done"),))

    async def run() -> None:
        engine = Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=[Agent(name="slow")], planner=Slow())
        body = {"threadId": "t", "runId": "r1", "messages": [user("x")], "forwardedProps": {"cancelOnDisconnect": asked}}
        async with serving(engine) as url, Client(url, "ann") as client:
            async with client.stream("POST", "/agents/slow/agui", json=body) as stream:
                assert "RUN_STARTED" in await anext(stream.aiter_lines())
            if not asked:
                going.set()
            run_id = (await engine.session(None, "t").runs())[0].run_id
            async for item in engine.follow(run_id):
                if not isinstance(item, Record):
                    assert item.status == ("stopped" if asked else "completed")
            going.set()

    asyncio.run(run())
