"""Memory as data: `[memory]` in detent.toml and in agent files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from detent import Engine, FinalAnswer, Host
from detent.config.demands import config_demands
from detent.config.loading import load_agent, load_config
from detent.core.errors import ConfigError
from detent.core.events import MemoryRecalled
from detent.ports.remembering import MemoryItem, scope_of
from detent.testing import ScriptedPlanner

AGENT = """
name = "helper"
tools = ["remember"]

[memory]
items = 2
kinds = ["fact"]
extract = "rule"
"""
CONFIG = """
[memory]
url = "sqlite:///memory.db"
max_bytes = 100

[memory.stores]
team = "file:team"
"""


def written(place: Path, name: str, text: str) -> Path:
    (place / name).write_text(text, encoding="utf-8")
    return place / name


def test_a_project_names_its_memory_and_its_agents_use_it(tmp_path: Path) -> None:
    """The file's paths are relative to it, and what it does needs trust."""
    config = written(tmp_path, "detent.toml", CONFIG)
    agent = load_agent(written(tmp_path, "agent.toml", AGENT))
    assert agent.memory == {"items": 2, "kinds": ["fact"], "extract": "rule"}
    assert [(one.key, one.does) for one in config_demands(config)] == [("memory.url", "open"), ("memory.stores.team", "open")]

    async def main() -> None:
        async with Engine.from_config(config, trust=True, store="ram:", planner=ScriptedPlanner([FinalAnswer(content="ok")])) as engine:
            assert engine.memory.names() == ["memory", "team"]
            scope = scope_of("acme", "", "helper")
            await engine.memory.add("boats are blue", scope=scope)
            result = await engine.run(agent, "boats?", host=Host(tenant="acme"))
            records = await engine.records(result.run_id)
            [found] = [record.event for record in records if isinstance(record.event, MemoryRecalled)]
            assert [one["content"] for one in found.items] == ["boats are blue"]

    asyncio.run(main())
    assert (tmp_path / "memory.db").is_file()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[memory]\nitms = 2\n", "itms"),
        ("[memory]\nitems = 0\n", "memory.items"),
        ('[memory]\nkinds = ["gossip"]\n', "memory.kinds"),
        ('memory = "sqlite:///m.db"\n', "memory"),
    ],
)
def test_a_mistake_in_an_agent_file_names_file_and_key(tmp_path: Path, text: str, problem: str) -> None:
    """Otherwise one searches for it."""
    with pytest.raises(ConfigError, match=problem) as error:
        load_agent(written(tmp_path, "agent.toml", f'name = "helper"\n{text}'))
    assert "agent.toml" in str(error.value)


@pytest.mark.parametrize("key", ['policies = { acme = "agent_write" }', 'admit = [{ source = "*", admit = true }]'])
def test_a_projects_file_cannot_loosen_what_the_operator_allows(tmp_path: Path, key: str) -> None:
    """A tool may have written it."""
    with pytest.raises(ConfigError, match="only the operator"):
        load_config(written(tmp_path, "detent.toml", f"[memory]\n{key}\n"))
    assert load_config(tmp_path / "detent.toml", operators=True).memory


@pytest.mark.parametrize("given", ["nosuch:thing", 5, object(), {"team": 7}])
def test_what_is_no_memory_is_refused_when_the_engine_is_made(given: Any) -> None:
    """Not at the first run."""
    with pytest.raises(ConfigError, match="memory"):
        Engine(memory=given)


def test_an_engine_with_several_memories_asks_for_a_name() -> None:
    """A guess could write a tenant's words into the wrong place."""
    engine = Engine(memory={"one": "ram:", "two": "ram:"})
    with pytest.raises(ConfigError, match="one, two"):
        asyncio.run(engine.memory.list())
    with pytest.raises(ConfigError, match="two"):
        asyncio.run(engine.memory.list(name="tow"))
    assert asyncio.run(engine.memory.list(name="two")) == []


def test_items_of_one_memory_are_not_in_another() -> None:
    """`use` chooses."""
    engine = Engine(memory={"one": "ram:", "two": "ram:"})
    item = MemoryItem(id="i1", scope="-/x", content="boats")
    asyncio.run(engine.memory.import_([item], name="one"))
    assert len(asyncio.run(engine.memory.list(name="one"))) == 1 and not asyncio.run(engine.memory.list(name="two"))
