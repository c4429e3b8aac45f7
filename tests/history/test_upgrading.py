"""New code under runs in flight: what a resume does about what has changed, and that the check says so first and records nothing. DESIGN 4."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from detent import Agent, AskUser, Engine, FinalAnswer, ToolCall, View, tool
from detent.core import events as e
from detent.core.errors import Divergence, NewerVersion, ToolsMissing, UnknownName
from detent.core.state import RunState
from detent.history.upgrading import Upgraded
from detent.kernel.act import act
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.policies.tiers import TieredPolicy
from detent.ports import Call, Verdict
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner
from history.family import events, run_async
from laws.places import agent_of, engine_on


def plan(view: View) -> Any:
    """Use the tool, ask, use the tool again, answer."""
    if view.iteration in (1, 3):
        return ToolCall(tool="look", args={"n": view.iteration})
    return AskUser(question="and?") if view.iteration == 2 else FinalAnswer(content="done")


def look(**changed: Any) -> Any:
    """Return the tool, perhaps another version of it."""
    if "other" in changed:

        @tool(side_effect="read", name="look")
        async def newer(n: int, deep: bool = False) -> str:
            """Look deeper."""
            return f"seen {n} {deep}"

        return newer

    @tool(side_effect="read", name="look")
    async def older(n: int) -> str:
        """Look."""
        return f"seen {n}"

    return older


async def twice(run: Any) -> Any:
    """A strategy of two passes."""
    await run.kernel("main")
    return await run.kernel("second")


async def renamed(run: Any) -> Any:
    """The same with another first pass."""
    return await run.kernel("main", guidance=("look well",))


class Strict(TieredPolicy):
    """Another policy."""

    def __init__(self) -> None:
        super().__init__()
        self.version = "strict-1"

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Deny."""
        return Verdict(decision="deny", rule="strict", reason="no more")


async def waiting(store: RamStore, run_id: str = "run", **options: Any) -> None:
    """Leave a run that waits for its user, half way."""
    agent = options.pop("agent", agent_of("look"))
    async with engine_on(store, plan, [look()], **options) as engine:
        assert (await engine.run(agent, "look", run_id=run_id)).status == "waiting_for_user"


async def checked(store: RamStore, *tools: Any, **options: Any) -> Upgraded:
    """Check the run with an engine of other code; nothing is recorded and nothing called."""

    class Silent:
        async def plan(self, view: View) -> Any:
            raise AssertionError("a check asks no planner")

    before = await store.read("run")
    async with engine_on(store, Silent(), tools, **options) as engine:
        (found,) = (await engine.check_upgrade()).runs
    assert await store.read("run") == before
    return found


def test_the_same_code_takes_every_open_run_on() -> None:
    """Oldest first, in every status; finished runs, and those of other tenants, are not looked at."""

    async def main() -> None:
        from detent import Host

        store = RamStore()
        for name in ("one", "two"):
            await waiting(store, name)
        async with engine_on(store, plan, [look()]) as engine:
            await engine.run(agent_of("look"), "look", run_id="running", turns=1, host=Host(tenant="acme"))
            await engine.run(agent_of("look"), "look", run_id="finished")
            await engine.reply("finished", "so")
            found = await engine.check_upgrade()
            assert [(run.run_id, run.status, run.goes_on) for run in found.runs] == [
                ("one", "waiting_for_user", True),
                ("two", "waiting_for_user", True),
                ("running@acme", "running", True),
            ]
            assert found.stranded == ()
            assert [run.run_id for run in (await engine.check_upgrade(host=Host(tenant="acme"))).runs] == ["running@acme"]
            assert (await engine.check_upgrade("two")).runs[0].run_id == "two"

    run_async(main)


