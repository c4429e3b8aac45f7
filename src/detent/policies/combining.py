"""Combines the policy of an engine with the policy of an agent.

Both policies decide and the strongest verdict wins, so an agent can tighten the engine's policy but never loosen it. Without an engine policy the
agent's decides alone; without either, the tiers decide.

The policy that a tenant gives to its fork only ever tightens (`narrowed`): it is combined with the engine's (or the tiers) and with the run's.

The calls of a child run are decided by the policies of all runs above it, then by its own (`Governance.link`): the strongest verdict wins.
"""  # DESIGN 7

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import getsource
from pathlib import Path
from typing import Any, cast

from detent.core.agent import AgentSpec
from detent.core.codec import digest_of
from detent.core.errors import ConfigError, UnknownName
from detent.policies.documents import DocumentPolicy, as_data, policy_document, read_policy
from detent.policies.guards import bound, guards_named
from detent.policies.kept import made_of
from detent.policies.lines import Lines
from detent.policies.pipeline import PolicyPipeline, Tightening, Whole
from detent.policies.remembering import with_memory
from detent.policies.tiers import TieredPolicy
from detent.ports import Guard, Policy
from detent.ports.copies import ours
from detent.ports.governance import data_of

WITHIN = "within"
"""A key in the policy of a tenant's fork: the agents' policies that it may only tighten. A policy that a user gives cannot have this key."""
KEPT = 256
"""How many combined policies an engine caches. There are few agents, and a policy is identified by its data."""


class Governance:
    """Returns the policy of an agent, in an engine with the policy `given` (None: none)."""

    def __init__(self, given: Policy | None) -> None:
        self._given, self._alone = given, TieredPolicy() if given is None else given
        self._ready: dict[str, Policy] = {}

    def __call__(self, spec: AgentSpec, above: Sequence[Mapping[str, Any]] = ()) -> Policy:
        """Return the policy of an agent. `above`: the links of the runs above, the root's first. Raise `ConfigError` if one of them is not here."""
        links = [self._linked(one) for at, one in enumerate(above) if at == 0 or len(one) > 1]  # a child without a policy adds none
        alone = links and not spec.policy and self._given is None
        last = links[-1] if alone else self._of(spec)
        own = with_memory(last, spec)
        stages = {policy.version: policy for policy in (*links, own)}
        return own if len(stages) == 1 else PolicyPipeline([Whole(policy) for policy in stages.values()])

    def link(self, spec: AgentSpec, *, whole: bool = True) -> dict[str, Any]:
        """Return what a child of an agent's run records of its parent's policy: the agent's part, and that of the engine.

        A policy of the engine that is a function, or may not be recorded as a `whole`, is recorded by name, version and digest.
        """
        said: dict[str, Any] = {"agent": spec.name, **({"policy": spec.policy} if spec.policy else {})}
        if self._given is not None:
            said["engine"] = {"data": data} if whole and (data := data_of(self._given)) else _named(self._given)
        return said

    def _linked(self, said: Mapping[str, Any]) -> Policy:
        """Return the policy of a run above."""
        engine, agent = said.get("engine"), AgentSpec(name=said["agent"], policy=said.get("policy", {}))
        mine = None if self._given is None else {"data": data_of(self._given)} if engine and "data" in engine else _named(self._given)
        if engine == mine:
            return self._of(agent)
        if engine is not None and "data" not in engine:
            raise ConfigError(
                f"agent {agent.name!r} started this child under the policy {engine['name']} ({engine['version']}, {engine['digest'][:12]}), which must "
                "be asked for each of its calls, and this engine has another one: continue it where that policy is given (Engine(policy=...)), or cancel it"
            )
        return Governance(None if engine is None else made_of(engine["data"]))(agent)

    def _of(self, spec: AgentSpec) -> Policy:
        if not spec.policy:
            return self._alone
        key, ready = digest_of([spec.name, spec.policy]), self._ready
        if key not in ready:
            if len(ready) >= KEPT:
                ready.clear()
            *others, last = policies_in(spec.policy)
            house = self._alone if others else self._given
            own = [DocumentPolicy(policy_document(one, where=f"agent {spec.name!r}: policy")).compile() for one in (*others, last) if one]
            tightening = [Tightening(PolicyPipeline(one.stages)) for one in own]
            ready[key] = own[0] if house is None else PolicyPipeline([Whole(house), *tightening])
        return ready[key]


def _named(policy: Policy) -> dict[str, str]:
    """Return what identifies a policy that is a function: its class, its version, and the digest of both and of its source, if it is foreign code."""
    kind, source = type(policy), ""
    if not ours(kind):
        with suppress(OSError, TypeError):
            source = getsource(kind)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return {"name": name, "version": policy.version, "digest": digest_of([name, policy.version, source])}


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
