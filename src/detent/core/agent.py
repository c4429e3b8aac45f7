"""Who works on a goal and who asks for it, as data that stands in the log."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from detent.core.budget import Budget


class Host(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who asks: a tenant, a workspace, a principal and the scopes that this call was given (rows K81, K138).

    `credential_refs` name credentials and never hold them.
    """

    tenant: str = ""
    workspace: str = ""
    principal: str = ""
    scopes: tuple[str, ...] = ()
    credential_refs: tuple[str, ...] = ()
    trace_id: str = ""


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The specification of an agent: names and numbers only, so that it can be stored, compared and resumed."""

    name: str
    instructions: str = ""
    model: str = ""
    small_model: str = ""
    planner: str = ""
    model_settings: dict[str, Any] = {}
    actions: tuple[str, ...] = ()
    strategy: str = "reactive"
    strategy_options: dict[str, Any] = {}
    kernel: str = ""
    tools: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    budget: Budget = Budget()
    on_deny: Literal["observe", "fail"] = "observe"
    on_reject: Literal["observe", "stop"] = "observe"
    on_unknown: Literal["wait", "tell"] = "wait"
    wrap_up: bool = False
    profile: dict[str, Any] = {}
    rules: tuple[dict[str, Any], ...] = ()
    redact: tuple[str, ...] = ()
    grants: tuple[dict[str, Any], ...] = ()
    policy: dict[str, Any] = {}
    guards: tuple[str, ...] = ()
    required_tools: dict[str, int] = {}
    deliverables: tuple[dict[str, str], ...] = ()
    healing: bool = False
    output_schema: dict[str, Any] | None = None
    meta: dict[str, Any] = {}
