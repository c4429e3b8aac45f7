"""A process that sends messages to a session: one for each line of JSON on its standard input, answered by a line of JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from detent import Engine
from detent.core.errors import DetentError
from sessions.talks import AGENT, Clerk, engine_of


async def answer(engine: Engine, said: dict[str, Any]) -> dict[str, Any]:
    """Return what became of a message."""
    try:
        result = await engine.session(AGENT, said.pop("session")).send(said.pop("text"), **said)
    except DetentError as error:
        return {"error": error.code}
    return {"run": result.run_id, "output": result.output}


async def main(url: str) -> None:
    """Answer until there are no more lines."""
    loop = asyncio.get_running_loop()
    async with engine_of(Clerk(), url) as engine:
        await engine.list_runs()
        print(json.dumps({"ready": True}), flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(await answer(engine, json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
