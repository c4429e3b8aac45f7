"""Idempotency-Key on every POST of the API: done once, answered again, and refused with another body."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from amounts import thinned
from detent.core import events as e
from detent.engine import Engine
from detent.ports.remembering import MemoryItem
from detent.server.application import OPERATIONS
from server.serving import Client, engine_of
from server.test_runs import served

KEY = {"Idempotency-Key": "the key"}
Prepare = Callable[[Engine, Client], Awaitable[str]]


async def waiting(engine: Engine, client: Client) -> str:
    """Return a run that waits for an approval."""
    return (await client.post("/runs", json={"agent": "payer", "goal": "Pay 7", "wait_s": 20})).json()["run_id"]


async def stopped(engine: Engine, client: Client) -> str:
    """Return a run that was cancelled."""
    run_id = await waiting(engine, client)
    await client.post(f"/runs/{run_id}/cancel", json={})
    await engine.resume(run_id)
    return run_id


async def ended(engine: Engine, client: Client) -> str:
    """Return a run that has completed."""
    return (await client.post("/runs", json={"agent": "talker", "goal": "hi", "wait_s": 20})).json()["run_id"]


async def item(engine: Engine, client: Client) -> str:
    """Return an item of memory."""
    return (await client.post("/memory", json={"content": "the boat is red", "scope": "boats"})).json()["id"]


async def talked(engine: Engine, client: Client) -> str:
    """Return a session that has one message."""
    await client.post("/sessions", json={"agent": "talker", "session_id": "s", "text": "hello"})
    await client.post("/sessions/s/messages", json={"text": "again", "wait_s": 20})
    return "s"


async def planned(engine: Engine, client: Client) -> str:
    """Return a schedule."""
    await client.post("/schedules", json={"name": "daily", "agent": "talker", "goal": "x", "every": "1d"})
    return "daily"


async def nothing(engine: Engine, client: Client) -> str:
    """Need nothing."""
    return ""


def counts(kind: Any) -> Callable[[Engine, str], Awaitable[int]]:
    """Count the events of a kind in a run."""

    async def count(engine: Engine, run_id: str) -> int:
        return sum(isinstance(record.event, kind) for record in await engine.records(run_id))

    return count


CASES: dict[str, tuple[str, Prepare, dict[str, Any], dict[str, Any] | None, Any]] = {
    "startRun": ("/runs", nothing, {"agent": "talker", "goal": "a"}, {"agent": "talker", "goal": "b"}, None),
    "resumeRun": (
        "/runs/{}/resume", waiting, {"budget": {"max_tool_calls": 5}}, {"budget": {"max_tool_calls": 6}}, counts(e.BudgetChanged),
    ),
    "reopenRun": ("/runs/{}/reopen", stopped, {"why": "a"}, {"why": "b"}, counts(e.RunReopened)),
    "eraseRun": ("/runs/{}/erase", ended, {"why": "a"}, {"why": "b"}, None),
    "forkRun": ("/runs/{}/fork", ended, {"resume": False}, {"resume": False, "effects": "redo"}, None),
    "cancelRun": ("/runs/{}/cancel", waiting, {"why": "a"}, {"why": "b"}, counts(e.CancelRequested)),
    "createSession": ("/sessions", nothing, {"agent": "talker", "context": ["a"]}, {"agent": "talker", "context": ["b"]}, None),
    "sendMessage": ("/sessions/{}/messages", talked, {"text": "a"}, {"text": "b"}, None),
    "injectContext": ("/sessions/{}/context", talked, {"entries": ["a"]}, {"entries": ["b"]}, None),
    "endSession": ("/sessions/{}/end", talked, {}, None, None),
    "addMemory": ("/memory", nothing, {"content": "a", "scope": "x"}, {"content": "b", "scope": "x"}, None),
    "correctMemory": ("/memory/{}/correct", item, {"content": "a"}, {"content": "b"}, None),
    "forgetMemory": ("/memory/{}/forget", item, {"why": "a"}, {"why": "b"}, None),
    "addSchedule": (
        "/schedules", nothing, {"name": "a", "agent": "talker", "goal": "x", "every": 60},
        {"name": "b", "agent": "talker", "goal": "x", "every": 60}, None,
    ),
    "pauseSchedule": ("/schedules/{}/pause", planned, {}, None, None),
    "resumeSchedule": ("/schedules/{}/resume", planned, {}, None, None),
}  # fmt: skip
"""Each POST: its path, what it needs, a body, another body (None where every body is empty), and what is counted in the run's log."""

