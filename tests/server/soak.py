"""Long trials of the server, for `scripts/soak`: requests drawn from its document, and servers that are killed while clients read."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from detent.server import ServerSettings
from server.serving import Client, engine_of, serving


def drawn_requests(directory: Path, *, requests: int, seed: int) -> tuple[Counter[tuple[str, int]], list[str]]:
    """Send requests drawn from the document to a server of its own; return the answers by operation and status, and what was wrong."""
    from server.fuzzing import fuzzed

    async def run() -> Any:
        engine = engine_of(f"sqlite:///{directory}/runs.db", memory=f"sqlite:///{directory}/memory.db", approver="caller")
        settings = ServerSettings(rate=1e6, burst=10**6, wait_s=2, grace_s=5)
        async with serving(engine, settings=settings) as url, Client(url, "ann") as ann:
            made = [(await ann.post("/runs", json={"agent": "payer", "goal": f"Pay {n}", "wait_s": 2})).json() for n in range(3)]
            await ann.post("/sessions", json={"agent": "talker", "session_id": "s", "text": "hello"})
            items = [(await ann.post("/memory", json={"content": f"item {n}"})).json()["id"] for n in range(5)]
            runs = [one["run_id"] for one in made]
            message = {"role": "user", "content": "hello"}
            known: dict[str, list[Any]] = {
                "run_id": runs, "agent": ["talker", "payer"], "model": ["talker", "payer"], "session_id": ["s"], "conversation_id": ["conv_s"],
                "response_id": [f"resp_{run}" for run in runs], "with": runs, "call_id": ["main.1.0"], "item_id": items, "limit": [5], "after": ["3"],
                "digest": [made[0]["approvals"][0]["digest"]], "messages": [[message], [message | {"content": [{"type": "text", "text": "x"}]}]],
                "input": ["hello"], "stream": [True, False], "threadId": ["s", "t"], "tools": [None],
            }  # fmt: skip
            return await asyncio.to_thread(fuzzed, url, "ann", requests=requests, known=known, seed=seed)

    return asyncio.run(run())
