"""How soon a message of a session is ready to plan: from `send` to the planner, late in a long conversation and early in one.

    python benchmarks/sessions.py [--messages 10 1000] [--times 41] [--stores ram sqlite file] [--quick] [--json]

Each message of a conversation is a run of its own, and the next one needs only the run before it. So `send` should take as long after 1,000 messages as
after 10 (target: 1.5 times). The conversations are sent to in turns, in one process, each time by a new session object. The first message that an
engine sends to a session also looks for its last run (`first`). `floor` is a run without a session on the same store: from `run` to its
planner. Every figure is the first decile: the rest of a busy machine is not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import platform
import statistics
import tempfile
import time
from typing import Any

from detent import Agent, Engine, FinalAnswer, Plan

AGENT = Agent(name="clerk")
TARGET = 1.5


class Answering:
    """Answers at once; knows when it was last asked."""

    def __init__(self) -> None:
        self.asked = 0.0

    async def plan(self, view: Any) -> Plan:
        """The answer."""
        self.asked = time.perf_counter()
        return Plan(actions=(FinalAnswer(content=f"Here is what I know about {view.goal}."),))


async def measured(store: str, messages: list[int], times: int) -> dict[str, Any]:
    """Return the first deciles on one store, in milliseconds."""
    planner = Answering()
    async with Engine(store=store, planner=planner) as engine:
        sessions = {count: engine.session(AGENT, f"of{count}") for count in messages}
        for count, session in sessions.items():
            for n in range(count):
                await session.send(f"message {n} of this conversation")
        took: dict[str, list[float]] = {}

        async def once(what: str, begin: Any) -> None:
            gc.collect()
            began = time.perf_counter()
            await begin()
            took.setdefault(what, []).append((planner.asked - began) * 1e3)

        for _ in range(times):
            await once("floor", lambda: engine.run(AGENT, "message"))
            for count in messages:
                await once(f"new {count}", lambda count=count: engine.session(AGENT, f"of{count}").send("another message"))
                async with Engine(store=engine.store, planner=planner) as fresh:
                    await once(
                        f"first {count}", lambda count=count, fresh=fresh: fresh.session(AGENT, f"of{count}").send("another message")
                    )
        return {what: statistics.quantiles(values, n=10)[0] for what, values in took.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, nargs=2, default=[10, 1000])
    parser.add_argument("--times", type=int, default=41)
    parser.add_argument("--stores", nargs="+", default=["ram", "sqlite", "file"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.messages, args.times, args.stores = [2, 20], 3, ["ram", "sqlite"]
    few, many = args.messages
    rows: list[dict[str, Any]] = []
    for kind in args.stores:
        with tempfile.TemporaryDirectory(prefix="detent-bench-") as name:
            url = {"ram": "ram:", "sqlite": f"sqlite:///{name}/runs.db", "file": f"file:{name}/runs"}[kind]
            found = asyncio.run(measured(url, args.messages, args.times))
        rows.append({"what": f"{kind}: floor, a run outside of a session", "value": found["floor"], "unit": "ms", "target": None})
        for who, said in (("new", "a new session object"), ("first", "the first of an engine")):
            rows += [
                {"what": f"{kind}: message {n}, {said}", "value": found[f"{who} {n}"], "unit": "ms", "target": None} for n in args.messages
            ]
            rows.append(
                {
                    "what": f"{kind}: message {many} by message {few}, {said}",
                    "value": found[f"{who} {many}"] / found[f"{who} {few}"],
                    "unit": "x",
                    "target": TARGET,
                }
            )
    for row in rows:
        row["ok"] = None if row["target"] is None else row["value"] <= row["target"]
    if args.json:
        print(json.dumps({"machine": platform.platform(), "python": platform.python_version(), "rows": rows}, indent=1))
        return
    for row in rows:
        target = "" if row["target"] is None else f"  target {row['target']:g} {'ok' if row['ok'] else 'miss'}"
        print(f"{row['what']:<60} {row['value']:9.2f} {row['unit']}{target}")


if __name__ == "__main__":
    main()
