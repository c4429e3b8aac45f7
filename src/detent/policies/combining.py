"""Combines the policy of an engine with the policy of an agent.

Both policies decide and the strongest verdict wins, so an agent can tighten the engine's policy but never loosen it. Without an engine policy the
agent's decides alone; without either, the tiers decide.

The policy that a tenant gives to its fork only ever tightens (`narrowed`): it is combined with the engine's (or the tiers) and with the run's.
"""  # DESIGN 7

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from detent.core.agent import AgentSpec
from detent.core.codec import digest_of
from detent.core.errors import ConfigError, UnknownName
from detent.policies.documents import DocumentPolicy, as_data, policy_document, read_policy
from detent.policies.guards import bound, guards_named
from detent.policies.lines import Lines
from detent.policies.pipeline import PolicyPipeline, Tightening, Whole
from detent.policies.remembering import with_memory
from detent.policies.tiers import TieredPolicy
from detent.ports import Guard, Policy

WITHIN = "within"
"""A key in the policy of a tenant's fork: the agents' policies that it may only tighten. A policy that a user gives cannot have this key."""
KEPT = 256
"""How many combined policies an engine caches. There are few agents, and a policy is identified by its data."""


def governance(given: Policy | None) -> Callable[[AgentSpec], Policy]:
    """Return a function that returns the policy of an agent, in an engine with this policy (None: none). The function raises `ConfigError`."""
    ready: dict[str, Policy] = {}

    def policy_of(spec: AgentSpec) -> Policy:
        if not spec.policy:
            return alone
        key = digest_of([spec.name, spec.policy])
        if key not in ready:
            if len(ready) >= KEPT:
                ready.clear()
            *others, last = policies_in(spec.policy)
            house = alone if others else given
            own = [DocumentPolicy(policy_document(one, where=f"agent {spec.name!r}: policy")).compile() for one in (*others, last) if one]
            tightening = [Tightening(PolicyPipeline(one.stages)) for one in own]
            ready[key] = own[0] if house is None else PolicyPipeline([Whole(house), *tightening])
        return ready[key]

    alone = TieredPolicy() if given is None else given
    return lambda spec: with_memory(policy_of(spec), spec)


def policies_in(said: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the parts of an agent's policy in a log, its own policy last."""
    own = {key: value for key, value in said.items() if key != WITHIN}
    return [*said.get(WITHIN, ()), own]


def narrowed(theirs: Mapping[str, Any], edit: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return, as data, the policy of a tenant's fork. The tenant's part tightens the policy of the run's agent. Raise `ConfigError`."""
    return {**policy_of_agent(edit, name), WITHIN: policies_in(theirs)}


def guards_for(
    spec: AgentSpec,
    kernels: Sequence[Guard],
    tools: Mapping[str, Any],
    *,
    named: Callable[[str], Guard] = lambda name: guards_named((name,))[0],
) -> tuple[Guard, ...]:
    """Return the guards for one opening of a run: the kernel's, then those that the agent names (found by `named`). Raise `UnknownName`."""
    return bound([*kernels, *(named(name) for name in spec.guards)], {name: tool.spec for name, tool in tools.items()})


def check_guards(names: Sequence[str], where: str, *, named: Callable[[str], Guard]) -> None:
    """Raise `ConfigError` for an unknown guard. The error names the file."""
    try:
        for name in names:
            named(name)
    except UnknownName as error:
        raise ConfigError(f"{where}: guards: {error}") from None


def policy_of_agent(said: Any, name: str) -> dict[str, Any]:
    """Return the policy of an agent as the data that the log records; {} if it has none. Raise `ConfigError`."""
    if not said:
        return {}
    return as_data(policy_document(said, where=f"agent {name!r}: policy"))


def policy_in_file(said: str | Sequence[Any] | Mapping[str, Any], file: str | Path) -> dict[str, Any]:
    """Return, as data, the policy in the key `policy` of a TOML file: a path relative to the file, a list of rules, or a table.

    Every condition is compiled. Raise `ConfigError`, which names file, line and key.
    """
    if not said:
        return {}
    if isinstance(said, str):
        document = read_policy(_shown(Path(file).parent / said))
    else:
        text = Path(file).read_text(encoding="utf-8")
        document = policy_document(cast("Any", said), Lines(text, str(file), under="policy"), where=f"{file}: policy")
    DocumentPolicy(document).compile()
    data = as_data(document)
    if not data:
        raise ConfigError(f"{file}: policy: is empty and would deny every call; give it [[policy.rules]], or [policy.tiers]")
    return data


def _shown(path: Path) -> Path:
    """Return the path relative to the working directory if it is below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
