"""A worker that dies at any moment: what is on the log is not paid for again, and what it left open is charged at its reservation."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Budget, FinalAnswer, Usage
from detent.core import events as e
from detent.core.budget import NOTHING
from detent.core.codec import read_log
from detent.core.fold import fold
from detent.core.records import Record
from detent.core.state import RunState
from detent.ports.heads import head_of
from detent.stores.ram import RamStore
from detent.stores.urls import open_store
from forked import fork
from kernel.runs import Desk
from metering.providers import Caller, Provider, answer, engine, failure, look, of, used

BUDGET = Budget(max_total_tokens=10_000, max_cost_usd=100.0)
AGENT = Agent(name="asker", tools=["look"])


def script() -> Provider:
    """Return what the provider says to a run that looks twice: with a retry, a plan that is none, and an answer."""
    return Provider(
        failure("server", usage=used(2, 0)),
        answer(look(1)),
        answer(value=None),
        answer(look(2)),
        answer(FinalAnswer(content="seen")),
    )


def expected(records: list[Record]) -> Usage:
    """Return what a log says was used: each call that ended, and at its reservation each that a resumption or the end found open."""
    used_, open_ = NOTHING, dict[str, Usage]()
    for record in records:
        match record.event:
            case e.ModelCallStarted(call=call, reserved=reserved):
                used_, open_ = used_.plus(Usage(model_calls=1)), {**open_, call: reserved}
            case e.ModelCallFinished(call=call, usage=usage) | e.ModelCallFailed(call=call, usage=usage):
                used_ = used_.plus(usage)
                open_.pop(call)
            case e.RunResumed() | e.RunFinished():
                for reserved in open_.values():
                    used_ = used_.plus(reserved)
                open_ = {}
            case _:
                pass
    return used_


def check_sum(records: list[Record], state: RunState) -> None:
    """The run's usage is what its log says; `estimated` where a reservation was charged."""
    told = expected(records)
    for field in ("model_calls", "input_tokens", "output_tokens"):
        assert getattr(state.usage, field) == getattr(told, field), field
    assert (state.usage.cost_usd or 0) == pytest.approx(told.cost_usd or 0)


async def whole() -> tuple[list[bytes], Provider]:
    """Return the log of the run to which nothing happened."""
    store, provider = RamStore(), script()
    async with engine(Caller(provider, input_tokens=20, max_output_tokens=10), Desk().look, store=store) as made:
        result = await made.run(AGENT, "go", run_id="r", budget=BUDGET)
        assert result.status == "completed" and provider.script == []
    return await store.read("r"), provider


def test_a_log_cut_anywhere_is_taken_on_without_paying_twice() -> None:
    """Each recorded plan is asked for once; a call that was open is charged at its reservation, marked as estimated; the log replays."""

    async def main() -> None:
        lines, _ = await whole()
        records = list(read_log("r", lines))
        opened = 0
        for cut in range(2, len(lines)):
            state = fold(records[:cut])
            if state.terminal:
                continue
            store = RamStore()
            await store.append("r", 0, lines[:cut], head=head_of(state))
            answered = len(of([r.event for r in records[:cut]], e.Planned, e.PlanRejected))
            left = Provider(*[entry for entry in script().script if not isinstance(entry, Exception)][answered:])
            async with engine(Caller(left, input_tokens=20, max_output_tokens=10), Desk().look, store=store) as made:
                result = await made.resume("r")
                assert result.status == "completed" and left.script == [], cut
                after = list(read_log("r", await store.read("r")))
                check_sum(after, result.state)
                assert result.usage.estimated == bool(state.reserved), cut
                assert len(of([r.event for r in after], e.Planned)) == 3
                again = await made.replay("r")
                assert again.identical, (cut, again.divergence)
            opened += bool(state.reserved)
        assert opened == 5

    asyncio.run(main())


def start(url: str, directory: Path, turn: int) -> Any:
    """Start a worker that hangs in the model call of this turn, and wait until it is there."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here.parent.parent / "src"), str(here.parent)])
    words = [str(here / "child.py"), url, str(directory), str(turn)]
    worker = fork(words, env={**os.environ, "PYTHONPATH": paths}, imports=["pytest", "kernel.runs"])
    assert worker.stdout is not None
    said = worker.stdout.readline()
    if said != json.dumps({"sending": turn}) + "\n":
        worker.kill()
        worker.communicate()
        raise AssertionError(f"the worker said {said!r}, and more on standard error")
    return worker


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_process_killed_in_the_middle_of_a_call_is_succeeded(kind: str, turn: int, tmp_path: Path) -> None:
    """The open call is charged at its reservation, nothing that was planned is asked for again, and the log replays."""
    url = f"file:{tmp_path}/runs" if kind == "file" else f"sqlite:///{tmp_path}/runs.db"
    worker = start(url, tmp_path, turn)
    os.kill(worker.pid, signal.SIGKILL)
    assert worker.wait(30) == -signal.SIGKILL
    assert worker.stdout is not None
    worker.stdout.close()
    paid = (tmp_path / "paid").read_text().split() if (tmp_path / "paid").exists() else []
    assert paid == ["1"][: turn - 1]

    async def main() -> Any:
        store: Any = open_store(url)
        left = Provider(*[answer(look(1)), answer(FinalAnswer(content="seen"))][turn - 1 :])
        async with engine(Caller(left, input_tokens=20, max_output_tokens=10), Desk().look, store=store) as made:
            await store.open()
            before = await made.load("r")
            assert before.reserved == {f"main.{turn}.m{turn}": Usage(input_tokens=20, output_tokens=10, cost_usd=pytest.approx(0.12))}
            result = await made.resume("r")
            assert result.status == "completed" and left.script == []
            assert result.usage.estimated and result.usage.model_calls == 3 and result.usage.total_tokens == 60
            check_sum(list(read_log("r", await store.read("r"))), result.state)
            again = await made.replay("r")
            assert again.identical, again.divergence
        await store.close()

    asyncio.run(main())


def test_a_run_that_is_cancelled_after_a_crash_charges_the_open_call() -> None:
    """Nobody asks again; what was reserved is what it may have cost."""

    async def main() -> Any:
        lines, _ = await whole()
        cut = next(n for n, r in enumerate(read_log("r", lines), 1) if isinstance(r.event, e.ModelCallStarted))
        store = RamStore()
        await store.append("r", 0, lines[:cut], head=head_of(fold(read_log("r", lines[:cut]))))
        async with engine(Caller(Provider()), Desk().look, store=store) as made:
            result = await made.cancel("r")
            assert (result.status, result.reason) == ("stopped", "cancelled")
            assert (result.usage.total_tokens, result.usage.estimated, result.state.reserved) == (30, True, {})
            assert (await made.replay("r")).identical

    asyncio.run(main())