def test_a_tool_that_changed_is_put_on_record_and_used() -> None:
    """The check names it, the resumed log says so, and the run goes on with the new one."""

    async def main() -> None:
        store = RamStore()
        await waiting(store)
        found = await checked(store, look(other=True))
        assert (found.goes_on, found.changed) == (True, ("tool:look",))
        async with engine_on(store, plan, [look(other=True)]) as engine:
            result = await engine.reply("run", "so")
            assert result.tool_calls[1].content == "seen 3 False"
            assert events(await engine.records("run"), e.RunResumed)[-1].changed == ("tool:look",)
            assert (await engine.replay("run")).identical

    run_async(main)


def test_a_type_of_answers_that_changed_is_named() -> None:
    """The run continues, its answer is checked by the recorded schema and comes back as JSON: whoever expects an instance hears it before."""

    def typed(*fields: str) -> Agent:
        kind = msgspec.defstruct("City", [(name, int) for name in fields])
        return Agent(name="a", tools=["look"], output_type=kind)

    async def main() -> None:
        store = RamStore()
        async with engine_on(store, plan, [look()]) as engine:
            await engine.run(typed("people"), "look", run_id="run", turns=1)
        for agent, changed in ((typed("people"), ()), (typed("people", "area"), ("output type City",))):
            async with Engine(store=store, planner=ScriptedPlanner([plan]), tools=[look()], agents=[agent]) as engine:
                (found,) = (await engine.check_upgrade()).runs
                assert (found.goes_on, found.changed) == (True, changed)

    run_async(main)


def test_a_tool_that_is_gone_strands_the_run_until_it_is_back() -> None:
    """`ToolsMissing` names it, and nothing is recorded or posted."""

    async def main() -> None:
        store = RamStore()
        await waiting(store)
        found = await checked(store)
        assert (found.goes_on, found.missing) == (False, ("look",))
        before = await store.read("run")
        async with engine_on(store, plan) as engine:
            with pytest.raises(ToolsMissing, match="look"):
                await engine.reply("run", "so")
        assert await store.read("run") == before
        async with engine_on(store, plan, [look()]) as engine:
            assert (await engine.reply("run", "so")).status == "completed"

    run_async(main)


def test_a_policy_that_changed_decides_from_then_on() -> None:
    """What it decided before stays decided, so that the run goes on; the check says that it differs."""

    async def main() -> None:
        store = RamStore()
        await waiting(store)
        found = await checked(store, look(), policy=Strict())
        assert (found.goes_on, found.changed) == (True, ("policy",))
        async with engine_on(store, plan, [look()], policy=Strict()) as engine:
            result = await engine.reply("run", "so")
            assert [item.ok for item in result.tool_calls] == [True, False]
            assert events(await engine.records("run"), e.RunResumed)[-1].changed == ("policy",)

    run_async(main)


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ({"kernel": make_kernel(phases=(think, act), version=1)}, {"kernel": make_kernel(phases=(think, act), version=2)}, ("kernel",)),
        ({"strategies": {"own": twice}}, {"strategies": {"own": renamed}}, ()),
    ],
    ids=["kernel", "strategy"],
)
def test_a_kernel_or_strategy_that_would_run_another_pass_is_a_divergence(before: Any, after: Any, changed: tuple[str, ...]) -> None:
    """The check says where, a resume raises and records nothing, and with the old code the run goes on; a fork goes on with the new."""

    async def main() -> None:
        store = RamStore()
        agent = agent_of("look", strategy="own" if "strategies" in before else "reactive")
        await waiting(store, agent=agent, **before)
        found = await checked(store, look(), **after)
        assert (found.goes_on, found.changed) == (False, changed)
        assert found.divergence is not None and found.divergence.expected.startswith('{"type":"pass_started","key":"main"')
        lines = await store.read("run")
        async with engine_on(store, plan, [look()], **after) as engine:
            with pytest.raises(Divergence, match=r"pass 'main'.*fork the run"):
                await engine.reply("run", "so")
            assert await store.read("run") == lines
            started = next(r.envelope.seq for r in await engine.records("run") if isinstance(r.event, e.PassStarted))
            fork = await engine.fork("run", at=started - 1)
            assert fork.status == "waiting_for_user"
        async with engine_on(store, plan, [look()], **before) as engine:
            assert (await engine.resume("run")).state.passes["main"].output == "done"

    run_async(main)


