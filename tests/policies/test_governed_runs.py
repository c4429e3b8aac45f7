"""Policies and guards in runs: what is decided stands in the log, nothing refused is executed, and every branch replays."""

from __future__ import annotations

from typing import Any

import pytest

from detent import Agent, Plan, ToolCall, tool
from detent.core import events as e
from detent.kernel.guards import default_guards
from detent.kernel.kernel import make_kernel
from detent.policies import BasicPolicy, PermissionPolicy, PolicyPipeline, RulePolicy, TieredPolicy
from detent.policies.guards import duplicate, repetition, side_effect_once
from detent.policies.rules import Rule
from kernel.runs import END, Desk, Ran, Script, call, engine_for, look, ran, run_async


def rules(*entries: dict[str, Any]) -> RulePolicy:
    """Return a policy of these rules."""
    return RulePolicy([Rule(**{"id": f"r{i}", "source": f"policy.toml:{i}", **entry}) for i, entry in enumerate(entries)])


ALL: dict[str, Any] = {"id": "all", "decision": "allow"}


def decided(run: Ran) -> list[tuple[str, str]]:
    """Return decision and rule of each call."""
    return [(d.decision, d.rule) for d in run.all(e.PolicyDecided)]


def test_every_decision_is_on_record_with_rule_reason_sources_and_version() -> None:
    """Item 1: allow, deny, require_approval and stop alike."""
    desk = Desk()
    policy = rules(
        ALL,
        {"id": "odd", "tool": ("put",), "when": "args.n == 1", "decision": "deny", "reason": "one is odd"},
        {"id": "end", "tool": ("put",), "when": "args.n == 2", "decision": "stop", "reason": "two is too many"},
    )
    run = ran([(call("put", n=0), call("put", n=1)), call("put", n=2)], *desk.all, policy=policy)
    assert decided(run) == [("allow", "all"), ("deny", "odd"), ("stop", "end")] and desk.ran == [("put", 0)]
    denied = run.all(e.PolicyDecided)[1]
    assert (denied.reason, denied.sources, denied.policy) == ("one is odd", ("policy.toml:1",), policy.version)
    assert all(d.policy == policy.version for d in run.all(e.PolicyDecided))
    assert run.why == ("stopped", "policy_stopped") and run.result.error == "two is too many"


def test_a_denied_call_is_a_failed_observation_and_the_run_goes_on() -> None:
    """DESIGN 6: `policy_denied: reason`, not executed, not in tools_used, one failure; the planner sees why."""
    desk = Desk()
    run = ran(
        [call("put", n=1), END],
        *desk.all,
        policy=rules(ALL, {"id": "no", "tool": ("put",), "when": "true", "decision": "deny", "reason": "not today"}),
    )
    assert run.why == ("completed", "final_answer") and run.codes == ["policy_denied"] and desk.ran == []
    assert run.result.usage.failures == 1 and run.result.usage.tool_calls == 0 and run.main.tools_used == frozenset()
    item = run.views[1].transcript[-1]
    assert item.error is not None and item.error.message == "policy_denied: not today"


def test_a_denied_call_ends_the_run_where_the_agent_says_so() -> None:
    """`on_deny="fail"`."""
    desk = Desk()
    run = ran([(call("put", n=1), call("put", n=2)), END], *desk.all, policy=rules(), agent={"on_deny": "fail"})
    assert run.why == ("failed", "policy_denied") and desk.ran == [] and "no rule of the policy matches" in str(run.result.error)


def test_a_stop_ends_the_run_before_anything_of_its_batch_runs_and_asks_nobody() -> None:
    """Calls after it are neither decided nor asked about."""
    desk = Desk()
    policy = PolicyPipeline([TieredPolicy(), rules({"id": "end", "tool": ("put",), "when": "args.n == 2", "decision": "stop"})])
    run = ran([(call("look", n=1), call("put", n=2), call("wipe", n=3)), END], *desk.all, policy=policy)
    assert run.why == ("stopped", "policy_stopped") and desk.ran == [] and run.all(e.ApprovalRequested) == []
    assert decided(run) == [("allow", "tier:read"), ("stop", "end")]


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (
            RulePolicy([Rule(id="all", decision="allow"), Rule(id="bad", decision="allow", when="args.n.x == 1", source="policy.toml:9")]),
            "bad",
        ),
        (
            PolicyPipeline([TieredPolicy(), RulePolicy([Rule(id="bad", decision="allow", when="args.nothing", source="policy.toml:9")])]),
            "bad",
        ),
    ],
)
def test_a_condition_that_fails_denies_the_call_and_the_log_says_where_it_stands(policy: Any, rule: str) -> None:
    """Type errors at run time: file, line and reason."""
    desk = Desk()
    run = ran([call("put", n=1), END], *desk.all, policy=policy)
    (verdict,) = run.all(e.PolicyDecided)
    assert (verdict.decision, verdict.rule, verdict.sources) == ("deny", rule, ("policy.toml:9",)) and desk.ran == []
    assert verdict.reason.startswith("policy.toml:9: rule 'bad': when: expression")


