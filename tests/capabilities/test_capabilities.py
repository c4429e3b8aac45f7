"""Capabilities: descriptors, versions, dependencies, and what they come to for a host (rows K86, K87)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, Host
from detent.capabilities import Capability, CapabilityRegistry
from detent.config.loading import load_agent
from detent.core import events as e
from detent.core.codec import read_log
from detent.core.errors import ConfigError
from detent.ports import Denied
from detent.testing.scripted import ScriptedPlanner

SEARCH = Capability(id="search", kind="tool", version="2", credentials=("search-key",), dependencies=("net",))


def test_an_id_alone_is_its_highest_version_by_number() -> None:
    """1.10 is above 1.9; "id@version" is exactly that one, and 1.0 is 1."""
    registry = CapabilityRegistry([Capability(id="m", version=v) for v in ("1.9", "1.10", "1")])
    found = {wanted: registry.get(wanted) for wanted in ("m", "m@1.9", "m@1.0", "m@2", "x")}
    assert {wanted: c and c.version for wanted, c in found.items()} == {"m": "1.10", "m@1.9": "1.9", "m@1.0": "1", "m@2": None, "x": None}


def test_dependencies_are_visited_once_and_cycles_end() -> None:
    """A needs B and C, both need D, D needs A: each once, in the order in which they are met."""
    needs = {"a": ("b", "c"), "b": ("d",), "c": ("d", "gone"), "d": ("a",)}
    registry = CapabilityRegistry(Capability(id=name, dependencies=deps) for name, deps in needs.items())
    found = registry.resolve(["a", "a"], Host())
    assert list(found.resolved) == ["a@1", "b@1", "d@1", "c@1"]
    assert (found.missing, found.denied) == (("gone",), ())


def test_a_host_is_denied_what_it_was_not_given_with_the_reason() -> None:
    """Scopes and credentials by the host, environments by this process; of what depends on them too."""
    registry = CapabilityRegistry([SEARCH, Capability(id="net", scopes=("net",), environments=("linux", "cloud"))], environments=("linux",))
    assert registry.resolve(["search"], Host(tenant="acme")).denied == (
        Denied(id="search@2", reason="missing_required_credential:search-key"),
        Denied(id="net@1", reason="missing_required_scope:net"),
        Denied(id="net@1", reason="missing_required_environment:cloud"),
    )
    given = Host(scopes=("net",), credential_refs=("search-key",))
    assert registry.resolve(["search"], given).denied == (Denied(id="net@1", reason="missing_required_environment:cloud"),)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"id": "a b"}, "id"), ({"id": "a", "version": "v1"}, "numeric"), ({"id": "a", "dependencies": ("b@x",)}, "b@x"), ({"id": ""}, "id")],
)
def test_a_descriptor_that_cannot_be_compared_is_refused(wrong: dict[str, Any], says: str) -> None:
    """Ids, versions and dependencies are checked when it is made."""
    with pytest.raises(ConfigError, match=says):
        Capability(**wrong)


def test_one_version_means_one_thing() -> None:
    """The same descriptor again is a no-op, another under its version an error."""
    registry = CapabilityRegistry([SEARCH, SEARCH])
    with pytest.raises(ConfigError, match="search@2"):
        registry.add(Capability(id="search", version="2.0"))


def test_a_run_starts_only_with_what_its_agent_relies_on(tmp_path: Path) -> None:
    """Missing, denied, or nobody who knows: refused with all reasons, before anything is recorded."""
    agent = Agent(name="a", capabilities=["search", "gone"])
    for registry, says in (
        (None, "none are known here"),
        (CapabilityRegistry([SEARCH]), "(?s)'gone': not known.*'search@2': missing_required_credential:search-key"),
    ):

        async def main(registry: Any = registry, says: str = says) -> None:
            async with Engine(planner=ScriptedPlanner([FinalAnswer(content="x")]), capabilities=registry) as engine:
                with pytest.raises(ConfigError, match=says):
                    await engine.run(agent, "go")
                assert await engine.list_runs() == []

        asyncio.run(main())


def test_a_resumed_run_is_told_which_capability_changed_and_is_refused_what_is_gone(tmp_path: Path) -> None:
    """The resolved version and descriptor stand in the first record; a resume compares them."""
    store, agent, host = f"sqlite:///{tmp_path}/runs.db", Agent(name="a", capabilities=["search"]), Host(credential_refs=("search-key",))
    net = Capability(id="net")
    planner = ScriptedPlanner([FinalAnswer(content="x")])

    async def start() -> None:
        async with Engine(store=store, planner=planner, capabilities=CapabilityRegistry([SEARCH, net])) as engine:
            assert (await engine.run(agent, "go", run_id="r", host=host, turns=0)).status == "running"

    async def resume(registry: CapabilityRegistry) -> list[Any]:
        async with Engine(store=store, planner=planner, capabilities=registry) as engine:
            await engine.resume("r")
            return [record.event for record in read_log("r", await engine.store.read("r"))]

    asyncio.run(start())
    with pytest.raises(ConfigError, match="'net': not known"):
        asyncio.run(resume(CapabilityRegistry([SEARCH])))
    events = asyncio.run(resume(CapabilityRegistry([SEARCH, net, Capability(id="net", version="2")])))
    assert {name for name in events[0].digests if name.startswith("capability:")} == {"capability:search@2", "capability:net@1"}
    (resumed,) = [event for event in events if isinstance(event, e.RunResumed)]
    assert resumed.changed == ("capability:net@1", "capability:net@2")


def test_an_agent_file_names_capabilities(tmp_path: Path) -> None:
    """As Python does."""
    (tmp_path / "agent.toml").write_text('name = "a"\ncapabilities = ["search@2"]\n')
    assert load_agent(tmp_path / "agent.toml").spec().capabilities == ("search@2",)
