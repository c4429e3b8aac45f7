"""One run with every kind of wait, the people who answer it, and a process that can be killed at any of its writes.

`python waits.py URL DIRECTORY WRITE WHEN` takes the run to its end, or dies by SIGKILL before or after that write (0: never).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from crash.workload import RUN, tell_the_truth
from detent import AskUser, Engine, FinalAnswer, Schedule, ToolCall, View, tool
from detent.core import events as e
from detent.core.errors import NotAllowedNow
from detent.core.records import Record
from detent.core.state import RunState
from detent.ports import Call, ToolContext, ToolSpec, Verdict
from detent.stores.urls import open_store
from detent.testing.clocks import FakeClock
from detent.testing.faults import CrashingStore
from laws.places import Effects, PurePlanner, agent_of

HOUR = 3600.0
SHAPE = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOLS = ("look", "put", "wipe", "pay")
EXPECTED = ["put 1", "look 2", "approval_rejected", "pay 4", "put 50"]
"""The answer: what was approved ran with the arguments that were approved, what was denied did not."""
EFFECTS = ["put:1", "pay:4", "put:50"]
DECISIONS = [("main.3.0", "ann"), ("main.3.2", "bob"), ("main.4.0", "ann"), ("main.4.0", "bob"), ("main.5.0", "cid"), ("main.5.0", "dan")]
WRITES = ("append", "claim", "post", "release")


def plan(view: View) -> Any:
    """Return the plan of this turn; nothing else than the view says it."""
    turns: tuple[Any, ...] = (
        AskUser(question="how many?", expected=SHAPE),
        Schedule(delay_s=HOUR),
        (_call("put", 1), _call("look", 2), _call("wipe", 3)),
        _call("pay", 4),
        _call("put", 5),
    )
    if view.iteration <= len(turns):
        return turns[view.iteration - 1]
    return FinalAnswer(content=[item.content if item.ok else item.error and item.error.code for item in view.results])


def _call(name: str, n: int) -> ToolCall:
    return ToolCall(tool=name, args={"n": n})


class Ask:
    """Asks a person before anything that does not only read, and two people before a payment, or before much is put."""

    version = "ask-1"

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Decide by the tool."""
        if call.tool.read_only:
            return Verdict(decision="allow", rule="reads")
        much = call.tool.name == "pay" or call.args["n"] > 4
        return Verdict(decision="require_approval", rule="asks", reason="it changes things", approvers=2 if much else 1)

    def may_ask(self, tool: ToolSpec) -> bool:
        """Whether it may."""
        return not tool.read_only


def engine_of(store: Any, effects: Effects, clock: FakeClock) -> Engine:
    """Return an engine for the run."""

    def writing(name: str) -> Any:
        async def function(n: int, context: ToolContext) -> str:
            effects.add(f"{name}:{n}:{context.idempotency_key}")
            return f"{name} {n}"

        function.__name__, function.__doc__ = name, f"{name} it."
        return tool(function, side_effect="write")

    @tool(side_effect="read")
    async def look(n: int) -> str:
        """Look."""
        return f"look {n}"

    tools = [look, *(writing(name) for name in TOOLS[1:])]
    return Engine(store=store, planner=PurePlanner(plan), tools=tools, policy=Ask(), approver="caller", clock=clock)


async def work(engine: Engine, effects: Effects, clock: FakeClock) -> RunState:
    """Take the run from wherever it is to its end, giving each answer that it waits for; return how it ended."""
    await engine.store.open()
    if await engine.store.head(RUN) is None:
        await engine.run(agent_of(*TOOLS), "wait", run_id=RUN)
    while not (state := await engine.load(RUN)).terminal:
        try:
            await _answer(engine, state, effects, clock)
        except NotAllowedNow as refused:
            if refused.reason_code != "approval_already_decided":
                raise
            await engine.resume(RUN)  # who answered it died before the run went on
    return state


async def _answer(engine: Engine, state: RunState, effects: Effects, clock: FakeClock) -> None:
    match state.status:
        case "waiting_for_user":
            await engine.reply(RUN, '{"n": 1}', by="ann")
        case "waiting_for_schedule":
            clock.advance(HOUR)
            await engine.work(waiting_only=True, until_idle=True)
        case "waiting_for_approval":
            await _decide(engine, state, next(iter(state.approvals)))
        case "waiting_for_reconciliation":
            for call_id in state.in_doubt:
                await tell_the_truth(engine, state, call_id, effects)
        case _:
            await engine.resume(RUN)


async def _decide(engine: Engine, state: RunState, call_id: str) -> None:
    asked, call = state.approvals[call_id], state.call(call_id)
    assert call is not None
    match call_id:
        case "main.3.2":
            await engine.deny(RUN, call_id, by="bob", reason="not that")
        case "main.5.0" if call.edited:
            await engine.approve(RUN, call_id, by="dan", digest=asked.digest)
        case "main.5.0":
            await engine.approve(RUN, call_id, by="cid", args={"n": 50}, digest=asked.digest)
        case _:
            await engine.approve(RUN, call_id, by="bob" if "ann" in call.approved_by else "ann", digest=asked.digest)


def decisions(records: list[Record]) -> list[tuple[str, str]]:
    """Return who decided on which call, as the log has it."""
    kinds = (e.ApprovalResolved, e.ApprovalEdited)
    return sorted((r.event.call, r.event.by) for r in records if isinstance(r.event, kinds))


def die() -> BaseException:
    """End this process as a power failure would."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


async def main(url: str, directory: Path, write: int, when: Any) -> None:
    """Work, and say how it ended."""
    effects, clock = Effects(directory / "effects"), FakeClock()
    store = CrashingStore(open_store(url), at=write, when=when, operations=WRITES, error=die)
    state = await work(engine_of(store, effects, clock), effects, clock)
    sys.stdout.write(json.dumps({"status": state.status, "output": msgspec.to_builtins(state.output), "writes": store.calls}) + "\n")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
