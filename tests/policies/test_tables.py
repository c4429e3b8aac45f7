"""The decision tables of the policies: rows K27 to K31, one test a row and column."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from detent.core.budget import Budget
from detent.core.errors import ConfigError
from detent.core.state import CallState
from detent.policies import BasicPolicy, DelegationLimits, DelegationPolicy, PermissionPolicy, PolicyPipeline, RulePolicy, TieredPolicy
from detent.policies.rules import Rule
from detent.policies.verdicts import SPAWN
from detent.ports import Verdict, offered
from policies.calls import LEVELS, after, call, spec, state

SPAWNING = spec(SPAWN, "write", delegates=True)


def said(policy: Any, *args: Any, **options: Any) -> tuple[str, str]:
    """Return decision and rule."""
    verdict = policy.decide(*args, **options)
    return verdict.decision, verdict.rule


# Tiers (K31, as DESIGN 7 has it) -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "decision"), [("none", "allow"), ("read", "allow"), ("write", "allow"), ("destructive", "require_approval")]
)
def test_the_declared_side_effect_decides(level: str, decision: str) -> None:
    """DESIGN 7: none, read and write allowed, destructive asks; `may_ask` says the same."""
    tool = spec("t", level)
    assert said(TieredPolicy(), call(tool), state()) == (decision, f"tier:{level}")
    assert TieredPolicy().may_ask(tool) == (decision == "require_approval") and TieredPolicy().offers(tool, state())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("decision", ["allow", "deny", "stop", "require_approval"])
def test_a_tier_can_be_given_another_decision_and_a_tool_its_own(level: Any, decision: Any) -> None:
    """Overrides by level and by name or pattern; a tool whose calls would all be refused is not offered."""
    by_level, by_name = TieredPolicy({level: decision}), TieredPolicy(tools={"rm_*": decision})
    tool = spec("rm_all", level)
    assert said(by_level, call(tool), state()) == (decision, f"tier:{level}")
    assert said(by_name, call(tool), state()) == (decision, "tier:tool:rm_*")
    assert by_level.offers(tool, state()) == by_name.offers(tool, state()) == (decision in ("allow", "require_approval"))
    assert by_level.version != TieredPolicy().version != by_name.version


def test_a_tool_of_an_unknown_level_fails_closed() -> None:
    """K31: what is not known is denied, and not offered; a declaration refuses it, so one that did not must be made by force."""
    with pytest.raises(ConfigError, match="side_effect is 'cosmic'"):
        spec("t", "cosmic")
    tool = spec("t", "read")
    msgspec.structs.force_setattr(tool, "side_effect", "cosmic")
    assert said(TieredPolicy(), call(tool), state()) == ("deny", "tier_unknown") and not TieredPolicy().offers(tool, state())


def test_a_tier_that_is_no_decision_is_refused_when_it_is_made() -> None:
    """A misspelt decision must not become one."""
    with pytest.raises(ConfigError, match="'alow' is not a decision"):
        TieredPolicy({"read": "alow"})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="'reads' is not a side effect"):
        TieredPolicy({"reads": "allow"})  # type: ignore[dict-item]


# Basic (K27) ---------------------------------------------------------------------------------------------------------------------

BASIC = BasicPolicy(
    allowed_tools=["put", "get_*", "ask"],
    require_approval_for=["ask", "other"],
    max_steps=5,
    max_failures=3,
    delegation=DelegationLimits(max_children=1),
)


@pytest.mark.parametrize(
    ("tool", "used", "expected"),
    [
        (SPAWNING, {"tool_calls": 9, "failures": 9}, ("allow", "delegation_allowed")),  # delegation first
        ("put", {"tool_calls": 5, "failures": 9}, ("stop", "max_steps_reached")),  # steps before failures
        ("nope", {"tool_calls": 5}, ("stop", "max_steps_reached")),  # and before the list
        ("put", {"tool_calls": 4, "failures": 3}, ("stop", "max_failures_reached")),
        ("nope", {"failures": 2}, ("deny", "tool_not_allowed")),
        ("other", {}, ("deny", "tool_not_allowed")),  # not allowed beats asking
        ("ask", {}, ("require_approval", "tool_requires_approval")),
        ("put", {"tool_calls": 4, "failures": 2}, ("allow", "tool_allowed")),
        ("get_it", {}, ("allow", "tool_allowed")),
    ],
)
def test_basic_policy_checks_in_order(tool: Any, used: dict[str, Any], expected: tuple[str, str]) -> None:
    """K27: delegation, steps, failures, allowed tools, approval, allow."""
    assert said(BASIC, call(tool, agent="a"), state(**used)) == expected


def test_steps_count_the_calls_of_this_turn_that_are_to_run() -> None:
    """A batch is decided before it runs: its calls must not all see the same count (K56)."""
    pending = {f"main.1.{i}": CallState(call_id=f"main.1.{i}", index=i, tool="put", args={}, status="allowed") for i in range(2)}
    run = msgspec.structs.replace(state(tool_calls=3), passes={"main": after(calls=pending)})
    assert said(BASIC, call("put", "main.1.2"), run) == ("stop", "max_steps_reached")


# Delegation (K28) ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "where", "args", "expected"),
    [
        ({}, {}, {"agent": "a"}, ("allow", "delegation_allowed")),
        ({"max_children": 2}, {"children": 1}, {"agent": "a"}, ("allow", "delegation_allowed")),
        ({"max_children": 2}, {"children": 2}, {"agent": "a"}, ("deny", "max_child_runs_reached")),
        ({"max_depth": 1}, {}, {"agent": "a"}, ("allow", "delegation_allowed")),
        ({"max_depth": 1}, {"variables": {"delegation_depth": 1}}, {"agent": "a"}, ("deny", "max_delegation_depth_reached")),
        ({"max_depth": 2}, {"variables": {"delegation": {"depth": 2}}}, {"agent": "a"}, ("deny", "max_delegation_depth_reached")),
        ({"agents": ("help*",)}, {}, {"agent": "helper"}, ("allow", "delegation_allowed")),
        ({"agents": ("help*",)}, {}, {"agent": "boss"}, ("deny", "delegation_agent_not_allowed")),
        ({"agents": ("help*",)}, {}, {}, ("deny", "delegation_agent_not_allowed")),
        ({"tools": ("look",)}, {}, {"agent": "a", "tools": ["look", "rm", "mv"]}, ("deny", "delegation_tool_not_allowed")),
        ({"tools": ("look",)}, {}, {"agent": "a", "tools": ["look"]}, ("allow", "delegation_allowed")),
        ({"tools": ("look",)}, {}, {"agent": "a", "tools": "look, rm"}, ("deny", "delegation_tool_not_allowed")),
        ({"tools": ("look",)}, {}, {"agent": "a"}, ("deny", "delegation_tool_not_allowed")),
        ({"max_budget": Budget(max_tool_calls=5)}, {}, {"agent": "a", "budget": {"max_tool_calls": 5}}, ("allow", "delegation_allowed")),
        (
            {"max_budget": Budget(max_tool_calls=5)},
            {},
            {"agent": "a", "budget": {"max_tool_calls": 6}},
            ("deny", "delegation_budget_exceeded"),
        ),
        ({"max_budget": Budget(max_tool_calls=5)}, {}, {"agent": "a"}, ("deny", "delegation_budget_exceeded")),
        (
            {"max_budget": Budget(max_calls_of={"rm": 1})},
            {},
            {"agent": "a", "budget": {"max_calls_of": {"rm": 2}}},
            ("deny", "delegation_budget_exceeded"),
        ),
        ({"max_budget": Budget(max_calls_of={"rm": 1})}, {}, {"agent": "a"}, ("deny", "delegation_budget_exceeded")),
        (
            {"max_budget": Budget(max_calls_of={"rm": 1})},
            {},
            {"agent": "a", "budget": {"max_calls_of": {"rm": 1}}},
            ("allow", "delegation_allowed"),
        ),
        ({"require_approval": True}, {}, {"agent": "a"}, ("require_approval", "delegation_requires_approval")),
        ({"require_approval": True, "max_children": 1}, {"children": 1}, {"agent": "a"}, ("deny", "max_child_runs_reached")),
    ],
)
def test_delegation_is_limited(limits: dict[str, Any], where: dict[str, Any], args: dict[str, Any], expected: tuple[str, str]) -> None:
    """K28: children, depth, agents, the child's tools and budget, then approval."""
    assert said(DelegationPolicy(DelegationLimits(**limits)), call(SPAWNING, **args), state(**where)) == expected


