"""Attacks of one tenant: on the policy of its runs, and on what it may learn of another tenant's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, Host, ToolCall, tool
from detent.core.errors import ConfigError
from detent.policies.rules import Rule, RulePolicy
from detent.testing import ScriptedPlanner

ACME, OTHER = Host(tenant="acme"), Host(tenant="other")
LAX: dict[str, Any] = {"tiers": {"destructive": "allow"}}
STRICT: dict[str, Any] = {"default": "tiers", "rules": [{"id": "never", "tool": ["wipe"], "decision": "deny"}]}
MINE: dict[str, Any] = {"rules": [{"id": "mine", "tool": ["wipe"], "decision": "allow"}]}


def engine_with(wiped: list[str], **options: Any) -> Engine:
    """Return an engine with a tool that destroys, and a planner that calls it."""

    @tool(side_effect="destructive")
    async def wipe(name: str) -> str:
        """Remove a thing."""
        wiped.append(name)
        return "gone"

    script = [ToolCall(tool="wipe", args={"name": "x"}), FinalAnswer(content="done")]
    return Engine(planner=ScriptedPlanner(script * 4), tools=[wipe], approver="caller", **options)


@pytest.mark.parametrize("edit", [LAX, MINE, {}], ids=["tiers", "rule", "none"])
@pytest.mark.parametrize("house", ["none", "own"])
@pytest.mark.parametrize("own", [{}, STRICT], ids=["no own", "own"])
def test_a_tenants_fork_brings_no_weaker_policy(own: dict[str, Any], house: str, edit: dict[str, Any]) -> None:
    """A tenant forks its run with a policy that allows what needs an approval, or forks that fork."""
    wiped: list[str] = []
    deny = RulePolicy([Rule(id="house", tool=("wipe",), decision="deny")])

    async def main() -> None:
        async with engine_with(wiped, policy=deny if house == "own" else None) as engine:
            agent = Agent(name="w", tools=["wipe"], policy=own)
            run = await engine.run(agent, "go", host=ACME, turns=0)
            fork = await engine.fork(run.run_id, host=ACME, edits={"policy": edit}, effects="redo", resume=False)
            for one in (fork, await engine.fork(fork.run_id, host=ACME, edits={"policy": edit}, effects="redo", resume=False)):
                ended = await engine.resume(one.run_id)
                assert (ended.status == "waiting_for_approval") == (not own and house == "none")
            assert (await engine.replay(fork.run_id)).identical

    asyncio.run(main())
    assert wiped == []


def test_a_tenant_does_not_say_what_its_policy_is_within() -> None:
    """A tenant's fork names itself the policy that it may only tighten."""

    async def main() -> None:
        async with engine_with([]) as engine:
            run = await engine.run(Agent(name="w", tools=["wipe"]), "go", host=ACME, turns=0)
            with pytest.raises(Exception, match="within: unknown key"):
                await engine.fork(run.run_id, host=ACME, edits={"policy": {**LAX, "within": [LAX]}}, effects="redo")

    asyncio.run(main())


def test_a_tenants_fork_has_no_program_started_to_check_its_answers(tmp_path: Path) -> None:
    """It edits the agent of its fork: a command would check the answers, and nobody is asked about that."""

    async def main() -> None:
        async with engine_with([], workspace=tmp_path) as engine:
            run = await engine.run(Agent(name="w"), "go", host=ACME, turns=0)
            with pytest.raises(ConfigError, match="only the operator may add commands"):
                await engine.fork(run.run_id, host=ACME, edits={"verify": [{"command": ["touch", "made"]}]})

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


# What a tenant may learn -------------------------------------------------------------------------------------------------------------------

DONE = [FinalAnswer(content="done")] * 4
WORKER = Agent(name="w")


async def told(call: Any) -> str:
    """Return all that a call answers: its result, or the class of its error and what it says."""
    try:
        result = await call
    except Exception as error:  # noqa: BLE001 - the answer is what is compared
        return f"{type(error).__name__}: {error} {sorted(vars(error))}"
    return f"{result.run_id} {result.status} {result.state.goal}"


CALLS: dict[str, Any] = {
    "run": lambda n, i: n.run(WORKER, "mine", run_id=i, host=OTHER),
    "run, begun": lambda n, i: n.run(WORKER, "mine", run_id=i, host=OTHER, turns=0),
    "step of an agent": lambda n, i: n.step(WORKER, "mine", run_id=i, host=OTHER),
    "step": lambda n, i: n.step(run_id=i, host=OTHER),
    "resume": lambda n, i: n.resume(i, host=OTHER),
    "approve": lambda n, i: n.approve(i, "main.1.0", by="b", host=OTHER),
    "signal": lambda n, i: n.reply(i, "yes", host=OTHER),
    "list after": lambda n, i: n.list_runs(after=i, host=OTHER),
    "with the tenant": lambda n, i: n.run(WORKER, "mine", run_id=f"{i}@acme", host=OTHER),
}


@pytest.mark.parametrize("named", [True, False], ids=["named", "made"])
@pytest.mark.parametrize("name", CALLS)
def test_another_tenants_run_changes_no_answer(name: str, named: bool) -> None:
    """A tenant calls with the id of another tenant's run, and compares the answer with that for an id that nobody has."""

    async def main() -> None:
        answers: list[str] = []
        for there in (True, False):
            async with Engine(planner=ScriptedPlanner(DONE)) as engine:
                theirs = await engine.run(WORKER, "theirs", run_id="order-17" if named else None, host=ACME if there else OTHER, turns=0)
                run_id = "order-17" if named else theirs.run_id
                if not there:
                    await engine.delete(run_id, host=OTHER)
                answers.append((await told(CALLS[name](engine, run_id))).replace(run_id, "ID"))
                if there:
                    assert (await engine.run(WORKER, "theirs", run_id=run_id, host=ACME)).run_id == theirs.run_id
        assert answers[0] == answers[1]
        assert "theirs" not in answers[0]

    asyncio.run(main())


def test_a_tenant_takes_no_id_away(tmp_path: Path) -> None:
    """A tenant begins a run, or a fork, with the id that another tenant will use."""

    async def main() -> None:
        for store in ("ram:", f"file:{tmp_path}/logs", f"sqlite:///{tmp_path}/runs.db"):
            async with Engine(store=store, planner=ScriptedPlanner(DONE)) as engine:
                taken = await engine.run(WORKER, "theirs", run_id="nightly", host=OTHER)
                await engine.fork(taken.run_id, child_id="weekly", host=OTHER, resume=False)
                for run_id in ("nightly", "weekly"):
                    mine = await engine.run(WORKER, "mine", run_id=run_id, host=ACME)
                    assert (mine.status, (await engine.load(run_id, host=ACME)).goal) == ("completed", "mine")
                with pytest.raises(ConfigError, match="run id"):
                    await engine.run(WORKER, "mine", run_id="monthly@acme", host=OTHER)

    asyncio.run(main())
