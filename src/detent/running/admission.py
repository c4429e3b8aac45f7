"""Whether a run may start: agent, goal, budget and context are checked before anything is recorded."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, cast

import msgspec

from detent.config.agents import Agent
from detent.config.state_directory import state_home
from detent.core.agent import AgentSpec, Host
from detent.core.budget import DEFAULT, UNBOUNDED, Budget
from detent.core.codec import digest_of
from detent.core.errors import ConfigError, NotAllowedNow, RunContextMismatch, UnknownName
from detent.core.events import RunStarted
from detent.expressions.json_schema import UnusableSchema, check_schema, errors_of
from detent.metering.pricing import Prices
from detent.metering.shares import SHARED
from detent.ports import (
    Capabilities,
    EventStore,
    Planner,
    Policy,
    Resolution,
    SecretSource,
    Tool,
    Toolbox,
    json_problem,
    models_asked,
    unstorable,
)
from detent.ports.governance import asks_of
from detent.ports.governing_files import governing_above
from detent.ports.options import checked
from detent.ports.store_files import places_of, within_reach
from detent.ports.stores import RESERVED
from detent.running.hiding import KEY_BLOB
from detent.running.snapshots import load_run
from detent.secrecy.redact import Redactor, redacted_start

RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
MOST_CHARACTERS = 200
PLAIN_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
"""A tenant name that appears unchanged in ids; other names are replaced by a digest."""


def checked_spec(agent: Agent, goal: str, tools: Sequence[str]) -> AgentSpec:
    """Return the agent as data. Raise `ConfigError` for an empty goal, `UnknownName` for a tool that does not exist."""
    if not isinstance(cast("Any", goal), str):
        raise ConfigError(f"the goal is {goal!r}; give a text that says what to achieve")
    if not goal.strip():
        raise ConfigError("the goal is empty; say what to achieve")
    spec = agent.spec()
    for name in spec.tools:
        if name not in tools:
            raise UnknownName("tool", name, tools)
    return spec


def refuse_unanswerable(spec: AgentSpec, toolbox: Toolbox, policy: Policy) -> None:
    """Raise `ConfigError` if a listed tool may need approval; called when nobody could give one."""  # DESIGN 7
    listed = [toolbox.get(name) for name in spec.tools if name in toolbox.names()]
    asking = [tool.spec.name for tool in listed if policy.may_ask(tool.spec) or asks_of(tool) is not None]
    if asking:
        raise ConfigError(
            f"agent {spec.name!r} lists tools that need approval ({', '.join(asking)}), but nobody can give it: the store is in memory, "
            'no terminal is attached and no approver was given. Use a persistent store, or Engine(approver="caller") or a function'
        )


def usable(
    agent: AgentSpec, host: Host, tools: Mapping[str, Tool], *, secrets: SecretSource | None, capabilities: Capabilities | None
) -> dict[str, str]:
    """Return what the agent's capabilities resolve to for the host ("id@version" -> digest). Raise `ConfigError` for those that may not be used.

    It also raises for a tool whose credential the host was not given or no source has, for an exec without the sandbox that the agent requires, and
    for a missing or denied capability.
    """  # row K87
    wrong: list[str] = []
    there = secrets.names() if secrets is not None else ()
    for name, tool in tools.items():
        for secret in tool.spec.credentials:
            if secret not in host.credential_refs:
                wrong.append(f"tool {name!r}: missing_required_credential:{secret} (name it in Host(credential_refs=...))")
            elif secret not in there:
                wrong.append(f"tool {name!r}: no source has the secret {secret!r} (Engine(secrets=...), or [secrets] in detent.toml)")
    if agent.meta.get("sandbox") == "require" and "exec" in tools and not tools["exec"].spec.sandboxed:
        wrong.append(
            "tool 'exec': it requires a sandbox and has none (Engine(workspace=WorkspaceConfig(root=..., sandbox=\"require\")) says why)"
        )
    if agent.capabilities and capabilities is None:
        wrong.append(f"capabilities {', '.join(agent.capabilities)}: none are known here (give Engine(capabilities=...))")
    found = capabilities.resolve(agent.capabilities, host) if capabilities is not None else Resolution(resolved={})
    wrong += [f"capability {name!r}: not known here" for name in found.missing]
    wrong += [f"capability {denied.id!r}: {denied.reason}" for denied in found.denied]
    if wrong:
        raise ConfigError(f"agent {agent.name!r} cannot run for this host: {'; '.join(wrong)}. Nothing was recorded")
    return found.resolved


def refuse_control_in_reach(store: EventStore, secrets: SecretSource | None, agent: AgentSpec, tools: Mapping[str, Tool]) -> None:
    """Raise `ConfigError` if the agent's tools may write where runs, secrets, or an operator's own files are kept.

    Whoever can write there can approve its own calls.
    """
    roots: dict[str, list[str]] = {}
    for name, tool in tools.items():
        if (root := getattr(tool.spec, "writes_in", "")) and not tool.spec.read_only:
            roots.setdefault(root, []).append(name)
    if not roots:
        return
    kept = [(f"the store {store.url}", place) for place in places_of(store)]
    kept += [(f"the file of a secret, {file},", file) for file in getattr(secrets, "files", tuple)()]
    with contextlib.suppress(ConfigError):  # no home directory, so no operator's files
        kept.append(("the state directories of Detent, with what operators say,", str(state_home())))
    for root, names in roots.items():
        if above := governing_above(root):
            raise ConfigError(
                f"{root}, where tools of agent {agent.name!r} write ({', '.join(names)}), is inside {above}, where everything is imported or read as "
                "instructions (import_roots, skills). Give these a separate directory, or the tools another --workspace DIR"
            )
        for what, place in kept:
            if why := within_reach(place, root):
                raise ConfigError(
                    f"tools of agent {agent.name!r} ({', '.join(names)}) could write {what}: {why}. It could approve its own calls there. "
                    "Leave the store where Detent puts it (`detent where` prints the place), choose another --store URL, or another --workspace DIR"
                )


def refuse_unpriced(spec: AgentSpec, planner: Planner, prices: Prices, others: Sequence[tuple[str, str]] = (), *, bounded: str) -> None:
    """Raise `ConfigError` if a model that the agent's planner, a check or a tool (`others`) may call has no price.

    `bounded` says whose cost is bounded.
    """
    judges = tuple((str(entry["model"]), "") for entry in spec.verify if entry.get("model"))
    for model, provider in (*models_asked(planner, spec), *judges, *others):
        if not prices.knows(model, provider):
            install = "" if prices.listed else " (the price list is not installed: pip install 'detent[models]')"
            raise ConfigError(
                f"{bounded} has max_cost_usd, but there is no price for its model {model!r}{install}: give one with "
                f"Engine(model_prices={{{model!r}: ModelPrice(input_usd=..., output_usd=...)}}), in USD for a million tokens, or [models.prices] "
                "of detent.toml; or limit tokens (max_total_tokens) instead of cost"
            )


def merged_budget(asked: Budget | None, agents: Budget, engines: Budget, *, ceiling: int) -> Budget:
    """Return the run's bounds: the requested ones over the agent's over the engine's over the defaults. Raise `BudgetRefused`."""
    usual = msgspec.structs.replace(DEFAULT, max_iterations=min(DEFAULT.max_iterations or ceiling, ceiling))
    said = checked(agents, ceiling=ceiling)
    if asked is not None:
        said = checked(asked, ceiling=ceiling).over(said)
    return said.over(usual if engines == UNBOUNDED else engines.over(usual))


