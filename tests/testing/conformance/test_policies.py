"""Detent's policies and guards keep their contracts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from amounts import thinned
from detent.kernel.guards import in_doubt_guard
from detent.policies import (
    BasicPolicy,
    DelegationLimits,
    DelegationPolicy,
    PermissionPolicy,
    PolicyPipeline,
    Rule,
    RulePolicy,
    TieredPolicy,
    load_policy,
)
from detent.policies.guards import GUARDS
from detent.policies.provenance.policy import ProvenancePolicy
from detent.ports import Call, Guard, Policy, ToolSpec
from detent.testing.conformance.policy import GuardContract, GuardMaker, PolicyContract, PolicyMaker, call_of, declared

RULES = [
    Rule(id="no-etc", decision="deny", when="has(args.path) && string(args.path).contains('etc')", reason="not there"),
    Rule(id="mail", decision="require_approval", tool=("put", "mcp__*"), when="has(args.to)", reason="mail", approvers=2, expires_s=60.0),
    Rule(id="tired", decision="stop", when="usage.failures > 20", reason="too many failures"),
    Rule(id="rest", decision="allow"),
]
DOCUMENT = """
[permission]
mode = "auto"
denied_tools = ["exec", "remove"]
always_ask = ["put"]

[tiers]
write = "require_approval"

[provenance]

[[rules]]
id = "no-etc"
tool = "look"
when = "has(args.path) && args.path.contains('etc')"
decision = "deny"
reason = "not there"
"""
MADE: dict[str, Callable[[Path], Policy]] = {
    "tiers": lambda _: TieredPolicy(),
    "tiers-of-its-own": lambda _: TieredPolicy({"write": "require_approval", "none": "deny"}, tools={"mcp__*": "deny", "remove": "allow"}),
    "basic": lambda _: BasicPolicy(
        allowed_tools=("look", "put", "m*"),
        require_approval_for=("put", "look"),
        max_steps=100,
        max_failures=20,
        delegation=DelegationLimits(),
    ),
    **{
        f"permission-{mode}": lambda _, mode=mode: PermissionPolicy(mode, denied_tools=("exec", "mcp__*"), always_ask=("remove",))
        for mode in ("default", "allow", "deny", "ask", "auto", "headless")
    },
    "permission-without-prompt": lambda _: PermissionPolicy("ask", prompt_available=False, always_ask=("remove",)),
    "delegation": lambda _: DelegationPolicy(DelegationLimits(max_children=1, agents=("helper",), require_approval=True)),
    "rules": lambda _: RulePolicy(RULES),
    "provenance": lambda _: ProvenancePolicy(),
    "provenance-denying": lambda _: ProvenancePolicy(on_unproven="deny", trust_memory=True),
    "pipeline": lambda _: PolicyPipeline([TieredPolicy(), ProvenancePolicy(), PermissionPolicy("auto")]),
    "pipeline-with-a-default": lambda _: PolicyPipeline([RulePolicy(RULES[:2])], default=TieredPolicy()),
    "file": lambda place: load_policy(place / "policy.toml"),
}


class Made(PolicyMaker):
    def __init__(self, make: Callable[[Path], Policy], place: Path, child: str | None = None) -> None:
        self._make, self._place, self.child = make, place, child
        (place / "policy.toml").write_text(DOCUMENT, encoding="utf-8")

    def policy(self) -> Policy:
        return self._make(self._place)

    def tools(self) -> Sequence[ToolSpec]:
        return (ToolSpec(name="send", side_effect="write", input_schema={"type": "object"}, sinks=("to",)),)

    def calls(self) -> Sequence[Call]:
        spawn = msgspec.structs.replace(declared("spawn_agent", "write"), delegates=True)
        args: list[dict[str, Any]] = [
            {"agent": "helper", "goal": "g"},
            {"agent": "other", "goal": "g", "budget": {"max_iterations": 5}},
            {"agent": 5},
        ]
        return [call_of(spawn, one) for one in args]


CHILDREN = {
    "basic": "from detent.policies import BasicPolicy, DelegationLimits\n"
    "policy = BasicPolicy(allowed_tools=('look', 'put', 'm*'), require_approval_for=('put', 'look'), max_steps=100, max_failures=20, "
    "delegation=DelegationLimits())",
    "permission-auto": "from detent.policies import PermissionPolicy\n"
    "policy = PermissionPolicy('auto', denied_tools=('exec', 'mcp__*'), always_ask=('remove',))",
    "provenance": "from detent.policies.provenance.policy import ProvenancePolicy\npolicy = ProvenancePolicy()",
    "file": "from detent.policies import load_policy\nfrom pathlib import Path\npolicy = load_policy(Path({place!r}) / 'policy.toml')",
}


@pytest.mark.parametrize("name", MADE)
@thinned
class TestPolicies(PolicyContract):
    @pytest.fixture
    def maker(self, name: str, tmp_path: Path) -> PolicyMaker:
        child = CHILDREN.get(name)
        return Made(MADE[name], tmp_path, child.format(place=str(tmp_path)) if child else None)


class Guards(GuardMaker):
    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def guard(self) -> Guard:
        return self._guard


@pytest.mark.parametrize("guard", [in_doubt_guard, *GUARDS.values()], ids=lambda guard: guard.__name__)
@thinned
class TestGuards(GuardContract):
    @pytest.fixture
    def maker(self, guard: Guard) -> GuardMaker:
        return Guards(guard)
