"""Titles: one call of the small model says what a run is called in lists; nothing else about the run depends on it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cli.desk import Desk
from detent import Agent, Budget, Engine, FinalAnswer, Plan, Result, View, tool
from detent.config.groups import Models
from detent.core import events as e
from detent.core.codec import read_log
from detent.ports import Branch, ModelAnswer, StrategyRun
from detent.running.titles import LONGEST, readable
from detent.stores.ram import RamStore
from detent.testing import FakeModel, ScriptedPlanner, calls, fails, says


@tool(side_effect="read")
def look() -> str:
    """Look."""
    return "seen"


AGENT = Agent(name="a", model="big:one", small_model="small:one", instructions="Be careful.", tools=[look])
GOAL = "Sweep the floor of the workshop, then tell me what you found"


class Named:
    """A planner's model: it looks, then answers; asked for a title it gives `title`, which may be a failure."""

    def __init__(self, title: Any = "  **Sweeping** the floor.\nMore", **options: Any) -> None:
        self.views: list[View] = []
        self.title, self.model = title, FakeModel(self.answer, **options)

    def answer(self, view: View) -> Any:
        """Answer a request."""
        self.views.append(view)
        if view.scope == "title":
            return self.title
        return calls(("look", {})) if view.iteration == 1 else says("done")

    @property
    def asked(self) -> int:
        """How often a title was asked for."""
        return sum(view.scope == "title" for view in self.views)


async def events_of(store: RamStore, run_id: str) -> list[Any]:
    """Return what happened in a run."""
    return [record.event for record in read_log(run_id, await store.read(run_id))]


def run(named: Named, agent: Agent = AGENT, *, titles: bool = True, **options: Any) -> tuple[Result, list[Any]]:
    """Run the agent and check that its log comes out again, also without the option; return result and events."""

    async def main() -> tuple[Result, list[Any]]:
        store = RamStore()
        async with Engine(store=store, planner=named.model, models=Models(titles=titles)) as made:
            result = await made.run(agent, GOAL, **options)
            head = await store.head(result.run_id)
            assert head is not None and head.title == result.title
            assert (await made.replay(result.run_id)).identical
        async with Engine(store=store, planner=named.model, tools=[look]) as made:
            assert (await made.replay(result.run_id)).identical
        return result, await events_of(store, result.run_id)

    return asyncio.run(main())


def test_the_small_model_is_asked_once_and_the_call_is_counted() -> None:
    """It is shown the goal and nothing else; its answer is cut down to one line; purpose and usage stand in the log."""
    named = Named()
    result, events = run(named)
    assert (result.status, result.output, result.title) == ("completed", "done", "Sweeping the floor")
    assert (named.asked, result.usage.model_calls, result.iterations) == (1, 3, 2)
    assert [event.purpose for event in events if isinstance(event, e.ModelCallStarted)] == ["title", "plan", "plan"]
    asked = named.views[0]
    assert asked.small and asked.tools == () and asked.agent.instructions == "" and GOAL in asked.goal
    used = [event.usage.total_tokens for event in events if isinstance(event, e.ModelCallFinished)]
    assert min(used) > 0 and result.usage.total_tokens == sum(used)


def test_without_the_option_or_a_small_model_nothing_is_asked() -> None:
    """Nor where the agent has rules, or only one call may be made."""
    plain = Agent(name="a", model="big:one", tools=[look])
    rules = Agent(name="a", small_model="small:one", rules=[{"name": "end", "answer": "done"}])
    given: list[tuple[Agent, bool, dict[str, Any]]] = [(AGENT, False, {}), (plain, True, {}), (rules, True, {})]
    given.append((AGENT, True, {"budget": Budget(max_model_calls=1)}))
    for agent, titles, options in given:
        named = Named()
        result, events = run(named, agent, titles=titles, **options)
        assert (named.asked, result.title) == (0, "")
        assert [event for event in events if isinstance(event, e.EffectRecorded)] == []


@pytest.mark.parametrize(
    "title", [fails("auth"), says(""), calls(("look", {})), says("  \n**\x1b**  ")], ids=["refused", "empty", "call", "blank"]
)
def test_a_run_never_fails_for_want_of_a_title(title: Any) -> None:
    """It goes on without one, and that is on record: no second call is made for it, not even for an empty answer."""
    named = Named(title)
    result, events = run(named)
    assert (result.status, result.title, named.asked) == ("completed", "", 1)
    assert [event.value for event in events if isinstance(event, e.EffectRecorded)] == [None]


def test_who_resumes_or_forks_asks_no_second_time() -> None:
    """The title is the run's; a fork keeps it, unless it has another goal, and is then asked for anew."""

    async def main() -> None:
        store = RamStore()
        async with Engine(store=store, planner=Named("first").model, models=Models(titles=True)) as made:
            run_id = (await made.run(AGENT, GOAL, turns=1)).run_id
        second = Named("second")
        async with Engine(store=store, planner=second.model, tools=[look], models=Models(titles=True)) as made:
            assert (await made.resume(run_id)).title == "first"
            assert (await made.fork(run_id)).title == "first"
            assert second.asked == 0
            other = await made.fork(run_id, edits={"goal": "Water the plants"})
            assert (other.title, second.asked) == ("second", 1)
            assert (await made.replay(other.run_id)).identical
            await made.erase(run_id)
            assert [head.title for head in await made.list_runs() if head.run_id == run_id] == [""]

    asyncio.run(main())


