"""A run that is opened again, or forked at its end, repeats nothing that its strategy had dealt with."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Budget, Engine, FinalAnswer, Plan, Stop, ToolCall, View, tool
from detent.core import events as e
from detent.core.codec import read_record
from detent.core.errors import Divergence, EffectFailed, FatalToolError
from detent.core.fold import fold
from detent.core.records import RunHead
from detent.ports import Branch, Passed, StrategyRun
from detent.running.snapshots import base_of
from detent.stores.ram import RamStore
from detent.testing.faults import Crash, CrashingStore
from history.family import open_at

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
MORE = Budget(max_iterations=30)


class Bank:
    """Keeps what was transferred; `pay` has no money after its first transfer."""

    def __init__(self, *, idempotent: bool = False) -> None:
        self.done: list[str] = []

        @tool(side_effect="write", idempotent=idempotent)
        async def transfer(how: str) -> str:
            """Transfer by one of the ways."""
            self.done.append(f"{how}{len(self.done) + 1}")
            return self.done[-1]

        self.transfer = transfer

    async def plan(self, view: View) -> Plan:
        """Transfer, then answer; where the way is `pay`, stop before the answer, and transfer again when asked once more."""
        if view.scope == "pay" and len(view.results) == 1 and view.transcript[-1].kind == "tool":
            return Plan(actions=(Stop(reason="no money"),))
        if view.results and (view.scope != "pay" or len(view.results) == 2):
            return Plan(actions=(FinalAnswer(content=f"{view.scope}: {view.results[-1].content}"),))
        return Plan(actions=(ToolCall(tool="transfer", args={"how": view.scope}),))

    def engine(self, strategy: Any, store: Any = None) -> Engine:
        """Return an engine whose agents transfer here."""
        return Engine(store=store or RamStore(), planner=self, tools=[self.transfer], strategies={"mine": strategy})


AGENT = Agent(name="a", strategy="mine", tools=["transfer"])


async def pay_or_wire(run: StrategyRun) -> Any:
    """Pay; where that fails, wire."""
    paid = await run.kernel("pay")
    return paid if paid.status == "done" else await run.kernel("wire")


async def stopped(engine: Engine) -> int:
    """Begin a run whose bound ends it once the wire was sent; return how many records it has."""
    result = await engine.run(AGENT, "go", run_id="r", budget=Budget(max_iterations=3))
    assert (result.status, result.reason) == ("stopped", "max_iterations")
    return len(await engine.records("r"))


async def replays(engine: Engine, run_id: str = "r") -> None:
    """See that the log comes out again, and that the state is its fold."""
    again = await engine.replay(run_id)
    assert again.identical, again.divergence
    lines = await engine.store.read(run_id)
    assert fold(map(read_record, lines), await base_of(engine.store, run_id, lines)) == (await engine.load(run_id))


def test_a_pass_whose_failure_the_strategy_had_dealt_with_stays_failed_when_the_run_is_opened_again() -> None:
    """The wire took the place of the payment: `pay1 wire2` must not become `pay1 wire2 pay3`. Forks of any record agree."""
    bank = Bank()

    async def main() -> None:
        async with bank.engine(pay_or_wire) as engine:
            await stopped(engine)
            assert bank.done == ["pay1", "wire2"]
            again = await engine.reopen("r", by="ann", budget=MORE)
            assert (again.status, again.output, bank.done) == ("completed", "wire: wire2", ["pay1", "wire2"])
            await replays(engine)
            records = await engine.records("r")
            for at in range(1, len(records) + 1):
                begun_to_end = at < len(records) and isinstance(records[at].event, e.RunFinished)  # one commit: nobody resumes there
                if at not in open_at(records) and not begun_to_end:
                    child = await engine.fork("r", at=at, edits={"budget": {"max_iterations": 30}}, child_id=f"f{at}")
                    assert (child.output, list(child.state.passes)) == ("wire: wire2", ["pay", "wire"]), at
                    await replays(engine, child.run_id)
            assert bank.done == ["pay1", "wire2"]

    asyncio.run(main())


def test_a_fork_of_the_end_of_a_stopped_run_repeats_nothing_either() -> None:
    """Also where effects are executed in the fork (`redo`): only the wire is continued."""
    bank = Bank()

    async def main() -> None:
        async with bank.engine(pay_or_wire) as engine:
            end = await stopped(engine)
            child = await engine.fork("r", at=end, edits={"budget": {"max_iterations": 30}}, effects="redo", child_id="f")
            assert (child.output, bank.done) == ("wire: wire2", ["pay1", "wire2"])
            await replays(engine, "f")

    asyncio.run(main())


@pytest.mark.parametrize("at", range(1, 8))
def test_a_crash_of_the_run_that_was_opened_again_repeats_nothing(at: int) -> None:
    """At any write of the second opening."""
    bank, inner = Bank(idempotent=True), RamStore()

    async def main() -> None:
        await stopped(bank.engine(pay_or_wire, inner))
        with contextlib.suppress(Crash):
            await bank.engine(pay_or_wire, CrashingStore(inner, at=at, operations=("append",))).reopen("r", by="ann", budget=MORE)
        await inner.release("r")
        engine = bank.engine(pay_or_wire, inner)
        if (await engine.load("r")).openings == 1:
            await engine.reopen("r", by="ann", budget=MORE)
        result = await engine.resume("r")
        assert (result.output, bank.done) == ("wire: wire2", ["pay1", "wire2"])
        await replays(engine)

    asyncio.run(main())


@pytest.mark.parametrize("again", ["reopen", "fork"])
def test_a_value_that_could_not_be_made_and_that_the_strategy_had_dealt_with_is_not_asked_for_again(again: str) -> None:
    """What had ended the run as `kernel_error` is; else a strategy would take the other way as well."""
    asked: list[str] = []
    bank = Bank()

    async def rate() -> int:
        asked.append("rate")
        if len(asked) == 1:
            raise TimeoutError("no rate")
        return 7

    async def last() -> str:
        asked.append("last")
        if len(asked) == 2:
            raise TimeoutError("not yet")
        return "done"

    async def mine(run: StrategyRun) -> Any:
        try:
            await run.effect("rate", rate)
        except EffectFailed:
            await run.kernel("wire")
        else:
            await run.kernel("post")
        return await run.effect("last", last)

    async def main() -> None:
        async with bank.engine(mine) as engine:
            result = await engine.run(AGENT, "go", run_id="r")
            assert (result.reason, asked) == ("kernel_error", ["rate", "last"])
            asked.append("opened")
            if again == "reopen":
                result = await engine.reopen("r", by="ann")
            else:
                result = await engine.fork("r", at=len(await engine.records("r")), effects="redo", child_id="f")
            assert (result.output, bank.done, asked[3:]) == ("done", ["wire1"], ["last"])
            await replays(engine, result.run_id)

    asyncio.run(main())


def test_a_pass_beside_one_that_ended_the_run_continues_with_it() -> None:
    """Its strategy has not seen that it failed: it asks for both again."""

    class Breaks(Bank):
        """The wire breaks the run at once."""

        broken = False

        async def plan(self, view: View) -> Plan:
            if view.scope == "wire" and not self.broken:
                self.broken = True
                return Plan(actions=(ToolCall(tool="snap"),))
            return await super().plan(view)

    @tool(side_effect="read")
    async def snap() -> None:
        """Break."""
        raise FatalToolError("snap")

    bank = Breaks()

    async def mine(run: StrategyRun) -> Any:
        return [passed.output for passed in await run.parallel(Branch(label="pay"), Branch(label="wire"))]

    async def main() -> None:
        async with Engine(planner=bank, tools=[bank.transfer, snap], strategies={"mine": mine}) as engine:
            agent = Agent(name="a", strategy="mine", tools=["transfer", "snap"])
            result = await engine.run(agent, "go", run_id="r")
            assert result.reason == "fatal_tool_error" and {known.status for known in result.state.passes.values()} == {"failed"}
            result = await engine.reopen("r", by="ann", budget=MORE)
            assert (result.output, bank.done) == (["pay: pay2", "wire: None"], ["pay1", "pay2"])
            await replays(engine)

    asyncio.run(main())


def other_input(run: StrategyRun) -> Any:
    """Ask for the first pass with another task."""
    return run.kernel("pay", task="pay twice")


def without(run: StrategyRun) -> Any:
    """Ask for the second pass alone."""
    return run.kernel("wire")


@pytest.mark.parametrize("again", ["reopen", "fork"])
@pytest.mark.parametrize(("changed", "said"), [(other_input, "pass 'pay' with input digest"), (without, "pass 'pay'")])
def test_the_passes_of_a_run_that_is_opened_again_bind_its_strategy(changed: Callable[[StrategyRun], Any], said: str, again: str) -> None:
    """Code that asks for other passes is a divergence, with nothing done; the run can be taken on with the code that it began with."""
    bank, store = Bank(), RamStore()

    async def mine(run: StrategyRun) -> Passed:
        passed: Passed = await changed(run)
        return passed

    async def main() -> None:
        first = bank.engine(pay_or_wire, store)
        end = await stopped(first)
        other = bank.engine(mine, store)
        name = "r" if again == "reopen" else "f"
        if again == "fork":
            await first.fork("r", at=end, edits={"budget": {"max_iterations": 30}}, child_id="f", resume=False)
        with pytest.raises(Divergence, match=said):
            await (other.reopen("r", by="ann", budget=MORE) if again == "reopen" else other.resume("f"))
        assert bank.done == ["pay1", "wire2"]
        result = await (first.reopen("r", by="ann", budget=MORE) if again == "reopen" else first.resume("f"))
        assert (result.output, bank.done) == ("wire: wire2", ["pay1", "wire2"])
        await replays(first, name)
        assert not (await other.replay(name)).identical

    asyncio.run(main())


def test_logs_that_0_1_0_opened_again_and_forked_come_out_again() -> None:
    """There the payment was repeated, and the wire was left out: such a log means what it meant."""
    bank = Bank()

    async def main() -> None:
        async with bank.engine(pay_or_wire) as engine:
            for run_id, name in (("r", "reopened"), ("f", "forked")):
                lines = (GOLDEN / f"{name}-0.1.0.jsonl").read_bytes().splitlines()
                start = datetime(2026, 1, 1, tzinfo=UTC)
                head = RunHead(run_id=run_id, goal_id="r", records=len(lines), created_at=start, updated_at=start)
                await engine.store.append(run_id, 0, lines, head=head)
            assert (await engine.load("r")).output == "pay: pay4" and (await engine.load("f")).output == "pay: pay3"
            await replays(engine)
            await replays(engine, "f")

    asyncio.run(main())
