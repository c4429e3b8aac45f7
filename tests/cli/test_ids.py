"""Run ids as they are printed and typed: short, unique, whole words, and never somebody else's run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.desk import Desk
from detent import Agent, Engine, FinalAnswer, Plan
from detent.cli.ids import CHOSEN, LONG, find_run, short_names, shortest
from detent.config.state_directory import store_url
from detent.core.agent import Host
from detent.core.errors import ConfigError, RunNotFound
from detent.ports import RunQuery

FIRST = "20260301-120000-find-the-error-burst-7k3f9q"
TWIN = "20260301-120000-find-the-error-burst-zz99aa"
SAME_SECOND = "20260301-120000-sweep-0a0a0a"
LATER = "20260301-120001-find-the-error-burst-7k3f9x"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


class Answers:
    """A planner that is done at once."""

    async def plan(self, view: Any) -> Plan:
        return Plan(actions=(FinalAnswer(content="done"),))


def filled(*run_ids: str, tenants: tuple[str, ...] = ()) -> Any:
    """Return an engine, and fill its store with these runs; those of `tenants` are called `their` by each."""

    async def fill(engine: Engine) -> None:
        for run_id in run_ids:
            await engine.run(Agent(name="a"), "go", run_id=run_id)
        for tenant in tenants:
            await engine.run(Agent(name="a"), "go", run_id="their", host=Host(tenant=tenant))

    return Engine(store="ram:", planner=Answers()), fill


def asked(run_ids: tuple[str, ...], *texts: str) -> list[str]:
    """Return what each text finds: a run id, or the kind of error."""

    async def main() -> list[str]:
        engine, fill = filled(*run_ids)
        async with engine:
            await fill(engine)
            found: list[str] = []
            for text in texts:
                try:
                    found.append(await find_run(engine.store, text, there=True))
                except (ConfigError, RunNotFound) as error:
                    found.append(type(error).__name__)
        return found

    return asyncio.run(main())


def test_the_short_name_is_the_second_of_the_start_and_more_words_only_where_needed() -> None:
    """A name that is shorter than the second would be another run's tomorrow; one that breaks a word cannot be read."""
    assert shortest(FIRST, [LATER]) == "20260301-120000"
    assert shortest(SAME_SECOND, [FIRST]) == "20260301-120000-sweep"
    assert shortest(FIRST, [SAME_SECOND]) == "20260301-120000-find"
    assert shortest(FIRST, [TWIN]) == "7k3f9q"
    assert shortest("20260301-120000-7k3f9q", ["20260301-120000-zz99aa"]) == "20260301-120000-7k3f9q"
    assert shortest("nightly-2", ["nightly-1", "nightly-21"]) == "nightly-2"
    chosen = "-".join(["a-name-of-somebody"] * 5)
    assert CHOSEN <= len(shortest(chosen, [])) < len(chosen)
    assert shortest("20260301-120000-go-7k3f9q@acme", []) == "20260301-120000"


@given(
    st.lists(
        st.builds(
            "20260301-12000{}-{}-{}".format,
            st.sampled_from("01"),
            st.sampled_from(["go", "go-on", "find-the-error-burst-in-the-logs", "x"]),
            st.text("a0", min_size=6, max_size=6),
        ),
        unique=True,
        min_size=1,
        max_size=8,
    )
)
def test_a_short_name_names_one_run_and_breaks_no_word(run_ids: list[str]) -> None:
    """Whatever else is in the store: typed again, it is that run; it is the whole id only where nothing shorter is left."""
    for run_id in run_ids:
        name = shortest(run_id, run_ids)
        assert [one for one in run_ids if one.startswith(name) or one.endswith(f"-{name}")] == [run_id]
        assert name == run_id or name in run_id.split("-") or run_id.startswith(f"{name}-")
        assert len(name) <= LONG or run_id.rpartition("-")[2] in [one.rpartition("-")[2] for one in run_ids if one != run_id]


def test_a_run_is_found_by_its_id_any_unique_beginning_its_last_word_and_its_age() -> None:
    """`last` is the newest, `last-1` the one before; what names no run or several is an error."""
    runs = (FIRST, LATER, "mine", "mine-2")
    assert asked(runs, FIRST, "20260301-120000-f", "7k3f9x", "mine", "mine-") == [FIRST, FIRST, LATER, "mine", "mine-2"]
    assert asked(runs, "last", "last-0", "last-1", "last-3") == ["mine-2", "mine-2", "mine", FIRST]
    assert asked(runs, "last-4", "last-", "", "20", "k3f9x", "7k3f9") == [
        *("RunNotFound", "RunNotFound", "RunNotFound", "ConfigError", "RunNotFound", "RunNotFound"),
    ]


def test_a_last_word_that_begins_another_id_is_not_guessed_at() -> None:
    """Somebody who may choose ids could otherwise put a run where the operator's command means another one."""
    assert asked((FIRST, "7k3f9q-is-mine"), "7k3f9q") == ["ConfigError"]


def test_short_names_come_from_one_query_of_the_store_and_keep_to_those_asked_for() -> None:
    """Thousands of runs are no reason to read them all."""

    class Counting:
        """A store that counts what is listed."""

        def __init__(self, inner: Any) -> None:
            self.inner, self.queries = inner, list[RunQuery]()

        async def list_runs(self, query: RunQuery) -> Any:
            self.queries.append(query)
            return await self.inner.list_runs(query)

    async def main() -> None:
        engine, fill = filled(FIRST, SAME_SECOND, LATER)
        async with engine:
            await fill(engine)
            store: Any = Counting(engine.store)
            assert await short_names(store, [FIRST, LATER]) == {FIRST: "20260301-120000-find", LATER: "20260301-120001"}
            assert [query.starts_with for query in store.queries] == [("20260301-120000", "20260301-120001")]

    asyncio.run(main())


def test_beginnings_keep_to_the_tenant_that_asks() -> None:
    """What begins alike in another tenant is neither shown nor in the way."""

    async def main() -> None:
        engine, fill = filled("their-own", tenants=("acme", "other"))
        async with engine:
            await fill(engine)
            query = RunQuery(starts_with=("their",))
            assert [head.tenant for head in await engine.list_runs(query, host=Host(tenant="acme"))] == ["acme"]
            assert len(await engine.list_runs(query)) == 3

    asyncio.run(main())


def test_commands_print_short_names_and_json_whole_ids(desk: Desk, tmp_path: Path) -> None:
    """Every command that prints the run, and the commands that it suggests, which work as they are printed."""
    desk.steps("wipe", "answer")
    desk.detent("run", "--run-id", FIRST, "Clean")

    async def more() -> None:
        async with Engine(store=store_url(tmp_path), planner=Answers()) as engine:
            await engine.run(Agent(name="a"), "go", run_id=SAME_SECOND)

    asyncio.run(more())
    name = "20260301-120000-find"
    assert [line.split()[0] for line in desk.detent("list").out.splitlines()[1:]] == ["20260301-120000-sweep", name]
    shown = desk.detent("approvals").out
    assert f"{name}  main.1.0" in shown and f"detent approve {name} main.1.0" in shown and FIRST not in shown
    assert desk.detent("approvals", "--json").json[0]["run_id"] == FIRST
    assert FIRST in " ".join(desk.detent("show", name, "--json").json["run_id"].split())
    refused = desk.detent("deny", "20260301", "main.1.0")
    assert refused.code == 2 and f"  {FIRST}  waiting_for_approval  Clean" in refused.err
    assert f"run {name}" in desk.detent("deny", name, "main.1.0").err
