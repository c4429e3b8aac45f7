"""`@ag-ui/client` under node, with its verifier, against a server of ours: what a chat front end shows in the end is what the log says."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from amounts import in_check
from detent import Agent, Engine, FinalAnswer, ToolCall
from detent.core.budget import Usage
from detent.extend import Plan
from detent.server.served import Served
from server.serving import pay, serving
from tools.mcp.desks import ROOT, node_tool

SCRIPT = Path(__file__).parents[1] / "node/agui.mjs"
Step = dict[str, Any]


class Planner:
    """Plans by the agent's name; `slow` waits for `gate`, `boss` first delegates to it, `payer` pays with what was approved."""

    def __init__(self, gate: asyncio.Event) -> None:
        self._gate = gate

    async def plan(self, view: Any) -> Any:
        """Return the next plan."""
        used = Usage(input_tokens=10, output_tokens=3)
        calls = {
            "payer": ToolCall(tool="pay", args={"amount": 7}),
            "boss": ToolCall(tool="agent_slow", args={"goal": "work"}),
            "chief": ToolCall(tool="agent_payer", args={"goal": "pay"}),
        }
        if view.agent.name in calls and not view.results:
            return Plan(actions=(calls[view.agent.name],), text="On it.", thinking="hmm", usage=used)
        if view.agent.name not in ("payer", "chief"):
            await self._gate.wait()
        said = str(view.results[-1].content) if view.results else f"did {view.goal}"
        return Plan(actions=(FinalAnswer(content=said),), usage=used)


def front_end(tmp_path: Path, agent: str, steps: list[Step], body: Callable[..., Awaitable[None]]) -> None:
    """Serve the agents, let a front end take the steps, and do something with what it printed of each."""
    tools = Path(node_tool("mcp-inspector")).parents[2]  # the folder of all programs; skips where it is not there

    async def run() -> None:
        gate = asyncio.Event()
        slow, payer = Agent(name="slow", tools=()), Agent(name="payer", tools=[pay])
        bosses = [Agent(name=name, tools=(), subagents={one.name: one}) for name, one in (("boss", slow), ("chief", payer))]
        agents = [slow, payer, *bosses]
        engine = Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=agents, planner=Planner(gate))
        known: list[Served] = []
        async with asyncio.timeout(110), serving(engine, known=known) as url:

            async def taken(*some: Step) -> list[dict[str, Any]]:
                words = [str(SCRIPT), str(tools), f"{url}/agents/{agent}/agui", "ann", json.dumps(some)]
                done = await asyncio.to_thread(
                    subprocess.run, ["node", *words], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
                )
                assert done.returncode == 0, done.stderr
                return [json.loads(line) for line in done.stdout.splitlines()]

            await body(engine, known[0], gate, taken, *await taken(*steps))

    asyncio.run(run())


def kinds(told: dict[str, Any]) -> list[str]:
    """Return the types of the events that a step had."""
    return [event["type"] for event in told["events"]]


