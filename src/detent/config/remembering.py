"""The memories of an engine, and what an agent may do with one: from a URL, a table of `detent.toml` or an object.

Each memory opens itself on first use. An engine without memory loads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, cast

import msgspec

from detent.core.agent import AgentOptions, AgentSpec, Host
from detent.core.errors import ConfigError, Explained, UnknownName
from detent.ports.options import check_fields
from detent.ports.remembering import (
    ITEM_BYTES,
    Governor,
    Kind,
    Memory,
    Origin,
    Visibility,
    WritePolicy,
    below,
    came_from,
    each_source,
    scope_of,
)

OWN = "memory"
"""The name of an engine's memory if it has only one."""
TOOLS = ("remember", "correct", "forget")
STRICTEST: tuple[WritePolicy, ...] = ("read_only", "proposal_only", "human_approved", "agent_write")
"""The write policies, the strictest first."""


def stricter(*policies: WritePolicy) -> WritePolicy:
    """Return the strictest of these write policies."""
    return min(policies, key=STRICTEST.index)


class MemoryUse(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an agent uses a memory: its table `memory`."""

    use: str = ""
    """Which of the engine's memories; an engine with one needs no name."""
    scope: str | None = None
    """Where the agent's items are, below the tenant and workspace of its host; the default is the agent's name. `""`: all of the host's items."""
    recall: bool = True
    """Whether items are recalled before a plan."""
    items: int = 5
    """How many items are recalled before a plan, at most."""
    tokens: int = 1000
    """How many tokens they may have together."""
    run_tokens: int = 16_000
    """How many tokens all items that a pass recalls may have together."""
    kinds: tuple[Kind, ...] = ()
    """Only items of these kinds are recalled: `preference`, `fact`, `summary`, `lesson`, `artifact`, `transient`."""
    as_of: str = ""
    """Recall what held at this time, such as `2026-01-31`; also items that were replaced since."""
    write_policy: WritePolicy = "agent_write"
    """What the tools `remember`, `correct` and `forget` may do: write, wait for an approval, only propose, or nothing. The operator may set less."""
    visibility: Visibility = "private"
    """The visibility of the items that it writes."""
    extract: Literal["", "rule", "model"] = ""
    """Whether a run that has ended proposes what to remember of it: by a `rule`, or with the `small_model`."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name, least in (("items", 1), ("tokens", 50), ("run_tokens", 50)):
            if getattr(self, name) < least:
                raise ConfigError(f"memory.{name} is {getattr(self, name)}; give at least {least}")
        self.at()

    def at(self) -> datetime | None:
        """Return the time of `as_of`; raise `ConfigError` if it is not one."""
        if not self.as_of:
            return None
        try:
            at = datetime.fromisoformat(self.as_of)
        except ValueError:
            raise ConfigError(f"memory.as_of is {self.as_of!r}; give a date or a time, such as 2026-01-31T12:00:00Z") from None
        return at if at.tzinfo is not None else at.astimezone()


def memory_use(said: Mapping[str, Any] | None) -> MemoryUse | None:
    """Return an agent's table `memory` as options; None if it has none. Raise `UnknownName` or `ConfigError`."""
    if said is None:
        return None
    for field in said:
        if field not in MemoryUse.__struct_fields__:
            raise UnknownName("memory option", field, MemoryUse.__struct_fields__)
    try:
        return msgspec.convert(dict(said), MemoryUse)
    except msgspec.ValidationError as error:
        why, _, field = str(error).removesuffix("`").partition(" - at `$.")
        raise ConfigError(
            f"memory.{field}: {said.get(field.partition('[')[0])!r} does not fit: {why}" if field else f"memory: {why}"
        ) from None


class MemorySettings(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """An engine's memories and their rules: `Engine(memory=MemorySettings(...))` and `[memory]` of `detent.toml`.

    `url` is the memory, `stores` are more of them by name: URLs, or objects. `governor` decides on proposals, in place of the default one.
    """

    url: str | Memory | None = None
    stores: Mapping[str, str | Memory] = {}
    policies: Mapping[str, WritePolicy] = {}
    admit: Sequence[Mapping[str, Any]] = ()
    max_bytes: int = ITEM_BYTES
    governor: Governor | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for rule in self.admit:
            if (
                rule.keys() - {"source", "admit"}
                or not isinstance(rule.get("source"), str)
                or not isinstance(rule.get("admit", False), bool)
            ):
                raise ConfigError(f'memory.admit: {dict(rule)!r} is not a rule; write {{source = "PATTERN", admit = false}}')
        for scope, policy in self.policies.items():
            if scope and (not all(scope.split("/")) or set(scope) & set("*?[")):
                raise ConfigError(
                    f"memory.policies: {scope!r} is not a scope, so it would protect nothing; write it without a pattern and a slash at its end, such as"
                    " acme/shop. It holds for all scopes below it too"
                )
            if policy not in STRICTEST:
                raise ConfigError(f"memory.policies: {scope!r} is {policy!r}; give one of {', '.join(STRICTEST)}")

    def memories(self) -> dict[str, Any]:
        """Return the memories by name: URLs, or objects."""
        return {**({} if self.url is None else {OWN: self.url}), **self.stores}

    def admits(self, origin: Origin) -> str:
        """Return which rule keeps this content out; "" if none does. For each of its sources the first rule that matches counts, so all must be let in.

        If not all is known of a source, a rule that keeps out counts if it perhaps matches, and one that lets in does not. The runs, people and items
        that the content came through count on their own; the rule `*` keeps out none of them.
        """
        return next(filter(None, (self._keeps_out(*one) for one in each_source(origin))), "") if self.admit else ""

    def _keeps_out(self, source: Origin, through: bool) -> str:
        for rule in self.admit:
            came, admits = came_from(source, rule["source"], pattern=True), rule.get("admit", False)
            if admits and came:
                return ""
            if not admits and came is not False and not (through and not rule["source"].strip("*")):
                unsure = ", and not all sources of this are known" if came is None else ""
                return f"content from {rule['source']} is not admitted{unsure}"
        return ""

    def policy_for(self, scope: str) -> WritePolicy:
        """Return the strictest policy that the operator set for this scope or one above it."""
        held: list[WritePolicy] = [policy for prefix, policy in self.policies.items() if below(scope, prefix)]
        return stricter("agent_write", *held)


_NO_MEMORIES = MemorySettings()


def settings_of(given: Any) -> MemorySettings:
    """Return the settings for the argument `memory` of `Engine`. Raise `ConfigError`."""
    if given is None:
        return _NO_MEMORIES
    if isinstance(given, MemorySettings):
        return given
    if isinstance(given, Mapping):
        return MemorySettings(stores=cast("Mapping[str, Any]", given))
    return MemorySettings(url=given)


class Memories:
    """The memories of an engine by name, and the tools that write to them."""

    def __init__(self, given: Any = None, at: Callable[[str], Memory] | None = None) -> None:
        """`given` is the argument of `Engine`, `at` returns the memory at a URL; it opens itself on first use. Raise `ConfigError`."""
        self.settings = settings_of(given)
        said = self.settings.memories()
        self._own = [name for name, memory in said.items() if isinstance(memory, str)]
        self._made: dict[str, Memory] = {name: at(memory) if at and isinstance(memory, str) else memory for name, memory in said.items()}

    def __bool__(self) -> bool:
        return bool(self._made)

    def names(self) -> list[str]:
        """Return the names of the memories."""
        return list(self._made)

    def named(self, name: str = "") -> tuple[str, Memory]:
        """Return a memory and its name; "" is the only one. Raise `ConfigError` or `UnknownName`."""
        if not self._made:
            raise ConfigError('this engine has no memory: give Engine(memory="sqlite:///memory.db"), or url under [memory] in detent.toml')
        if not name and len(self._made) > 1 and OWN not in self._made:
            raise ConfigError(f"this engine has several memories: name one of {', '.join(self._made)}")
        name = name or (OWN if OWN in self._made else next(iter(self._made)))
        if name not in self._made:
            raise UnknownName("memory", name, self._made)
        return name, self._made[name]

    def wrap(self, around: Callable[[Memory], Memory]) -> None:
        """Replace every memory by what this returns for it."""
        self._made = {name: around(memory) for name, memory in self._made.items()}

    def check(self, agent: AgentOptions) -> None:
        """Raise `ConfigError` if the agent's memory, or what its tools need, is not here."""
        use = memory_use(agent.memory)
        if use is not None:
            try:
                self.named(use.use)
            except ConfigError as error:
                raise ConfigError(f"agent {agent.name!r} has the table memory: {error}") from None
        elif listed := [name for name in agent.tools if name in TOOLS]:
            raise ConfigError(f"agent {agent.name!r} lists {', '.join(listed)}, but has no table memory; give it memory={{}}")

    def bound(self, agent: AgentSpec, host: Host) -> AgentSpec:
        """Return the agent with the write policy that holds in its scope: the operator's may be stricter than its own."""
        if (use := memory_use(agent.memory)) is None:
            return agent
        policy = stricter(use.write_policy, self.settings.policy_for(scope_for(use, agent, host)))
        if policy == use.write_policy:
            return agent
        return msgspec.structs.replace(agent, memory={**(agent.memory or {}), "write_policy": policy})

    def tool(self, name: str) -> Any:
        """Return the tool that writes to a memory, None if there is no memory or no such tool."""
        if not self._made or name not in TOOLS:
            return None
        from detent.tools.remembering import memory_tools

        return memory_tools()[name]

    async def close(self) -> None:
        """Close the memories that were made from URLs."""
        for name in self._own:
            await self._made[name].close()


def prefix_of(host: Host) -> str:
    """Return the prefix of the scopes that a host may see: never "", which is the operator's."""
    return scope_of(host.tenant, host.workspace)


def scope_for(use: MemoryUse, agent: AgentSpec, host: Host) -> str:
    """Return the scope of an agent's items."""
    if use.scope is None:
        return scope_of(host.tenant, host.workspace, agent.name)
    return "/".join([prefix_of(host), *(scope_of("", part).removeprefix("-/") for part in use.scope.split("/") if part)])
