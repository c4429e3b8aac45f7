"""Every memory against a dictionary with tombstones: whatever is done in whatever order, both have the same items and find the same ones."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from amounts import in_check, times
from detent.core.errors import ItemConflict, ItemNotFound
from detent.extend import open_memory
from detent.ports import Memory, MemoryItem, standing_of
from detent.ports.remembering import below
from detent.testing.conformance.memory_scopes import START, item
from stores.postgres.cluster import Cluster

T = TypeVar("T")
WORDS = ("invoice", "lunch", "screw")
SCOPES = ("a", "a/b", "a/bc", "c")
HOSTS = ("", "a", "a/b", "c", "a/bc")


class MemoryMachine(RuleBasedStateMachine):
    """A memory and its model: items by key."""

    url = "ram:"
    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.place = Path(tempfile.mkdtemp(prefix="detent-memory-"))
        self.options: dict[str, Any] = {"vouched": True} if self.url.startswith("file:") else {}
        self.memory: Memory = open_memory(self.url.format(self.place), **self.options)
        self.known: dict[tuple[str, str], MemoryItem] = {}
        self.now = START

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.do(self.memory.tombstone(*(f"{scope}/{name}" for scope, name in self.known), why="", at=self.now, host=""))
        self.do(self.memory.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.place, ignore_errors=True)

    @initialize()
    def begin(self) -> None:
        if self.url.startswith("postgresql:"):
            number = self.do(_emptied(self.memory))
            assert number == 0

    @rule(target=ids, name=st.sampled_from("xyz"))
    def name(self, name: str) -> str:
        return name

    @rule(name=ids, scope=st.sampled_from(SCOPES), word=st.sampled_from(WORDS), proposed=st.booleans(), days=st.integers(0, 3))
    def write(self, name: str, scope: str, word: str, days: int, *, proposed: bool) -> None:
        self.now += timedelta(minutes=1)
        ends = self.now + timedelta(days=days) if days else None
        new = item(name, f"The {word}.", scope=scope, created_at=self.now, proposed=proposed, expires_at=ends)
        there = self.known.get((scope, name))
        if there is None:
            assert self.do(self.memory.write(new, host=scope)) == new
            self.known[scope, name] = new
        elif there.tombstoned_at is not None or (there.content, there.supersedes) == (new.content, ()):
            assert self.do(self.memory.write(new, host=scope)) == there
        else:
            with pytest.raises(ItemConflict):
                self.do(self.memory.write(new, host=scope))

    @rule(name=ids, new=ids, scope=st.sampled_from(SCOPES), host=st.sampled_from(HOSTS), word=st.sampled_from(WORDS))
    def supersede(self, name: str, new: str, scope: str, host: str, word: str) -> None:
        self.now += timedelta(minutes=1)
        made = item(f"{new}2", f"Now the {word}.", scope=scope, created_at=self.now)
        old, there = self.known.get((scope, name)), self.known.get((scope, made.id))
        call = self.memory.supersede(f"{scope}/{name}", made, why="because", host=host)
        written = replace(made, supersedes=(f"{scope}/{name}",), why="because")
        if not below(scope, host):
            self.fails(call)
        elif there is not None:
            if there.tombstoned_at is not None or (there.content, there.supersedes) == (written.content, written.supersedes):
                assert self.do(call) == there
            else:
                self.fails(call, ItemConflict)
        elif old is None:
            self.fails(call, ItemNotFound)
        elif standing_of(old, self.now) not in ("current", "expired"):
            self.fails(call, ItemConflict)
        else:
            assert self.do(call) == written
            ends = self.now if old.held_until is None else min(old.held_until, self.now)
            self.known[scope, made.id] = written
            self.known[scope, name] = replace(old, superseded_by=made.id, superseded_at=self.now, held_until=ends, why="because")

    @rule(name=ids, scope=st.sampled_from(SCOPES), refused=st.sampled_from(("", "no")))
    def review(self, name: str, scope: str, refused: str) -> None:
        there = self.known.get((scope, name))
        call = self.memory.review(f"{scope}/{name}", refused=refused, at=self.now, host=scope)
        if there is None:
            self.fails(call, ItemNotFound)
        elif there.proposed:
            self.known[scope, name] = replace(there, proposed=False, refused=refused)
            assert self.do(call) == self.known[scope, name]
        elif there.tombstoned_at is None and there.refused == refused:
            assert self.do(call) == there
        else:
            self.fails(call, ItemConflict)

    @rule(name=ids, scope=st.sampled_from(SCOPES), host=st.sampled_from(HOSTS))
    def forget(self, name: str, scope: str, host: str) -> None:
        self.now += timedelta(minutes=1)
        there = self.known.get((scope, name))
        call = self.memory.tombstone(f"{scope}/{name}", why="asked", at=self.now, host=host)
        if there is None or not below(scope, host):
            self.fails(call, ItemNotFound)
            return
        if there.tombstoned_at is None:
            self.known[scope, name] = replace(there, content="", proposed=False, refused="", tombstoned_at=self.now, why="asked")
        assert self.do(call) == [self.known[scope, name]]

    @rule()
    def reopen(self) -> None:
        self.do(self.memory.close())
        if self.url != "ram:":
            self.memory = open_memory(self.url.format(self.place), **self.options)

    def fails(self, call: Coroutine[Any, Any, Any], kind: type[Exception] = Exception) -> None:
        with pytest.raises(kind):
            self.do(call)

    @invariant()
    def both_have_the_same(self) -> None:
        assert self.do(self.memory.export(host="")) == [self.known[key] for key in sorted(self.known)]

    @rule(host=st.sampled_from(HOSTS), word=st.sampled_from(WORDS), back=st.sampled_from((None, 1, 30)), ahead=st.integers(0, 4))
    def search(self, host: str, word: str, back: int | None, ahead: int) -> None:
        at = self.now + timedelta(days=ahead)
        as_of = None if back is None else self.now - timedelta(minutes=back)
        found = self.do(self.memory.search(f"the {word}", host=host, limit=100, now=at, as_of=as_of))
        fit = [one for one in self.known.values() if below(one.scope, host) and word in one.content and self.counts(one, at, as_of)]
        assert sorted((one.item.scope, one.item.id) for one in found) == sorted((one.scope, one.id) for one in fit)

    def counts(self, one: MemoryItem, at: Any, as_of: Any) -> bool:
        if as_of is None:
            return standing_of(one, at) == "current"
        ends = [end for end in (one.expires_at, one.held_until) if end is not None]
        held = one.created_at is not None and one.created_at <= as_of and all(as_of < end for end in ends)
        return held and one.tombstoned_at is None and not one.proposed and not one.refused


async def _emptied(memory: Any) -> int:
    await memory._rows("DELETE FROM memory_items RETURNING id", {})
    return len(await memory.export(host=""))


@pytest.mark.parametrize("url", ["ram:", "file:{}/notes", "sqlite:///{}/memory.db"])
def test_a_memory_is_a_dictionary_with_tombstones(url: str) -> None:
    """Writing, correcting, reviewing, forgetting and searching, with and without a time, as several hosts, with reopening in between."""

    class Machine(MemoryMachine):
        pass

    Machine.url = url
    run_state_machine_as_test(Machine, settings=settings(max_examples=times(20), stateful_step_count=25))


@in_check
def test_the_memory_in_postgres_is_one_too(postgres: Cluster, postgres_url: str) -> None:
    """The same, against a real server."""

    class Machine(MemoryMachine):
        pass

    Machine.url = postgres_url
    run_state_machine_as_test(Machine, settings=settings(max_examples=times(5), stateful_step_count=20))
