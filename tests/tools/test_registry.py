"""The registry: one engine's tools by name (rows T29, T30)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from detent.core.errors import ConfigError, UnknownName
from detent.ports import ToolContext, ToolOutcome, ToolSpec
from detent.tools import Registry, ThreadPool, Tool, tool
from tool_calls import context_for


def make(name: str, result: Any = 1) -> Tool[..., Any]:
    """Return a read-only tool of that name."""
    return tool(lambda: result, name=name, side_effect="read")


class Foreign:
    """A tool that is no `Tool`: it only has the four parts of the port."""

    def __init__(self, name: str = "foreign") -> None:
        self.spec = ToolSpec(name=name, side_effect="read")

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        return args

    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        return ToolOutcome(kind="ok", result=b'"foreign"')

    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        return None


def test_registered_tools_are_listed_in_order() -> None:
    """Names, declarations, membership and number."""
    registry = Registry([make("b")])
    assert registry.register(make("a")) == "a"
    registry.register(Foreign())
    assert registry.names() == ["b", "a", "foreign"]
    assert [spec.name for spec in registry.list()] == ["b", "a", "foreign"]
    assert "a" in registry
    assert "c" not in registry
    assert len(registry) == 3


def test_the_same_tool_again_changes_nothing_and_another_of_its_name_is_refused() -> None:
    """The first stays."""
    registry, first = Registry(), make("a")
    registry.register(first)
    registry.register(first)
    before = registry.get("a")
    with pytest.raises(ConfigError, match="'a' already exists"):
        registry.register(make("a", 2))
    assert registry.get("a") is before
    assert len(registry) == 1


def test_a_method_taken_twice_from_one_instance_is_the_same_tool() -> None:
    """Taken from another instance it is not."""

    class Box:
        @tool(side_effect="read")
        def size(self) -> int:
            return 1

    registry, box = Registry(), Box()
    registry.add_all([box.size, box.size])
    assert registry.names() == ["size"]
    with pytest.raises(ConfigError, match="already exists"):
        registry.register(Box().size)
    with pytest.raises(ConfigError, match="pass it from an instance"):
        Registry([Box.size])


def test_replace_needs_one_to_replace() -> None:
    """The new one takes its place in the order."""
    registry = Registry([make("a"), make("b")])
    other = make("a", 2)
    registry.replace(other)
    assert registry.names() == ["a", "b"]
    assert registry.register(other) == "a"
    with pytest.raises(UnknownName, match="unknown tool 'c'"):
        registry.replace(make("c"))


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    """Or with all of them."""
    registry = Registry([make("read_file"), make("exec")])
    with pytest.raises(UnknownName, match=r"unknown tool 'read_fil'; did you mean 'read_file'?"):
        registry.get("read_fil")
    with pytest.raises(UnknownName, match="known: exec, read_file"):
        registry.get("zzz")
    with pytest.raises(UnknownName, match="known: none"):
        Registry().get("a")


def test_an_empty_name_is_refused() -> None:
    """A tool is called by its name."""
    with pytest.raises(ConfigError, match="empty name"):
        Registry().register(Foreign(""))


def test_what_is_no_tool_is_refused_with_the_way_out() -> None:
    """A plain function is not guessed into a tool: its side effects are not known."""

    def plain(x: int) -> int:
        return x

    with pytest.raises(ConfigError, match=r"the function 'plain' is not a tool; decorate it with @tool"):
        Registry([plain])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="5 is not a tool"):
        Registry().register(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="comes from another registry"):
        Registry([Registry([make("a")]).get("a")])


def test_add_all_adds_all_or_none() -> None:
    """A conflict in the middle, or inside of the list, leaves the registry as it was."""
    registry = Registry([make("a")])
    for batch in ([make("b"), make("a")], [make("c"), make("c")], [make("d"), 5]):
        with pytest.raises(ConfigError):
            registry.add_all(batch)  # type: ignore[arg-type]
        assert registry.names() == ["a"]
    again = make("e")
    assert registry.add_all([again, again]) == ["e", "e"]


def test_registries_share_nothing() -> None:
    """Two engines in one process have their own tools of the same name."""
    one, two = Registry([make("a", 1)]), Registry([make("a", 2)])

    async def results() -> list[bytes]:
        tools = [registry.get("a") for registry in (one, two)]
        return [(await t.run({}, context_for(make("a")))).result for t in tools]

    assert asyncio.run(results()) == [b"1", b"2"]
    for registry in (one, two):
        registry.close()


def test_what_a_registry_gives_runs_in_its_pool() -> None:
    """The four parts of the port, and no more than the pool's threads."""
    pool = ThreadPool(1, name="mine")
    registry = Registry(
        [tool(lambda: threading.current_thread().name, name="where", side_effect="read", reconcile=lambda key: None)], pool=pool
    )
    got = registry.get("where")

    async def main() -> ToolOutcome:
        context = context_for(make("where"))
        assert await got.settle(context) is None
        return await got.run(got.check({}), context)

    assert asyncio.run(main()).result.startswith(b'"mine-')
    assert got.spec.name == "where"
    assert registry.get("where") is got
    registry.close()


def test_a_foreign_tool_is_given_as_it_is() -> None:
    """An adapter that implements the port needs nothing of ours."""
    foreign = Foreign()
    assert Registry([foreign]).get("foreign") is foreign


def test_many_threads_may_register_at_once() -> None:
    """Each name once; of two tools under one name exactly one is in, and the other was told."""
    registry, refused = Registry(), []
    together = threading.Barrier(8)

    def work(number: int) -> None:
        together.wait(60)
        for i in range(50):
            registry.register(make(f"own-{number}-{i}"))
            try:
                registry.register(make(f"shared-{i}", number))
            except ConfigError:
                refused.append(i)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(registry) == 8 * 50 + 50
    assert len(refused) == 7 * 50