def test_a_policy_that_raises_denies_and_the_log_says_so() -> None:
    """Whatever it raises; alone, and as a stage."""

    class Broken(TieredPolicy):
        """Fails on put."""

        def decide(self, call: Any, state: Any) -> Any:
            """Fail."""
            raise ZeroDivisionError("no")

    for policy in (Broken(), PolicyPipeline([TieredPolicy(), Broken()])):
        desk = Desk()
        run = ran([call("look", n=1), END], *desk.all, policy=policy)
        (verdict,) = run.all(e.PolicyDecided)
        assert (verdict.decision, verdict.rule) == ("deny", "policy_error") and "ZeroDivisionError: no" in verdict.reason and desk.ran == []


def test_a_tool_that_would_always_be_refused_is_not_offered_and_refused_all_the_same() -> None:
    """K31, as DESIGN 7 has it: not in the view; a planner that asks for it is denied."""
    desk = Desk()
    policy = rules(
        {"id": "reads", "tool": ("look",), "decision": "allow"}, {"id": "puts", "tool": ("put",), "when": "args.n < 5", "decision": "allow"}
    )
    run = ran([call("wipe", n=1), call("put", n=1), END], *desk.all, policy=policy)
    assert [t.name for t in run.views[0].tools] == ["look", "put"] and run.codes == ["policy_denied", ""] and desk.ran == [("put", 1)]


def test_a_rule_may_ask_for_several_people_and_end_the_run_when_one_says_no() -> None:
    """`approvers` and `on_reject` of the rule reach the request."""
    ask = {"id": "two", "tool": ("put",), "when": "args.n > 0", "decision": "require_approval", "reason": "more than none"}

    async def main() -> None:
        desk = Desk()
        policy = rules(ALL, {**ask, "approvers": 2, "on_reject": "stop"})
        planner = Script([call("put", n=1), call("put", n=2), END])
        engine = engine_for(planner, *desk.all, policy=policy)
        first = await engine.run(Agent(name="w", tools=["put"]), "go")
        assert first.status == "waiting_for_approval"
        once = await engine.approve(first.run_id, "main.1.0", by="ann")
        assert once.status == "waiting_for_approval" and desk.ran == []
        await engine.approve(first.run_id, "main.1.0", by="bob")
        assert desk.ran == [("put", 1)]
        last = await look(engine, await engine.deny(first.run_id, "main.2.0", by="eve", reason="enough"), planner)
        assert last.why == ("stopped", "approval_rejected") and desk.ran == [("put", 1)]
        (asked, _) = last.all(e.ApprovalRequested)
        assert (asked.approvers, asked.reason, asked.on_reject, asked.rule) == (2, "more than none", "stop", "two")

    run_async(main)


def test_an_agents_rules_come_beside_the_engines_and_stand_in_the_log() -> None:
    """They tighten; a later process without the agent's file decides by the same rules."""

    async def main() -> None:
        desk = Desk()
        own = [{"id": "small", "tool": "put", "when": "args.n > 5", "decision": "deny", "reason": "too large"}]
        planner = Script([call("put", n=1), call("put", n=9), call("wipe", n=1), END])
        engine = engine_for(planner, *desk.all, policy=PermissionPolicy("headless", allowed_tools=["*"]))
        result = await engine.run(Agent(name="w", tools=["put", "wipe"], policy=own), "go", turns=1)
        run = await look(engine, await engine.resume(result.run_id), planner)
        assert run.state.agent.policy["rules"][0]["id"] == "small" and desk.ran == []
        assert [d.rule for d in run.all(e.PolicyDecided)] == ["headless_write_denied", "headless_write_denied", "headless_write_denied"]
        assert run.all(e.PolicyDecided)[1].facts["matched"] == ["headless_write_denied", "small"]

    run_async(main)


def test_bounds_of_a_basic_policy_hold_inside_a_batch() -> None:
    """K56: a batch that would pass the limit stops the run instead."""
    desk = Desk()
    run = ran([tuple(call("put", n=i) for i in range(4)), END], *desk.all, policy=BasicPolicy(max_steps=2))
    assert decided(run) == [("allow", "tool_allowed"), ("allow", "tool_allowed"), ("stop", "max_steps_reached")]


# Guards --------------------------------------------------------------------------------------------------------------------------

REPEATED = [call("look", n=1), call("look", n=1), call("put", n=2), call("look", n=1), call("put", n=3), call("put", n=2), END]


def test_without_being_named_no_guard_of_use_blocks_anything() -> None:
    """They are chosen; durability's own guard is always there."""
    desk = Desk()
    ran(REPEATED, *desk.all)
    assert len(desk.ran) == 6


