"""Every append of whoever advances or changes a run names the number of its claim; only a late outcome names none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detent import Agent, AskUser, Engine, ToolCall, tool
from detent.history import moving
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner


class Noting(RamStore):
    """Notes the claim that each append names, and the one that is held then."""

    def __init__(self) -> None:
        super().__init__()
        self.named: list[tuple[str, int | None, int | None]] = []

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, claim: int | None = None, **options: Any) -> None:
        self.named.append((run_id, claim, self._shelf.claims[run_id][0] if run_id in self._shelf.claims else None))
        await super().append(run_id, expected_seq, records, claim=claim, **options)


@tool(side_effect="write")
async def act() -> str:
    """Act."""
    return "done"


def test_every_append_names_the_claim_that_it_is_made_under(tmp_path: Path) -> None:
    """Of an append that names none nobody knows whether its run was taken over: it would count."""

    async def main() -> None:
        store, target = Noting(), Noting()
        script = [ToolCall(tool="act", args={}), AskUser(question="Well?")]
        async with Engine(store=store, planner=ScriptedPlanner(script), tools=[act], approver="caller") as engine:
            await engine.run(Agent(name="a", tools=("act",)), "Act", run_id="r")
            await engine.reply("r", "go on")
            await engine.fork("r", child_id="f", resume=False)
            await engine.cancel("f")
            await moving.archive(store, tmp_path, "f")
            await moving.bring_back(store, moving.archive_path(tmp_path, "f"))
            await engine.erase("f")
            await moving.copy(store, target, "r", move=True)
        for kept, least in ((store, 8), (target, 1)):
            assert len(kept.named) >= least
            assert [one for one in kept.named if one[1] is None or one[1] != one[2]] == []

    asyncio.run(main())