ELSEWHERE = {
    "approveCall": "test_runs", "denyCall": "test_runs", "replyToRun": "test_runs", "reconcileCall": "test_runs",
    "reviewMemory": "below",
}  # fmt: skip
"""POSTs whose key has its own test."""


def test_every_post_of_the_api_has_a_test_of_its_key() -> None:
    """A new one belongs into `CASES`. Those of OpenAI's API and of AG-UI have tests of their own."""
    posts = {one.name for one in OPERATIONS if one.method == "POST" and one.errors == "problem" and "agui" not in one.path}
    assert posts == CASES.keys() | ELSEWHERE.keys()


@thinned
@pytest.mark.parametrize("name", CASES)
def test_a_repeated_post_is_done_once_and_another_body_under_its_key_is_refused(tmp_path: Path, name: str) -> None:
    """The second answer is that of the first, and the log, or the store, has what was done once."""
    path, prepare, first, second, count = CASES[name]

    async def body(engine: Engine, url: str, client: Client) -> None:
        known = await prepare(engine, client)
        answers = [await client.post(path.format(known), json=first, headers=KEY) for _ in range(2)]
        assert [one.status_code // 100 for one in answers] == [2, 2], [one.text for one in answers]
        for field in ("run_id", "session_id", "message_id", "id"):
            assert answers[0].json().get(field) == answers[1].json().get(field)
        if second is not None:
            refused = await client.post(path.format(known), json=second, headers=KEY)
            assert (refused.status_code, refused.json()["code"]) == (409, "key_reused"), refused.text
        if count is not None:
            assert await count(engine, known) == 1

    served(tmp_path, body, engine=lambda: engine_of(f"sqlite:///{tmp_path}/runs.db", memory=f"sqlite:///{tmp_path}/memory.db"))


def test_a_key_of_a_resume_without_a_budget_takes_no_budget_later(tmp_path: Path) -> None:
    """Such a resume leaves nothing in the log. Sent again it is answered; another tenant, and another key, are not concerned."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        run_id = await waiting(engine, client)
        resume, budget = f"/runs/{run_id}/resume", {"budget": {"max_tool_calls": 5}}
        assert [(await client.post(resume, json={}, headers=KEY)).status_code for _ in range(2)] == [202, 202]
        refused = await client.post(resume, json=budget, headers=KEY)
        assert (refused.status_code, refused.json()["code"]) == (409, "key_reused"), refused.text
        assert await counts(e.BudgetChanged)(engine, run_id) == 0
        async with Client(url, "eve") as eve:
            assert (await eve.post(resume, json=budget, headers=KEY)).status_code == 404
        assert (await client.post(resume, json=budget, headers={"Idempotency-Key": "another"})).status_code == 202
        assert await counts(e.BudgetChanged)(engine, run_id) == 1

    served(tmp_path, body)


def test_of_requests_at_once_under_one_key_one_is_done(tmp_path: Path) -> None:
    """The others have other bodies, and are refused; the log and the mark have what was done."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        run_id = await waiting(engine, client)
        resumes = [client.post(f"/runs/{run_id}/resume", json={"budget": {"max_tool_calls": most}}, headers=KEY) for most in (5, 6)]
        answers = await asyncio.gather(client.post(f"/runs/{run_id}/resume", json={}, headers=KEY), *resumes)
        assert [one.json().get("code") for one in answers if one.status_code != 202] == ["key_reused"] * 2, [one.text for one in answers]
        erased = await ended(engine, client)
        erasing = [client.post(f"/runs/{erased}/erase", json={"why": why}, headers=KEY) for why in "abc"]
        answers = await asyncio.gather(*erasing)
        assert [one.json().get("code") for one in answers if one.status_code != 200] == ["key_reused"] * 2, [one.text for one in answers]

    served(tmp_path, body)


def test_a_repeated_correction_writes_one_item(tmp_path: Path) -> None:
    """And so does a repeated item; the key is bound to what was written."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        added, again = [
            (await client.post("/memory", json={"content": "the boat is red", "scope": "boats"}, headers=KEY)).json() for _ in range(2)
        ]
        assert added == again
        for _ in range(2):
            corrected = await client.post(
                f"/memory/{added['id']}/correct", json={"content": "the boat is blue", "why": "painted"}, headers=KEY
            )
            assert corrected.status_code == 200, corrected.text
        items = (await client.get("/memory")).json()["items"]
        assert sorted(one["item"]["content"] for one in items) == ["the boat is blue", "the boat is red"]
        elsewhere = await client.post("/memory", json={"content": "the boat is red", "scope": "cars"}, headers=KEY)
        assert elsewhere.status_code == 409

    served(tmp_path, body, engine=lambda: engine_of(f"sqlite:///{tmp_path}/runs.db", memory=f"sqlite:///{tmp_path}/memory.db"))


def test_a_repeated_review_decides_once_and_the_other_decision_under_its_key_is_refused(tmp_path: Path) -> None:
    """What was accepted stays accepted."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        proposal = MemoryItem(id="p", scope="-/boats", content="the boat is red", proposed=True)
        await engine.memory.import_([proposal], vouched=True)
        review = "/memory/p/review"
        answers = [await client.post(review, json={"accept": True}, headers=KEY) for _ in range(2)]
        assert [one.status_code for one in answers] == [200, 200], [one.text for one in answers]
        assert answers[0].json() == answers[1].json()
        for other in ({"accept": False}, {"accept": True, "why": "I was there"}):
            assert (await client.post(review, json=other, headers=KEY)).status_code == 409

    served(tmp_path, body, engine=lambda: engine_of(f"sqlite:///{tmp_path}/runs.db", memory=f"sqlite:///{tmp_path}/memory.db"))


def test_a_session_is_created_with_context_and_its_first_message_sees_it(tmp_path: Path) -> None:
    """The four operations of row T68, at any server: create with context, inject more, look, run; and an end before any message."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        entry = {"key": "ship", "content": "red", "content_type": "text/plain"}
        made = await client.post("/sessions", json={"agent": "talker", "session_id": "s", "context": [entry]})
        assert (made.status_code, made.json()["status"]) == (201, "active")
        other = await client.post("/sessions", json={"agent": "talker", "session_id": "s", "context": ["else"]})
        assert (other.status_code, other.json()["code"]) == (409, "session_exists")
        assert (await client.post("/sessions", json={"agent": "nobody"})).status_code == 404
        async with Client(url, "eve") as eve:
            assert (await eve.get("/sessions/s")).status_code == 404
        assert (await client.post("/sessions/s/context", json={"entries": ["and fast"]})).status_code == 200
        assert (await client.get("/sessions/s")).json()["runs"] == []
        sent = (await client.post("/sessions/s/messages", json={"text": "what is it?", "wait_s": 20})).json()
        assert sent["run"]["status"] == "completed"
        texts = [one["text"] for one in (await client.get("/sessions/s/messages")).json()["messages"]]
        assert "red" in texts[0] and texts[1:] == ["and fast", "what is it?", "you said: what is it?"]
        assert not [key for key in await engine.store.list_blobs(_place(engine)) if key]
        await client.post("/sessions", json={"agent": "talker", "session_id": "t", "context": ["x"]})
        assert (await client.post("/sessions/t/end", json={})).status_code == 200
        assert (await client.get("/sessions/t")).status_code == 404

    served(tmp_path, body)


def _place(engine: Engine) -> str:
    from detent.core.agent import Host
    from detent.server.openings import Openings

    return Openings(engine, Host(), "s")._place


def test_a_run_is_erased_and_a_call_explained_by_who_may(tmp_path: Path) -> None:
    """Erasing needs the role operate; another tenant's run does not exist."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        run_id = await waiting(engine, client)
        call = (await client.get(f"/runs/{run_id}")).json()["approvals"][0]["call_id"]
        why = (await client.get(f"/runs/{run_id}/explain?call_id={call}")).json()
        assert why["tool"] == "pay" and any(step["kind"] == "policy_decided" for step in why["steps"])
        assert (await client.get(f"/runs/{run_id}/explain?call_id=nothing")).status_code == 422
        async with Client(url, "eve") as eve, Client(url, "cal") as cal:
            assert (await eve.get(f"/runs/{run_id}/explain?call_id={call}")).status_code == 404
            assert (await eve.post(f"/runs/{run_id}/erase", json={})).status_code == 404
            assert (await cal.post(f"/runs/{run_id}/erase", json={})).status_code == 403
        erased = await client.post(f"/runs/{run_id}/erase", json={"why": "asked to"})
        assert erased.status_code == 200, erased.text
        assert (await client.get(f"/runs/{run_id}")).status_code == 410

    served(tmp_path, body)
