"""Recall: before a plan, at most once a turn, and only when the query changed (row K67).

The query is a pure function of the state, and the log has the last one: so a turn that is planned again after a crash recalls nothing again. What was
found is recorded, redacted, before a planner sees it. An item that the pass has been shown is not shown again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import msgspec

from detent.config.remembering import TOOLS, Memories, MemorySettings, MemoryUse, memory_use, prefix_of, scope_for, stricter
from detent.core.agent import AgentSpec, Host
from detent.core.errors import Divergence, StoreError, Suspended
from detent.core.events import MemoryRecalled
from detent.core.state import Item, KernelState, RunState
from detent.kernel.context import KernelContext
from detent.ports.outside import BoundReached, Interrupted
from detent.ports.raised import raised_by
from detent.ports.remembering import Found, Memory, Origin, below, key_of, standing_of, unproven

log = logging.getLogger("detent")

QUERY_CHARS = 2000
SNIPPET_CHARS = 200
SEARCH_S = 10.0
"""How long the searches of a turn may take. After that the run continues without its memory, and the log says so."""
MORE = 4
"""How many times as much the next search asks for, if `admit` rules left out some of what was found."""
EPOCH = datetime.fromtimestamp(0, UTC)
_SHOWN = ("id", "scope", "content", "confidence", "write_policy", "created_at", "held_from", "held_until", "supersedes")


class Recalling:
    """The memory of one run, to read from."""

    def __init__(self, name: str, memory: Memory, use: MemoryUse, settings: MemorySettings, *, agent: AgentSpec, host: Host) -> None:
        self._name, self._memory, self._use, self._settings = name, memory, use, settings
        self._prefix, self._scope = prefix_of(host), scope_for(use, agent, host)
        self._known: dict[str, _Shown] = {}

    async def recall(self, context: KernelContext) -> None:
        """Record `MemoryRecalled` if the query of this turn differs from that of the last recall. Raise `BoundReached`."""
        state = context.state
        if context.input.small:
            return
        shown = self._known.setdefault(state.scope, _Shown())
        shown.read(state)
        left = min(self._use.tokens, self._use.run_tokens - shown.tokens)
        query = query_of(state, _task(context), shown.said)
        if left <= 0 or not query.strip() or query == state.query:
            return
        found, error = await self._found(query, context, shown.ids)
        items = await context.run.world.scrub(found, whose="memory")
        said = await context.run.world.scrub(error) if error else ""
        event = MemoryRecalled(query=query, items=tuple(_within(items, left)), memory=self._name, as_of=self._use.at(), error=said)
        context.run.record(context.scope, event)
        await context.commit()

    async def _found(self, query: str, context: KernelContext, known: Collection[str]) -> tuple[list[dict[str, Any]], str]:
        """Return the items that the pass has not been shown (`known`), as the log keeps them, and why the memory failed.

        One search is enough, unless the run may not be shown some of what it found.
        """
        gateway: Any = context.run.world.models(context)
        seen, new, limit = set(known), list[Found](), self._use.items
        asked: dict[str, Any] = {
            "host": self._prefix,
            "scope": self._scope,
            "kinds": self._use.kinds,
            "as_of": self._use.at(),
            "models": gateway,
        }
        try:
            async with asyncio.timeout(SEARCH_S):
                while len(new) < self._use.items:
                    found = [
                        one for one in await self._memory.search(query, limit=limit, without=seen, **asked) if key_of(one.item) not in seen
                    ]
                    new += filter(self._fits, found)
                    if len(found) < limit:
                        break
                    seen |= {key_of(one.item) for one in found}
                    limit *= MORE
            return [self._data(one) for one in new[: self._use.items]], ""
        except (BoundReached, Divergence, Interrupted, Suspended):
            raise
        except TimeoutError:
            error = f"the search took longer than {SEARCH_S:g} s"
        except Exception as failure:  # noqa: BLE001 - foreign code: a memory may raise anything
            error = str(failure) if isinstance(failure, StoreError) else raised_by(failure, f"the memory {self._name!r}")
        finally:
            gateway.close()
        log.warning("run %s recalls nothing: %s", context.run.state.run_id, error)
        return [], error

    def _fits(self, found: Any) -> bool:
        """Whether the run may be shown this: a memory is foreign code."""
        item = found.item
        if not (isinstance(item.content, str) and below(item.scope, self._prefix) and below(item.scope, self._scope)):
            return False
        kept_out = ("tombstoned", "proposed", "refused", *(() if self._use.as_of else ("superseded",)))
        return standing_of(item, item.superseded_at or item.created_at or EPOCH) not in kept_out and not self._settings.admits(item.origin)

    def _data(self, found: Found) -> dict[str, Any]:
        """Return an item as the log keeps it, with the write policy that holds for it. Provenance compares the content with the seal of its origin."""
        item = found.item
        said = {key: value for key, value in msgspec.to_builtins(item).items() if key in _SHOWN}
        said |= {"kind": item.kind, "origin": msgspec.to_builtins(item.origin), "memory": self._name}
        policy = stricter(item.write_policy, self._settings.policy_for(item.scope))
        said |= {} if policy == "agent_write" else {"write_policy": policy}
        return {**said, "score": round(float(found.score), 6), "reasons": [str(reason) for reason in found.reasons]}


def recalling_of(memories: Memories, state: RunState) -> Recalling | None:
    """Return what recalls for a run, None for one whose agent recalls nothing. Raise `ConfigError` if its memory is not here."""
    use = None if state.agent.memory is None else memory_use(state.agent.memory)
    if use is None or not use.recall:
        return None
    name, memory = memories.named(use.use)
    return Recalling(name, memory, use, memories.settings, agent=state.agent, host=state.host)


class _Shown:
    """What a pass has been shown so far, read once from its transcript."""

    __slots__ = ("compacted", "count", "ids", "said", "tokens")

    def __init__(self) -> None:
        self.count, self.compacted, self.tokens, self.said = 0, 0, 0, ""
        self.ids: set[str] = set()

    def read(self, state: KernelState) -> None:
        """Read the items that are new. After a compaction, what it dropped may be recalled again."""
        if state.compacted > self.compacted:
            self.compacted, self.tokens, self.ids = state.compacted, 0, set()
            self.count = min(self.count, self.compacted)
        for index, item in enumerate(state.steps[self.count :], self.count):
            if item.kind == "memory" and index >= self.compacted:
                self.ids |= _names(item)
                self.tokens += sum(tokens_of(one["content"]) for one in item.arguments)
            elif item.kind == "user":
                self.said = item.text
        self.count = len(state.steps)


def _names(item: Item) -> set[str]:
    return {f"{one.get('scope', '')}/{one['id']}" for one in item.arguments}


def query_of(state: KernelState, task: str, said: str) -> str:
    """Return what is searched: the task; later also the latest message of the user and the beginnings of recent successful results."""
    parts = [task]
    if state.iteration > 1:
        parts += [said] if said and said != task else []
        left = QUERY_CHARS - sum(len(part) + 1 for part in parts)
        for item in reversed(state.results[-QUERY_CHARS // SNIPPET_CHARS :]):
            if left <= 0:
                break
            if item.ok and not item.meta and item.tool not in TOOLS:
                snippet = _text(item)[:SNIPPET_CHARS]
                parts.append(snippet)
                left -= len(snippet) + 1
    return "\n".join(parts)[:QUERY_CHARS]


def _task(context: KernelContext) -> str:
    """Return what the pass works on; a question of a strategy (`ask`) is about the goal."""
    return context.run.state.goal if context.state.kernel_type == "ask" else context.input.task or context.run.state.goal


def _text(item: Item) -> str:
    raw = bytes(item.result)
    return msgspec.json.decode(raw) if raw.startswith(b'"') else raw.decode(errors="replace")


def _within(items: list[dict[str, Any]], tokens: int) -> list[dict[str, Any]]:
    """Return the items that fit into this many tokens; the first is cut to fit, and then proves nothing."""
    kept: list[dict[str, Any]] = []
    for item in items:
        size = tokens_of(item["content"])
        if size > tokens and not kept:
            origin = unproven(msgspec.convert(item["origin"], Origin))
            content = item["content"][: tokens * 4 - 1] + "…"
            return [{**item, "content": content, "cut": True, "origin": msgspec.to_builtins(origin)}]
        if size <= tokens:
            kept.append(item)
            tokens -= size
    return kept


def tokens_of(text: str) -> int:
    """Return an estimate of the tokens of a text."""
    return len(text) // 4 + 1
