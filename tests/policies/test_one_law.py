"""Law 7 under random policies and plans: no tool effect without a recorded allow or approval of exactly these arguments."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from amounts import times
from detent import Agent, Budget, Engine, FinalAnswer, Plan, ToolCall, tool
from detent.core import events as e
from detent.core.codec import digest_of, read_log
from detent.policies import BasicPolicy, PermissionPolicy, PolicyPipeline, RulePolicy, TieredPolicy
from detent.policies.guards import GUARDS
from detent.policies.rules import Rule
from detent.ports import ToolContext
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner
from detent.testing.clocks import FakeClock

NAMES = ("look", "put", "wipe")
DECISIONS = ("allow", "deny", "stop", "require_approval")

numbers = st.integers(0, 3)
conditions = st.one_of(
    st.just(""),
    st.builds("args.n {} {}".format, st.sampled_from(["==", "<", ">="]), numbers),
    st.sampled_from(
        [
            "args.missing == 1",
            "args.n",
            'tool.side_effect == "write"',
            "usage.tool_calls > 2",
            "usage.failures > 1",
            'origin == "planner" && args.n > 0',
            "!provenance.untrusted_in_context",
        ]
    ),
)
patterns = st.sampled_from([("*",), ("put",), ("w*", "look"), ("?ut",)])


@st.composite
def rule_policies(draw: st.DrawFn) -> RulePolicy:
    """Rules at random; most sets allow something."""
    drawn = draw(st.lists(st.tuples(patterns, conditions, st.sampled_from(DECISIONS)), max_size=4))
    rules = [Rule(id=f"r{i}", tool=tool_, when=when, decision=decision) for i, (tool_, when, decision) in enumerate(drawn)]
    if draw(st.booleans()):
        rules.append(Rule(id="all", decision="allow"))
    return RulePolicy(rules)


permissions = st.builds(
    PermissionPolicy,
    st.sampled_from(["default", "allow", "deny", "ask", "auto", "headless"]),
    denied_tools=st.sampled_from([(), ("wipe",)]),
    always_ask=st.sampled_from([(), ("put",)]),
    max_steps=st.sampled_from([None, 3]),
)
basics = st.builds(
    BasicPolicy, allowed_tools=st.sampled_from([("*",), ("look", "put")]), require_approval_for=st.sampled_from([(), ("put",)])
)
single = st.one_of(rule_policies(), permissions, basics, st.just(TieredPolicy()))
policies = st.one_of(single, st.builds(PolicyPipeline, st.lists(single, min_size=1, max_size=3)))
agent_rules = st.lists(
    st.builds(
        lambda number, tool_, when, decision: {"id": f"a{number}", "tool": list(tool_), "when": when, "decision": decision},
        st.integers(0, 99),
        patterns,
        conditions,
        st.sampled_from(DECISIONS),
    ),
    max_size=2,
    unique_by=lambda rule: rule["id"],
)
calls = st.builds(lambda name, n: ToolCall(tool=name, args={"n": n}), st.sampled_from(NAMES), numbers)
texts = st.builds(lambda name, n: FinalAnswer(content=f'{name}({{"n": {n}}})'), st.sampled_from(NAMES), numbers)
plans = st.lists(st.one_of(st.lists(calls, min_size=1, max_size=3).map(tuple), texts.map(lambda t: (t,))), min_size=1, max_size=5)
answers = st.lists(st.sampled_from(["approve", "deny", "edit"]), min_size=8, max_size=8)


def make_tools(ran: list[tuple[str, str, dict[str, Any]]]) -> list[Any]:
    """Return tools that note which call ran them, with what."""

    def make(name: str, level: Any) -> Any:
        async def function(n: int, context: ToolContext) -> int:
            ran.append((context.call_id, name, {"n": n}))
            return n

        function.__name__, function.__doc__ = name, f"{name} n."
        return tool(side_effect=level)(function)

    return [make("look", "read"), make("put", "write"), make("wipe", "destructive")]


async def work(policy: Any, own: list[Any], script: Any, told: list[str], guards: list[str]) -> tuple[list[Any], list[Any], str]:
    """Run, answering every request as `told`; return what ran, the records and the divergence of a replay, if any."""
    ran: list[tuple[str, str, dict[str, Any]]] = []
    store, answers_left = RamStore(), iter(told)
    planner = ScriptedPlanner([Plan(actions=actions) for actions in script] + [FinalAnswer(content="done")] * 3)
    engine = Engine(store=store, planner=planner, tools=make_tools(ran), policy=policy, approver="caller", clock=FakeClock())
    agent = Agent(name="w", tools=list(NAMES), policy=own, guards=guards, budget=Budget(max_iterations=12))
    result = await engine.run(agent, "put 2 somewhere")
    for answer in answers_left:
        open_ = await engine.approvals(run_id=result.run_id)
        if not open_:
            break
        if answer == "deny":
            result = await engine.deny(result.run_id, open_[0].call_id, by="bob")
        else:
            args = {"n": 7} if answer == "edit" else None
            result = await engine.approve(result.run_id, open_[0].call_id, by="ann", args=args)
    replayed = await engine.replay(result.run_id)
    lines = await store.read(result.run_id)
    await engine.close()
    return ran, list(read_log(result.run_id, lines)), str(replayed.divergence or "")


def authorised(records: list[Any]) -> dict[str, set[str]]:
    """Return, for each call, the digests of the arguments with which it was allowed or approved before it ran."""
    asked: dict[str, tuple[str, Any]] = {}
    found: dict[str, set[str]] = {}
    for record in records:
        match record.event:
            case e.Planned() as event:
                wanted = (event.embedded,) if event.embedded else [a for a in event.actions if isinstance(a, ToolCall)]
                for index, call in enumerate(wanted):
                    asked[f"{record.envelope.scope}.{record.envelope.iteration}.{index}"] = (call.tool, call.args)
            case e.CallHealed(call=name, tool=tool_, args=args):
                asked[name] = (tool_, args)
            case e.ApprovalEdited(call=name, args=args):
                asked[name] = (asked[name][0], args)
            case e.PolicyDecided(call=name, decision="allow"):
                found.setdefault(name, set()).add(digest_of(list(asked[name])))
            case e.ApprovalResolved(call=name, decision="approved"):
                found.setdefault(name, set()).add(digest_of(list(asked[name])))
            case _:
                pass
    return found


@settings(max_examples=times(120), deadline=None)
@given(policies, agent_rules, plans, answers, st.lists(st.sampled_from(sorted(GUARDS)), max_size=2, unique=True))
def test_no_effect_without_a_recorded_allow_or_approval_of_exactly_these_arguments(
    policy: Any, own: list[Any], script: Any, told: list[str], guards: list[str]
) -> None:
    """What each tool ran with is compared with what the log allowed; each call ran once at most, and every log replays."""
    ran, records, divergence = asyncio.run(work(policy, own, script, told, guards))
    allowed = authorised(records)
    for call_id, name, args in ran:
        assert digest_of([name, args]) in allowed.get(call_id, set()), (call_id, name, args)
    assert len({call_id for call_id, _, _ in ran}) == len(ran)
    refused = {r.event.call for r in records if isinstance(r.event, e.PolicyDecided) and r.event.decision in ("deny", "stop")}
    again = {r.event.call for r in records if isinstance(r.event, e.PolicyDecided) and r.event.decision == "allow"}
    assert not (refused - again) & {call_id for call_id, _, _ in ran}
    blocked = {r.event.call for r in records if isinstance(r.event, e.GuardBlocked)}
    assert not blocked & {call_id for call_id, _, _ in ran}
    assert divergence == ""


@settings(max_examples=times(300), deadline=None)
@given(policies, st.sampled_from(NAMES), numbers)
def test_a_policy_is_pure_and_its_answers_about_a_tool_agree_with_its_decisions(policy: Any, name: str, n: int) -> None:
    """The same call and state give the same verdict; a tool that is not offered is refused, one that cannot ask does not."""
    from policies.calls import call, spec, state

    declared = spec(name, {"look": "read", "put": "write", "wipe": "destructive"}[name])
    which, run = call(declared, n=n), state(tool_calls=1)
    verdict = policy.decide(which, run)
    assert verdict == policy.decide(which, run) and msgspec.json.encode(verdict)
    assert policy.offers(declared, run) or verdict.decision in ("deny", "stop")
    assert policy.may_ask(declared) or verdict.decision != "require_approval"
