"""Capabilities as data, and the registry that resolves them for a host.

A capability is something that an agent may rely on: a tool, a model, a memory, an environment. It names what it needs: other capabilities,
scopes, credentials (by name, never by value), kinds of environment. Resolving returns what is available, what is missing, and what this host may
not use and why.
"""  # rows K86, K87

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from detent.core.agent import Host
from detent.core.codec import digest_of
from detent.core.errors import ConfigError, Explained
from detent.core.events import SideEffect
from detent.ports import Denied, Resolution
from detent.ports.options import check_fields, checked_options

Kind = Literal["model", "tool", "memory", "planner", "policy", "observer", "environment", "scheduler", "custom"]

_ID = re.compile(r"[A-Za-z0-9_.:/-]{1,200}")
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")


class Capability(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """One capability and what it needs. `version` is numeric ("2", "1.10"). A dependency is "id" or "id@version".

    The host must have the `scopes` and `credentials`. This process must be one of the `environments`. `traits`, `cost`, `limits`, `audit` and
    `metadata` are the owner's data: kept and compared, but not interpreted.
    """

    id: str
    kind: Kind = "custom"
    version: str = "1"
    owner: str = ""
    description: str = ""
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    side_effect: SideEffect = "none"
    scopes: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()
    cost: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    audit: dict[str, Any] = {}
    metadata: dict[str, Any] = {}

    def __post_init__(self) -> None:
        check_fields(self)
        if not _ID.fullmatch(self.id):
            raise ConfigError(f"capability id {self.id!r}: use letters, digits and _ . : / -, 1 to 200 of them")
        if not _VERSION.fullmatch(self.version):
            raise ConfigError(f"capability {self.id!r} has the version {self.version!r}; versions are numeric, such as '2' or '1.10'")
        for wanted in self.dependencies:
            split_version(wanted)


def split_version(wanted: str) -> tuple[str, str]:
    """Return id and version ("" for the highest) of "id" or "id@version". Raise `ConfigError` for anything else."""
    name, at, version = wanted.partition("@")
    if not _ID.fullmatch(name) or (at and not _VERSION.fullmatch(version)):
        raise ConfigError(f"capability {wanted!r}: write 'id', or 'id@version' with a numeric version")
    return name, version


def _rank(version: str) -> tuple[int, ...]:
    """Return the sort key of a version. "1" and "1.0" are equal."""
    parts = [int(part) for part in version.split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


class CapabilityRegistry:
    """The capabilities that this process knows, and the `environments` that it is. Raise `ConfigError` for a duplicate."""

    @checked_options
    def __init__(self, capabilities: Iterable[Capability] = (), *, environments: Sequence[str] = ()) -> None:
        self._known: dict[str, dict[tuple[int, ...], Capability]] = {}
        self._environments = frozenset(environments)
        for capability in capabilities:
            self.add(capability)

    def add(self, capability: Capability) -> None:
        """Register a capability. Registering the same one again does nothing; a different one with that id and version is an error."""
        versions = self._known.setdefault(capability.id, {})
        there = versions.setdefault(_rank(capability.version), capability)
        if there != capability:
            raise ConfigError(f"capability {capability.id}@{capability.version} is already registered and differs; give it another version")

    def get(self, wanted: str) -> Capability | None:
        """Return the capability "id@version", or the highest version of "id", or None."""
        name, version = split_version(wanted)
        versions = self._known.get(name, {})
        if version:
            return versions.get(_rank(version))
        return versions[max(versions)] if versions else None

    def resolve(self, wanted: Sequence[str], host: Host) -> Resolution:
        """Resolve `wanted` and all its dependencies for this host. Each is visited once, so cycles end."""
        found: dict[tuple[str, str], Capability] = {}
        missing: dict[str, None] = {}
        open_ids = list(reversed(wanted))
        while open_ids:
            asked = open_ids.pop()
            capability = self.get(asked)
            if capability is None:
                missing[asked] = None
                continue
            key = (capability.id, capability.version)
            if key not in found:
                found[key] = capability
                open_ids.extend(reversed(capability.dependencies))
        denied = [Denied(id=f"{c.id}@{c.version}", reason=reason) for c in found.values() for reason in self._reasons(c, host)]
        versions = {f"{c.id}@{c.version}": digest_of(msgspec.to_builtins(c))[:16] for c in found.values()}
        return Resolution(resolved=versions, missing=tuple(missing), denied=tuple(denied))

    def _reasons(self, capability: Capability, host: Host) -> list[str]:
        """Return why the host may not use the capability itself."""
        reasons = [f"missing_required_scope:{name}" for name in capability.scopes if name not in host.scopes]
        reasons += [f"missing_required_credential:{name}" for name in capability.credentials if name not in host.credential_refs]
        reasons += [f"missing_required_environment:{name}" for name in capability.environments if name not in self._environments]
        return reasons