async def two_at_once(work: StrategyRun) -> Any:
    """Answer twice side by side."""
    return (await work.parallel(Branch(label="one"), Branch(label="two")))[0]


def test_passes_that_begin_side_by_side_have_one_title_and_replay() -> None:
    """Whoever plans first asks; the record stands wherever it came about."""
    named = Named()

    async def main() -> None:
        async with Engine(planner=named.model, models=Models(titles=True), strategies={"two": two_at_once}) as made:
            result = await made.run(Agent(name="a", small_model="small:one", tools=[look], strategy="two"), GOAL)
            assert (result.status, result.title, named.asked) == ("completed", "Sweeping the floor", 1)
            assert (await made.replay(result.run_id)).identical

    asyncio.run(main())


def test_a_title_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is on record as cancelled, charged at its reservation, and the run goes on."""
    monkeypatch.setattr("detent.running.titles.PATIENCE_S", 0.01)

    class Silent:
        async def plan(self, view: View) -> Plan:
            async def send(limit: int | None) -> ModelAnswer:
                if view.scope == "title":
                    await asyncio.Event().wait()
                return ModelAnswer(value=None)

            assert view.models is not None
            await view.models.call("some:model", send)
            return Plan(actions=(FinalAnswer(content="done"),))

    async def main() -> None:
        store = RamStore()
        async with Engine(store=store, planner=Silent(), models=Models(titles=True)) as made:
            result = await made.run(Agent(name="a", small_model="small:one"), GOAL)
            assert (result.status, result.title) == ("completed", "")
            assert (await made.replay(result.run_id)).identical
        assert [event.kind for event in await events_of(store, result.run_id) if isinstance(event, e.ModelCallFailed)] == ["cancelled"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("Sweep", "Sweep"),
        ("# Title: \u201cSweep the floor\u201d.", "Sweep the floor"),
        ("\n\n- *Sweep*\x1b[31m red\u202e\nmore", "Sweep* [31m red"),
        ("", ""),
        ("<think>A title:\nhm</think>\nSweep", "Sweep"),
        ("<think>never ends", ""),
        ('{"title": "Sweep"}', "Sweep"),
        ("x" * 200, f"{'x' * (LONGEST - 1)}…"),
    ],
)
def test_a_title_is_one_plain_line(said: str, title: str) -> None:
    """No markup around it, no quotes, nothing that a terminal would obey, and not too long."""
    assert readable(said) == title


@pytest.mark.parametrize(
    "said", ["the key sk-secret123", "the key s`k-secret123", "the **s**k-secret123", "x" * 70 + " sk-" + "secret" * 9]
)
def test_a_title_holds_no_secret_not_even_one_that_markup_kept_apart(said: str) -> None:
    """What patterns match is left out of what is left of the answer, before it is cut."""

    async def main() -> None:
        async with Engine(planner=Named(says(said)).model, models=Models(titles=True), redact=(r"sk-\w{9,}",)) as made:
            result = await made.run(AGENT, GOAL)
            assert result.title and "sk-" not in result.title and "secret" not in result.title
            assert (await made.replay(result.run_id)).identical

    asyncio.run(main())


def test_a_script_is_not_asked_for_a_title() -> None:
    """It asks no model; what it holds is for the run's own turns, and is made once."""
    made: list[str] = []

    def answer(view: View) -> FinalAnswer:
        made.append(view.scope)
        return FinalAnswer(content="done")

    async def main() -> Result:
        async with Engine(planner=ScriptedPlanner([answer]), models=Models(titles=True)) as engine:
            return await engine.run(AGENT, GOAL)

    result = asyncio.run(main())
    assert (result.output, result.title, len(made)) == ("done", "", 1) and "title" not in made


PLANNER = """
from detent.testing import FakeModel, says

planner = FakeModel(lambda view: says("Sweeping") if view.scope == "title" else says("done"))
"""


def test_the_command_line_shows_titles_where_there_are_any(tmp_path: Path) -> None:
    """`list` has the title in place of the goal, `show` has both, and so has their JSON; a run without one is shown as it always was."""
    desk = Desk(tmp_path)
    (desk.home / "named.py").write_text(PLANNER)
    (desk.home / "agent.toml").write_text('name = "a"\nsmall_model = "small:one"\n')
    toml = 'agent = "agent.toml"\nplanner = "./named.py:planner"\n[models]\ntitles = {}\n'
    for said, goal in (("false", "Water the plants"), ("true", "Sweep the whole floor")):
        (desk.home / "detent.toml").write_text(toml.format(said))
        assert desk.detent("run", goal).code == 0
    newest, oldest = desk.detent("list").out.splitlines()[1:3]
    assert newest.endswith(" Sweeping") and oldest.endswith(" Water the plants")
    newest, oldest = desk.detent("list", "--json").json
    assert (newest["title"], newest["goal"]) == ("Sweeping", "Sweep the whole floor") and "title" not in oldest
    assert "title     Sweeping\ngoal      Sweep the whole floor\n" in desk.detent("show", newest["run_id"]).out
    assert desk.detent("show", newest["run_id"], "--json").json["title"] == "Sweeping"
    assert "title " not in desk.detent("show", oldest["run_id"]).out
