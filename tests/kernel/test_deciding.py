"""How a call is decided: parse, validate, scopes, guards, policy, approval, in this order. Rows S1-4, K33, K77 to K81, DESIGN 6 and 7."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from detent import Agent, Budget, Host, NotExecuted, Plan, Tool, ToolCall, ToolContext, ToolFailed, View, tool
from detent.core import events as e
from detent.core.state import KernelState, RunState
from detent.kernel.guards import default_guards
from detent.kernel.kernel import make_kernel
from detent.ports import Block, Branch, Call, StrategyRun, Verdict
from kernel.runs import END, Decide, Desk, Ran, Script, call, engine_for, look, ran, run_async

CLOSED: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


class Traced:
    """A tool, a guard and a policy that say when they were asked; each may refuse."""

    def __init__(self, *, block: bool = False, decision: str = "allow", scopes: tuple[str, ...] = ()) -> None:
        self.trace: list[str] = []
        trace = self.trace

        async def execute(args: dict[str, Any], context: ToolContext) -> str:
            trace.append("run")
            return "ran"

        def sanitize(args: dict[str, Any]) -> dict[str, Any]:
            trace.append("sanitise")
            return args

        self.tool = Tool.from_schema(
            name="traced", description="Traced.", input_schema=CLOSED, execute=execute, side_effect="write", scopes=scopes, sanitize=sanitize,
            validate=lambda args: trace.append("validate"),
        )  # fmt: skip

        def guard(call: Call, state: KernelState, run: RunState) -> Block | None:
            trace.append("guard")
            return Block("not this one") if block else None

        def decide(call: Call) -> str:
            trace.append("policy")
            return decision

        self.options: dict[str, Any] = {"kernel": make_kernel(guards=(guard,)), "policy": Decide(decide)}

    def go(self, args: Any, **options: Any) -> Ran:
        """Call the tool once."""
        return ran([ToolCall(tool="traced", args=args), END], self.tool, replays=False, **self.options, **options)


# Order ------------------------------------------------------------------------------------------------------------------------


STEPS = ["sanitise", "validate", "guard", "policy", "run"]


@pytest.mark.parametrize(
    ("args", "options", "code", "last"),
    [
        ("{", {}, "schema_validation_failed", ""),
        ("[1]", {}, "schema_validation_failed", ""),
        (None, {}, "schema_validation_failed", ""),
        ({"n": "x"}, {}, "schema_validation_failed", "sanitise"),
        ({"n": 1, "m": 2}, {}, "schema_validation_failed", "sanitise"),
        ({"n": "x"}, {"scopes": ("pay",), "block": True, "decision": "deny"}, "schema_validation_failed", "sanitise"),
        ({"n": 1}, {"scopes": ("pay",), "block": True, "decision": "deny"}, "missing_scopes", "validate"),
        ({"n": 1}, {"block": True, "decision": "deny"}, "guard_blocked", "guard"),
        ({"n": 1}, {"decision": "deny"}, "policy_denied", "policy"),
        ({"n": 1}, {}, "", "run"),
        ('{"n": 1}', {}, "", "run"),
    ],
)
def test_the_first_check_that_refuses_gives_the_code_and_nothing_after_it_is_asked(args: Any, options: Any, code: str, last: str) -> None:
    """K79 as DESIGN has it: parse, sanitise, validate, scopes, guards, policy, approval; then, and only then, the tool."""
    traced = Traced(**options)
    done = traced.go(args)
    assert done.codes == [code] and traced.trace == STEPS[: STEPS.index(last) + 1 if last else 0]
    assert done.why == ("completed", "final_answer") and bool(done.all(e.ToolStarted)) == (code == "")


def test_an_unknown_tool_is_an_observation_that_names_those_offered() -> None:
    """R5, DESIGN 7: registered but unlisted is not found either."""
    desk = Desk()
    done = ran([call("wipe", n=1), call("nowhere"), END], *desk.all, agent={"tools": ["look", "put"]})
    assert done.codes == ["tool_not_found"] * 2 and desk.ran == []
    assert [i.error.message for i in done.items if i.error] == [
        f"there is no tool '{t}' here; offered: look, put" for t in ("wipe", "nowhere")
    ]
    assert [s.name for s in done.views[0].tools] == ["look", "put"]


def test_an_agent_without_tools_is_offered_none() -> None:
    """`tools=()` offers none, whatever is registered."""
    done = ran([call("look"), END], *Desk().all, agent={"tools": ()})
    assert done.views[0].tools == () and done.codes == ["tool_not_found"] and "offered: none" in str(done.items[0].error)


def test_scopes_are_those_of_the_host_of_this_run() -> None:
    """K81: every required scope."""

    @tool(side_effect="read", scopes=("pay", "read"))
    async def spend(n: int) -> int:
        """Spend n."""
        return n

    codes = [
        ran([call("spend", n=1), END], spend, host=Host(scopes=s)).codes for s in ((), ("pay",), ("read", "pay"), ("read", "pay", "more"))
    ]
    assert codes == [["missing_scopes"], ["missing_scopes"], [""], [""]]


def test_text_arguments_are_parsed_and_what_counts_is_on_record() -> None:
    """L17: arguments as JSON text are not dropped; `CallHealed` holds what was run, the plan what was said."""
    done = ran([ToolCall(tool="look", args='{"n": 3}'), ToolCall(tool="look", args=""), END], *Desk().all)
    assert [i.args for i in done.items] == [{"n": 3}, {}] and [h.repairs for h in done.all(e.CallHealed)] == [("parsed from text",)] * 2
    assert done.all(e.Planned)[0].actions[0].args == '{"n": 3}'  # type: ignore[union-attr]


def test_the_digest_and_key_of_a_call_are_fixed_before_it_runs() -> None:
    """DESIGN 5: key = H(run, call id, arguments); another call has another key, an equal one in another place too."""
    done = ran([(call("put", n=1), call("put", n=1), call("put", n=2)), END], *Desk().all)
    one, two, three = done.all(e.ToolStarted)
    assert one.digest == two.digest != three.digest and len({one.key, two.key, three.key}) == 3


def test_a_tool_sees_its_host_its_key_and_the_arguments_as_decided() -> None:
    """K78: and what it does to its arguments changes nothing."""
    seen: list[Any] = []

    @tool(side_effect="write")
    async def keep(items: list[int], context: ToolContext) -> int:
        """Keep items."""
        seen.append((context.host.tenant, context.idempotency_key, context.call_id, context.run_id, list(items)))
        items.append(99)
        return 1

    done = ran([call("keep", items=[1]), END], keep, host=Host(tenant="acme"))
    ((tenant, key, call_id, run_id, items),) = seen
    assert (tenant, key, call_id, run_id, items) == ("acme", done.all(e.ToolStarted)[0].key, "main.1.0", done.result.run_id, [1])
    assert done.items[0].args == {"items": [1]}


# Guards -----------------------------------------------------------------------------------------------------------------------


def guard_of(name: str, trace: list[str], answer: Any = None) -> Any:
    """Return a guard that says that it was asked and answers as told."""

    def guard(call: Call, state: KernelState, run: RunState) -> Block | None:
        trace.append(name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    guard.__name__ = name
    return guard


def test_guards_are_asked_in_order_and_the_first_block_wins() -> None:
    """S1-4: the tool never runs; the run goes on; the reason is in the next view; the log names the guard."""
    trace: list[str] = []
    guards = (guard_of("one", trace), guard_of("two", trace, Block("because two")), guard_of("three", trace, Block("because three")))
    desk = Desk()
    done = ran([call("put", n=1), END], *desk.all, kernel=make_kernel(guards=guards), replays=False)
    assert trace == ["one", "two"] and desk.ran == [] and done.why == ("completed", "final_answer")
    (blocked,) = done.all(e.GuardBlocked)
    assert (blocked.call, blocked.guard, blocked.reason) == ("main.1.0", "two", "because two")
    error = done.views[1].transcript[-1].error
    assert error is not None and (error.code, error.message) == ("guard_blocked", "because two")


def test_a_guard_that_raises_blocks() -> None:
    """A failing check must not let a call through."""
    desk = Desk()
    done = ran([call("put", n=1), END], *desk.all, kernel=make_kernel(guards=(guard_of("broken", [], KeyError("k")),)))
    assert done.codes == ["guard_blocked"] and desk.ran == [] and "guard failed: KeyError: 'k'" in str(done.items[0].error)


def test_a_guard_sees_the_call_as_it_will_run_and_the_state_so_far() -> None:
    """Frozen arguments, the pass, the run."""
    seen: list[Any] = []

    def guard(call: Call, state: KernelState, run: RunState) -> None:
        seen.append((call.tool.name, call.args, call.provenance, state.iteration, len(state.results), run.goal))

    ran([ToolCall(tool="look", args='{"n": 1}'), call(n=2), END], *Desk().all, kernel=make_kernel(guards=(guard,)), replays=False)
    assert seen == [("look", {"n": 1}, "planner", 1, 0, "go"), ("look", {"n": 2}, "planner", 2, 1, "go")]


def test_blocked_calls_are_failed_turns() -> None:
    """A planner that insists does not run for ever."""
    done = ran([lambda view: call(n=view.iteration)] * 20, *Desk().all, kernel=make_kernel(guards=(guard_of("no", [], Block("no")),)))
    assert done.why == ("stopped", "failure_threshold") and done.result.iterations == 3


def test_no_pass_repeats_the_call_that_is_in_doubt_in_another_whatever_guards_a_kernel_has() -> None:
    """DESIGN 5: a call equal (tool, arguments) is blocked until that is settled; other arguments pass."""
    paid: list[int] = []

    @tool(side_effect="write")
    async def pay(n: int) -> str:
        """Pay n; the first time nobody knows."""
        paid.append(n)
        if len(paid) == 1:
            raise ValueError("connection lost")
        return "paid"

    async def both(run: StrategyRun) -> Any:
        return [passed.output for passed in await run.parallel(Branch(label="a"), Branch(label="b"))]

    class Paying:
        async def plan(self, view: View) -> Plan:
            while view.scope == "b" and not (await engine.load("r")).in_doubt:
                await asyncio.sleep(0)
            calls = (call("pay", n=1), call("pay", n=2)) if view.scope == "b" else (call("pay", n=1),)
            return Plan(actions=(END,) if view.results else calls)

    kernel = make_kernel(guards=(guard_of("own", [], None),))
    engine = engine_for(Paying(), pay, strategies={"both": both}, kernel=kernel)

    async def main() -> None:
        result = await engine.run(Agent(name="w", strategy="both", tools=["pay"]), "go", run_id="r")
        assert (result.status, paid) == ("waiting_for_reconciliation", [1, 2])
        (blocked,) = [r.event for r in await engine.records("r") if isinstance(r.event, e.GuardBlocked)]
        assert (blocked.call, blocked.guard) == ("b.1.0", "in_doubt_guard") and "a.1.0" in blocked.reason

    run_async(main)


def test_a_call_in_doubt_holds_back_what_follows_and_a_settlement_is_taken_up_by_resuming() -> None:
    """The next call of the batch does not run meanwhile."""
    broke: list[int] = []

    @tool(side_effect="write")
    async def pay(n: int) -> str:
        """Pay n."""
        broke.append(n)
        raise ValueError("connection lost")

    assert [g.__name__ for g in default_guards] == ["in_doubt_guard"]

    async def main() -> None:
        planner = Script([(call("pay", n=1), call("pay", n=1)), END])
        async with engine_for(planner, pay) as engine:
            first = await engine.run(Agent(name="w", tools=["pay"]), "go")
            assert (first.status, broke) == ("waiting_for_reconciliation", [1])
            second = await engine.reconcile(first.run_id, "main.1.0", happened=False, resume=False)
            assert second.status == "waiting_for_reconciliation"
            done = await look(engine, first, planner)
            assert [d.call for d in done.all(e.ToolInDoubt)] == ["main.1.0"]

    run_async(main)


# Policy -----------------------------------------------------------------------------------------------------------------------


def test_a_denied_call_is_a_failed_observation_and_never_runs() -> None:
    """DESIGN 6: the default; not among the tools used; the reason is told."""
    desk = Desk()
    done = ran([call("put", n=1), call("look", n=1), END], *desk.all, policy=Decide(lambda c: "deny" if c.tool.name == "put" else "allow"))
    assert done.why == ("completed", "final_answer") and done.codes == ["policy_denied", ""] and desk.ran == [("look", 1)]
    assert (
        done.items[0].error is not None
        and done.items[0].error.message == "policy_denied: deny by rule"
        and done.main.tools_used == {"look"}
    )
    assert [(d.decision, d.rule, d.policy) for d in done.all(e.PolicyDecided)] == [
        ("deny", "own", "decide-1"),
        ("allow", "own", "decide-1"),
    ]


def test_an_agent_may_end_on_denial() -> None:
    """`on_deny="fail"` (X1); later calls of the batch do not run."""
    desk = Desk()
    done = ran(
        [(call("put", n=1), call("look", n=1)), END],
        *desk.all,
        agent={"on_deny": "fail"},
        policy=Decide(lambda c: "deny" if c.tool.name == "put" else "allow"),
    )
    assert done.why == ("failed", "policy_denied") and desk.ran == []


def test_a_policy_may_stop_the_run() -> None:
    """Nothing of the batch runs: all calls are decided before any is executed, and nobody is asked about those after the stop."""
    desk = Desk()
    verdicts = {1: "allow", 2: "stop", 3: "require_approval"}
    batch = (call("look", n=1), call("put", n=2), call("put", n=3))
    done = ran([batch, END], *desk.all, policy=Decide(lambda c: verdicts[c.args["n"]]))
    assert done.why == ("stopped", "policy_stopped") and done.result.error == "stop by rule" and desk.ran == []
    assert (len(done.all(e.PolicyDecided)), done.state.approvals) == (2, {})


def test_a_policy_that_fails_denies() -> None:
    """Fail closed, and said."""
    desk = Desk()
    done = ran([call("look", n=1), END], *desk.all, policy=Decide(lambda c: 1 / 0))  # type: ignore[arg-type,return-value]
    assert done.codes == ["policy_denied"] and desk.ran == [] and "the policy failed: ZeroDivisionError" in str(done.items[0].error)


def test_what_a_policy_bases_its_verdict_on_is_recorded() -> None:
    """Rule, reason, sources, facts, version."""
    verdict = Verdict(decision="deny", rule="r7", reason="because", sources=("doc",), facts={"balance": 3})
    (decided,) = ran([call(n=1), END], *Desk().all, policy=Decide(lambda c: verdict)).all(e.PolicyDecided)
    assert (decided.rule, decided.reason, decided.sources, decided.facts, decided.policy) == (
        "r7",
        "because",
        ("doc",),
        {"balance": 3},
        "decide-1",
    )


def test_without_a_policy_the_tiers_decide() -> None:
    """DESIGN 7: none, read and write are allowed, destructive asks; a tool that does not say is destructive."""

    @tool
    async def unsaid(n: int) -> int:
        """Do something."""
        return n

    desk = Desk()
    done = ran([(call("look", n=1), call("put", n=1), call("wipe", n=1), call("unsaid", n=1))], *desk.all, unsaid)
    assert [(d.call, d.decision, d.rule) for d in done.all(e.PolicyDecided)] == [
        ("main.1.0", "allow", "tier:read"), ("main.1.1", "allow", "tier:write"), ("main.1.2", "require_approval", "tier:destructive"),
        ("main.1.3", "require_approval", "tier:destructive"),
    ]  # fmt: skip
    assert done.result.status == "waiting_for_approval" and desk.ran == [("look", 1), ("put", 1)]


# Codes of attempts ------------------------------------------------------------------------------------------------------------


def test_how_a_tool_ended_is_a_code_for_the_model() -> None:
    """K80, K82: one row an ending."""
    tools: list[Any] = []

    def add(name: str, **options: Any) -> Any:
        def register(function: Any) -> Any:
            function.__name__ = name
            tools.append(tool(function, side_effect="read", **options))
            return function

        return register

    @add("raises")
    async def _(n: int = 0) -> str:
        """Raise."""
        raise ValueError("strange")

    @add("typed")
    async def _(n: int = 0) -> str:
        """Raise."""
        raise ToolFailed("no", error_code="not_found", details={"n": n})

    @add("not_run")
    async def _(n: int = 0) -> str:
        """Raise."""
        raise NotExecuted("busy")

    @add("slow", timeout_s=0.01)
    async def _(n: int = 0) -> str:
        """Never end."""
        await asyncio.Event().wait()
        return ""

    @add("says_no")
    async def _(n: int = 0) -> dict[str, Any]:
        """Report a failure."""
        return {"success": False, "error": "no_room", "message": "full"}

    @add("no_json")
    async def _(n: int = 0) -> Any:
        """Give what is no JSON."""
        return object()

    @add("wrong", result_schema={"type": "integer"})
    async def _(n: int = 0) -> Any:
        """Give what the schema does not allow."""
        return "text"

    done = ran([tuple(call(t.name) for t in tools), END], *tools, budget=Budget(max_failed_turns=9))
    assert done.codes == [
        "handler_error",
        "not_found",
        "not_executed",
        "timeout",
        "no_room",
        "result_not_serializable",
        "output_schema_failed",
    ]
    assert done.items[1].error is not None and done.items[1].error.details == {"n": 0} and "0.01" in str(done.items[3].error)


def test_a_timeout_is_the_calls_own_affair() -> None:
    """The planner is asked again, and later calls are not told that they are cancelled."""
    told: list[bool] = []

    @tool(side_effect="read", timeout_s=0.01)
    async def slow() -> str:
        """Never end."""
        await asyncio.Event().wait()
        return ""

    @tool(side_effect="read")
    async def next_one(context: ToolContext) -> str:
        """Say whether it is cancelled."""
        told.append(bool(context.cancelled))
        return "fine"

    done = ran([call("slow"), call("next_one"), END], slow, next_one)
    assert done.why == ("completed", "final_answer") and done.codes == ["timeout", ""] and told == [False] and len(done.views) == 3


def test_a_policy_and_a_guard_are_handed_arguments_of_their_own() -> None:
    """They may write to them at any depth: the tool gets, and the log shows, what was asked for."""
    got: list[Any] = []

    @tool(side_effect="write")
    async def send(to: str, body: dict[str, list[int]]) -> str:
        """Send."""
        got.append((to, body))
        return "sent"

    def spoil(one: Call) -> str:
        one.args["to"] = "mallory"
        one.args["body"]["n"].append(99)
        return "allow"

    def guard(one: Call, state: Any, run: Any) -> None:
        spoil(one)

    script = [call("send", to="ann", body={"n": [1]}), END]
    done = ran(script, send, policy=Decide(spoil), kernel=make_kernel(guards=(guard,)))
    assert got == [("ann", {"n": [1]})] and done.items[0].args == {"to": "ann", "body": {"n": [1]}} and done.codes == [""]


def test_what_a_guard_wrote_to_its_arguments_is_not_what_a_policy_decides_about() -> None:
    """The policy is asked about the call that would run: a guard that makes it look harmless lets nothing pass."""

    def flatter(one: Call, state: Any, run: Any) -> None:
        one.args["n"] = 0

    desk = Desk()
    policy = Decide(lambda one: "deny" if one.args["n"] else "allow")
    done = ran([call("put", n=1), END], *desk.all, policy=policy, kernel=make_kernel(guards=(flatter,)))
    assert done.codes == ["policy_denied"] and desk.ran == []


def test_a_policy_that_writes_to_the_state_which_it_is_shown_changes_nothing() -> None:
    """It is shown a copy: what was planned is decided, and runs."""

    class Meddling(Decide):
        def decide(self, call: Call, state: RunState) -> Verdict:
            state.passes["main"].calls[call.call_id].args["n"] = call.args["n"] = 99
            return super().decide(call, state)

    desk = Desk()
    done = ran([call("put", n=1), END], *desk.all, policy=Meddling(lambda _: "allow"))
    assert desk.ran == [("put", 1)] and done.codes == [""] and done.items[0].args == {"n": 1}


def test_what_is_executed_is_what_was_decided() -> None:
    """Code that reaches around what it is given can write to the state: the call's digest no longer fits then, and it is not run."""

    class Reaching(Decide):
        def decide(self, call: Call, state: RunState) -> Verdict:
            frame: Any = sys._getframe()
            while "context" not in frame.f_locals:
                frame = frame.f_back
            frame.f_locals["context"].state.calls[call.call_id].args["n"] = 99
            return super().decide(call, state)

    desk = Desk()
    done = ran([call("put", n=1), END], *desk.all, policy=Reaching(lambda _: "allow"))
    assert done.items[0].error is not None and done.items[0].error.code == "arguments_changed"
    assert desk.ran == [] and done.why == ("completed", "final_answer")
