"""Whatever takes seconds also takes a duration as text, from people and files; what is kept, and what the log has, is a number."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest

from detent import Agent, Bounds, Budget, Engine, McpServer, Schedule, tool
from detent.config.engines import Config, HttpConfig, StoreConfig, WorkerConfig
from detent.config.environment import config_from_environment, parse_budget
from detent.config.loading import load_agent, load_config
from detent.core.durations import seconds
from detent.core.errors import ConfigError
from detent.extend import InProcessHost, ModelRetries, StrategyRun, events, open_store
from detent.planners.settings import ModelSettings
from detent.policies.rules import Rule
from detent.strategies.tree_of_thought import TreeOptions
from detent.testing import FakeClock
from detent.tools.functions.options import Options
from detent.tools.mcp.settings import ToolPins
from detent.tools.web.fetch import Places

STRUCTS = [
    *(Bounds, Budget, HttpConfig, McpServer, ModelRetries, ModelSettings, Options, Places, Rule, Schedule, StoreConfig, ToolPins),
    *(TreeOptions, WorkerConfig),
]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("1m30s", 90),
        ("90s", 90),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("1d12h", 129_600),
        ("1w", 604_800),
        ("30 d", 2_592_000),
        (7, 7),
        (None, None),
    ],
)
def test_a_duration_is_a_number_or_a_text_with_units(said: Any, meant: float | None) -> None:
    """Units from the largest to the smallest, each once; numbers and None stay as they are."""
    assert seconds(said, "wait") == meant


@pytest.mark.parametrize("said", ["", "90", "s", "1s1m", "1m1m", "soon", "-1s", "1e3s", "1 m 30", "1m" * 3, "9" * 10 + "s"])
def test_other_text_is_refused_with_an_example(said: str) -> None:
    """The message says where, what was found, and how it is written."""
    with pytest.raises(ConfigError, match=r"wait is .*; write seconds, such as 90, or text such as '1m30s'"):
        seconds(said, "wait")


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_field_of_seconds_takes_text_and_holds_a_number(struct: type[msgspec.Struct]) -> None:
    """A field whose name ends in `_s` says so in its type, which schemas and tables are made of, and no other number does."""
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    needed = {"Rule": {"id": "r", "decision": "require_approval"}, "Places": {"allow": ()}, "McpServer": {"command": "x"}}
    for name, field in fields.items():
        assert name.endswith("_s") == any(get_origin(kind) is Annotated for kind in get_args(field.type)), name
        if name.endswith("_s"):
            made: Any = struct(**needed.get(struct.__name__, {}), **{name: "1m30s"})
            assert getattr(made, name) == 90
            with pytest.raises(ConfigError, match=rf"{name} is 'soon'; write seconds"):
                struct(**needed.get(struct.__name__, {}), **{name: "soon"})


@tool(side_effect="read", timeout_s="1m30s")
def look() -> str:
    """Look."""
    return "seen"


GIVEN: dict[str, tuple[Callable[[], Any], Any]] = {
    "a tool": (lambda: look.spec.timeout_s, 90),
    "--budget": (lambda: parse_budget(["running_s=1m30s"]).max_running_s, 90),
    "--budget in seconds": (lambda: parse_budget(["running_s=90"]).max_running_s, 90),
    "a variable": (lambda: config_from_environment({"DETENT_MAX_TOTAL_S": "2h"}).budget.max_total_s, 7200),
    "a worker": (lambda: InProcessHost(poll_s="1m").poll_s, 60),
}


@pytest.mark.parametrize("place", list(GIVEN))
def test_text_counts_wherever_people_give_seconds(place: str) -> None:
    """Not only in options that are structs."""
    given, meant = GIVEN[place]
    assert given() == meant


def test_files_take_durations_and_their_mistakes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `detent.toml` and in an agent file; an error names file and key."""
    monkeypatch.chdir(tmp_path)
    Path("detent.toml").write_text('budget = {max_running_s = "1h"}\n[store]\nlease_s = "1m"\n[worker]\npoll_s = "500ms"\n')
    config: Config = load_config("detent.toml")
    assert (config.budget.max_running_s, config.store.lease_s, config.worker.poll_s) == (3600, 60, 0.5)
    Path("agent.toml").write_text('name = "a"\nrules = [{name = "x", answer = "y"}]\n[budget]\nmax_total_s = "2h"\n')
    assert load_agent("agent.toml").budget.max_total_s == 7200
    for text, said in (
        (
            '[budget]\nmax_total_s = "soon"\n',
            r"detent\.toml: budget\.max_total_s is 'soon'; write seconds, such as 90, or text such as '1m30s'",
        ),
        ('[worker]\npoll_s = "x"\n', r"detent\.toml: worker\.poll_s is 'x'; write seconds"),
    ):
        Path("detent.toml").write_text(text)
        with pytest.raises(ConfigError, match=said):
            load_config("detent.toml")
    Path("agent.toml").write_text('name = "a"\nrules = [{name = "x", schedule = {delay_s = "soon"}}]\n')
    with pytest.raises(ConfigError, match=r"schedule\.delay_s is 'soon'; write seconds"):
        load_agent("agent.toml")
    with pytest.raises(ConfigError, match="lease_s is 'soon'; write seconds"):
        open_store("sqlite:///x.db", lease_s="soon")


async def sleeping(run: StrategyRun) -> str:
    """Wait a minute and a half, then answer."""
    began = await run.now()
    await run.sleep("1m30s")
    return f"{await run.now() - began:g}"


def test_the_log_has_numbers() -> None:
    """What stands there is read by programs in other languages, and compared."""
    clock = FakeClock()
    agent = Agent(
        name="a",
        strategy="sleeping",
        budget=Budget(max_running_s="1h"),
        model_settings={"timeout_s": "30s"},
        verify=[{"command": ["true"], "timeout_s": "2m"}],
    )
    spec = json.loads(msgspec.json.encode(agent.spec()))
    assert (spec["budget"]["max_running_s"], spec["model_settings"]["timeout_s"], spec["verify"][0]["timeout_s"]) == (3600, 30, 120)

    async def slept() -> Any:
        async with Engine(strategies={"sleeping": sleeping}, clock=clock) as engine:
            waiting = await engine.run(Agent(name="b", strategy="sleeping"), "Sleep", run_id="slept")
            clock.advance("1m30s")
            rules = [{"name": "later", "schedule": {"delay_s": "10m"}}]
            other = await engine.run(Agent(name="c", rules=rules), "Later", run_id="later")
            return waiting, await engine.resume("slept"), other, await engine.records("later")

    waiting, woken, other, records = asyncio.run(slept())
    assert (waiting.status, woken.status, woken.output) == ("waiting_for_schedule", "completed", "90")
    assert other.status == "waiting_for_schedule"
    assert [r.event.actions[0].delay_s for r in records if isinstance(r.event, events.Planned)] == [600.0]
