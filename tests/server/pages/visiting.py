"""What the inspector's tests look at and with what: a store with invoices that are looked up and paid, and a visitor who reads pages and sends forms."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any

import httpx2

from detent import Agent, Budget, Engine, FinalAnswer, ToolCall, tool
from detent.server.pages.visits import cookie_at
from detent.testing import ScriptedPlanner
from server.serving import serving

IBAN = "DE02120300000000202051"


@tool(side_effect="read")
def look_up(supplier: str) -> dict[str, str]:
    """Look up a supplier."""
    return {"supplier": supplier, "iban": IBAN}


@tool(side_effect="destructive")
def pay(iban: str, amount: float) -> str:
    """Pay an invoice."""
    return f"paid {amount:g} to {iban}"


@tool(side_effect="read", importance="low")
def tick(n: int) -> str:
    """Count."""
    if n == 2:
        raise ValueError("two is broken")
    return f"tick {n}"


@tool(side_effect="read")
def shout(text: str) -> str:
    """Fail with this text."""
    raise ValueError(text)


CLERK = Agent(name="clerk", tools=[look_up, pay])
COUNTER = Agent(name="counter", tools=[tick], budget=Budget(max_iterations=100_000, max_tool_calls=100_000))
ECHO = Agent(name="echo", tools=[look_up, shout])


class Planner:
    """Looks up the supplier, pays, and says what came of it; or counts to the last word of the goal."""

    async def plan(self, view: Any) -> Any:
        """Return the next step."""
        done = len(view.results)
        if view.agent.name == "counter":
            last = int(view.goal.split()[-1])
            step: Any = (
                FinalAnswer(content=f"counted to {done}") if done >= last else ToolCall(tool="tick", args={"n": done}, reason="one more")
            )
        elif view.agent.name == "echo":
            said = [
                ToolCall(tool="look_up", args={"supplier": view.goal}, reason=view.goal),
                ToolCall(tool="shout", args={"text": view.goal}),
            ]
            step = said[done] if done < 2 else FinalAnswer(content=view.goal)
        else:
            supplier = view.goal.rpartition(" of ")[2].partition(":")[0]
            steps: list[Any] = [
                ToolCall(tool="look_up", args={"supplier": supplier}, reason="the invoice names no account"),
                ToolCall(tool="pay", args={"iban": IBAN, "amount": 412.5}, reason="the account is on file"),
            ]
            step = steps[done] if done < 2 else FinalAnswer(content=f"{supplier}: {view.results[-1].content}")
        return await ScriptedPlanner([step]).plan(view)


def engine_at(store: Any) -> Engine:
    """Return an engine with both agents."""
    return Engine(store=store, agents=[CLERK, COUNTER, ECHO], planner=Planner(), ceiling=100_000)


STRICTER = """
[[rules]]
id = "looking-up"
tool = "look_up"
decision = "allow"