def refuse_bounds_of_unknown(budget: Budget, tools: Sequence[str]) -> None:
    """Raise `UnknownName` for a bound on the calls of a tool that does not exist: it would bound nothing."""
    bounds: dict[str, int] = dict(budget.max_calls_of or ())
    for name in bounds:
        if name not in tools:
            raise UnknownName("tool of max_calls_of", name, tools)


def checked_run_id(run_id: str | None, kept_as: str | None = None) -> None:
    """Raise `ConfigError` for an id that some store or command cannot handle, or that cannot be combined with its tenant."""
    if run_id is not None and (not RUN_ID.fullmatch(run_id) or len(kept_as or "") > MOST_CHARACTERS or run_id.startswith(RESERVED)):
        most = f"use 1 to 200 letters, digits, '_', '-' and '.', and do not begin with '.', '-' or {RESERVED!r}"
        raise ConfigError(f"run id {run_id[:80]!r}: {most}")


def tenants_id(run_id: str, tenant: str) -> str:
    """Return the stored id of the run that a tenant calls `run_id`: no other tenant can have it, and no id that a user gives contains an "@"."""
    plain = PLAIN_TENANT.fullmatch(tenant) is not None
    return f"{run_id}@{tenant if plain else '_' + sha256(tenant.encode(errors='surrogatepass')).hexdigest()[:16]}"


def refuse_what_is_not_json(**parts: Any) -> None:
    """Raise `ConfigError` naming the input that is not JSON data, and the place in it."""
    for part, value in parts.items():
        if value is not None and (problem := json_problem(value)):
            raise ConfigError(f"{part} must be JSON data, because the log records it: {problem}")


def refuse_shared(tenant: str) -> None:
    """Raise `ConfigError` for a tenant with the name of an account that all tenants share."""
    if tenant.startswith(SHARED):
        raise ConfigError(f"host.tenant {tenant!r} begins with the control character {SHARED!r}, which no tenant's name may begin with")


