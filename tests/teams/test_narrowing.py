"""What a child may do is at most what its parent may do: tools, scopes, credentials, tenant, levels, and the policies of all runs above."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, Host, tool
from detent.core import events as e
from detent.core.errors import ConfigError
from detent.policies import TieredPolicy
from detent.ports import RunQuery, Verdict
from teams.family import SENT, Family, below, call, keep, records_of, send, start, wipe

HOST = Host(tenant="acme", workspace="w", principal="ann", scopes=("mail", "files"), credential_refs=())


def test_a_child_has_its_parents_tenant_and_at_most_its_scopes() -> None:
    """A call may leave some out, and cannot add one."""
    worker = Agent(name="worker", tools=[send])
    boss = Agent(name="boss", subagents={"worker": worker})
    calls = [start("worker"), start("worker", scopes=["files"]), start("worker", scopes=["files", "admin"])]

    async def main() -> None:
        async with Engine(planner=Family(boss=calls, worker=[call("send", to="ann")]), approver="caller") as engine:
            done = await engine.run(boss, "share", host=HOST)
            assert done.output == [["sent to ann"], ["missing_scopes"], "scopes_not_allowed"] and SENT == ["ann"]
            hosts = [state.host for state in await below(engine, done.run_id)]
            assert {host.scopes for host in hosts} == {("mail", "files"), ("files",)}
            assert {(host.tenant, host.workspace, host.principal) for host in hosts} == {("acme", "w", "ann")}
            for state in await below(engine, done.run_id):
                assert state.run_id.endswith("@acme") == done.run_id.endswith("@acme")
                assert (await engine.replay(state.run_id)).identical

    asyncio.run(main())


def test_a_child_has_only_the_tools_that_are_declared_for_it() -> None:
    """Not its parent's, whether its planner calls them or its parent's planner asks for them; a call may leave some out."""
    worker = Agent(name="worker", tools=[keep])
    boss = Agent(name="boss", tools=[wipe], subagents={"worker": worker})
    calls = [start("worker"), start("worker", tools=["wipe"]), start("worker", tools=[])]
    planner = Family(boss=calls, worker=[call("wipe", place="home"), call("keep", text="a")])

    async def main() -> None:
        async with Engine(planner=planner, approver="caller") as engine:
            done = await engine.run(boss, "share")
            assert done.output == [["tool_not_found", "a"], "tools_not_allowed", ["tool_not_found", "tool_not_found"]] and SENT == ["a"]

    asyncio.run(main())


def test_a_child_gets_only_the_credentials_that_its_tools_need() -> None:
    """And never one that its parent's host was not given."""

    @tool(side_effect="write", credentials=("crm",))
    def look_up(name: str) -> str:
        """Look a name up."""
        return name

    class Both:
        def names(self) -> tuple[str, ...]:
            return ("crm", "bank")

        def get(self, name: str, host: Host) -> str:
            return "x"

    worker, other = Agent(name="worker", tools=[look_up]), Agent(name="other", tools=[keep])
    middle = Agent(name="middle", subagents={"worker": worker})
    boss = Agent(name="boss", subagents={"middle": middle, "other": other})
    planner = Family(
        boss=[start("middle"), start("other")],
        middle=[start("worker")],
        worker=[call("look_up", name="bo")],
        other=[call("keep", text="a")],
    )

    async def main() -> None:
        async with Engine(planner=planner, approver="caller", secrets=Both()) as engine:
            done = await engine.run(boss, "share", host=Host(credential_refs=("crm", "bank")))
            assert done.output == [[["bo"]], ["a"]]
            heads = await engine.store.list_runs(RunQuery())
            held = {state.agent.name: state.host.credential_refs for head in heads for state in [await engine.load(head.run_id)]}
            assert held == {"boss": ("crm", "bank"), "middle": ("crm",), "worker": ("crm",), "other": ()}
            with pytest.raises(ConfigError, match=r"worker.*look_up.*missing_required_credential:crm"):
                await engine.run(boss, "share", host=Host(credential_refs=("bank",)))
            assert len(await engine.store.list_runs(RunQuery())) == len(heads)

    asyncio.run(main())


NO_WIPING = {"tiers": {}, "rules": [{"id": "no-wiping", "tool": "wipe", "decision": "deny"}]}
ALLOWS = {"rules": [{"id": "all", "decision": "allow"}]}


