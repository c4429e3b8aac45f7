"""A run continued where its planner or a tool is missing: nothing runs, the run stays as it was, and an answer is posted only if it is only to be posted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, AskUser, Engine, FinalAnswer, Plan, Result, ToolCall, tool
from detent.core.errors import ConfigError, NotAllowedNow, ToolsMissing
from detent.stores.ram import RamStore

AGENT = Agent(name="a", tools=("wipe", "put"))
done: list[str] = []


@tool(side_effect="destructive")
def wipe(name: str) -> str:
    """Remove a thing."""
    done.append(f"wipe {name}")
    return "gone"


@tool(side_effect="write")
def put(name: str) -> str:
    """Put a thing; the first attempt dies over it."""
    done.append(f"put {name}")
    if len(done) == 1:
        raise RuntimeError("cut off")
    return "put"


class Asks:
    """Asks the user, then answers."""

    async def plan(self, view: Any) -> Plan:
        return Plan(actions=(AskUser(question="Where?"),) if view.iteration == 1 else (FinalAnswer(content="x"),))


class Calls:
    """Calls one tool, then answers."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def plan(self, view: Any) -> Plan:
        call = ToolCall(tool=self.name, args={"name": "x"})
        return Plan(actions=(call,) if view.iteration == 1 else (FinalAnswer(content="x"),))


class Says:
    """Answers with a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def plan(self, view: Any) -> Plan:
        return Plan(actions=(FinalAnswer(content=self.text),))


def engine(store: Any, planner: Any = None, tools: Any = (wipe, put)) -> Engine:
    return Engine(store=store, tools=tools, planner=planner, approver="caller")


ANSWERS: dict[str, tuple[Any, Callable[..., Awaitable[Result]]]] = {
    "approve": (Calls("wipe"), lambda e, **how: e.approve("r", "main.1.0", by="ann", **how)),
    "deny": (Calls("wipe"), lambda e, **how: e.deny("r", "main.1.0", by="ann", **how)),
    "reply": (Asks(), lambda e, **how: e.reply("r", "there", by="ann", **how)),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_without_a_planner_here_runs_and_posts_nothing(answer: str) -> None:
    """Otherwise the approved call runs, and the run then fails for want of a planner; or who is refused cannot answer otherwise any more."""

    async def main() -> None:
        done.clear()
        store, (planner, give) = RamStore(), ANSWERS[answer]
        async with engine(store, planner) as first:
            await first.run(AGENT, "go", run_id="r")
            before = (await store.head("r")).records  # pyright: ignore[reportOptionalMemberAccess]
            async with engine(store) as bare:
                with pytest.raises(ConfigError, match=r"has no planner.*Nothing was posted.*resume=False"):
                    await give(bare)
                assert await store.signals(["r"]) == {}
                await give(bare, resume=False)
                with pytest.raises(ConfigError, match="has no planner"):
                    await bare.resume("r")
                assert "has no planner" in (await bare.work(until_idle=True)).left["r"]
            assert not done and (await store.head("r")).records == before  # pyright: ignore[reportOptionalMemberAccess]
            assert (await first.resume("r")).status == "completed"
        assert done == (["wipe x"] if answer == "approve" else [])

    asyncio.run(main())


def test_a_call_in_doubt_is_not_made_again_without_a_planner() -> None:
    """The write was made once more before the run failed."""

    async def main() -> None:
        done.clear()
        store = RamStore()
        async with engine(store, Calls("put")) as first:
            assert (await first.run(AGENT, "go", run_id="r")).status == "waiting_for_reconciliation"
            async with engine(store) as bare:
                with pytest.raises(ConfigError, match="has no planner"):
                    await bare.reconcile("r", "main.1.0", happened=False, by="ann")
                await bare.reconcile("r", "main.1.0", happened=False, by="ann", resume=False)
                assert "has no planner" in (await bare.check_upgrade()).stranded[0].problem
            assert done == ["put x"]
            assert (await first.resume("r")).status == "completed"
        assert done == ["put x", "put x"]

    asyncio.run(main())


def test_an_answer_where_tools_are_missing_is_not_posted() -> None:
    """Otherwise the second try, by somebody who thinks better of it, meets "approved already". A session's message is such an answer."""

    async def main() -> None:
        done.clear()
        store = RamStore()
        async with engine(store, Calls("wipe")) as first:
            await first.run(AGENT, "go", run_id="r")
            first.planner = Asks()
            await first.session(AGENT, "trip").send("where?")
            async with engine(store, Calls("wipe"), tools=()) as bare:
                with pytest.raises(ToolsMissing, match=r"needs tools.*detent\.toml.*Nothing was posted"):
                    await bare.approve("r", "main.1.0", by="ann")
                with pytest.raises(ToolsMissing, match="Nothing was posted"):
                    await bare.session(None, "trip").send("there")
            assert await store.signals(["r", "trip.1"]) == {}
            first.planner = Calls("wipe")
            assert (await first.deny("r", "main.1.0", by="ann")).status == "completed"
        assert done == []

    asyncio.run(main())


