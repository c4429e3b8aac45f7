"""Explaining one call: every record about it, in order, in words, and nothing about others."""

from __future__ import annotations

from typing import Any

import pytest

from detent import Agent, FinalAnswer, ToolCall
from detent.core.errors import ConfigError
from detent.history.explaining import Explanation, explain
from detent.policies import RulePolicy
from detent.policies.rules import Rule
from kernel.runs import END, Desk, Script, call, engine_for, records_of, run_async


def trail(script: list[Any], call_id: str, *, policy: Any = None, agent: dict[str, Any] | None = None, answers: Any = ()) -> Explanation:
    """Run a script, answer requests, and explain one call."""
    found: list[Explanation] = []

    async def main() -> None:
        desk = Desk()
        engine = engine_for(Script(script), *desk.all, policy=policy)
        result = await engine.run(Agent(name="w", tools=[t.name for t in desk.all], **(agent or {})), "go")
        for how, name, options in answers:
            result = await getattr(engine, how)(result.run_id, name, **options)
        found.append(explain(await records_of(engine.store, result.run_id), call_id))

    run_async(main)
    return found[0]


def kinds(found: Explanation) -> list[str]:
    """Return the kinds of the steps."""
    return [step.kind for step in found.steps]


def test_a_call_that_only_read_is_plan_decision_and_outcome() -> None:
    """In order, with the policy's version."""
    found = trail([ToolCall(tool="look", args={"n": 3}, reason="to see"), END], "main.1.0")
    assert kinds(found) == ["planned", "policy_decided", "tool_finished"]
    assert (found.tool, found.args, found.outcome, found.policy) == ("look", {"n": 3}, "succeeded", "tiers-1")
    said = [step.said for step in found.steps]
    assert said[0] == "the planner asked for look because: to see" and said[1] == "policy: allow by tier:read"
    assert [s.sequence for s in found.steps] == sorted(s.sequence for s in found.steps)


def test_an_approval_is_told_with_who_and_why() -> None:
    """Request, decision, attempt, outcome."""
    found = trail([call("wipe", n=1), END], "main.1.0", answers=[("approve", "main.1.0", {"by": "ann"})])
    assert kinds(found)[:4] == ["planned", "policy_decided", "approval_requested", "approval_resolved"]
    said = " | ".join(step.said for step in found.steps)
    assert "policy: require_approval by tier:destructive: destructive tools need approval" in said
    assert "ann via " in said and " approved it" in said and "attempt 1 began, key " in said and found.outcome == "succeeded"


def test_edited_arguments_are_those_that_counted() -> None:
    """What was asked for stays in the plan's step."""
    found = trail([call("wipe", n=1), END], "main.1.0", answers=[("approve", "main.1.0", {"by": "ann", "args": {"n": 2}})])
    assert found.args == {"n": 2} and found.steps[0].data["args"] == {"n": 1}
    assert any(step.said.startswith("ann via ") and step.said.endswith(" approved it with other arguments") for step in found.steps)


def test_a_refusal_by_rule_names_rule_reason_source_and_facts() -> None:
    """Everything that the log knows of the decision."""
    policy = RulePolicy(
        [Rule(id="all", decision="allow"), Rule(id="big", when="args.n > 5", decision="deny", reason="too big", source="p.toml:4")]
    )
    found = trail([call("put", n=9), END], "main.1.0", policy=policy)
    step = found.steps[1]
    assert step.said == "policy: deny by big: too big (from p.toml:4)" and step.data["facts"] == {"matched": ["all", "big"]}
    assert found.outcome == "failed: policy_denied" and found.policy == policy.version


def test_a_blocked_and_a_repaired_call_say_so() -> None:
    """Guards and healing stand before the policy."""
    script = [call("look", n=1), ToolCall(tool="look", args='{"n": 1}'), END]
    found = trail(script, "main.2.0", agent={"guards": ["duplicate"]})
    assert kinds(found) == ["planned", "call_healed", "guard_blocked", "tool_finished"]
    assert found.steps[1].said == "repaired before it was checked: parsed from text" and found.steps[2].said.startswith(
        "guard duplicate blocked it"
    )
    assert found.args == {"n": 1} and found.outcome == "failed: guard_blocked"


def test_a_call_found_in_text_or_dropped_beside_a_control_action_says_so() -> None:
    """Where it came from is part of why."""
    text = trail([FinalAnswer(content='look({"n": 1})')], "main.1.0")
    assert "found in the text of an answer" in text.steps[0].said
    dropped = trail([(call("look", n=1), END)], "main.1.0")
    assert "came beside a control action" in dropped.steps[0].said and dropped.outcome == "not run" and kinds(dropped) == ["planned"]
    batch = trail([(call("look", n=1), call("look", n=2)), END], "main.1.1")
    assert batch.steps[0].said == "the planner asked for look, call 2 of 2"


def test_a_call_without_an_outcome_has_none() -> None:
    """It waits."""
    assert trail([call("wipe", n=1), END], "main.1.0").outcome == ""


def test_an_unknown_call_is_named_with_the_nearest() -> None:
    """Or with where they are listed."""
    with pytest.raises(ConfigError, match=r"has no call 'main\.1\.5'; did you mean main\.1\.0"):
        trail([call("look", n=1), END], "main.1.5")
    with pytest.raises(ConfigError, match=r"it has 0 calls"):
        trail([END], "zzz")
