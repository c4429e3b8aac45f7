"""Approval: nothing happens before it, exactly the stored call happens after it, once. DESIGN 6 and 7."""

from __future__ import annotations

from typing import Any

import pytest

from detent import Agent
from detent.core import events as e
from detent.core.errors import ConfigError, NotAllowedNow
from detent.ports import Verdict
from kernel.runs import END, Allow, Decide, Desk, Script, call, engine_for, look, ran, run_async


async def asked(script: Any, desk: Desk, **options: Any) -> tuple[Any, Any, Script]:
    """Return an engine and the result of a run that waits."""
    planner = Script(script)
    agent = options.pop("agent", {})
    engine = engine_for(planner, *desk.all, **options)
    result = await engine.run(Agent(name="w", tools=[t.name for t in desk.all], **agent), "go")
    return engine, result, planner


def test_nothing_of_a_call_happens_before_it_is_approved_and_then_it_happens_once() -> None:
    """The request is durable and names exactly the stored arguments; approving needs no planner."""

    async def main() -> None:
        desk = Desk()
        engine, first, planner = await asked([call("wipe", n=7), END], desk)
        (request,) = await engine.approvals()
        assert (first.status, desk.ran, len(planner.views)) == ("waiting_for_approval", [], 1)
        assert (request.call_id, request.tool, request.args, request.reason) == (
            "main.1.0",
            "wipe",
            {"n": 7},
            "destructive tools need approval",
        )
        done = await look(engine, await engine.approve(first.run_id, "main.1.0", by="ann"), planner)
        assert done.why == ("completed", "final_answer") and desk.ran == [("wipe", 7)] and await engine.approvals() == []
        (resolved,) = done.all(e.ApprovalResolved)
        assert (resolved.decision, resolved.by) == ("approved", "ann")

    run_async(main)


def test_several_requests_are_open_at_once_and_an_open_one_holds_back_what_follows() -> None:
    """DESIGN 6: all calls are decided first and every approval requested; then they execute in order."""

    async def main() -> None:
        desk = Desk()
        batch = (call("look", n=0), call("wipe", n=1), call("put", n=2), call("wipe", n=3), call("look", n=4))
        engine, first, _ = await asked([batch], desk)
        assert desk.ran == [("look", 0)] and [a.call_id for a in await engine.approvals()] == ["main.1.1", "main.1.3"]
        again = await engine.approve(first.run_id, "main.1.3", by="ann")
        assert again.status == "waiting_for_approval" and desk.ran == [("look", 0)]
        last = await engine.deny(first.run_id, "main.1.1", by="bob", reason="not that one")
        assert desk.ran == [("look", 0), ("put", 2), ("wipe", 3), ("look", 4)]
        assert [i.error.code if i.error else "" for i in last.tool_calls] == ["", "approval_rejected", "", "", ""]
        assert [i.call_id for i in last.tool_calls] == [f"main.1.{n}" for n in range(5)]

    run_async(main)


@pytest.mark.parametrize("on_reject", ["observe", "stop"])
def test_a_rejected_call_is_an_observation_or_the_end_as_the_agent_says(on_reject: str) -> None:
    """DESIGN 6."""

    async def main() -> None:
        desk = Desk()
        engine, first, planner = await asked([call("wipe", n=1), END], desk, agent={"on_reject": on_reject})
        done = await look(engine, await engine.deny(first.run_id, "main.1.0", by="ann", reason="too risky"), planner)
        assert desk.ran == []
        if on_reject == "stop":
            assert done.why == ("stopped", "approval_rejected") and done.result.error == "too risky"
        else:
            assert done.why == ("completed", "final_answer") and done.codes == ["approval_rejected"]
            assert "too risky" in str(planner.views[1].transcript[-1].error)

    run_async(main)


def test_a_call_that_is_approved_with_other_arguments_is_authorised_again() -> None:
    """They are validated, guarded and put to the policy like any others."""

    async def main() -> None:
        for args, ran_with, code in (
            ({"n": 5}, [("wipe", 5)], ""),
            ({"n": 13}, [], "policy_denied"),
        ):
            desk = Desk()
            policy = Decide(lambda c: "deny" if c.args.get("n") == 13 else "require_approval")
            policy.may_ask = lambda tool: True  # type: ignore[method-assign]
            engine, first, planner = await asked([call("wipe", n=1), END], desk, policy=policy)
            with pytest.raises(NotAllowedNow) as refused:  # the request stays open
                await engine.approve(first.run_id, "main.1.0", by="ann", args={"n": "x"})
            assert refused.value.reason_code == "arguments_invalid"
            done = await look(engine, await engine.approve(first.run_id, "main.1.0", by="ann", args=args), planner)
            assert (desk.ran, done.codes) == (ran_with, [code])
            assert [x.args for x in done.all(e.ApprovalEdited)] == [args]
            if not code:
                assert done.items[0].args == {"n": 5} and done.all(e.ToolStarted)[0].digest == done.all(e.ApprovalEdited)[0].digest

    run_async(main)


def test_an_approval_that_expires_stops_the_run() -> None:
    """`approval_expired`, by the run's own clock, when somebody resumes it."""

    async def main() -> None:
        desk = Desk()
        verdict = Verdict(decision="require_approval", reason="look", expires_s=60)
        engine, first, _planner = await asked([call("put", n=1), END], desk, policy=Decide(lambda c: verdict))
        clock: Any = engine.runtime.parts.clock
        clock.advance(59)
        assert (await engine.resume(first.run_id)).status == "waiting_for_approval"
        clock.advance(1)
        last = await engine.resume(first.run_id)
        assert (last.status, last.reason, desk.ran) == ("stopped", "approval_expired", []) and (await engine.replay(first.run_id)).identical

    run_async(main)


def test_a_run_refuses_to_start_where_nobody_could_ever_approve() -> None:
    """DESIGN 7: in memory, no terminal, no approver; the message says what to do."""
    with pytest.raises(ConfigError, match=r"lists tools that need approval \(wipe\), but nobody can give it"):
        ran([END], *Desk().all, approver=None, store=None)
    assert ran([END], *Desk().all, approver=None, agent={"tools": ["look", "put"]}).why == ("completed", "final_answer")
    assert ran([END], *Desk().all, approver=None, policy=Allow()).why == ("completed", "final_answer")


def test_a_second_decision_is_refused_while_the_first_has_not_been_taken_up() -> None:
    """With `resume=False` the decision waits in the inbox; nobody can turn it round there."""

    async def main() -> None:
        desk = Desk()
        engine = engine_for(Script([call("wipe", n=1), END]), *desk.all, approver="caller")
        await engine.run(Agent(name="w", tools=["wipe"]), "go", run_id="r")
        await engine.approve("r", "main.1.0", by="ann", resume=False)
        with pytest.raises(NotAllowedNow, match="approved by ann already") as refused:
            await engine.deny("r", "main.1.0", by="bob", resume=False)
        assert refused.value.reason_code == "approval_already_decided"
        assert (await engine.resume("r")).status == "completed" and desk.ran == [("wipe", 1)]

    run_async(main)