[[rules]]
id = "nobody-pays"
tool = "pay"
decision = "deny"
"""
"""A policy under which nothing is paid."""
INVOICE = "Pay the invoice of Hansen & Søn: 412.5"


async def invoiced(engine: Engine, run_id: str = "invoice", goal: str = INVOICE, **options: Any) -> str:
    """Start a run that waits for the approval of its payment."""
    result = await engine.run(CLERK, goal, run_id=run_id, **options)
    assert result.status == "waiting_for_approval", result
    return result.run_id


async def ended(engine: Engine, run_id: str) -> Any:
    """Return the result of a run once it has ended."""
    last: Any = None
    async for item in engine.follow(run_id, through_waits=True):
        last = item
    return last


EVIL = "<script>alert('\u202e1')</script>&\"'<img src=x onerror=alert(1)>"
HOSTILE = (
    "<script>hit()</script>", "<img src=x onerror=hit()>", '"><svg onload=hit()>', "' onmouseover='hit()", "javascript:hit()", "{{ 7 * 7 }}",
    "{% include 'x' %}", "</textarea><script>hit()</script>", "</title><script>hit()</script>", "<a href=javascript:hit()>x</a>",
    "<div hx-get='/ui/inbox' hx-trigger='load'>", "<style>*{display:none}</style>", "<iframe src=//evil>", "<meta http-equiv=refresh content=0>",
    "<!--", "]]>", "&lt;script&gt;", "<math><mtext></form><form>", "<base href=//evil>", "\u202egnp.exe",
)  # fmt: skip
"""What nobody may be able to put into a page."""


class Gated:
    """A planner that plans when its gate is open, if it has one. `waits` counts who came to it."""

    def __init__(self) -> None:
        self.gate: asyncio.Event | None = None
        self.waits = 0

    async def passed(self) -> None:
        """Wait until the gate is open."""
        if self.gate is not None:
            self.waits += 1
            await self.gate.wait()


class Visitor(httpx2.AsyncClient):
    """A browser without scripts: it has the cookie of a token."""

    def __init__(self, url: str, who: str) -> None:
        cookies = {cookie_at(httpx2.URL(url).port): who} if who else None
        super().__init__(base_url=url, cookies=cookies, timeout=30, follow_redirects=True)
        self.code = hmac.new(who.encode(), b"a form of the inspector", sha256).hexdigest()

    async def see(self, path: str, *, status: int = 200) -> str:
        """Return a page as it came. No page has markup that somebody else wrote."""
        answer = await self.get(path)
        assert answer.status_code == status, (path, answer.status_code, words(answer.text)[:600])
        return checked(answer.text)

    async def submit(self, path: str, *, expect: int = 200, **fields: str) -> str:
        """Send a form, and return the page that it leads to."""
        answer = await self.post(path, data={"code": self.code, **fields})
        assert answer.status_code == expect, (path, answer.status_code, words(answer.text)[:600])
        return checked(answer.text)

    async def fill(self, page: str, action: str, **fields: str) -> Any:
        """Send the form that a page has, with its hidden fields and these, and return the answer."""
        found = await self.see(page)
        form = re.search(rf'<form[^>]*action="{re.escape(action)}".*?</form>', found, re.DOTALL) or re.search(
            r'<form[^>]*method="post"(?![^>]*sign-out).*?</form>', found, re.DOTALL
        )
        assert form, f"{page} has no form for {action}"
        hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form[0]))
        return await self.post(action, data={**hidden, **fields})

    async def part(self, path: str) -> httpx2.Response:
        """Return a part of a page, as its script asks for it."""
        return await self.get(path, headers={"HX-Request": "true"})


def checked(page: str) -> str:
    """Return the page; fail if what `EVIL` says is markup in it, or a script or style is in the page itself."""
    assert "<script>" not in page and "<img" not in page and "<style" not in page and " style=" not in page and "\u202e" not in page
    return page


def words(page: str) -> str:
    """Return what a page says, as one line."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page.partition("<main")[2] or page)).split())


Body = Callable[[Engine, Callable[[str], Visitor]], Awaitable[None]]


def visited(engine: Engine, body: Body, **options: Any) -> None:
    """Serve an engine, and do something with it and with visitors by the names of their tokens."""

    async def run() -> None:
        async with serving(engine, **options) as url:
            visitors: list[Visitor] = []

            def visitor(who: str) -> Visitor:
                visitors.append(Visitor(url, who))
                return visitors[-1]

            try:
                await body(engine, visitor)
            finally:
                for one in visitors:
                    await one.aclose()

    asyncio.run(run())


def shown(tmp_path: Path, body: Callable[[Engine, str], Awaitable[None]], **options: Any) -> None:
    """Do something with a server of its own."""

    async def run() -> None:
        engine = engine_at(f"sqlite:///{tmp_path}/runs.db")
        async with serving(engine, **options) as url:
            await body(engine, url)

    asyncio.run(run())
