"""A store with something to look at, behind a real server: invoices that are looked up and paid, and runs that count."""

from __future__ import annotations

import re
from typing import Any

from detent import Agent, Budget, Engine, FinalAnswer, ToolCall, tool
from detent.testing import ScriptedPlanner
from server.serving import Client

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


class Visitor(Client):
    """A browser without scripts: it has the cookie of a token, and sends the forms of the pages that it has read."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(url, "", cookies={"detent_token": token} if token else None)

    async def read(self, path: str) -> str:
        """Return a page."""
        answer = await self.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.text

    async def fill(self, page: str, action: str, **fields: str) -> Any:
        """Send the form of a page, with its hidden fields, and these."""
        found = await self.read(page)
        form = re.search(rf'<form[^>]*action="{re.escape(action)}".*?</form>', found, re.DOTALL) or re.search(
            r'<form[^>]*method="post"(?![^>]*sign-out).*?</form>', found, re.DOTALL
        )
        assert form, f"{page} has no form for {action}"
        hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form[0]))
        return await self.post(action, data={**hidden, **fields})
