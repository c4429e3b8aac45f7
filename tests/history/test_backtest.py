"""Backtests: a candidate over stored decisions; nothing is executed, and only what would differ is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Budget, Engine
from detent.core.errors import ConfigError
from detent.history.backtest import Backtest
from detent.policies import PermissionPolicy, RulePolicy, TieredPolicy
from detent.policies.rules import Rule
from detent.ports import RunQuery
from detent.stores.ram import RamStore
from kernel.runs import END, Desk, Script, call, engine_for, run_async

ALL = Rule(id="all", decision="allow")


def history(
    script: list[Any], *, policy: Any = None, tools: Any = None, agent: dict[str, Any] | None = None, **answers: str
) -> tuple[RamStore, Desk]:
    """Run a script to its end, answering requests by call id; return the store and the desk."""
    desk, store = Desk(), RamStore()

    async def main() -> None:
        engine = engine_for(Script(script), *desk.all, store=store, policy=policy)
        result = await engine.run(
            Agent(name="w", tools=tools or [t.name for t in desk.all], **(agent or {})), "go", run_id=f"run-{len(script)}"
        )
        for call_id, answer in answers.items():
            name = call_id.replace("_", ".")
            result = await (engine.approve if answer == "approve" else engine.deny)(result.run_id, name, by="ann")

    run_async(main)
    return store, desk


def tried(store: RamStore, policy: Any, *, tools: Any = (), **options: Any) -> Backtest:
    """Backtest on an engine that has these tools and no planner."""

    async def main() -> Backtest:
        return await Engine(store=store, tools=tools).backtest(policy, **options)

    found: list[Backtest] = []

    async def once() -> None:
        found.append(await main())

    run_async(once)
    return found[0]


def seen(found: Backtest) -> list[tuple[str, str, str, str, str]]:
    """Return call, old and new decision and rule of each change."""
    return [(c.call_id, c.old, c.old_rule, c.new, c.new_rule) for c in found.changes]


def test_only_decisions_that_differ_are_named_and_nothing_is_executed() -> None:
    """Call, arguments, old and new rule; what is only decided by another rule is the same decision."""
    store, desk = history([call("look", n=1), call("put", n=2), call("put", n=9), END])
    before, lines = list(desk.ran), len(run_lines(store))
    found = tried(
        store, RulePolicy([ALL, Rule(id="large", tool=("put",), when="args.n > 5", decision="deny", reason="too large")]), tools=desk.all
    )
    assert seen(found) == [("main.3.0", "allow", "tier:write", "deny", "large")] and found.decisions == 3 and found.runs == 1
    (change,) = found.changes
    assert (change.tool, change.args, change.reason, change.succeeded, change.breaks) == ("put", {"n": 9}, "too large", True, True)
    assert desk.ran == before and len(run_lines(store)) == lines


def run_lines(store: RamStore) -> list[bytes]:
    """Return all lines of all runs."""
    found: list[bytes] = []

    async def main() -> None:
        for head in await store.list_runs(RunQuery()):
            found.extend(await store.read(head.run_id))

    run_async(main)
    return found


def test_the_same_policy_changes_nothing_approvals_included() -> None:
    """Approved, denied and found in text: the kernel's own decisions come out again."""
    from detent.core.actions import FinalAnswer

    text = FinalAnswer(content='put({"n": 4})')
    store, desk = history([call("wipe", n=1), call("wipe", n=2), text, END], main_1_0="approve", main_2_0="deny", main_3_0="approve")
    assert desk.ran == [("wipe", 1), ("put", 4)]
    found = tried(store, TieredPolicy(), tools=desk.all)
    assert found.changes == () and found.decisions >= 3


def test_a_call_that_would_ask_or_pass_instead_breaks_nothing() -> None:
    """Only a refusal of what succeeded does."""
    store, desk = history([call("put", n=1), call("wipe", n=2), END], main_2_0="approve")
    asks = tried(store, PermissionPolicy("ask"), tools=desk.all)
    assert [(c.new, c.breaks) for c in asks.changes] == [("require_approval", False)]
    loose = tried(store, RulePolicy([ALL]), tools=desk.all)
    assert [(c.call_id, c.old, c.new) for c in loose.changes] == [("main.2.0", "require_approval", "allow")] and loose.broken == ()


def test_refusing_what_failed_or_was_refused_breaks_nothing() -> None:
    """`slip` failed."""
    store, desk = history([call("slip", n=1), call("look", n=1), END])
    found = tried(store, RulePolicy([ALL, Rule(id="no", tool=("slip",), decision="deny")]), tools=desk.all)
    assert [(c.tool, c.succeeded) for c in found.changes] == [("slip", False)] and found.broken == ()