def shown(told: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what the front end shows: who said what."""
    return [
        (one["role"], one.get("content") or "".join(call["function"]["name"] for call in one.get("toolCalls", ())))
        for one in told["messages"]
    ]


APPROVED = [
    {"runId": "r1", "text": "pay"}, {"runId": "r2", "answer": {"approved": True}}, {"runId": "r2", "answer": {"approved": True}, "fresh": True},
]  # fmt: skip
"""A front end that asks, answers the interrupt, and is opened anew."""


@in_check
def test_a_front_end_shows_text_calls_and_an_approval(tmp_path: Path) -> None:
    """The verifier takes every event; the interrupt is answered, and each stretch says what it used. A front end that opens later shows the same."""

    async def body(engine: Engine, server: Served, gate: asyncio.Event, taken: Any, *told: Any) -> None:
        first, second, again = told
        assert [one["error"] for one in told] == ["", "", ""]
        assert {"REASONING_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT", "TOOL_CALL_ARGS", "STEP_STARTED", "STATE_SNAPSHOT"} <= set(
            kinds(first)
        )
        assert [one["metadata"]["args"] for one in first["interrupts"]] == [{"amount": 7}]
        assert first["events"][-1]["usage"] == [{"inputTokens": 10, "outputTokens": 3, "totalTokens": 13}]
        assert second["events"][-1]["usage"] == [{"inputTokens": 10, "outputTokens": 3, "totalTokens": 13}]
        assert second["interrupts"] == []
        whole = [("user", "pay"), ("assistant", "On it."), ("assistant", "pay"), ("tool", "paid 7"), ("assistant", "paid 7")]
        assert [one for one in shown(second) if one[0] != "reasoning"] == whole
        assert kinds(again)[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
        assert shown(again) == whole
        resolved = [one.event for one in await engine.records("t.1") if type(one.event).__name__ == "ApprovalResolved"]
        assert [one.by for one in resolved] == ["ann"]  # type: ignore[union-attr]

    front_end(tmp_path, "payer", APPROVED, body)


@in_check
def test_a_front_end_decides_what_a_sub_agent_asks(tmp_path: Path) -> None:
    """The verifier takes every event; one that answers again joins what it began."""

    async def body(engine: Engine, server: Served, gate: asyncio.Event, taken: Any, *told: Any) -> None:
        first, second, again = told
        assert [one["error"] for one in told] == ["", "", ""]
        assert [one["metadata"]["path"] for one in first["interrupts"]] == [["chief", "payer"]]
        assert second["interrupts"] == []
        assert shown(second)[-1] == shown(again)[-1] == ("assistant", "paid 7")

    front_end(tmp_path, "chief", APPROVED, body)


@in_check
def test_a_front_end_that_comes_back_is_shown_what_is_open(tmp_path: Path) -> None:
    """It leaves while a sub-agent works, which cancels nothing, and comes back to the call and the sub-agent that are open, and to the end."""
    steps: list[Step] = [{"runId": "r1", "text": "go", "leaveAfter": "SUBAGENT_STARTED"}]

    async def body(engine: Engine, server: Served, gate: asyncio.Event, taken: Any, left: Any) -> None:
        assert "RUN_FINISHED" not in kinds(left)
        while server.streams:
            await asyncio.sleep(0.01)
        coming = asyncio.create_task(taken({"runId": "r1", "fresh": True}))
        while not server.streams:
            await asyncio.sleep(0.01)
        gate.set()
        (back,) = await coming
        assert back["error"] == ""
        begin = kinds(back)[:6]
        assert begin == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STEP_STARTED", "TOOL_CALL_START", "TOOL_CALL_END", "SUBAGENT_STARTED"]
        assert "SUBAGENT_FINISHED" in kinds(back)
        assert shown(back) == [
            ("user", "go"),
            ("assistant", "On it."),
            ("assistant", "agent_slow"),
            ("tool", "did work"),
            ("assistant", "did work"),
        ]
        assert back["events"][-1]["outcome"] == {"type": "success"}

    front_end(tmp_path, "boss", steps, body)


@in_check
def test_a_front_end_that_asked_for_it_ends_its_run_by_leaving(tmp_path: Path) -> None:
    """`forwardedProps.cancelOnDisconnect`: the run is cancelled, and whoever comes back is told so."""
    props = {"cancelOnDisconnect": True}
    steps: list[Step] = [
        {"runId": "r1", "text": "go", "leaveAfter": "RUN_STARTED", "props": props}, {"runId": "r1", "fresh": True, "props": props},
    ]  # fmt: skip

    async def body(engine: Engine, server: Served, gate: asyncio.Event, taken: Any, left: Any, back: Any) -> None:
        assert back["error"] == ""
        assert back["events"][-1]["outcome"] == {"type": "cancelled"}
        assert (await engine.load("t.1")).reason == "cancelled"

    front_end(tmp_path, "slow", steps, body)
