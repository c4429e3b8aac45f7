"""Approvals as people meet them: several approvers, what they saw, what has changed since, and the policy's last word."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from detent import Agent, Engine, FinalAnswer, Plan, ToolCall, View, tool
from detent.cli.standing import waits_for
from detent.core import events as e
from detent.core.errors import NotAllowedNow
from detent.core.state import RunState
from detent.ports import Call, ToolSpec, Verdict, posted_to
from detent.stores.ram import RamStore
from detent.testing.clocks import EPOCH, FakeClock
from running.waiting import due, resumed


class Asking:
    """A policy that says what it is told to say; `asked` counts how often it was."""

    version = "asking-1"

    def __init__(self, **verdict: Any) -> None:
        self.verdict = Verdict(**{"decision": "require_approval", "rule": "big", "reason": "it is much", **verdict})
        self.asked = 0

    def decide(self, call: Call, state: RunState) -> Verdict:
        self.asked += 1
        return self.verdict

    def may_ask(self, tool: ToolSpec) -> bool:
        return True


class Bank:
    """Pays, and keeps what it paid."""

    def __init__(self) -> None:
        self.paid: list[Any] = []

    def tool(self) -> Any:
        @tool(side_effect="write")
        async def pay(amount: int) -> str:
            """Pay the amount."""
            self.paid.append(amount)
            return f"paid {amount}"

        return pay


class Once:
    """A planner that asks for the payments once and then is done."""

    def __init__(self, amounts: tuple[int, ...]) -> None:
        self.calls = tuple(ToolCall(tool="pay", args={"amount": n}) for n in amounts)

    async def plan(self, view: View) -> Plan:
        """Return the plan of this turn."""
        return Plan(actions=(FinalAnswer(content="done"),) if view.results else self.calls)


def engine_of(bank: Bank, policy: Any, *, store: Any = None, calls: tuple[int, ...] = (5,), **options: Any) -> Engine:
    return Engine(store=store or RamStore(), planner=Once(calls), tools=[bank.tool()], policy=policy, approver="caller", **options)


AGENT = Agent(name="clerk", tools=["pay"])
CALL = "main.1.0"


async def refusal(work: Any) -> str:
    with pytest.raises(NotAllowedNow) as caught:
        await work
    return caught.value.reason_code


def test_two_different_people_must_approve_and_each_only_once() -> None:
    """Nothing runs before the second; the same person again is told so; then exactly the stored call runs, without a new plan."""

    async def main() -> None:
        bank = Bank()
        engine = engine_of(bank, Asking(approvers=2))
        result = await engine.run(AGENT, "pay", run_id="r")
        (asked,) = await engine.approvals(run_id="r")
        assert (asked.approvers, asked.approved_by, asked.rule, asked.policy, asked.args) == (2, (), "big", "asking-1", {"amount": 5})
        result = await engine.approve("r", CALL, by="ann")
        assert result.status == "waiting_for_approval" and bank.paid == []
        assert (await engine.approvals(run_id="r"))[0].approved_by == ("ann",)
        assert any("1 of 2, ann" in line for line in waits_for(result.state)), "ann sees that hers was counted"
        assert await refusal(engine.approve("r", CALL, by="ann")) == "approval_already_decided"
        result = await engine.approve("r", CALL, by="bob")
        assert (result.status, bank.paid, result.usage.tool_calls) == ("completed", [5], 1)
        decisions = [(r.event.decision, r.event.rule) for r in await engine.records("r") if isinstance(r.event, e.PolicyDecided)]
        assert decisions == [("require_approval", "big"), ("allow", "approval_granted")]
        assert (await engine.replay("r")).identical

    asyncio.run(main())


@pytest.mark.parametrize("who", ["bob", "ann"])
def test_one_of_two_may_deny_and_that_is_final(who: str) -> None:
    """Also who has approved, and thinks better of it; the reason is told to the planner, nothing ran."""

    async def main() -> None:
        bank = Bank()
        engine = engine_of(bank, Asking(approvers=2))
        await engine.run(AGENT, "pay", run_id="r")
        await engine.approve("r", CALL, by="ann")
        result = await engine.deny("r", CALL, by=who, reason="too much")
        assert (result.status, bank.paid) == ("completed", [])
        assert result.tool_calls[0].error.code == "approval_rejected" and "too much" in result.tool_calls[0].error.message
        assert (await engine.replay("r")).identical

    asyncio.run(main())


@pytest.mark.parametrize(("choice", "status"), [("stop", "stopped"), ("observe", "completed"), ("", "completed")])
def test_a_rule_says_what_a_rejection_does(choice: Any, status: str) -> None:
    """`stop` ends the run as approval_rejected, whatever the agent says; "" leaves it to the agent."""

    async def main() -> None:
        engine = engine_of(Bank(), Asking(on_reject=choice))
        await engine.run(AGENT, "pay", run_id="r")
        result = await engine.deny("r", CALL, by="ann")
        assert result.status == status and (result.reason == "approval_rejected") == (status == "stopped")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("decision", "status"), [("deny", "completed"), ("stop", "stopped"), ("allow", "completed"), ("require_approval", "completed")]
)
def test_the_current_policy_decides_once_more_before_an_approved_call_runs(decision: Any, status: str) -> None:
    """A deny or stop of the policy as it is now wins; otherwise the approval holds."""

    async def main() -> None:
        store, bank = RamStore(), Bank()
        await engine_of(bank, Asking(), store=store).run(AGENT, "pay", run_id="r")
        stricter = engine_of(bank, Asking(decision=decision, rule="new"), store=store)
        result = await stricter.approve("r", CALL, by="ann")
        assert (result.status, bank.paid) == (status, [] if decision in ("deny", "stop") else [5])

    asyncio.run(main())


def test_a_policy_that_now_wants_more_approvers_asks_again_and_counts_those_it_has() -> None:
    """One approved; the new policy wants two; the second settles it."""

    async def main() -> None:
        store, bank = RamStore(), Bank()
        await engine_of(bank, Asking(), store=store).run(AGENT, "pay", run_id="r")
        stricter = engine_of(bank, Asking(approvers=2), store=store)
        result = await stricter.approve("r", CALL, by="ann")
        assert (result.status, bank.paid) == ("waiting_for_approval", [])
        result = await stricter.approve("r", CALL, by="bob")
        assert (result.status, bank.paid) == ("completed", [5])

    asyncio.run(main())


def test_edited_arguments_are_a_decision_of_their_own_and_are_authorised_again() -> None:
    """What runs is what the approver wrote; under a rule for two people the edit counts as the first approval of the new arguments."""

    async def main() -> None:
        bank = Bank()
        engine = engine_of(bank, Asking(approvers=2))
        await engine.run(AGENT, "pay", run_id="r")
        await engine.approve("r", CALL, by="ann")
        result = await engine.approve("r", CALL, by="bob", args={"amount": 3})
        assert (result.status, bank.paid) == ("waiting_for_approval", []), "ann approved other arguments"
        (asked,) = await engine.approvals(run_id="r")
        assert (asked.args, asked.approved_by) == ({"amount": 3}, ("bob",))
        result = await engine.approve("r", CALL, by="ann")
        assert (result.status, bank.paid) == ("completed", [3]) and result.tool_calls[0].edited
        assert [type(r.event).__name__ for r in await engine.records("r")].count("ApprovalEdited") == 1
        assert (await engine.replay("r")).identical

    asyncio.run(main())


def test_an_answer_that_does_not_fit_says_in_which_way() -> None:
    """Unknown call, one that never asked, other arguments than the person saw, nobody named, a second decision, an expired request."""

    async def main() -> None:
        clock = FakeClock()
        engine = engine_of(Bank(), Asking(expires_s=60), clock=clock)
        await engine.run(AGENT, "pay", run_id="r")
        (asked,) = await engine.approvals(run_id="r")
        assert asked.expires_at is not None and asked.expires_at - EPOCH <= timedelta(seconds=61)
        assert await refusal(engine.approve("r", "main.1.9", by="ann")) == "approval_unknown"
        assert await refusal(engine.approve("r", CALL, by="ann", digest="0" * 32)) == "approval_changed"
        assert await refusal(engine.approve("r", CALL, by=" ")) == "approver_missing"
        await engine.deny("r", CALL, by="ann", digest=asked.digest, resume=False)
        assert await refusal(engine.approve("r", CALL, by="bob")) == "approval_already_decided"
        done = await engine.resume("r")
        assert done.status == "completed" and await refusal(engine.approve("r", CALL, by="bob")) == "approval_not_pending"

        late = engine_of(Bank(), Asking(expires_s=60), clock=clock)
        await late.run(AGENT, "pay", run_id="late")
        clock.advance(61)
        assert await refusal(late.approve("late", CALL, by="ann")) == "approval_expired"
        assert await due(late) == ["late"]
        (result,) = await resumed(late)
        assert (result.status, result.reason) == ("stopped", "approval_expired") and (await late.replay("late")).identical

    asyncio.run(main())


def test_an_approval_of_arguments_that_were_edited_meanwhile_is_dropped() -> None:
    """It is bound to the digest that its giver saw, also when it waits in the inbox."""

    async def main() -> None:
        bank = Bank()
        engine = engine_of(bank, Asking(approvers=2))
        await engine.run(AGENT, "pay", run_id="r")
        await engine.approve("r", CALL, by="bob", resume=False)
        left = (await engine.store.signals(["r"]))["r"]
        await engine.approve("r", CALL, by="ann", args={"amount": 3})
        late = msgspec.structs.replace(left[0], id="late")
        assert await refusal(engine.signal("r", late)) == "approval_changed"
        await engine.store.post("r", posted_to("r", late))
        result = await engine.resume("r")
        assert (result.status, bank.paid) == ("waiting_for_approval", [])
        refused = [r.event for r in await engine.records("r") if isinstance(r.event, e.AnswerRefused)]
        assert [(one.code, one.by, one.about) for one in refused] == [("approval_changed", "bob", CALL)]
        assert (await engine.approvals(run_id="r"))[0].approved_by == ("ann",)

    asyncio.run(main())


def test_one_person_who_answers_in_two_places_at_once_counts_once() -> None:
    """Both answers were in the inbox before either was taken up: the second is dropped, under whatever spelling it came."""

    async def main() -> None:
        bank = Bank()
        engine = engine_of(bank, Asking(approvers=2))
        await engine.run(AGENT, "pay", run_id="r")
        await engine.approve("r", CALL, by="ann", resume=False)
        (mine,) = (await engine.store.signals(["r"]))["r"]
        await engine.store.post("r", msgspec.structs.replace(mine, id="again", by="ANN"))
        result = await engine.resume("r")
        assert (result.status, bank.paid) == ("waiting_for_approval", [])
        assert (await engine.approvals(run_id="r"))[0].approved_by == ("ann",)

    asyncio.run(main())


def test_a_request_can_be_answered_while_what_stands_before_it_still_runs() -> None:
    """It is in the store as soon as the batch is decided; the answer that came meanwhile is taken up without a wait."""

    async def main() -> None:
        bank, store, busy, go = Bank(), RamStore(), asyncio.Event(), asyncio.Event()

        @tool(side_effect="read")
        async def look() -> str:
            """Look until told."""
            busy.set()
            await go.wait()
            return "seen"

        class Both(Once):
            async def plan(self, view: View) -> Plan:
                return Plan(actions=(FinalAnswer(content="done"),) if view.results else (ToolCall(tool="look", args={}), *self.calls))

        class Careful(Asking):
            def decide(self, call: Call, state: RunState) -> Verdict:
                return Verdict(decision="allow") if call.tool.read_only else super().decide(call, state)

        engine = Engine(store=store, planner=Both((5,)), tools=[look, bank.tool()], policy=Careful(), approver="caller")
        running = asyncio.create_task(engine.run(Agent(name="clerk", tools=["look", "pay"]), "pay", run_id="r"))
        await busy.wait()
        person = Engine(store=store.sibling(), planner=None, tools=[], approver="caller")
        assert [(asked.call_id, asked.args) for asked in await person.approvals(run_id="r")] == [("main.1.1", {"amount": 5})]
        approving = asyncio.create_task(person.approve("r", "main.1.1", by="ann", resume=False))
        while not await store.signals(["r"]):
            await asyncio.sleep(0)
        go.set()
        told, result = (await approving).answered, await running
        assert told is not None and told.outcome == "accepted"
        assert (result.status, bank.paid) == ("completed", [5])

    asyncio.run(asyncio.wait_for(main(), 60))


def test_parallel_calls_are_approved_one_by_one_in_any_order() -> None:
    """Each has its own id; the order of execution is that of the plan."""

    async def main() -> None:
        bank = Bank()
        engine = engine_of(bank, Asking(), calls=(1, 2, 3))
        result = await engine.run(AGENT, "pay", run_id="r")
        assert len(await engine.approvals(run_id="r")) == 3
        await engine.approve("r", "main.1.2", by="ann")
        await engine.deny("r", "main.1.1", by="ann")
        assert bank.paid == []
        result = await engine.approve("r", "main.1.0", by="ann")
        assert (result.status, bank.paid) == ("completed", [1, 3]) and [i.ok for i in result.tool_calls] == [True, False, True]
        assert (await engine.replay("r")).identical

    asyncio.run(main())


@pytest.mark.parametrize(
    "verdict",
    [
        {"decision": "maybe"}, {"rule": None}, {"reason": 5}, {"facts": {"x": object()}}, {"sources": (1,)}, {"approvers": "2"}, {"approvers": 0},
        {"expires_s": 0}, {"expires_s": 1e15}, {"on_reject": "explode"}, {"decision": "allow", "rule": None}, {"reason": "\ud800"},
    ],
    ids="-".join,
)  # fmt: skip
def test_a_verdict_that_cannot_be_used_denies_and_is_recorded(verdict: dict[str, Any]) -> None:
    """Whatever a policy answers: nothing runs, the denial is on record, the run goes on and the log replays."""

    async def main() -> None:
        bank = Bank()
        engine = engine_of(bank, Asking(**verdict))
        result = await engine.run(AGENT, "pay", run_id="r")
        assert (bank.paid, result.status) == ([], "completed")
        assert [r.event.rule for r in await engine.records("r") if isinstance(r.event, e.PolicyDecided)] == ["policy_error"]
        assert (await engine.replay("r")).identical

    asyncio.run(main())


def test_an_answer_of_a_policy_that_is_no_verdict_denies() -> None:
    """Not even the word for an allowance is one; the reason names what it answered."""

    class Careless(Asking):
        def decide(self, call: Call, state: RunState) -> Any:
            return "allow"

    async def main() -> None:
        bank = Bank()
        engine = engine_of(bank, Careless())
        result = await engine.run(AGENT, "pay", run_id="r")
        assert (result.status, bank.paid) == ("completed", [])
        (decided,) = [r.event for r in await engine.records("r") if isinstance(r.event, e.PolicyDecided)]
        assert (decided.decision, decided.rule) == ("deny", "policy_error") and "answered str" in decided.reason

    asyncio.run(main())


def test_an_approval_is_of_the_arguments_that_people_saw_also_where_the_tool_has_changed_since() -> None:
    """A tool that now makes others of them is asked about again; with nothing but the old approvals it does not run."""

    async def main() -> None:
        bank, store = Bank(), RamStore()
        await engine_of(bank, Asking(), store=store).run(AGENT, "pay", run_id="r")

        @tool(side_effect="write", sanitize=lambda args: {"amount": args["amount"] * 10})
        async def pay(amount: int) -> str:
            """Pay the amount."""
            bank.paid.append(amount)
            return "paid"

        changed = Engine(store=store, planner=Once((5,)), tools=[pay], policy=Asking(), approver="caller")
        result = await changed.approve("r", CALL, by="ann")
        assert (result.status, bank.paid) == ("waiting_for_approval", [])
        assert [asked.args for asked in await changed.approvals(run_id="r")] == [{"amount": 50}]

    asyncio.run(main())


def test_an_approver_in_the_program_is_one_person() -> None:
    """It approves once; the second approval is somebody else's, and the program does not ask it for ever."""

    async def main() -> None:
        bank = Bank()
        engine = engine_of(bank, Asking(approvers=2))
        engine.approver = lambda request: True
        result = await engine.run(AGENT, "pay", run_id="r")
        assert (result.status, bank.paid) == ("waiting_for_approval", [])
        result = await engine.approve("r", CALL, by="bob")
        assert (result.status, bank.paid) == ("completed", [5])

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_question_with_an_unusable_schema_can_be_told_apart() -> None:
    """The answer is refused with the reason, not with another library's error."""
    from detent.running.admission import fitting_reply

    for schema in ({"type": "nonsense"}, {"$ref": "http://nowhere.invalid/x"}):
        with pytest.raises(NotAllowedNow) as caught:
            fitting_reply("r", "yes", schema)
        assert caught.value.reason_code == "unusable_schema"