def test_a_condition_sees_the_state_that_was_decided_on() -> None:
    """Usage before each decision, not at the end."""
    store, desk = history([call("look", n=i) for i in range(5)] + [END])
    found = tried(store, RulePolicy([ALL, Rule(id="few", when="usage.tool_calls >= 3", decision="stop")]), tools=desk.all)
    assert [c.call_id for c in found.changes] == ["main.4.0", "main.5.0"]


def test_an_agents_own_rules_are_combined_as_an_engine_would() -> None:
    """They stand in the log."""
    own = [{"id": "all", "tool": "*", "decision": "allow"}, {"id": "large", "tool": "put", "when": "args.n > 5", "decision": "deny"}]
    store, desk = history([call("put", n=1), call("put", n=9), END], agent={"policy": own})
    assert tried(store, RulePolicy([ALL]), tools=desk.all).changes == ()


@pytest.mark.parametrize(
    ("budget", "refused", "rule"),
    [
        (Budget(max_tool_calls=2), ["main.2.0", "main.2.1", "main.3.0"], "budget:max_tool_calls"),
        (Budget(max_iterations=1), ["main.2.0", "main.2.1", "main.3.0"], "budget:max_iterations"),
        (Budget(max_iterations=2), ["main.3.0"], "budget:max_iterations"),
        (Budget(max_tool_calls=3), ["main.2.1", "main.3.0"], "budget:max_tool_calls"),
        (Budget(max_calls_of={"put": 2}), ["main.2.1", "main.3.0"], "budget:max_calls_of"),
        (Budget(max_tool_calls=5), [], ""),
    ],
)
def test_a_candidate_budget_refuses_what_would_not_have_begun(budget: Budget, refused: list[str], rule: str) -> None:
    """Calls of a batch count one after the other; a turn that would not have begun takes its calls with it."""
    store, desk = history([(call("look", n=1), call("put", n=1)), (call("put", n=2), call("put", n=3)), call("put", n=4), END])
    found = tried(store, None, budget=budget, tools=desk.all)
    assert [c.call_id for c in found.changes] == refused
    assert all((c.new, c.new_rule, c.breaks) == ("stop", rule, True) for c in found.changes)


def test_tools_are_known_from_the_log_where_they_are_not_at_hand() -> None:
    """What only reads has no start record and is known by that; what was never executed is judged as destructive, and named."""
    store, _ = history([call("look", n=1), call("put", n=1), call("wipe", n=1), END], main_3_0="deny")
    found = tried(store, TieredPolicy())
    assert found.changes == () and found.guessed == ("wipe",)
    reads = tried(store, PermissionPolicy("headless"))
    assert [(c.tool, c.new) for c in reads.changes] == [("put", "deny"), ("wipe", "deny")]


def test_runs_can_be_chosen_and_those_that_cannot_be_read_are_named() -> None:
    """By query, by id; an erased run is skipped with the reason."""
    store, desk = history([call("put", n=1), END])

    async def main() -> None:
        engine = engine_for(Script([call("put", n=1), END]), *desk.all, store=store)
        await engine.run(Agent(name="other", tools=["put"]), "again", run_id="second")
        assert (await engine.backtest(PermissionPolicy("headless"), query=RunQuery(agent="other"))).runs == 1
        assert (await engine.backtest(PermissionPolicy("headless"), only=lambda run_id: run_id == "run-2")).runs == 1
        await engine.erase("second", by="ann", why="over")
        found = await engine.backtest(PermissionPolicy("headless"))
        assert found.runs == 1 and list(found.skipped) == ["second"] and "erased" in found.skipped["second"]

    run_async(main)


def test_a_candidate_that_fails_denies_as_it_would_in_a_run() -> None:
    """And one whose file is wrong is refused before anything is read."""
    store, desk = history([call("put", n=1), END])
    found = tried(store, RulePolicy([Rule(id="bad", when="args.x", decision="allow", source="p.toml:3")]), tools=desk.all)
    assert seen(found) == [("main.1.0", "allow", "tier:write", "deny", "bad")] and "p.toml:3" in found.changes[0].reason


def test_a_policy_file_can_be_given(tmp_path: Path) -> None:
    """As a path."""
    store, desk = history([call("put", n=1), END])
    file = tmp_path / "p.toml"
    file.write_text('[permission]\nmode = "headless"\n')
    found = tried(store, file, tools=desk.all)
    assert found.changes[0].new_rule == "headless_write_denied" and found.policy.startswith("policy-")
    file.write_text("[permissions]\n")
    with pytest.raises(ConfigError, match="unknown key"):
        tried(store, file)
