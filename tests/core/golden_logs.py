"""The golden logs of the record format: runs made by hand that between them hold every event, in the forms that matter.

Their files in `tests/golden` were written once and are read for ever. When the format changes on purpose, `VERSION` in core/records.py
goes up, an upcaster is added, and `python tests/core/golden_logs.py` (with src and tests on the path) writes files of the new version
beside the old ones, which stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec

from core.logs import Log, begun, calls, ended, failed, planned, raw, turn
from detent.core import events as e
from detent.core.actions import Abstain, AskUser, CompleteGoal, FinalAnswer, PushGoal, Schedule, SpawnSubagent, Stop, Thought, ToolCall
from detent.core.agent import AgentSpec, Host
from detent.core.budget import DEFAULT, Budget, Usage
from detent.core.records import VERSION
from detent.running.states import dump_state
from detent.testing.clocks import EPOCH

GOLDEN_DIR = Path(__file__).resolve().parent.parent / "golden"


def answered() -> Log:
    """A run that looks twice, has a thought and answers; with every option of its start."""
    log = Log("20260101-000000-count-aaaaaa")
    log.add(
        e.RunStarted(
            goal="count the ünïts \U0001f600",
            agent=AgentSpec(
                name="counter", instructions="Count.", model="m", tools=("look", "done"), budget=Budget(max_iterations=9), redact=("x+",)
            ),
            budget=Budget(max_iterations=9, max_cost_usd=1.5).over(DEFAULT),
            host=Host(tenant="acme", workspace="w", principal="ann", scopes=("read",), trace_id="t"),
            variables={"limit": 3, "nested": {"b": [1, None, True]}},
            strategy="reactive",
            parent="root",
            seed_memory=({"text": "remember"},),
            attachments=({"name": "a.txt"},),
            output_schema={"type": "object"},
            digests={"kernel": "react-1", "policy": "tiers-1", "tool:look": "0123456789abcdef"},
        ),
        e.PassStarted(key="main", kernel="react", limits=Budget(max_iterations=5), digest="d0", input="count", meta={"depth": 1}),
        e.MemoryRecalled(query="count", items=({"text": "remember"}, "plain")),
    )
    turn(log).add(
        e.ModelCallStarted(model="m", reserved=Usage(output_tokens=100, cost_usd=0.01)),
        e.ModelCallFailed(error="overloaded", kind="retryable", usage=Usage(input_tokens=4), latency_ms=3.5),
        e.ModelCallStarted(model="m", attempt=2),
        planned(
            ToolCall(tool="look", args={"n": 2, "deep": {"a": [1.5, "\u0001"]}}, provider_id="c1", reason="first"),
            ToolCall(tool="look", args='{"n": 1}'),
            text="I look.",
            thinking="hm",
            usage=Usage(input_tokens=10, output_tokens=5, cached_tokens=2, reasoning_tokens=1, cost_usd=0.002),
            model="m-1",
            latency_ms=12.5,
            provider_data={"signature": "s"},
        ),
        e.PolicyDecided(call="main.1.0", decision="allow", rule="tier:read"),
        e.CallHealed(call="main.1.1", tool="look", args={"n": 1}, repairs=("parsed from text",)),
        e.PolicyDecided(call="main.1.1", decision="allow", rule="tier:read", sources=("s",), facts={"f": 1}),
        begun("main.1.0"),
        begun("main.1.1", volatile=True),
        ended("main.1.1", {"units": 7}, latency_ms=1.25),
        begun("main.1.0", attempt=2, cost_usd=0.5, previous=e.ToolError(code="timeout", message="late", details={"s": 1})),
        e.ToolFinished(
            call="main.1.0",
            result=raw([1, 2]),
            artifact=e.ArtifactRef(key="ab" * 32, size_bytes=99),
            latency_ms=2.0,
        ),
        e.StateChanged(phase=1, meta={"seen": 2}, scratchpad={"k": "v", "old": "x"}, guidance=("be brief",)),
        e.StateChanged(phase=2, removed_scratchpad=("old",)),
        e.EffectRecorded(label="now", phase=2, value="2026", usage=Usage(model_calls=1, output_tokens=1)),
    )
    turn(log).add(
        planned(Thought(content="nearly there"), text="so far: 7"),
        e.ContextCompacted(items=2, summary="looked twice", usage=Usage(model_calls=1)),
    )
    turn(log).add(
        planned(ToolCall(tool="done", args={"answer": {"n": 7}})), begun("main.3.0", tool="done", side_effect="none", ends_turn=True)
    )
    log.add(ended("main.3.0", {"status": "done", "answer": {"n": 7}}))
    log.add(
        e.PassFinished(status="done", reason="done_tool", output={"n": 7}),
        e.RunFinished(status="completed", reason="done_tool", output={"n": 7}),
    )
    return log


def governed() -> Log:
    """A run with guards, denials, approvals of every outcome, a malformed plan, reflection and a bound; opened again and erased."""
    log = Log("20260101-000000-tidy-bbbbbb")
    log.add(
        e.RunStarted(
            goal="tidy",
            agent=AgentSpec(name="tidier", on_deny="observe", tools=("look", "wipe")),
            budget=Budget(max_iterations=4).over(DEFAULT),
        ),
        e.PassStarted(key="main", kernel="react"),
    )
    turn(log).add(
        e.PlanRejected(problem="it is text", raw="do it", usage=Usage(input_tokens=3, output_tokens=1), model="m", latency_ms=1.0),
        calls(0, 1, 2, 3, 4, tool="wipe"),
        e.GuardBlocked(call="main.1.0", guard="no_zero", reason="zero is not allowed"),
        failed("main.1.0", "guard_blocked"),
        e.PolicyDecided(call="main.1.1", decision="deny", rule="r", reason="not that", policy="p-1"),
        failed("main.1.1", "policy_denied"),
    )
    for call in ("main.1.2", "main.1.3", "main.1.4"):
        log.add(
            e.PolicyDecided(call=call, decision="require_approval", rule="tier:destructive", reason="destructive", policy="tiers-1"),
            e.ApprovalRequested(
                call=call,
                tool="wipe",
                digest=f"d{call}",
                reason="destructive",
                approvers=2,
                requested_at=EPOCH,
                expires_at=EPOCH + timedelta(hours=1),
                policy="tiers-1",
            ),
        )
    log.add(
        e.RunWaiting(status="waiting_for_approval", running_ms=4.5), e.RunResumed(worker="host:1", running_ms=4.5, changed=("tool:wipe",))
    )
    log.add(
        e.ApprovalResolved(call="main.1.2", decision="approved", by="ann", reason="fine", signal="s1"),
        e.ApprovalEdited(call="main.1.3", args={"n": 30}, digest="d30", by="bob", signal="s2"),
        e.ApprovalResolved(call="main.1.4", decision="denied", by="ann", reason="not that one", signal="s3"),
        e.PolicyDecided(call="main.1.3", decision="allow", rule="approval_granted", reason="edited by bob"),
    )
    log.add(begun("main.1.2", tool="wipe", side_effect="destructive"), ended("main.1.2", "gone"))
    log.add(
        begun("main.1.3", tool="wipe", side_effect="destructive"), failed("main.1.3", "not_found"), failed("main.1.4", "approval_rejected")
    )
    turn(log).add(e.Reflected(message="look again"), e.NoteWritten(text="a word from outside", author="operator"), calls(5))
    log.add(e.MetaToolAnswered(call="main.2.0", tool="look", content="nothing new"))
    turn(log).add(calls(6), e.MetaToolAnswered(call="main.3.0", tool="look", content="no", success=False))
    turn(log).add(
        calls(7, tool="wipe"),
        e.ApprovalRequested(call="main.4.0", tool="wipe", digest="d7"),
        e.ApprovalExpired(call="main.4.0", signal="s4"),
    )
    log.add(failed("main.4.0", "approval_expired"), e.PassFinished(status="failed", reason="approval_expired", error="nobody decided"))
    log.add(e.RunFinished(status="stopped", reason="approval_expired", partial="so far", error="nobody decided"))
    log.add(
        e.RunReopened(by="ann", why="again", budget=Budget(max_iterations=9)), e.BudgetChanged(budget=Budget(max_iterations=5), by="ann")
    )
    turn(log).add(calls(8), e.PolicyDecided(call="main.5.0", decision="stop", reason="enough"), failed("main.5.0", "policy_stopped"))
    log.add(
        e.PassFinished(status="failed", reason="policy_stopped", error="enough"),
        e.RunFinished(status="stopped", reason="policy_stopped", error="enough"),
    )
    log.add(e.RunReopened())
    log.add(e.RunFinished(status="stopped", reason="max_iterations", dimension="iterations", limit=5, used=5))
    return log.add(e.Erased(by="ann", why="asked to"))


def doubted() -> Log:
    """A fork whose calls were left in doubt and are settled in every way; cancelled with one of them open."""
    log = Log("20260101-000000-pay-cccccc")
    log.add(
        e.RunStarted(goal="pay", agent=AgentSpec(name="payer", on_unknown="tell"), budget=DEFAULT),
        e.Forked(parent="20260101-000000-pay-000000", sequence=4, digest="f" * 64, edits={"main.1.0": {"result": 1}}, effects="reuse"),
        e.PassStarted(key="main", kernel="react"),
        e.StrategySwitched(old="reactive", new="plan", why="stalled"),
        e.EffectRecorded(label="random", value=0.25),
    )
    turn(log).add(calls(0, 1, 2, 3, 4, 5, tool="pay"))
    for n in range(6):
        log.add(
            begun(f"main.1.{n}", tool="pay", side_effect="write", idempotent=n == 0),
            e.ToolInDoubt(call=f"main.1.{n}", why="its worker ended", latency_ms=9.5),
        )
    log.add(e.RunWaiting(status="waiting_for_reconciliation"))
    log.add(
        e.ToolReconciled(call="main.1.0", outcome="again", source="retry"),
        begun("main.1.0", attempt=2, cost_usd=0.5, tool="pay", side_effect="write"),
        ended("main.1.0", "paid"),
        e.ToolReconciled(call="main.1.0", outcome="happened", source="late_worker", result=raw("paid late")),
        e.ToolReconciled(call="main.1.1", outcome="happened", source="reconcile", result=raw({"paid": 1})),
        e.ToolReconciled(call="main.1.2", outcome="happened", source="reconcile", error=e.ToolError(code="declined", message="no")),
        e.ToolReconciled(call="main.1.3", outcome="not_happened", source="person", by="ann", signal="s1"),
        e.ToolReconciled(call="main.1.4", outcome="told", source="agent"),
        e.CancelRequested(by="ann", why="enough", signal="s2"),
        e.PassFinished(status="failed", reason="cancelled", error="enough"),
        e.RunFinished(status="stopped", reason="cancelled", error="enough", in_doubt=("main.1.5",)),
        e.ToolReconciled(call="main.1.5", outcome="happened", source="person", result=raw(None), by="bob"),
    )
    return log


def waited() -> Log:
    """A run that asks, sleeps, has children, goals and memories, is given up once, and abstains."""
    log = Log("20260101-000000-plan-dddddd").add(
        e.RunStarted(goal="plan", agent=AgentSpec(name="planner"), budget=DEFAULT), e.PassStarted(key="main", kernel="react")
    )
    turn(log).add(
        planned(AskUser(question="how many?", expected={"type": "integer"})),
        e.UserAsked(ask_id="main.1", question="how many?", expected={"type": "integer"}),
    )
    log.add(e.RunWaiting(status="waiting_for_user"), e.UserReplied(ask_id="main.1", reply={"n": 3}, by="ann", signal="s1"))
    turn(log).add(planned(Schedule(delay_s=60.0)), e.ScheduleSet(timer_id="main.2", due=EPOCH + timedelta(minutes=1)))
    log.add(e.RunWaiting(status="waiting_for_schedule"), e.ScheduleFired(timer_id="main.2", signal="s2"))
    turn(log).add(planned(SpawnSubagent(agent="x", goal="part", budget={"max_iterations": 2})))
    for child in ("c1", "c2"):
        log.add(e.SubagentSpawned(child=child, agent="x", goal="part", join=child == "c1"))
    log.add(
        e.RunWaiting(status="waiting_for_subagent"),
        e.SubagentJoined(child="c1", status="completed", output="part", usage=Usage(model_calls=2, cost_usd=0.1)),
    )
    log.add(e.SubagentCancelled(child="c2", why="not needed"))
    turn(log).add(planned(PushGoal(goal="deeper")), e.GoalPushed(goal_id="main.4", goal="deeper"))
    turn(log).add(planned(CompleteGoal(outcome="done")), e.GoalCompleted(goal_id="main.4", outcome="done"))
    log.add(e.DeadLettered(why="five attempts", attempts=5), e.RunResumed(worker="host:2"))
    log.add(e.MemoryProposed(item_id="m1", item={"text": "t"}), e.MemoryWritten(item_id="m1"))
    log.add(e.MemorySuperseded(item_id="m1", by_id="m2", why="newer"))
    turn(log).add(planned(Abstain(reason="no data", missing=("prices",))))
    log.add(
        e.PassFinished(status="failed", reason="abstained", error="no data"),
        e.RunFinished(status="stopped", reason="abstained", error="no data"),
    )
    return log.add(e.MemoryTombstoned(item_id="m1", why="wrong"))


def delegated() -> Log:
    """A child that starts two children of its own by calls: one is awaited later, one is cancelled and fails. Its parent leaves it."""
    log = Log("20260101-000000-team.c0123456789ab").add(
        e.RunStarted(
            goal="part",
            agent=AgentSpec(name="boss", tools=("spawn_agent", "join_agent"), subagents={"worker": {"name": "worker"}}),
            budget=DEFAULT,
            parent="20260101-000000-team",
            delegated=e.Delegated(root="20260101-000000-team", call="main.1.0", sequence=7, digest="d", path=("chief", "boss")),
        ),
        e.PassStarted(key="main", kernel="react"),
    )
    for number in (0, 1):
        turn(log).add(planned(ToolCall(tool="spawn_agent", args={"agent": "worker", "goal": "sum"})))
        call = f"main.{number + 1}.0"
        log.add(e.PolicyDecided(call=call, decision="allow"), e.ToolStarted(call=call, tool="spawn_agent", key="k", digest="d", attempt=1))
        spawned = e.SubagentSpawned(
            child=f"c{number}",
            agent="worker",
            goal="sum",
            join=False,
            call=call,
            budget=Budget(max_iterations=5),
            reserved=Usage(iterations=5),
        )
        log.add(spawned, e.ToolFinished(call=call, result=msgspec.Raw(b'{"child":"c"}')))
    turn(log).add(planned(ToolCall(tool="join_agent", args={"child": "c0"})), e.PolicyDecided(call="main.3.0", decision="allow"))
    log.add(
        e.ToolStarted(call="main.3.0", tool="join_agent", key="k", digest="d", attempt=1), e.SubagentAwaited(child="c0", call="main.3.0")
    )
    asks = {"child": "c0", "status": "asks", "question": "how?"}
    log.add(e.SubagentReleased(child="c0", call="main.3.0", result=asks, question="how?", signal="child:c0:4"))
    turn(log).add(planned(ToolCall(tool="message_agent", args={"child": "c0", "text": "so"})))
    log.add(
        e.PolicyDecided(call="main.4.0", decision="allow"),
        e.ToolStarted(call="main.4.0", tool="message_agent", key="k", digest="d", attempt=1),
        e.SubagentMessaged(child="c0", text="so", call="main.4.0"),
        e.ToolFinished(call="main.4.0", result=msgspec.Raw(b'{"child":"c0"}')),
    )
    turn(log).add(planned(ToolCall(tool="join_agent", args={"child": "c0"})), e.PolicyDecided(call="main.5.0", decision="allow"))
    log.add(
        e.ToolStarted(call="main.5.0", tool="join_agent", key="k", digest="d", attempt=1), e.SubagentAwaited(child="c0", call="main.5.0")
    )
    ended = {"status": "completed", "outcome": "completed", "call": "main.5.0", "sequence": 9, "digest": "e"}
    log.add(
        e.SubagentJoined(child="c0", output=3, usage=Usage(iterations=2, tool_calls=1), calls_of={"add": 1}, signal="child:c0", **ended)
    )
    log.add(e.SubagentCancelled(child="c1", why="late", call="main.6.0"))
    error = e.ToolError(code="child_cancelled", message="late")
    log.add(e.SubagentJoined(child="c1", status="stopped", outcome="cancelled", reason="cancelled", partial="half", error=error))
    told = e.MessageReceived(rule="parent", text="go on", by="20260101-000000-team", via="parent", call="main.9.0", ask_id="a", signal="s")
    log.add(e.UserAsked(ask_id="a", question="and now?", to="parent"), told)
    return log.add(e.LeftByParent(parent="20260101-000000-team", signal="parent:left"))


def embedded() -> Log:
    """A run whose answer is a call in text that runs, beside calls that do not; and one that is stopped by its planner after it is reopened."""
    log = Log("20260101-000000-look-eeeeee").add(
        e.RunStarted(goal="look", agent=AgentSpec(name="looker", tools=("look",)), budget=DEFAULT),
        e.PassStarted(key="main", kernel="react"),
    )
    turn(log).add(planned(Stop(reason="enough"), dropped=(ToolCall(tool="look", args={"n": 1}),)))
    log.add(
        e.PassFinished(status="failed", reason="stop_action", error="enough"),
        e.RunFinished(status="stopped", reason="stop_action", error="enough"),
    )
    log.add(e.RunReopened(by="ann"))
    text = 'look({"n":2})'
    turn(log).add(
        planned(FinalAnswer(content=text), embedded=ToolCall(tool="look", args={"n": 2}), dropped=(ToolCall(tool="look"),)),
        begun("main.2.0"),
        ended("main.2.0", "two"),
        e.PassFinished(status="done", reason="final_answer", output="two"),
        e.RunFinished(status="completed", reason="final_answer", output="two"),
    )
    return log


def metered() -> Log:
    """A run whose model calls go through the gateway: two at once, one that fails and is made again, one that a crash leaves open."""
    log = Log("20260101-000000-ask-ffffff").add(
        e.RunStarted(goal="ask", agent=AgentSpec(name="asker", model="p:m"), budget=Budget(max_cost_usd=1.0).over(DEFAULT)),
        e.PassStarted(key="main", kernel="react"),
    )
    one, two = "main.1.m1", "main.1.m2"
    turn(log).add(
        e.ModelCallStarted(model="m", call=one, reserved=Usage(input_tokens=100, output_tokens=50, cost_usd=0.2)),
        e.ModelCallStarted(model="s", call=two, purpose="ask", reserved=Usage(input_tokens=10, output_tokens=5, cost_usd=0.02)),
        e.ModelCallFailed(call=one, error="slow down", kind="rate_limited", latency_ms=1.5),
        e.ModelCallStarted(model="m", call=one, attempt=2, reserved=Usage(input_tokens=100, output_tokens=50, cost_usd=0.2)),
        e.ModelCallFinished(call=two, model="s-1", usage=Usage(input_tokens=9, output_tokens=2, cost_usd=0.01), finish="stop"),
        e.ModelCallFinished(
            call=one,
            model="m-1",
            usage=Usage(input_tokens=90, output_tokens=40, cached_tokens=30, reasoning_tokens=4, cost_usd=0.1),
            request_id="r-1",
            finish="tool_call",
            latency_ms=12.5,
        ),
        e.PlanRejected(problem="it is text", raw="do it", usage=Usage(input_tokens=90, output_tokens=40), model="m-1"),
        e.ModelCallStarted(model="m", call="main.1.m4", reserved=Usage(input_tokens=120, output_tokens=50, cost_usd=0.25)),
        e.RunResumed(worker="host:2"),
        e.ModelCallStarted(model="m", call="main.1.m5", reserved=Usage(input_tokens=120, output_tokens=50, cost_usd=0.25)),
        e.ModelCallFinished(call="main.1.m5", model="m-1", usage=Usage(input_tokens=110, output_tokens=20, cost_usd=0.05)),
        planned(FinalAnswer(content="asked"), usage=Usage(input_tokens=110, output_tokens=20), model="m-1"),
        e.PassFinished(status="done", reason="final_answer", output="asked"),
        e.RunFinished(status="completed", reason="final_answer", output="asked"),
    )
    return log


def accounted() -> Log:
    """A run of a tenant whose account is read twice; the second reading says that it is used up."""
    log = Log("20260101-000000-count-gggggg").add(
        e.RunStarted(goal="count", agent=AgentSpec(name="counter", tools=("look",)), budget=DEFAULT, host=Host(tenant="acme")),
        e.PassStarted(key="main", kernel="react"),
        e.TenantBalance(tenant="acme", window="day", since="2026-01-01", limits=Budget(max_tool_calls=3, max_cost_usd=1.0)),
    )
    turn(log).add(
        calls(0, 1),
        e.PolicyDecided(call="main.1.0", decision="allow", rule="tier:read", policy="tiers-1"),
        e.PolicyDecided(call="main.1.1", decision="allow", rule="tier:read", policy="tiers-1"),
        begun("main.1.0"),
        ended("main.1.0", 0),
        begun("main.1.1"),
        ended("main.1.1", 1),
        e.TenantBalance(
            tenant="acme",
            window="day",
            since="2026-01-01",
            limits=Budget(max_tool_calls=3, max_cost_usd=1.0),
            used=Usage(model_calls=4, tool_calls=3, input_tokens=70, cost_usd=0.25),
        ),
        e.PassFinished(status="failed", reason="budget_exhausted", error="used up"),
        e.RunFinished(status="stopped", reason="budget_exhausted", dimension="tenant_tool_calls", limit=3, used=3, error="used up"),
    )
    return log


def answering() -> Log:
    """A run whose tool is declared anew while an approval is open; answers that count with how they came, and those that do not."""
    via = "ann@build7 detent"
    log = Log("20260101-000000-tidy-hhhhhh").add(
        e.RunStarted(
            goal="tidy",
            agent=AgentSpec(name="tidier", tools=("look", "wipe")),
            budget=DEFAULT,
            digests={"tool:look": "0123456789abcdef", "tool:wipe": "d0"},
            levels={"look": "read", "wipe": "destructive"},
        ),
        e.PassStarted(key="main", kernel="react"),
    )
    asked = e.ApprovalRequested(call="main.1.0", tool="wipe", digest="d1d0", approvers=2, args_digest="d1")
    turn(log).add(calls(0, tool="wipe"), asked, e.ApprovalResolved(call="main.1.0", decision="approved", by="ann", via=via, signal="s1"))
    log.add(
        e.RunWaiting(status="waiting_for_approval", running_ms=1.0),
        e.RunResumed(
            worker="host:1",
            running_ms=1.0,
            changed=("tool:wipe",),
            digests={"tool:wipe": "d9"},
            levels={"new": "none"},
            lowered={"look": "none", "wipe": "read"},
        ),
        e.LevelsAccepted(levels={"wipe": "read"}, by="ann", via=via),
        e.AnswerRefused(
            kind="approval",
            code="approval_not_pending",
            reason="it changed",
            about="main.1.0",
            by="bob",
            via="bob@build7 detent",
            signal="s2",
        ),
    )
    log.add(e.ApprovalRequested(call="main.1.0", tool="wipe", digest="d1d9", args_digest="d1"))
    log.add(e.ApprovalEdited(call="main.1.0", args={"n": 3}, digest="d3", by="ann", via=via, signal="s3"))
    log.add(begun("main.1.0", tool="wipe", side_effect="destructive"), e.ToolInDoubt(call="main.1.0", why="its worker ended"))
    log.add(e.ToolReconciled(call="main.1.0", outcome="happened", source="person", result=raw("gone"), by="ann", via=via, signal="s4"))
    log.add(e.BudgetChanged(budget=Budget(max_iterations=5), by="ann", via=via))
    log.add(e.CancelRequested(by="ann", why="enough", via=via, signal="s5"))
    log.add(e.PassFinished(status="failed", reason="cancelled", error="enough"))
    log.add(e.RunFinished(status="stopped", reason="cancelled", error="enough"))
    return log.add(e.AnswerRefused(kind="reply", code="not_asked", reason="the run is stopped"), e.RunReopened(by="ann", via=via))


def objected() -> Log:
    """A run whose pass holds its answers: one is objected to, a command is charged, and the next one counts."""
    log = Log("20260101-000008-answer-hhhhhh")
    verify = ({"command": ["make", "test"]},)
    log.add(
        e.RunStarted(goal="g", agent=AgentSpec(name="a", verify=verify, max_corrections=1, plain_answers=True), budget=DEFAULT),
        e.PassStarted(key="main", kernel="react", holds=True),
    )
    turn(log).add(
        planned(FinalAnswer(content="it works"), text="it works"),
        e.EffectRecorded(label="verify 1 command make 0a", value={"accepted": False, "objection": "code 2"}, usage=Usage(tool_calls=1)),
        e.AnswerObjected(why="code 2", by="command make"),
    )
    turn(log).add(
        planned(ToolCall(tool="done", args={"answer": "it does"})), begun("main.2.0", tool="done", side_effect="none", ends_turn=True)
    )
    log.add(
        ended("main.2.0", {"status": "done", "answer": "it does"}),
        e.EffectRecorded(label="verify 1 command make 0b", value={"accepted": True}, usage=Usage(tool_calls=1)),
        e.PassFinished(status="done", reason="done_tool", output="it does"),
        e.RunFinished(status="completed", reason="done_tool", output="it does"),
    )
    return log


def conversed() -> Log:
    """A run of a session: it is told something at work, others wait for its end, and words of an earlier run leave its conversation."""
    log = Log("trip.3")
    via = "ann@build7 detent"
    artifact = e.ArtifactRef(key="ab" * 32, size_bytes=120)
    place = e.InSession(id="trip", number=3, message_id="m3", before="trip.1", sequence=6, digest="d" * 64, conversation=artifact)
    log.add(
        e.RunStarted(goal="book", agent=AgentSpec(name="clerk", conversation="calls", tools=("look",)), budget=DEFAULT, session=place),
        e.PassStarted(key="main", kernel="react"),
    )
    turn(log).add(planned(ToolCall(tool="look", args={"n": 1})), begun("main.1.0"), ended("main.1.0", "seen"))
    log.add(e.MessageReceived(rule="steer", text="not Paris", message_id="m4", by="ann", via=via, signal="message:m4"))
    queued = {"attachments": ({"type": "image", "url": "https://example.org/a.png"},), "variables": {"n": 1}}
    log.add(e.MessageReceived(rule="enqueue", text="then pay", message_id="m5", by="bob", via=via, signal="queued:m5", **queued))
    turn(log).add(planned(FinalAnswer(content="booked"), text="booked"))
    log.add(e.PassFinished(status="done", reason="final_answer", output="booked"))
    log.add(e.RunFinished(status="completed", reason="final_answer", output="booked"))
    log.add(e.MessageReceived(rule="context", text="it rains", by="service", via=via))
    kept = e.ArtifactRef(key="cd" * 32, size_bytes=60)
    return log.add(e.ConversationErased(run="trip.1", kept=kept, by="ann"), e.SessionEnded(by="ann", via=via))


def summarised() -> Log:
    """A run of a long session: a summary takes the place of the oldest messages before it plans."""
    log = Log("talk.9")
    place = e.InSession(
        id="talk", number=9, before="talk.8", sequence=6, digest="d" * 64, conversation=e.ArtifactRef(key="ab" * 32, size_bytes=900)
    )
    log.add(
        e.RunStarted(goal="book", agent=AgentSpec(name="clerk", compaction={"use": "summary"}), budget=DEFAULT, session=place),
        e.PassStarted(key="main", kernel="react"),
    )
    kept = e.ArtifactRef(key="cd" * 32, size_bytes=400)
    turn(log).add(e.ConversationCompacted(kept=kept, messages=7, compactor="extractive", failed="empty_summary"))
    log.add(planned(FinalAnswer(content="booked"), text="booked"), e.PassFinished(status="done", reason="final_answer", output="booked"))
    return log.add(e.RunFinished(status="completed", reason="final_answer", output="booked"))


GOLDEN: dict[str, Callable[[], Log]] = {
    "answered": answered,
    "governed": governed,
    "doubted": doubted,
    "waited": waited,
    "delegated": delegated,
    "embedded": embedded,
    "metered": metered,
    "accounted": accounted,
    "answering": answering,
    "objected": objected,
    "conversed": conversed,
    "summarised": summarised,
}


def write() -> None:
    """Write the files of this version."""
    for name, make in GOLDEN.items():
        log = make()
        (GOLDEN_DIR / f"v{VERSION}-{name}.jsonl").write_bytes(b"".join(line + b"\n" for line in log.lines))
        (GOLDEN_DIR / f"v{VERSION}-{name}.state.json").write_bytes(dump_state(log.state) + b"\n")


if __name__ == "__main__":
    write()