def test_the_policies_of_all_runs_above_decide_the_calls_of_a_grandchild() -> None:
    """Its own policy, which allows all, loosens nothing: not that of the root, and not the tiers, which ask, where the root has none."""
    for above, said in ((NO_WIPING, "policy_denied"), (ALLOWS, "home"), ({}, "")):
        worker = Agent(name="worker", tools=[wipe], policy=ALLOWS)
        middle = Agent(name="middle", subagents={"worker": worker})
        boss = Agent(name="boss", subagents={"middle": middle}, policy=above)
        planner = Family(boss=[start("middle")], middle=[start("worker")], worker=[call("wipe", place="home")])

        async def main(boss: Any = boss, planner: Any = planner, said: str = said, above: Any = above) -> None:
            SENT.clear()
            async with Engine(planner=planner, approver="caller") as engine:
                done = await engine.run(boss, "share")
                assert done.output == ([[[said]]] if said else None) and bool(SENT) == (said == "home")
                (mid,) = await below(engine, done.run_id)
                (last,) = await below(engine, mid.run_id)
                links = last.delegated.policies
                assert [link["agent"] for link in links] == ["boss", "middle"] and bool(links[0].get("policy")) == bool(above)
                assert (await engine.replay(last.run_id)).identical

        asyncio.run(main())


class Careful:
    """A policy of a program: it allows what its version says, and sees the state that it is given."""

    def __init__(self, version: str = "careful-1", *, refuses: tuple[str, ...] = ()) -> None:
        self.version, self.refuses = version, refuses
        self.saw: list[tuple[str, str, str]] = []

    def decide(self, call: Any, state: Any) -> Verdict:
        """Refuse the tools that it refuses."""
        self.saw.append((call.tool.name, state.agent.name, state.host.principal))
        return Verdict(decision="deny" if call.tool.name in self.refuses else "allow", rule="careful")

    def may_ask(self, tool: Any) -> bool:
        """It never asks."""
        return False


def test_a_policy_of_a_program_sees_the_childs_call_and_state() -> None:
    """Never its parent's; the child's record names it by version and digest."""
    boss = Agent(name="boss", subagents={"worker": Agent(name="worker", tools=[keep])})
    policy = Careful()

    async def main() -> None:
        async with Engine(
            planner=Family(boss=[start("worker")], worker=[call("keep", text="a")]), policy=policy, approver="caller"
        ) as engine:
            done = await engine.run(boss, "share", host=HOST)
            assert policy.saw == [("agent_worker", "boss", "ann"), ("keep", "worker", "ann")]
            (state,) = await below(engine, done.run_id)
            said = state.delegated.policies[0]["engine"]
            assert said["name"].endswith(".Careful") and said["version"] == "careful-1" and len(said["digest"]) == 32

    asyncio.run(main())


def boss_and_worker() -> Agent:
    """Return a boss whose worker waits for a person before it wipes."""
    worker = Agent(name="worker", tools=[wipe], policy={"rules": [{"id": "asks", "tool": "wipe", "decision": "require_approval"}]})
    return Agent(name="boss", subagents={"worker": worker})


def test_another_engine_asks_the_policy_that_was_recorded_as_data(tmp_path: Path) -> None:
    """Or else a worker with a looser policy would lift what the parent's policy refuses."""
    store = f"sqlite:///{tmp_path}/runs.db"
    policy = tmp_path / "policy.toml"
    policy.write_text('default = "tiers"\n[[rules]]\nid = "nothing-kept"\ntool = "keep"\ndecision = "deny"\n')

    class Twice(Family):
        async def plan(self, view: Any) -> Any:
            if view.agent.name == "worker" and len(view.results) < 2:
                return call("keep", text="a") if view.results else call("wipe", place="home")
            return await super().plan(view)

    planner = Twice(boss=[start("worker")], worker=[])

    async def main() -> None:
        async with Engine(store=store, planner=planner, policy=policy, approver="caller") as engine:
            worker = Agent(name="worker", tools=[wipe, keep])
            waits = await engine.run(Agent(name="boss", subagents={"worker": worker}), "share")
            assert waits.status == "waiting_for_subagent"
            (state,) = await below(engine, waits.run_id)
        async with Engine(store=store, planner=planner, tools=[wipe, keep], approver="caller") as engine:
            (asked,) = await engine.approvals()
            await engine.approve(asked.run_id, asked.call_id, by="ann")
            assert SENT == ["home"] and (await engine.load(state.run_id)).output == ["home", "policy_denied"]
            assert (await engine.replay(state.run_id)).identical

    asyncio.run(main())


