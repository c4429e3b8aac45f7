"""The adapters that rooms above this one use without naming them; each is loaded when it is needed, which keeps `import detent` light."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detent.core.agent import AgentSpec
from detent.ports import Observer, Policy

if TYPE_CHECKING:
    from detent.tools import registry
    from detent.tools.mcp import servers

    Registry = registry.Registry
    Servers = servers.Servers


def policy_at(policy: Policy | str | Path | None) -> Policy | None:
    """Return the policy, read from its file where a path is given."""
    from detent.policies.documents import load_policy

    return load_policy(policy) if isinstance(policy, (str, Path)) else policy


def governing(policy: Policy | None) -> Callable[[AgentSpec], Policy]:
    """Return what gives the policy of an agent together with this one."""
    from detent.policies.combining import governance

    return governance(policy)


def inlined(attachment: Any) -> Any:
    """Return an attachment with what it refers to read into it."""
    from detent.planners.model.attachments import inlined as read

    return read(attachment)


def one_of(observers: Sequence[Observer]) -> tuple[Observer, ...]:
    """Return the observer that tells them all, alone; nothing where there are none."""
    return (fan_out(observers),) if observers else ()


def fan_out(observers: Sequence[Observer]) -> Observer:
    """Return one observer that tells them all; one that fails is reported once and fails nothing. Raise `TypeError` for what is none."""
    from detent.observers.composite import CompositeObserver

    return CompositeObserver(*observers)
