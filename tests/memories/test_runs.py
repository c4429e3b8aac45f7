"""Runs on the memories that last: what one run remembers, the next one recalls, and whatever a model embeds for it is the tenant's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from detent import Agent, Engine, FinalAnswer, Host, TenantBudget, ToolCall, Usage
from detent.core import events as e
from detent.embedders import HashingEmbedder
from detent.embedders.calling import called
from detent.extend import open_memory
from detent.ports import Embeddings, Memory, ModelAnswer, Models
from detent.testing import ScriptedPlanner

ACME = Host(tenant="acme")
AGENT = Agent(name="helper", tools=["remember"], memory={})


class Priced(HashingEmbedder):
    """An embedder that calls a model: each call is seven tokens, and goes through the gateway if it is given one."""

    calls = 0

    async def embed(
        self, texts: Sequence[str], *, purpose: Literal["document", "query"] = "document", models: Models | None = None
    ) -> Embeddings:
        made = await super().embed(texts, purpose=purpose)
        self.calls += 1

        async def send() -> ModelAnswer:
            value = [list(vector) for vector in made.vectors]
            return ModelAnswer(value=value, usage=Usage(input_tokens=7), model=self.model, finish="stop")

        return await called(send, texts, model=self.model, provider="ours", models=models)


def place_of(kind: str, directory: Path, request: pytest.FixtureRequest) -> str:
    if kind == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"file:{directory / 'notes'}" if kind == "files" else f"sqlite:///{directory / 'memory.db'}"


@pytest.mark.parametrize("kind", ["sqlite", "files", "postgres"])
def test_what_a_run_remembers_the_next_recalls_from_a_memory_that_was_closed_and_the_tenant_pays_what_is_embedded(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Else only a memory in memory would be known to work in a run, and searching and writing by meaning would be free."""
    url, embedder = place_of(kind, tmp_path, request), Priced()

    def memory() -> Memory:
        return open_memory(url) if kind == "files" else open_memory(url, embedder=embedder)

    async def main() -> None:
        steps = [ToolCall(tool="remember", args={"content": "the harbour of Brest is closed"}), FinalAnswer(content="noted")]
        bounds = {"acme": TenantBudget(max_tool_calls=500)}
        kept: Any = memory()
        async with Engine(memory=kept, planner=ScriptedPlanner(steps), tenant_budgets=bounds) as engine:
            first = await engine.run(AGENT, "Note that the harbour of Brest is closed", host=ACME)
            assert first.tool_calls[0].content["status"] == "written"
            await kept.close()
            kept = memory()
        async with Engine(
            memory=kept, store=engine.store, planner=ScriptedPlanner([FinalAnswer(content="no")]), tenant_budgets=bounds
        ) as engine:
            second = await engine.run(AGENT, "Are the harbours open?", host=ACME)
            recalled = [record.event for record in await engine.records(second.run_id) if isinstance(record.event, e.MemoryRecalled)]
            assert [(item["content"], item["origin"]["run_id"]) for event in recalled for item in event.items] == [
                ("the harbour of Brest is closed", first.run_id)
            ]
            assert any("meaning" in reason for event in recalled for item in event.items for reason in item["reasons"]) is (kind != "files")
            other = await engine.run(AGENT, "Are the harbours open?", host=Host(tenant="other"))
            assert not [i for r in await engine.records(other.run_id) if isinstance(r.event, e.MemoryRecalled) for i in r.event.items]
            for result in (first, second, other):
                assert (await engine.replay(result.run_id)).identical
            spent = await engine.tenants.spent("acme")
            assert (embedder.calls > 3) is (kind != "files")
            assert spent.model_calls + other.usage.model_calls == embedder.calls, "every call of the embedding model is somebody's"
            assert spent.model_calls == first.usage.model_calls + second.usage.model_calls
            assert spent.tokens == 7 * spent.model_calls
        await kept.close()

    asyncio.run(main())
