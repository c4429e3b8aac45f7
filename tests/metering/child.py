"""A worker in a process of its own: `python child.py URL DIRECTORY TURN` runs the asker and hangs in the model call of that turn.

Each call that the provider has answered stands in DIRECTORY/paid; it says on its standard output when it is in the call.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from detent.stores.urls import open_store
from kernel.runs import Desk
from metering.providers import Caller, Provider, answer, engine, look
from metering.test_crashes import AGENT, BUDGET


async def main() -> None:
    """Run until killed."""
    url, directory, turn = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])

    async def pay(limit: int | None) -> Any:
        with (directory / "paid").open("a") as paid:
            paid.write("1\n")
        return answer(look(1))

    async def hang(limit: int | None) -> Any:
        print(json.dumps({"sending": turn}), flush=True)
        await asyncio.Event().wait()

    provider = Provider(*[pay] * (turn - 1), hang)
    store: Any = open_store(url)
    async with engine(Caller(provider, input_tokens=20, max_output_tokens=10), Desk().look, store=store) as made:
        await store.open()
        await made.run(AGENT, "go", run_id="r", budget=BUDGET)


if __name__ == "__main__":
    asyncio.run(main())
