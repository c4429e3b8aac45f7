"""The makers of policies and guards for the contract tests, and shared helpers: calls, states, and a watch on forbidden reads."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
import uuid
from collections.abc import Generator, Sequence
from typing import Any

import msgspec
import pytest

from detent.core.agent import AgentSpec, Host
from detent.core.budget import Usage
from detent.core.codec import digest_of
from detent.core.events import ToolError
from detent.core.state import Item, KernelState, RunState
from detent.ports import Call, Guard, Policy, ToolSpec
from detent.testing.conformance.promises import Maker

ARGS: tuple[dict[str, Any], ...] = (
    {},
    {"path": "notes/a.txt"},
    {"path": "../../etc/passwd", "force": True},
    {"to": "eve@example.com", "amount": 1_000_000.5, "lines": [1, None, {"a": []}]},
    {"text": "ñ \U0001f600 \x00 \u202e" + "x" * 10_000},
    {"": "", "a.b": {"c": [[[[[0]]]]]}},
)
_NAMES = ("look", "put", "remove", "exec", "spawn_agent", "mcp__x")


class PolicyMaker(Maker):
    """Makes policies.

    `child` is Python source that binds `policy` to an equal policy in another process; None if that is not possible.
    """

    child: str | None = None

    def policy(self) -> Policy:
        """Return a policy, each time a new one that is equal to the others."""
        raise NotImplementedError

    def tools(self) -> Sequence[ToolSpec]:
        """Return declarations of tools that the policy treats specially."""
        return ()

    def calls(self) -> Sequence[Call]:
        """Return calls that the policy treats specially, in addition to those of the tests."""
        return ()


class GuardMaker(Maker):
    """Makes guards."""

    def guard(self) -> Guard:
        """Return a guard, each time a new one that is equal to the others."""
        raise NotImplementedError

    def calls(self) -> Sequence[Call]:
        """Return calls that the guard treats specially, in addition to those of the tests."""
        return ()


def declared(name: str, level: Any) -> ToolSpec:
    """Return the declaration of a tool."""
    return ToolSpec(name=name, side_effect=level, input_schema={"type": "object"})


def call_of(tool: ToolSpec, args: dict[str, Any], *, call_id: str = "main.1.0", provenance: Any = "planner") -> Call:
    """Return a call as it reaches guards and policy: its arguments are a copy."""
    own = msgspec.json.decode(msgspec.json.encode(args))
    return Call(call_id=call_id, tool=tool, args=own, digest=digest_of([tool.name, own]), provenance=provenance)


def calls(own_tools: Sequence[ToolSpec] = (), own: Sequence[Call] = ()) -> list[Call]:
    """Return calls of every level, with every kind of argument, made by planners and found in text, and the maker's own."""
    specs = [declared(name, level) for name in _NAMES for level in ("none", "read", "write", "destructive")]
    made = [call_of(spec, args) for spec in (*specs, *own_tools) for args in ARGS]
    texts = [call_of(spec, ARGS[1], provenance="text", call_id="main.1.1") for spec in (*specs, *own_tools)]
    return [*made, *texts, *own]


def pass_after(*items: Item) -> KernelState:
    """Return a pass with these results."""
    state = KernelState(iteration=1)
    for item in items:
        state = msgspec.structs.replace(state, results=state.results.append(item), steps=state.steps.append(item))
    return state


def did(tool: str, args: dict[str, Any], *, call_id: str = "main.1.0", error: str = "") -> Item:
    """Return the observation of a call that ended."""
    return Item(
        kind="tool",
        iteration=1,
        call_id=call_id,
        tool=tool,
        arguments=args,
        ok=not error,
        result=msgspec.Raw(b"" if error else b'{"gave":[1,"x"]}'),
        error=ToolError(code=error, message="no") if error else None,
        executed=True,
    )


def states() -> list[RunState]:
    """Return runs that are new, under way, short of budget, and somebody else's."""
    agent = AgentSpec(name="tidier", tools=_NAMES)
    common: dict[str, Any] = {"run_id": "run", "goal": "tidy up notes/a.txt", "agent": agent}
    items = (did("look", ARGS[1]), did("put", ARGS[2], call_id="main.1.1"), did("put", ARGS[2], call_id="main.1.2", error="handler_error"))
    host = Host(tenant="acme", principal="eve", scopes=("files:write",))
    return [
        RunState(**common, passes={"main": pass_after()}),
        RunState(**common, passes={"main": pass_after(*items)}, usage=Usage(iterations=3, tool_calls=3, failures=1), host=host),
        RunState(**common, passes={"main": pass_after(*items)}, usage=Usage(iterations=40, tool_calls=900, failures=30, cost_usd=99.0)),
    ]


# A world that may not be read -----------------------------------------------------------------------------------------------------

_READ: list[str] = []
_WATCHED = ("open", "socket.", "subprocess.", "os.system", "os.listdir", "os.scandir", "sqlite3.")
_watching = False
_hooked = False


def _hook(event: str, _args: tuple[Any, ...]) -> None:
    if _watching and event.startswith(_WATCHED):
        _READ.append(event)


@contextlib.contextmanager
def world_watched() -> Generator[list[str]]:
    """Note every read of the outside world in this block: clocks, random sources, the environment, files, the network; `datetime.now` goes unseen."""
    global _watching, _hooked  # noqa: PLW0603 - an audit hook stays for the life of the process
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    _READ.clear()
    with pytest.MonkeyPatch.context() as patched:
        for owner, name in (
            *((time, n) for n in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter")),
            *((random, n) for n in ("random", "randint", "choice", "getrandbits")),
            (os, "urandom"),
            (uuid, "uuid4"),
            (type(os.environ), "__getitem__"),
        ):
            patched.setattr(owner, name, _noting(f"{owner.__name__}.{name}", getattr(owner, name)))
        _watching = True
        try:
            yield _READ
        finally:
            _watching = False


def _noting(name: str, real: Any) -> Any:
    def noted(*args: Any, **options: Any) -> Any:
        _READ.append(name)
        return real(*args, **options)

    return noted
