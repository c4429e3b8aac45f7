"""Guards of use: decide whether a call makes sense now (section 7 of the composable-kernel catalogue). The first block wins.

A guard is `(call, state, run) -> Block | None`, pure and synchronous. The reason of a block becomes the call's observation. Guards check progress,
while policies check permission. They judge a tool by its declaration, never by its name, and a call by tool *and* arguments: read, write, read
again works, and so does polling a `volatile` tool.

    make_kernel(guards=(*default_guards, duplicate, side_effect_once))      # for every run of an engine
    guards = ["duplicate", "repetition"]                                    # in an agent file, for its runs
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from detent.core.errors import UnknownName
from detent.core.state import Item, KernelState, RunState
from detent.policies.past import Past, Pasts, before_in_turn, equal
from detent.policies.verdicts import delegates
from detent.ports import Block, Call, Guard, ToolSpec
from detent.ports.options import checked_options

SHOWN = 2000
"""How much of an earlier result a block shows, in characters."""
LIMIT, PARALLEL_LIMIT = 2, 4
"""How often a call may give the same outcome. Tools that may run concurrently get one more, because their calls come in batches."""
META_LIMIT = 2

Check = Callable[[Call, KernelState, RunState, Pasts], "Block | None"]


class UseGuard:
    """One of the guards below. A kernel binds it to the tools of each run (`bind`). Unbound, it knows only the called tool."""

    __slots__ = ("__name__", "_check", "_pasts")

    def __init__(self, name: str, check: Check, pasts: Pasts | None = None) -> None:
        self.__name__, self._check, self._pasts = name, check, pasts

    def __repr__(self) -> str:
        return f"<guard {self.__name__}>"

    def bind(self, pasts: Pasts) -> UseGuard:
        """Return the guard for one run."""
        return UseGuard(self.__name__, self._check, pasts)

    def __call__(self, call: Call, state: KernelState, run: RunState) -> Block | None:
        """Check one call."""
        return self._check(call, state, run, self._pasts or Pasts({call.tool.name: call.tool}))


def _blocked(call: Call, state: KernelState, run: RunState, pasts: Pasts) -> Block | None:
    if call.tool.name in _names(state.meta.get("blocked_tools")):
        return Block(f"{call.tool.name} is blocked in this pass: it did its work before")
    return None


def _available(call: Call, state: KernelState, run: RunState, pasts: Pasts) -> Block | None:
    given = state.meta.get("available_tools")
    names = run.agent.tools if given is None else _names(given)
    if call.tool.name in names:
        return None
    known = ", ".join(sorted(names)[:5]) or "none"
    return Block(f"{call.tool.name} is not available in this pass; use one of these, by its exact name: {known}")


def _duplicate(call: Call, state: KernelState, run: RunState, pasts: Pasts) -> Block | None:
    if call.tool.volatile or call.tool.ends_turn:
        return None
    for known in before_in_turn(call, state):
        if equal(call, known):
            return Block(f"the same call is in this batch already ({known.call_id}): its result answers both")
        if not pasts.reads(known.tool):
            return None  # it will have changed something by then
    past = pasts.of(state)
    index = past.done.get(call.digest)
    if index is None or past.effect[0] > index:
        return None
    if any(_changed(other, theirs) for other, theirs in pasts.others(state, run)):
        return None  # it is unknown which of the two came first
    earlier = state.results[index]
    return Block(
        f"already done ({earlier.call_id}), and nothing has changed since; do not repeat it, continue with its result: {_shown(earlier)}"
    )


def _side_effect_once(call: Call, state: KernelState, run: RunState, pasts: Pasts) -> Block | None:
    if call.tool.read_only or call.tool.volatile or call.tool.ends_turn:
        return None
    for known in before_in_turn(call, state):
        if equal(call, known):
            return Block(f"the same call is in this batch already ({known.call_id}); {call.tool.name} has an effect and is done once")
    for other, past in ((state, pasts.of(state)), *pasts.others(state, run)):
        index = past.done.get(call.digest)
        if index is not None:
            earlier = other.results[index]
            return Block(
                f"{call.tool.name} was done with exactly these arguments ({earlier.call_id}); it has an effect and is done once. "
                f"Its result: {_shown(earlier)}"
            )
    return None


def _repetition(call: Call, state: KernelState, run: RunState, pasts: Pasts) -> Block | None:
    tool = call.tool
    if tool.volatile or tool.ends_turn or delegates(tool):
        return None
    past = pasts.of(state)
    times = past.repeated(call.digest)
    pending = 0
    for known in before_in_turn(call, state):
        if equal(call, known):
            pending += 1
        elif not pasts.reads(known.tool):
            return None  # it will have changed something by then
    limit = PARALLEL_LIMIT if tool.concurrency_safe else LIMIT
    if times + pending < limit:
        return None
    gave = f", each time with the same outcome: {_shown(state.results[past.same[call.digest].index])}" if times else " in this batch"
    return Block(f"{tool.name} was called {times + pending} times with these arguments{gave}. Call it differently, or continue without it")


def _meta_repetition(call: Call, state: KernelState, run: RunState, pasts: Pasts) -> Block | None:
    past = pasts.of(state)
    if past.meta != call.digest or past.meta_count < META_LIMIT or _work_before(call, state):
        return None
    return Block(f"{call.tool.name} was called {past.meta_count} times in a row; nothing has changed. Do something else")


def _work_before(call: Call, state: KernelState) -> bool:
    return any(not equal(call, known) for known in before_in_turn(call, state))


blocked = UseGuard("blocked", _blocked)
"""Refuses the tools in `meta["blocked_tools"]` of the pass. A strategy sets it, for example after a pass that had effects."""
available_tool = UseGuard("available_tool", _available)
"""Refuses tools that are not in `meta["available_tools"]` of the pass, if a strategy set it; else tools that the agent does not list."""
duplicate = UseGuard("duplicate", _duplicate)
"""Refuses a call that already succeeded with the same arguments, if nothing had an effect since. The block holds the earlier result."""
side_effect_once = UseGuard("side_effect_once", _side_effect_once)
"""Refuses a call with an effect that already succeeded with the same arguments in this run, in any pass."""
repetition = UseGuard("repetition", _repetition)
"""Refuses a call that gave the same outcome, success or failure, several times while no other call changed anything."""
meta_tool_repetition = UseGuard("meta_tool_repetition", _meta_repetition)
"""Refuses the third identical call of a meta-tool in a row."""

GUARDS: Mapping[str, UseGuard] = {
    guard.__name__: guard for guard in (blocked, available_tool, duplicate, side_effect_once, repetition, meta_tool_repetition)
}
"""The guards by name, in the recommended order."""


@checked_options
def guards_named(names: Iterable[str]) -> tuple[UseGuard, ...]:
    """Return these guards. Raise `UnknownName`."""
    listed = tuple(names)
    for name in listed:
        if name not in GUARDS:
            raise UnknownName("guard", name, GUARDS)
    return tuple(GUARDS[name] for name in listed)


def bound(guards: Sequence[Guard], tools: Mapping[str, ToolSpec]) -> tuple[Guard, ...]:
    """Return the guards for one run with these tools, without duplicates. Guards from elsewhere stay unchanged."""
    pasts = Pasts(tools)
    given = dict.fromkeys(guards)
    return tuple(guard.bind(pasts) if isinstance(guard, UseGuard) else guard for guard in given)


def _changed(state: KernelState, past: Past) -> bool:
    """Whether a pass has changed something, or may be doing so now."""
    return past.effect[0] >= 0 or any(not past.reads(c.tool) and c.status in ("started", "in_doubt", "again") for c in state.calls.values())


def _names(value: Any) -> frozenset[str]:
    return frozenset(map(str, cast("list[Any]", value))) if isinstance(value, list | tuple | set | frozenset) else frozenset()


def _shown(item: Item) -> str:
    text = item.error.message if item.error is not None else bytes(item.result).decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… (the rest is in the observation of {item.call_id})"
