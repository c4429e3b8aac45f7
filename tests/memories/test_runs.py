"""Runs on the memories that last: what one run remembers, the next one recalls, and whatever a model embeds for it is the tenant's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from detent import Agent, Budget, Engine, FinalAnswer, Host, TenantBudget, ToolCall, Usage, View, tool
from detent.core import events as e
from detent.embedders import HashingEmbedder
from detent.embedders.calling import called
from detent.extend import open_memory
from detent.metering.pricing import ModelPrice
from detent.ports import Embeddings, Memory, ModelAnswer, Models
from detent.testing import FakeModel, ScriptedPlanner, calls, says

ACME = Host(tenant="acme")
AGENT = Agent(name="helper", tools=["remember"], memory={})


class Priced(HashingEmbedder):
    """An embedder that calls a model: each call is seven tokens, and goes through the gateway if it is given one."""

    calls = 0

    async def embed(
        self, texts: Sequence[str], *, purpose: Literal["document", "query"] = "document", models: Models | None = None
    ) -> Embeddings:
        made = await super().embed(texts, purpose=purpose)

        async def send() -> ModelAnswer:
            self.calls += 1
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


@tool(side_effect="read")
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is near the harbour"


@pytest.mark.parametrize("extract", ["rule", "model"])
def test_what_is_embedded_for_the_proposals_of_a_run_is_the_runs_usage(extract: str, tmp_path: Path) -> None:
    """They are compared and written after the answer: else these calls would have no price, no limit, and nobody who pays."""
    embedder = Priced()

    def turn(view: View) -> Any:
        if view.scope == "memory":
            return says('[{"content": "The boat lies near the harbour", "kind": "fact"}]')
        return says("done") if view.results else calls(("look", {"at": "the boat"}))

    async def main() -> None:
        memory = open_memory(f"sqlite:///{tmp_path / 'memory.db'}", embedder=embedder)
        prices = {
            embedder.model: ModelPrice(input_usd=1e6, output_usd=0.0),
            "function:fake-model": ModelPrice(input_usd=0.0, output_usd=0.0),
        }
        async with Engine(memory=memory, planner=FakeModel(turn), model_prices=prices) as engine:
            agent = Agent(name="helper", tools=[look], memory={"extract": extract})
            result = await engine.run(agent, "Where is the boat?", host=ACME)
        [item] = await memory.list(host="", standings=("proposed",))
        usage = (await engine.load(result.run_id)).usage
        assert "near the harbour" in item.content
        assert usage.model_calls == result.usage.model_calls + 2 + (extract == "model"), "compared, and written"
        assert usage.cost_usd == 7 * embedder.calls
        assert (await engine.replay(result.run_id)).identical
        await memory.close()

    asyncio.run(main())


def test_proposals_are_embedded_within_what_is_left_of_the_runs_budget(tmp_path: Path) -> None:
    """Else a run costs more than its caller allowed. The log says why nothing was proposed."""
    embedder = Priced()

    async def main() -> None:
        memory = open_memory(f"sqlite:///{tmp_path / 'memory.db'}", embedder=embedder)
        steps = [ToolCall(tool="look", args={"at": "the boat"}), FinalAnswer(content="done")]
        async with Engine(memory=memory, planner=ScriptedPlanner(steps)) as engine:
            agent = Agent(name="helper", tools=[look], memory={"extract": "rule", "recall": False})
            result = await engine.run(agent, "Where is the boat?", host=ACME, budget=Budget(max_model_calls=1))
        [event] = [record.event for record in await engine.records(result.run_id) if isinstance(record.event, e.MemoryProposed)]
        assert result.status == "completed" and "no room for the embeddings" in event.refused
        assert event.usage.model_calls == embedder.calls == 1 and not await memory.list(host="")
        await memory.close()

    asyncio.run(main())