def test_each_thing_that_is_wrong_with_a_delegation_is_named() -> None:
    """K28: one violation a tool; they stand in the facts of the decision."""
    verdict = DelegationPolicy(DelegationLimits(tools=("look",), max_children=1)).decide(
        call(SPAWNING, agent="a", tools=["rm", "look", "mv"]), state(children=1)
    )
    assert verdict.rule == "max_child_runs_reached" and len(verdict.facts["violations"]) == 3


def test_limits_on_delegation_have_no_say_in_other_calls() -> None:
    """As a stage they leave every other call to the others."""
    policy = DelegationPolicy(DelegationLimits(max_children=1))
    assert policy.judge(call("put"), state()) is None and policy.decide(call("put"), state()).decision == "allow"
    assert PolicyPipeline([policy]).decide(call("put"), state()).rule == "no_policy_rule_matched"
    assert (
        policy.offers(SPAWNING, state())
        and not policy.offers(SPAWNING, state(children=1))
        and policy.offers(spec("put"), state(children=1))
    )


# Permission (K29) ----------------------------------------------------------------------------------------------------------------

MODES: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "default": (("allow", "tool_allowed"), ("allow", "tool_allowed")),
    "allow": (("allow", "mode_allows_tool"), ("allow", "mode_allows_tool")),
    "deny": (("deny", "mode_denies_tools"), ("deny", "mode_denies_tools")),
    "ask": (("require_approval", "mode_requires_approval"), ("require_approval", "mode_requires_approval")),
    "auto": (("allow", "auto_read_allowed"), ("require_approval", "auto_write_requires_approval")),
    "headless": (("allow", "headless_read_allowed"), ("deny", "headless_write_denied")),
}
"""What each mode says of a tool that reads and of one that does not."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", LEVELS)
def test_a_mode_decides_where_no_list_does(mode: Any, level: str) -> None:
    """K29: six modes, by whether the tool only reads."""
    reads, writes = MODES[mode]
    expected = reads if level in ("none", "read") else writes
    policy, tool = PermissionPolicy(mode), spec("t", level)
    assert said(policy, call(tool), state()) == expected
    assert policy.may_ask(tool) == (expected[0] == "require_approval") and policy.offers(tool, state()) == (expected[0] != "deny")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("outside", ("deny", "tool_not_allowed")),
        ("denied", ("deny", "tool_explicitly_denied")),
        ("both", ("deny", "tool_explicitly_denied")),  # denied beats always_ask
        ("always", ("require_approval", "bypass_immune_safety_approval")),  # beats every mode
        ("asking", ("require_approval", "tool_requires_approval")),
    ],
)
def test_lists_come_before_the_mode(mode: Any, tool: str, expected: tuple[str, str]) -> None:
    """K29: allowed, denied, always_ask; then mode deny; then require_approval_for."""
    policy = PermissionPolicy(
        mode,
        allowed_tools=["denied", "both", "always", "asking"],
        denied_tools=["denied", "both"],
        always_ask=["always", "both"],
        require_approval_for=["asking", "denied"],
    )
    if mode == "deny" and tool == "asking":
        expected = ("deny", "mode_denies_tools")
    assert said(policy, call(tool), state()) == expected
    assert offered(policy, spec(tool), state()) == (expected[0] != "deny")


@pytest.mark.parametrize("mode", MODES)
def test_without_anybody_to_ask_what_would_ask_is_denied(mode: Any) -> None:
    """K29: `prompt_available=False`; a run then needs no approver."""
    policy = PermissionPolicy(mode, always_ask=["always"], prompt_available=False)
    assert said(policy, call("always"), state()) == ("deny", "approval_prompt_unavailable")
    assert not policy.may_ask(spec("always")) and not policy.offers(spec("always"), state())
    reads, writes = MODES[mode]
    for level, usual in (("read", reads), ("write", writes)):
        expected = ("deny", "approval_prompt_unavailable") if usual[0] == "require_approval" else usual
        assert said(policy, call(spec("t", level)), state()) == expected
        assert policy.offers(spec("t", level), state()) == (expected[0] != "deny")


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Verdict(decision="allow", rule="low_risk"), ("allow", "low_risk")),
        (Verdict(decision="deny", rule="high_risk"), ("deny", "high_risk")),
        (None, ("require_approval", "auto_write_requires_approval")),
    ],
)
def test_mode_auto_asks_the_classifier_about_what_writes(verdict: Verdict | None, expected: tuple[str, str]) -> None:
    """K29, K34: its verdict, else approval; it is not asked about what only reads."""
    asked: list[str] = []

    def classify(which: Any, _: Any) -> Verdict | None:
        asked.append(which.tool.name)
        return verdict

    policy = PermissionPolicy("auto", classifier=classify)
    assert said(policy, call(spec("w", "write")), state()) == expected
    assert said(policy, call(spec("r", "read")), state()) == ("allow", "auto_read_allowed") and asked == ["w"]


def test_bounds_come_before_permissions() -> None:
    """K29: budget first, as in K27."""
    policy = PermissionPolicy("deny", denied_tools=["t"], max_steps=1)
    assert said(policy, call("t"), state(tool_calls=1)) == ("stop", "max_steps_reached")


def test_a_misspelt_mode_is_refused_and_does_not_allow_everything() -> None:
    """Ours: `default` would let a misspelt `headless` do anything."""
    with pytest.raises(ConfigError, match="did you mean 'headless'"):
        PermissionPolicy("headles")  # type: ignore[arg-type]


# Pipeline (K30) ------------------------------------------------------------------------------------------------------------------


class Says:
    """A stage with one answer; None is no say."""

    def __init__(self, decision: Any, *, fails: bool = False, **fields: Any) -> None:
        self.version = f"says-{decision}"
        self._verdict = decision and Verdict(decision=decision, rule=f"r-{decision}", **fields)
        self._fails = fails

    def judge(self, call: Any, state: Any) -> Verdict | None:
        """Answer."""
        if self._fails:
            raise RuntimeError("no idea")
        return self._verdict

    def may_ask(self, tool: Any) -> bool:
        """Whether it asks."""
        return self._verdict is not None and self._verdict.decision == "require_approval"


ORDER = ("stop", "deny", "require_approval", "allow")


@pytest.mark.parametrize("first", [*ORDER, None])
@pytest.mark.parametrize("second", [*ORDER, None])
def test_the_strongest_verdict_wins_in_any_order(first: Any, second: Any) -> None:
    """K30: stop > deny > require_approval > allow; no say at all denies."""
    wanted = next((d for d in ORDER if d in (first, second)), None)
    verdict = PolicyPipeline([Says(first), Says(second)]).decide(call(), state())
    if wanted is None:
        assert (verdict.decision, verdict.rule) == ("deny", "no_policy_rule_matched")
    else:
        assert (verdict.decision, verdict.rule) == (wanted, f"r-{wanted}")
        matched = [f"r-{d}" for d in (first, second) if d]
        assert verdict.facts.get("matched", matched) == matched


def test_a_stage_that_fails_denies_and_hides_no_stop() -> None:
    """An exception in one stage is a denial, beside what the others say."""
    verdict = PolicyPipeline([Says("allow", fails=True), Says("allow")]).decide(call(), state())
    assert (verdict.decision, verdict.rule) == ("deny", "policy_error") and "RuntimeError: no idea" in verdict.reason
    assert PolicyPipeline([Says("allow", fails=True), Says("stop")]).decide(call(), state()).decision == "stop"


def test_requests_for_approval_are_merged_to_the_strictest() -> None:
    """The most people, the shortest time, every reason; a rejection stops where one rule says so."""
    policy = PolicyPipeline(
        [
            Says("require_approval", approvers=2, expires_s=60.0, reason="money", sources=("a:1",)),
            Says("allow"),
            Says("require_approval", approvers=1, expires_s=30.0, reason="mail", sources=("a:2",), on_reject="stop"),
        ]
    )
    verdict = policy.decide(call(), state())
    assert (verdict.approvers, verdict.expires_s, verdict.reason, verdict.on_reject) == (2, 30.0, "money; mail", "stop")
    assert verdict.sources == ("a:1", "a:2") and policy.may_ask(spec())


def test_a_default_decides_only_where_no_stage_has_a_say() -> None:
    """A pipeline may fall back on the tiers instead of the denial."""
    policy = PolicyPipeline([RulePolicy([Rule(id="no", tool=("rm",), decision="deny")])], default=TieredPolicy())
    assert said(policy, call("rm"), state()) == ("deny", "no") and said(policy, call("put"), state()) == ("allow", "tier:write")
    assert not policy.offers(spec("rm"), state()) and policy.offers(spec("put"), state())


def test_an_empty_pipeline_is_refused() -> None:
    """It would deny everything, silently."""
    with pytest.raises(ConfigError, match="at least one policy"):
        PolicyPipeline([])