def test_a_worker_without_the_policy_leaves_the_child_alone(tmp_path: Path) -> None:
    """The policy is a function: its name and digest are recorded, and no other policy can take its place. Nothing is recorded then."""
    store = f"sqlite:///{tmp_path}/runs.db"
    planner = Family(boss=[start("worker")], worker=[call("wipe", place="home")])

    async def main() -> None:
        async with Engine(store=store, planner=planner, policy=Careful(), approver="caller") as engine:
            waits = await engine.run(boss_and_worker(), "share")
            (state,) = await below(engine, waits.run_id)
        for other in (None, Careful("careful-2")):
            async with Engine(store=store, planner=planner, tools=[wipe], policy=other, approver="caller") as engine:
                (asked,) = await engine.approvals()
                if not asked.answered_by:
                    await engine.approve(asked.run_id, asked.call_id, by="ann", resume=False)
                before = await engine.load(asked.run_id)
                with pytest.raises(ConfigError, match=r"Careful.*careful-1"):
                    await engine.resume(asked.run_id)
                worked = await engine.work(until_idle=True)
                assert asked.run_id in worked.left and not SENT
                assert (await engine.load(asked.run_id)).seq == before.seq
                assert (await engine.replay(asked.run_id)).identical
        async with Engine(store=store, planner=planner, tools=[wipe], policy=Careful(), approver="caller") as engine:
            await engine.resume(state.run_id)
            assert SENT == ["home"]

    asyncio.run(main())


def test_a_child_holds_a_tool_to_the_stricter_level_of_its_parent(tmp_path: Path) -> None:
    """A tool that was made to look harmless since is not harmless for the children either: a person has to accept that first."""
    store = f"sqlite:///{tmp_path}/runs.db"
    worker = Agent(name="worker", tools=["wipe"])
    boss = Agent(name="boss", tools=["wipe"], subagents={"worker": worker})
    planner = Family(boss=[start("worker")], worker=[call("wipe", place="home")])

    @tool(name="wipe", side_effect="write")
    def harmless(place: str) -> str:
        """Wipe a place."""
        SENT.append(place)
        return place

    async def main() -> None:
        async with Engine(store=store, planner=planner, tools=[wipe], approver="caller") as engine:
            begun = await engine.run(boss, "share", turns=0)
        async with Engine(store=store, planner=planner, tools=[harmless], approver="caller") as engine:
            waits = await engine.resume(begun.run_id)
            assert waits.status == "waiting_for_subagent" and not SENT
            (asked,) = await engine.approvals()
            assert asked.tool == "wipe" and asked.rule == "tier:destructive"

    asyncio.run(main())


def test_what_the_parent_keeps_out_of_its_log_is_kept_out_of_the_childs() -> None:
    """The child has its patterns: its log, and what it returns, have placeholders."""
    worker = Agent(name="worker", tools=[keep])
    boss = Agent(name="boss", subagents={"worker": worker}, redact=[r"K-\d{6}"])

    class Leaky:
        async def plan(self, view: Any) -> Any:
            if view.agent.name == "boss":
                return FinalAnswer(content="done") if view.results else start("worker")
            return FinalAnswer(content="the key is K-123456") if view.results else call("keep", text="K-123456")

    async def main() -> None:
        async with Engine(planner=Leaky(), approver="caller") as engine:
            done = await engine.run(boss, "share")
            (state,) = await below(engine, done.run_id)
            for run_id in (done.run_id, state.run_id):
                assert b"K-123456" not in b"".join(await engine.store.read(run_id))
            joined = [event for event in await records_of(engine, done.run_id) if isinstance(event, e.SubagentJoined)]
            assert "<secret:" in joined[0].output

    asyncio.run(main())


def test_a_child_can_be_cancelled_and_judged_anew_where_its_policy_is_not(tmp_path: Path) -> None:
    """No call is decided when a run ends, so nothing is missing; a candidate policy is tried on the calls of children as on any others."""
    store = f"sqlite:///{tmp_path}/runs.db"
    planner = Family(boss=[start("worker")], worker=[call("wipe", place="home")])

    async def main() -> None:
        async with Engine(store=store, planner=planner, policy=Careful(), approver="caller") as engine:
            await engine.run(boss_and_worker(), "share")
        async with Engine(store=store, planner=planner, tools=[wipe], approver="caller") as engine:
            found = await engine.backtest(TieredPolicy({"destructive": "deny"}))
            assert [change.tool for change in found.changes] == ["wipe"] and not found.skipped
            (asked,) = await engine.approvals()
            assert (await engine.cancel(asked.run_id, by="ann")).reason == "cancelled"

    asyncio.run(main())