def refuse_unstorable(**names: str) -> None:
    """Raise `ConfigError` for a name that some store cannot keep."""
    for part, name in names.items():
        if problem := unstorable(name):
            raise ConfigError(f"{part} {name[:80]!r} {problem}")


def same_host(run_id: str, mine: Host, theirs: Host) -> None:
    """Raise `RunContextMismatch` unless the host `theirs` may resume a run of the host `mine`: same tenant, workspace and principal."""  # row K8
    wrong = [
        {"field": f"host.{field}", "expected": getattr(mine, field), "received": getattr(theirs, field)}
        for field in ("tenant", "workspace", "principal")
        if getattr(mine, field) != getattr(theirs, field)
    ]
    if wrong:
        raise RunContextMismatch(run_id, wrong)


async def same_context(store: EventStore, run_id: str, wanted: RunStarted, patterns: Sequence[str] = ()) -> None:
    """Raise `RunContextMismatch` unless the run was started with the same agent, goal and host."""  # row K8
    head = await store.head(run_id)
    if head is not None and head.tenant != wanted.host.tenant:
        mine = {"field": "host.tenant", "expected": "another tenant", "received": wanted.host.tenant}
        raise RunContextMismatch(run_id, [mine])
    state = await load_run(store, run_id)
    key = await store.get_blob(run_id, KEY_BLOB) if patterns else None
    wanted = redacted_start(wanted, Redactor(patterns, key)) if key else wanted
    named = (state.agent.name, wanted.agent.name)
    pairs = (
        (
            "agent",
            *(
                named
                if named[0] != named[1] or digest_of(state.agent) == digest_of(wanted.agent)
                else (f"{named[0]} as it was", f"{named[0]} with changes")
            ),
        ),
        ("goal", state.goal, wanted.goal),
        ("host.workspace", state.host.workspace, wanted.host.workspace),
        ("host.principal", state.host.principal, wanted.host.principal),
    )
    wrong = [{"field": f, "expected": mine, "received": theirs} for f, mine, theirs in pairs if mine != theirs]
    if wrong:
        raise RunContextMismatch(run_id, wrong)


def fitting_reply(run_id: str, reply: Any, expected: dict[str, Any] | None) -> Any:
    """Return the reply in the form that the question expects (text is read as JSON if that fits). Raise `NotAllowedNow` if it does not fit.

    The expected schema comes from a planner: patterns that could take long are left out, and the number of references followed is limited.
    """
    if expected is None:
        return reply
    candidates = [reply]
    if isinstance(reply, str):
        with contextlib.suppress(msgspec.DecodeError):
            candidates.append(msgspec.json.decode(reply))
    why = ""
    try:
        asked = {name: part for name, part in expected.items() if name != "$schema"}  # which draft it is makes no difference for a question
        check_schema(asked, foreign=True)
        errors = errors_of(asked, foreign=True)
        for candidate in candidates:
            error = next(errors(candidate), None)
            if error is None:
                return candidate
            why = error.message
    except Exception as error:  # the schema comes from a planner; a reference in it may have no target
        said = error.said if isinstance(error, UnusableSchema) else str(error)
        said = next(iter(said.splitlines()), "") or type(error).__name__
        why = f"what run {run_id!r} expects is not a usable JSON Schema ({said}); cancel the run, or resume it with another agent"
        raise NotAllowedNow(run_id, why, reason_code="unusable_schema") from error
    raise NotAllowedNow(run_id, f"the reply does not fit the question of run {run_id!r}: {why}", reason_code="reply_not_as_expected")


def new_run_id(goal: str | None, now: datetime, token: str) -> str:
    """Return `YYYYMMDD-HHMMSS-<slug>-<token>`; without a goal there is no slug."""
    return f"{now:%Y%m%d-%H%M%S}-{token}" if goal is None else f"{now:%Y%m%d-%H%M%S}-{slug(goal)}-{token}"


def words_in(run_id: str, goal: str) -> bool:
    """Whether an id contains a word of three letters or more of the goal, or the beginning of one."""
    said = re.sub(r"[^a-z0-9 \t\n\-_/]", "", goal.lower())
    words, named = re.findall(r"[a-z0-9]+", said), re.findall(r"[a-z0-9]{3,}", run_id.lower())
    return any(word.startswith(part) for word in words for part in named)


def slug(text: str) -> str:
    """Return `text` as part of a run id: lower-case ASCII letters and digits, runs of space - _ / as one '-', 48 characters."""  # row R19
    kept = re.sub(r"[^a-z0-9 \t\n\-_/]", "", text.lower())
    return re.sub(r"[ \t\n\-_/]+", "-", kept).strip("-")[:48].rstrip("-") or "goal"