def test_approved_arguments_that_do_not_fit_the_tool_are_refused_and_the_request_stays_open() -> None:
    """A typo used up the approval, and the run completed without the call."""

    async def main() -> None:
        done.clear()
        async with engine(RamStore(), Calls("wipe")) as here:
            await here.run(AGENT, "go", run_id="r")
            with pytest.raises(NotAllowedNow, match=r"do not fit: .*name.*still open") as refused:
                await here.approve("r", "main.1.0", by="ann", args={"name": 5})
            assert refused.value.reason_code == "arguments_invalid" and len(await here.approvals(run_id="r")) == 1
            assert (await here.approve("r", "main.1.0", by="ann", args={"name": "y"})).status == "completed"
        assert done == ["wipe y"]

    asyncio.run(main())


def test_an_argument_too_short_to_be_traced_is_not_called_the_planners_own() -> None:
    """The user had given `ann` as a run variable, and the prompt said that the planner made it up."""

    async def main() -> None:
        async with engine(RamStore(), Calls("wipe")) as here:
            await here.run(AGENT, "go", run_id="r", variables={"name": "x"})
            assert (await here.approvals(run_id="r"))[0].origins["name"]["label"] == "short"

    asyncio.run(main())


def test_what_a_result_and_a_loaded_run_print_is_whole_and_names_the_next_step(tmp_path: Path) -> None:
    """An answer was cut at 68 characters, also in a pipe, and the printed command found no run, because it had no --store."""

    async def main() -> None:
        done.clear()
        url = f"sqlite:///{tmp_path / 'runs.db'}"
        async with engine(url, Calls("wipe")) as here:
            waits = str(await here.run(AGENT, "go", run_id="r"))
            digest = (await here.approvals(run_id="r"))[0].digest
            next_line = f"next    detent approve r main.1.0 --digest {digest} --store {url}\n"
            assert f"waits   approval of wipe (main.1.0)\n{next_line}" in waits
            assert str(await here.load("r")) == waits
            here.planner = Calls("put")
            doubt = str(await here.run(AGENT, "go", run_id="d"))
            assert f"next    detent reconcile d main.1.0 --store {url} (--happened RESULT | --not)\n" in doubt
        async with engine(RamStore(), Calls("wipe")) as here:
            assert "next" not in str(await here.run(AGENT, "go", run_id="r")), "no other process has this store"
            long = " ".join(["word"] * 60)
            ended = await engine(here.runtime.store, Says(long)).run(Agent(name="b"), "go", run_id="s")
            assert long in str(ended) and str(await here.load("s")) == str(ended)
            assert long not in repr(ended) and repr(await here.load("s")) == repr(ended) and len(repr(ended).splitlines()) <= 5

    asyncio.run(main())