@pytest.mark.parametrize("how", ["agent", "kernel"])
def test_a_blocked_call_never_runs_and_its_reason_is_in_the_next_prompt(how: str) -> None:
    """Read, read: blocked. Write, read again: works. By the agent's list or the kernel's tuple."""
    desk = Desk()
    options: dict[str, Any] = (
        {"agent": {"guards": ["duplicate", "side_effect_once"]}}
        if how == "agent"
        else {"kernel": make_kernel(guards=(*default_guards, duplicate, side_effect_once))}
    )
    run = ran(REPEATED, *desk.all, **options)
    assert desk.ran == [("look", 1), ("put", 2), ("look", 1), ("put", 3)] and run.codes == [
        "",
        "guard_blocked",
        "",
        "",
        "",
        "guard_blocked",
    ]
    assert [(b.call, b.guard) for b in run.all(e.GuardBlocked)] == [("main.2.0", "duplicate"), ("main.6.0", "side_effect_once")]
    item = run.views[2].transcript[-1]
    assert item.error is not None and '{"n":1}' in item.error.message and "main.1.0" in item.error.message


def test_the_first_guard_that_blocks_wins_and_the_policy_is_not_asked() -> None:
    """In the order given."""
    desk = Desk()
    run = ran([call("look", n=1), call("look", n=1), END], *desk.all, agent={"guards": ["duplicate", "repetition"]})
    assert [b.guard for b in run.all(e.GuardBlocked)] == ["duplicate"] and len(run.all(e.PolicyDecided)) == 1


def test_guards_of_one_kernel_do_not_affect_another() -> None:
    """S1-5."""
    strict, free = Desk(), Desk()
    ran(REPEATED, *strict.all, kernel=make_kernel(guards=(*default_guards, duplicate)))
    ran(REPEATED, *free.all, kernel=make_kernel())
    assert (len(strict.ran), len(free.ran)) == (5, 6)


def test_guards_know_what_happened_before_a_run_was_resumed() -> None:
    """Another process, another engine: everything comes from the log and the tools' declarations."""

    async def main() -> None:
        from detent.stores.ram import RamStore

        desk, store, planner = Desk(), RamStore(), Script(REPEATED)
        agent = Agent(name="w", tools=["look", "put"], guards=["duplicate"])
        first = await engine_for(planner, *desk.all, store=store).run(agent, "go", turns=1)
        other = engine_for(planner, *desk.all, store=store)
        run = await look(other, await other.resume(first.run_id), planner)
        assert run.codes == ["", "guard_blocked", "", "", "", ""]

    run_async(main)


def test_polling_a_volatile_tool_works_with_every_guard() -> None:
    """Until what it waits for is there."""
    answers = iter(["busy", "busy", "busy", "busy", "ready"])

    @tool(side_effect="read", volatile=True)
    async def poll() -> str:
        """Ask whether it is ready."""
        return next(answers)

    def plan(view: Any) -> Plan:
        ready = any(item.content == "ready" for item in view.results)
        return Plan(actions=(END if ready else ToolCall(tool="poll", args={}),))

    from detent.policies.guards import GUARDS

    run = ran([plan] * 6, poll, agent={"guards": list(GUARDS)})
    assert run.why == ("completed", "final_answer") and run.codes == [""] * 5


def test_a_batch_of_equal_reads_runs_one_of_them() -> None:
    """The other's observation points to it; the batch is observed in order."""
    desk = Desk()
    run = ran([(call("look", n=1), call("look", n=1), call("look", n=2)), END], *desk.all, agent={"guards": ["duplicate"]})
    assert sorted(desk.ran) == [("look", 1), ("look", 2)] and run.codes == ["", "guard_blocked", ""]
    assert "main.1.0" in str(run.items[1].error)


def test_a_hundred_rounds_of_edit_and_test_are_not_stopped_by_guards() -> None:
    """The same test after each edit, all guards on: nothing is blocked (lesson L6)."""
    desk = Desk()
    script = [step for i in range(60) for step in (call("put", n=i), call("wipe", n=0))]
    from detent import Budget

    run = ran(
        [*script, END],
        *desk.all,
        policy=rules(ALL),
        agent={"guards": ["duplicate", "repetition", "meta_tool_repetition"]},
        budget=Budget(max_iterations=200, max_non_progress=200),
    )
    assert run.all(e.GuardBlocked) == [] and len(desk.ran) == 120


def test_a_call_that_fails_the_same_way_again_and_again_is_blocked() -> None:
    """Repetition counts failures too."""
    desk = Desk()
    run = ran(
        [call("slip", n=1)] * 2 + [call("look", n=1)] + [call("slip", n=1)] * 3 + [END],
        *desk.all,
        kernel=make_kernel(guards=(*default_guards, repetition)),
    )
    assert desk.ran.count(("slip", 1)) == 4 and run.codes[-1] == "guard_blocked"
