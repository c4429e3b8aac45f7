"""Taking on a run that exists: by its id, with its context, its tools, and a word on what changed. DESIGN 8, row K8."""

from __future__ import annotations

import re
from typing import Any

import pytest

from detent import Agent, Engine, Host, tool
from detent.core import events as e
from detent.core.errors import ConfigError, Divergence, RunContextMismatch, ToolsMissing, UnknownName
from detent.stores.ram import RamStore
from kernel.runs import END, Desk, Script, call, engine_for, run_async

# Attach -----------------------------------------------------------------------------------------------------------------------


def test_running_with_the_id_of_a_run_takes_it_on() -> None:
    """DESIGN 8: same agent, goal and host."""

    async def main() -> None:
        planner, desk = Script([call("put", n=1), END]), Desk()
        engine = engine_for(planner, *desk.all)
        agent, host = Agent(name="w", tools=["put"]), Host(tenant="acme", workspace="w", principal="ann")
        await engine.run(agent, "go", run_id="r", host=host, turns=1)
        done = await engine.run(agent, "go", run_id="r", host=host)
        again = await engine.run(agent, "go", run_id="r", host=host)
        assert (done.status, again.output, desk.ran, done.run_id) == ("completed", "the end", [("put", 1)], "r@acme")

    run_async(main)


@pytest.mark.parametrize(
    ("change", "field", "received"),
    [
        ({"agent": Agent(name="other")}, "agent", "other"),
        ({"goal": "elsewhere"}, "goal", "elsewhere"),
        ({"host": Host(tenant="acme", principal="ann")}, "host.workspace", ""),
        ({"host": Host(tenant="acme", workspace="w", principal="bob")}, "host.principal", "bob"),
    ],
)
def test_running_with_the_id_of_another_run_is_an_error_that_says_what_differs(change: dict[str, Any], field: str, received: str) -> None:
    """K8: a list of {field, expected, received}; nothing is recorded."""

    async def main() -> None:
        engine = engine_for(Script([END]))
        given: dict[str, Any] = {"agent": Agent(name="w"), "goal": "go", "host": Host(tenant="acme", workspace="w", principal="ann")}
        kept = (await engine.run(**given, run_id="r")).run_id
        records = len(await engine.records(kept))
        with pytest.raises(RunContextMismatch, match=re.escape(field)) as caught:
            await engine.run(**{**given, **change}, run_id="r")
        (mismatch,) = caught.value.mismatches
        assert set(mismatch) == {"field", "expected", "received"} and (mismatch["field"], mismatch["received"]) == (field, received)
        assert len(await engine.records(kept)) == records

    run_async(main)


# Tools ------------------------------------------------------------------------------------------------------------------------


def test_an_agent_that_lists_an_unknown_tool_does_not_start() -> None:
    """The nearest name is given; nothing is recorded."""

    async def main() -> None:
        engine = engine_for(Script([END]), *Desk().all)
        with pytest.raises(UnknownName, match="unknown tool 'lok'; did you mean 'look'"):
            await engine.run(Agent(name="w", tools=["lok"]), "go")
        assert await engine.list_runs() == []

    run_async(main)


def test_a_run_is_not_resumed_without_its_tools() -> None:
    """`ToolsMissing(names)`; with them it goes on."""

    async def main() -> None:
        place, desk = RamStore(), Desk()
        begun = await engine_for(Script([call("put", n=1)]), *desk.all, store=place).step(
            Agent(name="w", tools=["put", "look", "slip"]), "go"
        )
        bare = engine_for(Script([END]), desk.look, store=place)
        for verb in (bare.resume, bare.replay):
            with pytest.raises(ToolsMissing, match="put, slip") as caught:
                await verb(begun.run_id)
            assert caught.value.names == ["put", "slip"]
        assert (await engine_for(Script([END]), *desk.all, store=place).resume(begun.run_id)).status == "completed"

    run_async(main)


def test_ending_a_run_needs_neither_its_tools_nor_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its model cannot be asked a run is not resumed, but cancelled; nothing of the code counts as changed by that."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    async def main() -> None:
        place = RamStore()
        agent = Agent(name="w", model="openai:gpt-5", tools=["put"])
        begun = await engine_for(Script([call("put", n=1)]), *Desk().all, store=place).step(agent, "go")
        bare = Engine(store=place)
        with pytest.raises(ToolsMissing):
            await bare.resume(begun.run_id)
        assert (await bare.cancel(begun.run_id)).reason == "cancelled"
        resumed = [r.event for r in await bare.records(begun.run_id) if isinstance(r.event, e.RunResumed)]
        assert [event.changed for event in resumed] == [()]

    run_async(main)


def test_tools_that_an_agent_brings_are_registered_once() -> None:
    """The same object again is a no-op, another under its name an error."""

    async def main() -> None:
        one, other = Desk(), Desk()
        engine = engine_for(Script([END] * 3))
        for _ in range(2):
            await engine.run(Agent(name="w", tools=[one.look]), "go")
        with pytest.raises(ConfigError, match="look"):
            await engine.run(Agent(name="w", tools=[other.look]), "go")

    run_async(main)


def test_a_resume_says_what_changed_in_the_code() -> None:
    """`RunResumed.changed` names a tool whose schema is another, a policy; nothing when all is the same. Another kernel is a divergence."""

    async def main() -> None:
        from detent.kernel.kernel import make_kernel
        from kernel.runs import Allow

        place, desk = RamStore(), Desk()

        @tool(name="look", side_effect="read")
        async def other_look(n: int = 0, more: str = "") -> int:
            """Look differently."""
            return n

        begun = await engine_for(Script([call("look", n=1)]), *desk.all, store=place).step(Agent(name="w", tools=["look", "put"]), "go")
        await engine_for(Script([call("look", n=2)]), *desk.all, store=place).step(run_id=begun.run_id)
        length = len(await place.read(begun.run_id))
        newer = engine_for(Script([END]), *desk.all, store=place, kernel=make_kernel(version=2))
        with pytest.raises(Divergence, match="another kernel, limits or input"):
            await newer.resume(begun.run_id)
        assert len(await place.read(begun.run_id)) == length, "nothing was recorded, the run stays resumable"
        engine = engine_for(Script([END]), other_look, desk.put, store=place, policy=Allow())
        result = await engine.resume(begun.run_id)
        changed = [r.event.changed for r in await engine.records(result.run_id) if isinstance(r.event, e.RunResumed)]
        assert changed == [(), ("policy", "tool:look")]

    run_async(main)