def test_a_strategy_of_another_version_or_none_is_named() -> None:
    """A version that differs is a change; a strategy that is not here is what keeps the run from going on."""

    async def main() -> None:
        async def newer(run: Any) -> Any:
            return await twice(run)

        newer.version = 2  # type: ignore[attr-defined]
        store = RamStore()
        await waiting(store, agent=agent_of("look", strategy="own"), strategies={"own": twice})
        assert (await checked(store, look(), strategies={"own": newer})).changed == ("strategy",)
        found = await checked(store, look())
        assert not found.goes_on and "strategy 'own'" in found.problem
        async with engine_on(store, plan, [look()]) as engine:
            with pytest.raises(UnknownName):
                await engine.reply("run", "so")

    run_async(main)


def test_a_log_that_cannot_be_read_is_said_and_the_others_are_checked() -> None:
    """One written by a newer version, and one that is damaged."""

    async def main() -> None:
        store = RamStore()
        for name in ("newer", "damaged", "sound"):
            await waiting(store, name)
        kept: Any = store._shelf.runs  # the bytes as a newer program or a bad disk would leave them
        lines = kept["newer"].records
        kept["damaged"].records[3] = kept["damaged"].records[3].replace(b"look", b"loot")
        from detent.core import codec

        body = codec.encode(e.NoteWritten(text="from the future"))
        envelope = codec.read_record(lines[-1]).envelope
        future = type(envelope)(run="newer", seq=len(lines) + 1, at=envelope.at, v=99, status="waiting_for_user")
        line, _ = codec.seal(future, body, previous=codec.read_record(lines[-1]).digest, salt="s" * 16)
        lines.append(line)
        async with engine_on(store, plan, [look()]) as engine:
            with pytest.raises(NewerVersion):
                await engine.load("newer")
            runs = {run.run_id: run for run in (await engine.check_upgrade()).runs}
            assert "newer Detent" in runs["newer"].problem and "damaged at record 4" in runs["damaged"].problem
            assert [name for name, run in runs.items() if run.goes_on] == ["sound"]

    run_async(main)


def test_what_was_decided_in_any_way_is_no_difference() -> None:
    """Approvals by several people that expire, denials and calls found in text come out of the check as they stand in the log."""

    async def main() -> None:
        from history.family import NAMES, Tools, make_engine

        class Asking(Strict):
            def decide(self, call: Call, state: RunState) -> Verdict:
                level = {"note": "deny", "look": "allow"}.get(call.tool.name, "require_approval")
                return Verdict(decision=level, rule="own", reason="so", approvers=2, expires_s=90.5, on_reject="stop", facts={"n": 1})  # type: ignore[arg-type]

        store, tools = RamStore(), Tools()
        async with make_engine(store, tools, policy=Asking()) as engine:
            await engine.run(agent_of(*NAMES), "clean up", run_id="run")
            for _ in range(12):
                state = await engine.load("run")
                if state.asks:
                    await engine.reply("run", "blue")
                for call in state.approvals:
                    await engine.approve("run", call, by=f"person {len(state.call(call).approved_by)}")  # type: ignore[union-attr]
                found = (await engine.check_upgrade("run")).runs[0]
                assert found.goes_on, found
                if state.terminal:
                    break
            assert (await engine.load("run")).status == "completed"

    run_async(main)


def test_a_fork_in_flight_is_checked_with_what_it_goes_on_from() -> None:
    """Its replay begins at its own first record."""

    async def main() -> None:
        store = RamStore()
        await waiting(store)
        async with engine_on(store, plan, [look()]) as engine:
            await engine.fork("run", child_id="child")
            found = await engine.check_upgrade("child")
            assert found.runs[0].goes_on and found.runs[0].changed == ()

    run_async(main)
