"""Adapters that higher rooms use without naming them. Each is loaded when it is needed, which keeps `import detent` light."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detent.core.errors import ConfigError
from detent.core.events import Origin
from detent.core.state import RunState
from detent.ports import Guard, Observer, Policy, Tool, ToolSpec
from detent.ports.compacting import Compactor
from detent.ports.governance import PolicyOf
from detent.ports.interpreting import Interpreter
from detent.ports.remembering import Governor

if TYPE_CHECKING:
    from detent.observers import composite
    from detent.tools import registry
    from detent.tools.mcp import servers

    CompositeObserver = composite.CompositeObserver
    Registry = registry.Registry
    Servers = servers.Servers


def policy_at(policy: Policy | str | Path | None) -> Policy | None:
    """Return the policy. A path is read as a policy file."""
    from detent.policies.documents import load_policy

    return load_policy(policy) if isinstance(policy, (str, Path)) else policy


def governing(policy: Policy | None) -> PolicyOf:
    """Return a function that combines an agent's policy with this one, and with those of the runs above it."""
    from detent.policies.combining import Governance

    return Governance(policy)


def bound_guard(guard: Guard, tools: Mapping[str, ToolSpec]) -> Guard:
    """Return the guard for one run with these tools."""
    from detent.policies.guards import bound

    return bound([guard], tools)[0]


def policy_made_of(data: Mapping[str, Any]) -> Policy:
    """Return the policy that was kept with a run as data. Raise `ConfigError` if it cannot be rebuilt."""
    from detent.policies.kept import made_of

    return made_of(data)


def narrowed(policy: Mapping[str, Any], edit: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the policy of a fork for which a tenant gives one. It only tightens the policy of the agent `name`."""
    from detent.policies.combining import narrowed as tightened

    return tightened(policy, edit, name)


def recorded_tool(spec: ToolSpec) -> Tool:
    """Return a tool with the declaration that a run recorded. It is never executed."""
    from detent.tools.mcp.offered import recorded_tool as made

    made_tool: Any = made(spec)  # a `Tool` that builds its `spec` on first use
    return made_tool


def is_attachment(value: Any) -> bool:
    """Whether a JSON value has the shape of an attachment."""
    from detent.planners.model.attachments import is_attachment as has_shape

    return has_shape(value)


def inlined(attachment: Any) -> Any:
    """Return the attachment with its referenced content loaded."""
    from detent.planners.model.attachments import inlined as read

    return read(attachment)


def one_of(observers: Sequence[Observer]) -> tuple[Observer, ...]:
    """Return one observer that calls them all, in a tuple; an empty tuple if there are none."""
    if not isinstance(observers, (list, tuple)):
        raise ConfigError(f"observers must be a list, not {observers!r}; write observers=[...]")
    return (fan_out(observers),) if observers else ()


def fan_out(observers: Sequence[Observer]) -> CompositeObserver:
    """Return one observer that calls them all. A failing observer is reported once and fails nothing. Raise `ConfigError` for a non-observer."""
    from detent.observers.composite import CompositeObserver

    return CompositeObserver(*observers)


def own_compactors() -> Mapping[str, Compactor]:
    """Return Detent's own compactors by name."""
    from detent.memories.compactors import BUILT_IN

    return BUILT_IN


def default_governor(*, max_bytes: int, hides: Callable[[str], bool]) -> Governor:
    """Return the governor of memories that have none of their own."""
    from detent.memories.governing import DefaultGovernor

    return DefaultGovernor(max_bytes=max_bytes, hides=hides)


def interpreter() -> Interpreter:
    """Return what runs one program of a model."""
    from detent.interpreters.monty import MontyInterpreter

    return MontyInterpreter()


def is_instruction(path: str) -> bool:
    """Whether a path leads to a file that agents read as instructions, such as AGENTS.md."""
    from detent.tools.workspace.protection import is_instruction as named_so

    return named_so(path)


def origin_of(state: RunState, call_id: str, content: Any, conversation: Sequence[Any] = (), *, worst: bool = False) -> Origin:
    """Return where content came from that a run writes for later runs; `call_id` is the call that writes it, "" if none does.

    With `worst`, it is only as trustworthy as the worst that the run has seen.
    """
    from detent.policies.provenance.lasting import origin_of as computed

    return computed(state, call_id, content, conversation, worst=worst)


class Tracing:
    """Traces what the runs of an engine give to their children. What a run has seen is indexed once, however many children it starts."""

    def __init__(self) -> None:
        self._origins: Any = None

    def origin_of(self, state: RunState, call_id: str, content: Any, conversation: Sequence[Any]) -> Origin:
        """See `origin_of`."""
        from detent.policies.provenance.lasting import origin_of as computed
        from detent.policies.provenance.origins import Origins

        self._origins = self._origins or Origins()
        return computed(state, call_id, content, conversation, origins=self._origins)


def words_of(state: RunState, earlier: Sequence[Any]) -> Callable[..., Origin]:
    """Return a function that computes where the words of a run came from, for the conversation of the next one; `earlier` is what it knew itself."""
    from detent.policies.provenance.lasting import Wrote

    return Wrote(state, earlier).origin


def traced(args: dict[str, Any], state: RunState, call_id: str, conversation: Sequence[Any] = ()) -> dict[str, dict[str, Any]]:
    """Return the source of each leaf of a call's arguments: path -> {"label", "origin"}, and `sources` in earlier runs.

    A leaf that was not found and is too short to search for has the label `short`: its source is unknown.
    """
    from detent.policies.provenance.matching import MIN_CHARS
    from detent.policies.provenance.origins import leaves
    from detent.policies.provenance.policy import facts, provenance

    short = {path for path, value in leaves(args) if len(str(value)) < MIN_CHARS}
    found: dict[str, dict[str, Any]] = facts(provenance(args, state, call_id=call_id, conversation=conversation))["args"]
    return {path: {**told, "label": "short"} if told["label"] == "model" and path in short else told for path, told in found.items()}
