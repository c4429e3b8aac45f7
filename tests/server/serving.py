"""A real server on loopback in the test's event loop, and a client for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import httpx2

from detent import Agent, Engine, FinalAnswer, ToolCall, tool
from detent.server import Caller, ServerSettings, app
from detent.server.listening import Listener
from detent.testing import ScriptedPlanner

ALL: Any = ("see", "run", "approve", "operate")


@tool(side_effect="destructive")
def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


PAYER = Agent(name="payer", tools=[pay])
TALKER = Agent(name="talker", tools=())


def engine_of(store: str | Any, **options: Any) -> Engine:
    """Return an engine with an agent that pays once, after an approval, and one that answers at once."""

    class Planner:
        async def plan(self, view: Any) -> Any:
            if view.agent.name == "talker":
                return await ScriptedPlanner([FinalAnswer(content=f"you said: {view.goal}")]).plan(view)
            entry = FinalAnswer(content=str(view.results[-1].content)) if view.results else ToolCall(tool="pay", args={"amount": 7})
            return await ScriptedPlanner([entry]).plan(view)

    return Engine(store=store, agents=[PAYER, TALKER], planner=Planner(), **options)


def callers(**known: Caller) -> Callable[[str], Caller | None]:
    """Return who has which token."""
    return known.get


ANN = Caller(principal="ann", roles=ALL)
BOB = Caller(principal="bob", roles=("see",))
EVE = Caller(principal="eve", tenant="other", roles=ALL)
CAL = Caller(principal="cal", roles=("see", "run"))
EVERYBODY = callers(ann=ANN, bob=BOB, cal=CAL, eve=EVE)


class Client(httpx2.AsyncClient):
    """A client that sends one token."""

    def __init__(self, url: str, token: str, **options: Any) -> None:
        headers: Mapping[str, str] = {"Authorization": f"Bearer {token}"} if token else {}
        super().__init__(base_url=url, headers=headers, timeout=30, **options)


@contextlib.asynccontextmanager
async def serving(engine: Engine, *, port: int = 0, known: list[Any] | None = None, **options: Any) -> AsyncGenerator[str]:
    """Serve an engine, and give the address; `known` gets what the server's requests share."""
    options.setdefault("tokens", EVERYBODY)
    options.setdefault("settings", ServerSettings(grace_s=5))
    made = app(engine, **options)
    if known is not None:
        known.append(made.state.served)
    server = Listener(made, options["settings"])
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(256)
    task = asyncio.create_task(server.on(listening))
    while not server.started and not task.done():
        await asyncio.sleep(0)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        made.state.served.stopping.set()
        server.stop()
        await task
        listening.close()
