"""Sessions in the inspector: conversations, the next message, and what is shown while a run is in progress or waits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detent import Agent, AskUser, Engine, FinalAnswer, Host, Plan, ToolCall, View, tool
from server.pages.visiting import EVIL, Gated, Visitor, visited, words


@tool(side_effect="read")
def look(what: str) -> dict[str, str]:
    """Look something up."""
    return {"found": what, "note": EVIL}


TALKER = Agent(name="talker", tools=[look], actions=("ask_user",))
PAYER = Agent(name="payer", tools=[])


class Talker(Gated):
    """Asks back, looks something up or answers; behind a gate if there is one."""

    async def plan(self, view: View) -> Plan:
        await self.passed()
        told = [item.text for item in view.transcript if item.kind == "user"]
        if view.goal.startswith("ask") and len(told) < 2:
            return Plan(actions=(AskUser(question=f"Which one? {EVIL}"),))
        if view.goal.startswith("look") and not view.results:
            return Plan(actions=(ToolCall(tool="look", args={"what": EVIL}),))
        return Plan(actions=(FinalAnswer(content=f"you said {told[-1]}"),))


def office(tmp_path: Path) -> Engine:
    return Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=[TALKER, PAYER], planner=Talker())


async def until(visitor: Visitor, path: str, said: str) -> str:
    """Return what the page says once it says this."""
    while said not in (page := words((await visitor.part(path)).text)):
        await asyncio.sleep(0.01)  # as the page's script does
    return page


def test_a_session_is_begun_and_continued_and_a_form_that_is_sent_twice_is_one_message(tmp_path: Path) -> None:
    """The conversation has what was said and done; each message leads to its run."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        ann = visitor("ann")
        page = await ann.see("/ui/sessions")
        given = dict(re.findall(r'name="(session|message)" value="([^"]+)"', page))
        await ann.submit("/ui/sessions", agent="talker", text=f"look {EVIL}\r\nplease", **given)
        await ann.submit("/ui/sessions", agent="talker", text=f"look {EVIL}\r\nplease", **given)
        at = f"/ui/sessions/{given['session']}"
        said = await until(ann, at, "you said")
        assert f"User look {EVIL}".replace("\u202e", "\\u202e") in said and "look <script>" in said and "done" in said, said
        assert "1 run" in said
        page = await ann.see(at)
        again = dict(re.findall(r'name="(message)" value="([^"]+)"', page))
        for _ in range(2):
            await ann.submit(at, text="and then?", **again)
        said = await until(ann, at, "you said and then?")
        assert "2 runs" in said and said.count("User and then?") == 1
        runs = await engine.session(None, given["session"], Host(principal="ann")).runs()
        assert [one.status for one in runs] == ["completed", "completed"]
        assert f'href="/ui/runs/{runs[1].run_id}"' in await ann.see(at)
        assert given["session"] in await ann.see(f"/ui/sessions?find={given['session'][:4]}")
        assert "message is empty" in words(await ann.submit(at, expect=422, text=" "))
        await ann.submit("/ui/sessions", expect=422, agent=EVIL, text="x", session="s-1")

    visited(office(tmp_path), body)


def test_a_question_is_shown_and_the_next_message_is_its_reply(tmp_path: Path) -> None:
    """There is one run, and it ends with the answer."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        ann = visitor("ann")
        await ann.submit("/ui/sessions", agent="talker", text="ask me", session="s-1")
        said = await until(ann, "/ui/sessions/s-1", "the next message is the reply")
        assert "Agent Which one? <script>" in said and "waits for an answer" in said
        assert "waits for an answer" in words(await ann.see("/ui/sessions"))
        await ann.submit("/ui/sessions/s-1", text="this one")
        said = await until(ann, "/ui/sessions/s-1", "you said this one")
        assert "1 run" in said and "User this one" in said

    visited(office(tmp_path), body)


def test_while_a_run_is_in_progress_a_message_is_refused_or_waits_as_the_sender_chose(tmp_path: Path) -> None:
    """What is refused is nowhere; what waits is shown as waiting, and then has its run. A page without news gets none."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        talker: Any = engine.planner
        talker.gate, ann, at = asyncio.Event(), visitor("ann"), "/ui/sessions/s-1"
        await ann.submit("/ui/sessions", agent="talker", text="first", session="s-1")
        said = await until(ann, at, "running")
        assert "no answer was given" not in said
        seen = re.search(r"seen=([^\"&]+)", await ann.see(at))
        assert seen and (await ann.part(f"{at}?seen={seen[1]}")).status_code == 204
        await ann.submit(at, expect=409, text="refused words")
        assert "refused words" not in words(await ann.see(at))
        await ann.submit(at, expect=422, text="x", rule=EVIL)
        said = words(await ann.submit(at, text="second", rule="enqueue"))
        assert "in the inbox of the run in progress second" in said, said
        assert (await ann.part(f"{at}?seen={seen[1]}")).status_code == 200, "there is news"
        talker.gate.set()
        said = await until(ann, at, "you said second")
        assert "2 runs" in said and "waits for its run" not in said and "in the inbox" not in said

    visited(office(tmp_path), body)


def test_who_may_not_run_sends_nothing_and_another_tenant_finds_nothing(tmp_path: Path) -> None:
    """Bob reads; Eve's session of the same name is another one."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        ann, bob, eve = visitor("ann"), visitor("bob"), visitor("eve")
        await ann.submit("/ui/sessions", agent="talker", text="a secret", session="s-1")
        await until(ann, "/ui/sessions/s-1", "you said a secret")
        said = words(await bob.see("/ui/sessions/s-1"))
        assert "a secret" in said and "Send" not in said and "New session" not in words(await bob.see("/ui/sessions"))
        await bob.submit("/ui/sessions/s-1", expect=403, text="x")
        await bob.submit("/ui/sessions", expect=403, agent="talker", text="x", session="s-2")
        assert (await ann.post("/ui/sessions/s-1", data={"text": "x"})).status_code == 403, "without the code of its form"
        assert "secret" not in await eve.see("/ui/sessions")
        await eve.see("/ui/sessions/s-1", status=404)
        await eve.submit("/ui/sessions/s-1", expect=404, text="x")
        await eve.submit("/ui/sessions", agent="talker", text="hers", session="s-1")
        said = await until(eve, "/ui/sessions/s-1@other", "you said hers")
        assert "secret" not in said and "hers" not in words(await ann.see("/ui/sessions/s-1"))
        await ann.see("/ui/sessions/s-1@other", status=404)
        assert len(await engine.session(None, "s-1", Host(principal="ann")).runs()) == 1

    visited(office(tmp_path), body)
