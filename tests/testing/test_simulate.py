"""`simulate` finds what is wrong with an agent under faults, and nothing where nothing is wrong."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from amounts import in_check, thinned, times
from detent import Agent, AskUser, Budget, Engine, FinalAnswer, NotExecuted, ToolCall, ToolContext, View, tool
from detent.config.groups import Bounds
from detent.core import events as e
from detent.core.errors import ConfigError, UnknownName
from detent.ports import Block
from detent.testing import FAULTS, FakeModel, FakeTool, Report, ScriptedPlanner, calls, says, simulate
from detent.tools import Happened, NotHappened
from laws.checks import check_laws
from strategies.scenarios import SCENARIOS, Scenario, World, engine_of
from strategies.scenarios import agent_of as scenario_agent
from testing.clerks import Bank, Function, charging, honest, pays, price, simulated, sound


def kinds(report: Report) -> set[str]:
    """Return the kinds of problems."""
    return {finding.kind for finding in report.problems}


# Sound agents -------------------------------------------------------------------------------------------------------------------


@thinned
@pytest.mark.parametrize("kind", ["idempotent", "reconciled", "plain"])
def test_nothing_is_found_where_nothing_is_wrong(kind: str) -> None:
    """An idempotent tool, one that can be asked and one of which nobody knows: no problem at any fault point, and the effect is there once."""
    bank = Bank()
    made = {
        "idempotent": lambda: sound(bank),
        "reconciled": lambda: charging(bank, reconcile=honest(bank)),
        "plain": lambda: charging(bank),
    }
    report = simulated(bank, made[kind](), effects=lambda: [f"charge {amount}" for amount in bank.charges])
    report.raise_for_problems()
    assert len(report.trials) > 40
    assert all(trial.injected and trial.status == "completed" for trial in report.trials)
    assert all(trial.effects == {"charge 5": 1} for trial in report.trials)
    assert (report.undisturbed.output, report.undisturbed.effects) == ("paid, receipt 1", {"charge 5": 1})
    assert not any(trial.findings for trial in report.trials if trial.fault in ("slow_model", "store_conflict")) or kind == "plain"


def test_calls_in_doubt_are_told_and_are_no_problem_by_themselves() -> None:
    """A crash between intent and outcome of a tool that cannot be asked leaves the call in doubt, and says what the truth was."""
    bank = Bank()
    report = simulated(bank, charging(bank), faults=["crash"])
    report.raise_for_problems()
    doubts = [(trial.how, finding) for trial in report.trials for finding in trial.findings if finding.kind == "in_doubt"]
    assert [(how, "it had happened" in finding.what) for how, finding in doubts] == [("after", False), ("before", True)]
    assert {(f.tool, f.call_id, len(f.key)) for _, f in doubts} == {("charge", "main.2.0", 32)}
    assert all(f.record and "charge a reconcile" in f.next for _, f in doubts)
    with pytest.raises(AssertionError, match="in doubt: charge"):
        report.raise_for_problems(in_doubt=True)


@in_check
def test_the_log_of_every_trial_keeps_the_laws() -> None:
    """Each trial is a run like any other: its log folds, has one exit, and no outcome twice."""
    bank = Bank()
    report = simulated(bank, charging(bank, reconcile=honest(bank)))
    for trial in report.trials:
        if trial.fault != "store_conflict":
            check_laws(trial.log)


# Planted bugs -------------------------------------------------------------------------------------------------------------------


def test_a_tool_that_is_not_idempotent_and_says_so_is_found_by_its_answers() -> None:
    """Two answers under one key are two effects; the finding names tool, call, key and record, and says why and what to do."""
    bank = Bank()
    report = simulated(bank, charging(bank, idempotent=True))
    assert kinds(report) == {"repeated"}
    found = [(t.fault, t.how, t.place) for t in report.trials if t.problems]
    assert ("crash", "before", "before write 5 of 8 (append, record 11: ToolFinished charge main.2.0)") in found
    assert {fault for fault, _, _ in found} == {"crash", "store_conflict", "tool_timeout"}
    first = report.repeated[0]
    assert (first.tool, first.call_id, first.record) == ("charge", "main.2.0", 13)
    assert first.what == "charge(amount=5) happened twice, undisturbed once"
    assert 'worker 1 made call main.2.0 (attempt 1; answered "receipt 1")' in first.why
    assert 'worker 2 made call main.2.0 (attempt 2; answered "receipt 2")' in first.why
    assert "check context.idempotency_key" in first.next
    event = report.trials[8].records[first.record - 1].event
    assert isinstance(event, e.ToolStarted) and (event.key, event.attempt) == (first.key, 2)


def silent(bank: Bank, *, reads_key: bool) -> Any:
    """Return a tool that says the same each time, and charges each time."""

    @tool(name="charge", side_effect="write", idempotent=True, retries=1)
    async def charge(amount: int, context: ToolContext) -> str:
        """Charge."""
        bank.charge(amount, context.idempotency_key if reads_key else "")
        return "done"

    return charge


@pytest.mark.parametrize("reads_key", [True, False])
def test_a_tool_that_hides_its_second_effect_is_found_by_looking_at_the_world(reads_key: bool) -> None:
    """With `effects` the world counts, whatever the tool answers and reads."""
    bank = Bank()
    report = simulated(bank, silent(bank, reads_key=reads_key), effects=lambda: bank.charges, faults=["crash"])
    assert kinds(report) == {"repeated"}
    assert report.repeated[0].what == "5 happened twice, undisturbed once"
    assert ("never looked at the key" in report.repeated[0].why) is not reads_key


def test_a_claim_that_cannot_be_checked_is_told() -> None:
    """Without `effects` a tool that ran twice under one key, answered the same and never read the key is no problem, but unproven."""
    bank = Bank()
    report = simulated(bank, silent(bank, reads_key=False), faults=["crash"])
    report.raise_for_problems()
    assert [(f.tool, f.call_id) for f in report.of("unproven")] == [("charge", "main.2.0")]
    assert "give simulate(effects=...)" in str(report)
    assert not simulated(bank, silent(bank, reads_key=True), faults=["crash"]).of("unproven")


def test_a_reconcile_that_denies_what_happened_is_found() -> None:
    """The call is made again because the tool itself said that it had not happened."""
    bank = Bank()
    report = simulated(bank, charging(bank, reconcile=lambda key: NotHappened()), faults=["crash", "store_conflict"])
    assert kinds(report) == {"repeated"}
    assert "The reconcile of charge reported that the first had not happened" in report.repeated[0].why
    assert {trial.fault for trial in report.trials if trial.problems} == {"crash", "store_conflict"}


@pytest.mark.parametrize("knows", [True, False])
def test_a_planner_that_is_told_of_a_timeout_and_goes_on_all_the_same_is_named(knows: bool) -> None:
    """The report said that the planner had not asked for the call; it had, and was told that it did not happen, or that nobody knows."""

    def vague(view: View) -> Any:
        asked = [item.tool for item in view.results]
        if "charge" not in asked:
            return ToolCall(tool="charge", args={"amount": 5})
        return FinalAnswer(content="finished")

    bank = Bank()
    report = simulated(
        bank, charging(bank, **({"reconcile": honest(bank)} if knows else {})), vague, faults=["tool_timeout"], agent={"on_unknown": "tell"}
    )
    (lost,), (trial,) = report.lost, [trial for trial in report.trials if trial.problems]
    why = "reconcile answered that it had not happened" if knows else "it may or may not have happened"
    assert lost.why == f"{why}, the planner was told so, and continued as if it had"
    event = trial.records[lost.record - 1].event
    assert isinstance(event, e.ToolReconciled) and event.call == lost.call_id == "main.1.0"
    doubt = next(finding for finding in trial.findings if finding.kind == "in_doubt")
    assert ("reconcile: it had not happened, and the planner was told so" in doubt.what) is knows

    def gives_up(view: View) -> Any:
        if any(item.tool == "charge" and not item.ok for item in view.results):
            return FinalAnswer(content="could not pay")
        return vague(view)

    bank = Bank()
    simulated(bank, charging(bank, reconcile=honest(bank)), gives_up, faults=["tool_timeout"]).raise_for_problems()


def test_a_reconcile_that_claims_what_did_not_happen_is_found() -> None:
    """The effect is lost: the run completes with the same answer and nothing was charged."""
    bank = Bank()
    report = simulated(bank, charging(bank, reconcile=lambda key: Happened("receipt 1")), faults=["crash"])
    assert kinds(report) == {"lost"}
    (lost,) = report.lost
    assert lost.what.startswith("charge(amount=5) happened not at all, undisturbed once, and the run completed")
    assert "reconcile of charge reported that it had happened" in lost.why
    trial = next(trial for trial in report.trials if trial.problems)
    event = trial.records[lost.record - 1].event
    assert isinstance(event, e.ToolReconciled) and event.source == "reconcile"


def test_an_answer_that_does_not_care_what_became_of_a_call_is_found() -> None:
    """A call that timed out before its effect is lost when the planner says all the same that it is done."""

    def careless(view: View) -> Any:
        if len(view.results) < 2:
            return ToolCall(tool=("price", "charge")[len(view.results)], args=({"item": "bolts"}, {"amount": 5})[len(view.results)])
        return FinalAnswer(content="paid")

    bank = Bank()
    report = simulated(bank, sound_without_retries(bank), careless, faults=["tool_timeout"])
    assert kinds(report) == {"lost"}
    assert "failed (timeout: Tool timed out after 120 s), and the planner continued as if it had not" in report.lost[0].why


def sound_without_retries(bank: Bank) -> Any:
    """Return an idempotent tool that is not tried again by itself."""

    @tool(name="charge", side_effect="write", idempotent=True)
    async def charge(amount: int, context: ToolContext) -> str:
        """Charge once a key."""
        return bank.keys.get(context.idempotency_key) or bank.charge(amount, context.idempotency_key)

    return charge


def test_a_second_call_after_a_timeout_is_found() -> None:
    """A planner that asks again gets another key: the first effect, which nobody saw, is repeated. A retry, which has the same key, is not."""
    bank = Bank()
    report = simulated(bank, sound_without_retries(bank), faults=["tool_timeout"])
    assert kinds(report) == {"repeated"}
    assert "two calls, two keys" in report.repeated[0].why
    assert "the run was told timeout" in report.repeated[0].why
    assert "retries=1" in report.repeated[0].next


def test_a_tool_that_says_not_executed_after_its_effect_is_found() -> None:
    """It is tried again, as it says that it may be; the world shows that it was wrong."""
    bank = Bank()

    @tool(name="charge", side_effect="write", retries=1)
    async def charge(amount: int, context: ToolContext) -> str:
        """Charge; the first worker's connection is down afterwards."""
        receipt = bank.charge(amount, context.idempotency_key)
        if bank.trouble and len(bank.charges) == 1:
            raise NotExecuted("the connection broke")
        return receipt

    bank.trouble = False

    def make_engine(store: Any) -> Engine:
        bank.trouble = bank.engines == 2
        bank.engines += 1
        return Engine(store=store, planner=Function(pays))

    bank.engines = 0
    report = simulated(bank, charge, make_engine=make_engine, faults=["slow_model"], at_most=1, effects=lambda: ["c"] * len(bank.charges))
    assert kinds(report) == {"repeated"}
    assert "raised NotExecuted after its effect" in report.repeated[0].why


def test_a_model_that_asks_twice_is_found_unless_a_guard_is_there() -> None:
    """Two equal calls in one answer are two effects; with the guard the second is refused."""
    bank = Bank()
    agent = Agent(name="clerk", tools=[price, sound(bank)])

    async def main(agent: Agent) -> Report:
        return await simulate(
            lambda store: Engine(store=store, planner=Function(pays)), agent, "Pay", faults=["duplicate"], reset=bank.reset
        )

    report = asyncio.run(main(agent))
    assert kinds(report) == {"repeated"}
    assert 'guards=["side_effect_once"]' in report.repeated[0].next
    guarded = Agent(name="clerk", tools=agent.tools, guards=["side_effect_once"])
    asyncio.run(main(guarded)).raise_for_problems()


def test_a_planner_that_remembers_is_found() -> None:
    """What is kept in the process is gone after a crash: the answer is another, and the record where the logs part is named."""
    bank = Bank()
    agent = Agent(name="clerk", tools=[price, sound(bank)])

    def make_engine(store: Any) -> Engine:
        asked: list[int] = []

        def forgetful(view: View) -> Any:
            asked.append(view.iteration)
            answer = pays(view)
            return FinalAnswer(content=f"asked {len(asked)} times") if isinstance(answer, FinalAnswer) else answer

        return Engine(store=store, planner=Function(forgetful))

    report = asyncio.run(simulate(make_engine, agent, "Pay", faults=["crash"], reset=bank.reset))
    assert kinds(report) == {"answer"}
    found = report.of("answer")[-1]
    assert "asked 3 times" in found.what
    assert found.why.startswith(f"the logs differ at record {found.record}: ")
    assert not [t for t in report.trials if t.problems and t.same_answer]


@in_check
@pytest.mark.parametrize("tight", [{"max_total_tokens": 2000}, {"max_model_calls": 1}], ids=["tokens", "calls"])
def test_a_bound_that_a_crash_uses_up_is_named_with_what_leaves_room(tight: dict[str, int]) -> None:
    """The dead call is charged with all that it had reserved, or counts: the planner is not to blame, and `max_tokens` or the bound helps."""

    def found(budget: Budget, **settings: Any) -> Report:
        agent = Agent(name="a", model_settings=settings)
        return asyncio.run(
            simulate(lambda store: Engine(store=store, planner=FakeModel([says("fine")])), agent, "go", faults=["crash"], budget=budget)
        )

    finding = found(Budget(**tight)).of("answer")[0]
    (option,) = tight
    assert "budget_exhausted" in finding.what and finding.why.startswith(f"{option} is ") and f"raise {option}" in finding.next
    assert "depend only on the view" not in finding.next and ("max_tokens" in finding.next) is (option == "max_total_tokens")
    assert kinds(found(Budget(max_total_tokens=2000), max_tokens=200)) == set(), "what it says to do helps"


def test_a_run_that_nobody_can_take_on_is_found() -> None:
    """A planner that asks its user only after a crash leaves the run waiting for a reply that was not given."""
    bank, lives = Bank(), [0]

    def make_engine(store: Any) -> Engine:
        lives[0] += 1
        mine = lives[0]

        def asks(view: View) -> Any:
            return AskUser(question="Shall I go on?") if mine % 2 and view.iteration > 1 and mine > 2 else pays(view)

        return Engine(store=store, planner=Function(asks))

    agent = Agent(name="clerk", tools=[price, sound(bank)], actions=["ask_user"])
    report = asyncio.run(simulate(make_engine, agent, "Pay", faults=["slow_model"], at_most=1, reset=bank.reset))
    (stuck,) = report.of("stuck")
    assert "it asks its user 'Shall I go on?'; give simulate(reply=...)" in stuck.what


def test_a_planner_that_cannot_bear_a_failed_call_is_found() -> None:
    """An exception of the user's planner under a fault is a problem, with what it said."""

    def fragile(view: View) -> Any:
        if not view.results:
            return ToolCall(tool="price", args={"item": "bolts"})
        return FinalAnswer(content=f"{view.results[-1].content + 1}")

    bank = Bank()
    report = simulated(bank, sound(bank), fragile, faults=["tool_timeout", "malformed_model"])
    assert kinds(report) == {"error"}
    assert "planner_error" in report.of("error")[0].what and "NoneType" in report.of("error")[0].what
    assert {t.how for t in report.trials if t.problems} == {"before", "unknown_tool", "cut_arguments"}


def test_an_exception_of_the_program_is_found_with_its_place() -> None:
    """What making or running a second engine raises is told with file and line."""
    lives = [0]

    def make_engine(store: Any) -> Engine:
        lives[0] += 1
        if lives[0] > 3:
            raise LookupError("no such setting")
        return Engine(store=store, planner=Function(pays))

    bank = Bank()
    report = simulated(bank, sound(bank), make_engine=make_engine, faults=["crash"], at_most=1)
    (found,) = report.of("error")
    assert found.what.startswith("LookupError: no such setting (raised at test_simulate.py:")


def test_a_log_that_does_not_come_out_again_is_found() -> None:
    """A guard that counts its own calls decides otherwise when the log is gone through again."""
    bank = Bank()
    agent = Agent(name="clerk", tools=[price, sound(bank)], guards=["moody"])
    counted = [0]

    def moody(call: Any, state: Any, run: Any) -> Block | None:
        counted[0] += 1
        return Block("not now") if counted[0] == 1 else None

    def make_engine(store: Any) -> Engine:
        counted[0] = 0
        return Engine(store=store, planner=Function(pays), guards={"moody": moody})

    report = asyncio.run(simulate(make_engine, agent, "Pay", faults=["slow_model"], at_most=1, reset=bank.reset))
    (found,) = report.of("replay")
    assert found.record and "not recorded" in found.why


def test_a_run_that_does_not_do_the_same_each_time_is_said_to() -> None:
    """Where two undisturbed runs differ, that is a note, answers are not compared, and a place that was not reached is a problem."""
    bank, runs = Bank(), [0]

    def make_engine(store: Any) -> Engine:
        runs[0] += 1
        short = runs[0] > 2

        def changing(view: View) -> Any:
            return FinalAnswer(content=f"run {runs[0]}") if short else pays(view)

        return Engine(store=store, planner=Function(changing))

    report = simulated(bank, sound(bank), make_engine=make_engine, faults=["tool_timeout"])
    assert kinds(report) == {"not_reached"}
    assert not any(trial.injected for trial in report.trials)
    runs[0] = 0
    uneven = simulated(bank, sound(bank), lambda view: (runs.append(0), FinalAnswer(content=len(runs)))[1], faults=["crash"])
    assert "two undisturbed runs did not behave the same" in uneven.notes[0]
    assert kinds(uneven) == set()


# Faults -------------------------------------------------------------------------------------------------------------------------


def events_of(trial: Any) -> list[Any]:
    """Return the events of a trial's log."""
    return [record.event for record in trial.records]


@in_check
def test_every_fault_is_really_injected() -> None:
    """Each kind and variant leaves its mark in the log of its trial, and the undisturbed run has none."""
    bank = Bank()
    agent = Agent(name="clerk", tools=[price, charging(bank)], guards=["side_effect_once"])
    turns = [calls(("price", {"item": "bolts"})), calls(("charge", {"amount": 5})), says("paid")]
    report = asyncio.run(simulate(lambda store: Engine(store=store, planner=FakeModel(turns)), agent, "Pay", reset=bank.reset))
    assert {trial.fault for trial in report.trials} == set(FAULTS)
    assert all(trial.injected for trial in report.trials)

    def some(how: str, check: Any) -> bool:
        trials = [trial for trial in report.trials if trial.how == how]
        assert trials, how
        return all(any(check(event) for event in events_of(trial)) for trial in trials)

    crashes = [trial for trial in report.trials if trial.fault == "crash"]
    assert all(trial.workers == 2 for trial in crashes)
    assert any(isinstance(event, e.RunResumed) for trial in crashes for event in events_of(trial))
    timeouts = [t for t in report.trials if t.fault == "tool_timeout"]
    assert [(t.how, t.effects) for t in timeouts] == [("before", {"charge(amount=5)": 1})] * 2 + [("after", {"charge(amount=5)": 1})]
    assert all(
        any((isinstance(x, e.ToolInDoubt) and "timed out" in x.why) or (isinstance(x, e.ToolFinished) and x.error) for x in events_of(t))
        for t in timeouts
    )
    assert some("takeover", lambda x: isinstance(x, e.RunStarted | e.RunResumed)) and all(
        trial.workers >= 2 for trial in report.trials if trial.how in ("takeover", "worker")
    )
    assert some("answer", lambda x: isinstance(x, e.Planned) and len(x.actions) == 2 and x.actions[0] == x.actions[1])
    assert some("slow", lambda x: isinstance(x, e.Planned) and x.latency_ms >= 60_000)
    assert some("timeout", lambda x: isinstance(x, e.ModelCallFailed) and x.kind == "timeout")
    assert some("no_plan", lambda x: isinstance(x, e.PlanRejected) and x.raw == '{"tool": "')
    assert some("blank", lambda x: isinstance(x, e.PlanRejected) and "blank" in x.problem)
    assert some("unknown_tool", lambda x: isinstance(x, e.ToolFinished) and x.error and x.error.code == "tool_not_found")
    assert some("cut_arguments", lambda x: isinstance(x, e.ToolFinished) and x.error and x.error.code == "schema_validation_failed")
    marks = (e.RunResumed, e.ToolInDoubt, e.PlanRejected, e.ModelCallFailed)
    assert not any(isinstance(event, marks) for event in events_of(report.undisturbed))


def test_a_takeover_lets_the_slower_worker_lose() -> None:
    """The worker whose claim was lost finds that another one appended first; the log shows the late outcome of what it did."""
    bank = Bank()
    report = simulated(bank, charging(bank, reconcile=honest(bank)), faults=["store_conflict"])
    late = [x for t in report.trials for x in events_of(t) if isinstance(x, e.ToolReconciled) and x.source == "late_worker"]
    assert len(late) == 1
    assert all(trial.workers == 3 for trial in report.trials)


def test_a_second_worker_is_refused() -> None:
    """While a call runs, whoever else takes the run up is told that it is busy, and does nothing."""
    bank = Bank()
    report = simulated(bank, charging(bank), faults=["duplicate"])
    (worker,) = [trial for trial in report.trials if trial.how == "worker"]
    assert worker.effects == {"charge(amount=5)": 1}
    assert not any(isinstance(event, e.RunResumed) for event in events_of(worker))


def test_an_unknown_fault_gives_the_nearest_name() -> None:
    """A misspelt fault is refused before anything runs."""
    bank = Bank()
    with pytest.raises(UnknownName, match="unknown fault 'tool_timout'; did you mean 'tool_timeout'"):
        simulated(bank, sound(bank), faults=["crash", "tool_timout"])
    assert bank.charges == []


def test_only_the_wanted_faults_are_injected_and_no_more_than_asked_for() -> None:
    """`faults` and `at_most` are kept, and what is left out is said."""
    bank = Bank()
    report = simulated(bank, sound(bank), faults=["slow_model", "crash"], at_most=3)
    assert [trial.fault for trial in report.trials] == ["crash"] * 3 + ["slow_model"] * 3
    assert "crash: 3 of 16 fault points were tried (at_most)" in report.notes
    with pytest.raises(ConfigError, match="at_most is 0"):
        simulated(bank, sound(bank), at_most=0)


def test_what_does_not_apply_is_left_out_and_said() -> None:
    """Rules ask no model, and a tool without a limit is never out of time."""

    @tool(name="charge", side_effect="write", idempotent=True, timeout_s=None)
    async def charge(amount: int) -> str:
        """Charge."""
        return "done"

    rules = [{"name": "charge", "call": {"tool": "charge", "args": {"amount": 5}}}, {"name": "end", "answer": "paid"}]
    agent = Agent(name="ruled", tools=[charge], rules=rules)
    report = asyncio.run(simulate(lambda store: Engine(store=store), agent, "Pay"))
    report.raise_for_problems()
    assert {trial.fault for trial in report.trials} == {"crash", "duplicate", "store_conflict"}
    assert any(note.startswith("slow_model: left out, the agent plans by rules") for note in report.notes)
    assert any("charge left out: timeout_s is None" in note for note in report.notes)


def test_a_slow_model_meets_the_bounds_of_time() -> None:
    """A run whose time is over stops; that is its bound and no problem."""
    from detent import Budget

    bank = Bank()
    report = simulated(bank, sound(bank), faults=["slow_model"], slow_s=100.0, budget=Budget(max_running_s=50))
    report.raise_for_problems()
    assert [(trial.status, trial.reason) for trial in report.trials[:2]] == [("stopped", "budget_exhausted")] * 2
    assert report.trials[2].same_answer, "an answer that is there counts"
    assert all("a time limit ended it" in finding.why for finding in report.trials[1].findings)


# What a run waits for -----------------------------------------------------------------------------------------------------------


@in_check
def test_approvals_replies_and_schedules_are_given() -> None:
    """A run that waits is given what it waits for, at each fault point, without real time."""
    from detent import Schedule

    bank = Bank()

    @tool(name="charge", side_effect="destructive")
    async def charge(amount: int, context: ToolContext) -> str:
        """Charge; asks first."""
        return bank.charge(amount, context.idempotency_key)

    def waits(view: View) -> Any:
        users = [item.text for item in view.transcript if item.kind == "user"]
        if len(users) == 1:
            return AskUser(question="How much?")
        if view.iteration == 2:
            return Schedule(delay_s=86_400)
        if not any(item.ok for item in view.results):
            return ToolCall(tool="charge", args={"amount": 5})
        return FinalAnswer(content=f"paid {users[-1]}")

    report = simulated(bank, charge, waits, reply=lambda question: f"5 ({question})", faults=["crash", "duplicate", "store_conflict"])
    report.raise_for_problems()
    assert report.undisturbed.output == "paid 5 (How much?)"
    assert any(isinstance(event, e.ApprovalResolved) for event in events_of(report.undisturbed))
    denied = simulated(
        bank, charge, lambda view: waits(view) if not view.results else FinalAnswer(content="no"), reply="5", approve=False, faults=[]
    )
    assert (denied.undisturbed.output, denied.undisturbed.effects) == ("no", {})


def test_an_agent_that_does_not_finish_undisturbed_is_refused() -> None:
    """What the run waits for is said, and how to give it."""
    bank = Bank()
    with pytest.raises(
        ConfigError, match=r"does not finish even undisturbed: it asks its user 'How much\?'; give simulate\(reply=\.\.\.\)"
    ):
        simulated(bank, sound(bank), lambda view: AskUser(question="How much?"))


def test_another_store_than_the_given_one_is_refused() -> None:
    """Faults could not be injected there."""
    bank = Bank()
    with pytest.raises(ConfigError, match="make_engine returned an engine on another store"):
        simulated(bank, sound(bank), make_engine=lambda store: Engine(store="ram:", planner=Function(pays)))
    with pytest.raises(ConfigError, match="make_engine returned NoneType, not an Engine"):
        simulated(bank, sound(bank), make_engine=lambda store: None)


def test_options_of_a_run_are_handed_on() -> None:
    """Variables and budgets are those that are given; what a simulation decides itself is refused."""
    bank = Bank()
    report = simulated(bank, sound(bank), lambda view: FinalAnswer(content=view.variables["x"]), variables={"x": 7}, faults=["crash"])
    assert report.undisturbed.output == 7
    report.raise_for_problems()
    with pytest.raises(ConfigError, match="simulate does not take run_id"):
        simulated(bank, sound(bank), run_id="mine")


def test_a_run_that_hangs_is_given_up() -> None:
    """A tool that never answers is a run that does not finish, after the real time that one trial may take."""
    hangs = [False]

    @tool(name="charge", side_effect="write", idempotent=True, timeout_s=None)
    async def charge(amount: int) -> str:
        """Charge, or wait for ever."""
        if hangs[0]:
            await asyncio.Event().wait()
        return "done"

    engines = [0]

    def make_engine(store: Any) -> Engine:
        engines[0] += 1
        hangs[0] = engines[0] > 2
        return Engine(store=store, planner=Function(pays), bounds=Bounds(drain_s=0))  # else closing waits for the payment

    report = simulated(Bank(), charge, make_engine=make_engine, faults=["slow_model"], at_most=1, patience_s=0.2)
    assert "still running after 0.2 s of real time" in report.of("stuck")[0].what


def test_retries_take_no_real_time() -> None:
    """The pause before a retry moves the clock of the run alone."""
    broken = FakeTool("charge", NotExecuted("busy"), "receipt 1", args={"amount": int}, retries=4)
    agent = Agent(name="clerk", tools=[price, broken])
    report = asyncio.run(
        simulate(lambda store: Engine(store=store, planner=Function(pays)), agent, "Pay", faults=["slow_model"], at_most=1)
    )
    started = [record.envelope.at for record in report.undisturbed.records if isinstance(record.event, e.ToolStarted)]
    assert (started[1] - started[0]).total_seconds() == 0.2


def test_a_scripted_planner_goes_on_at_its_place() -> None:
    """A script begins anew with each worker, but a simulated run goes on where its log ends."""
    bank = Bank()
    agent = Agent(name="clerk", tools=[price, charging(bank, reconcile=honest(bank))])
    script = [ToolCall(tool="price", args={"item": "x"}), ToolCall(tool="charge", args={"amount": 5}), FinalAnswer(content="paid")]
    report = asyncio.run(
        simulate(
            lambda store: Engine(store=store, planner=ScriptedPlanner(script)),
            agent,
            "Pay",
            faults=["crash", "store_conflict"],
            reset=bank.reset,
        )
    )
    report.raise_for_problems()


@in_check
def test_the_effects_of_fake_tools_need_not_be_told() -> None:
    """A fake tool knows what it did: a planted bug is found without `effects` or `reset`."""
    for bug, found in {"": set(), "forgets_key": {"repeated"}}.items():
        charge = FakeTool("charge", "done", args={"amount": int}, idempotent=True, retries=1, bug=bug)  # type: ignore[arg-type]
        agent = Agent(name="clerk", tools=[price, charge], guards=["side_effect_once"])
        report = asyncio.run(simulate(lambda store: Engine(store=store, planner=Function(pays)), agent, "Pay"))
        assert kinds(report) == found
    for bug, found in {"says_not_happened": {"repeated"}, "says_happened": {"lost"}}.items():
        charge = FakeTool("charge", "done", args={"amount": int}, bug=bug)  # type: ignore[arg-type]
        agent = Agent(name="clerk", tools=[price, charge])
        report = asyncio.run(simulate(lambda store: Engine(store=store, planner=Function(pays)), agent, "Pay", faults=["crash"]))
        assert kinds(report) == found, report


def test_what_the_world_holds_may_be_a_state() -> None:
    """`effects` may show what there is instead of what was done: a file's content that is another one is found, and which call did it."""
    notes = {"a": ""}

    @tool(side_effect="write", idempotent=True)
    async def note(text: str) -> str:
        """Append, and say that it does no harm twice."""
        notes["a"] += text
        return "done"

    def writes(view: View) -> Any:
        return FinalAnswer(content="done") if view.results else ToolCall(tool="note", args={"text": "x"})

    agent = Agent(name="writer", tools=[note])

    async def main(**options: Any) -> Report:
        return await simulate(
            lambda store: Engine(store=store, planner=Function(writes)),
            agent,
            "Write",
            reset=lambda: notes.update(a=""),
            effects=lambda: [notes],
            **options,
        )

    report = asyncio.run(main(faults=["crash", "tool_timeout"]))
    assert kinds(report) == {"repeated", "lost"}
    assert report.repeated[0].what == 'the world has {"a":"xx"} instead of {"a":"x"}, and the run completed with "done"'
    assert (report.repeated[0].tool, report.repeated[0].call_id) == ("note", "main.1.0")
    assert [(trial.fault, trial.how) for trial in report.trials if any(f.kind == "lost" for f in trial.problems)] == [
        ("tool_timeout", "before")
    ]


def test_a_planner_that_was_told_that_nobody_knows_and_asks_again_is_found() -> None:
    """With on_unknown="tell" nobody is asked, and another call of the planner has another key."""
    bank = Bank()
    report = simulated(bank, charging(bank), agent={"on_unknown": "tell"}, faults=["crash"])
    assert kinds(report) == {"repeated"}
    assert "told that the first may or may not have happened, and called again" in report.repeated[0].why


def test_an_error_that_says_nothing_leaves_the_run_waiting() -> None:
    """Where the ledger cannot know either, the run is stuck and says how to help it."""
    bank, engines = Bank(), [0]

    @tool(name="charge", side_effect="write")
    async def charge(amount: int) -> str:
        """Charge, or break."""
        if engines[0] > 2:
            raise OSError("the line went dead")
        return "receipt"

    def make_engine(store: Any) -> Engine:
        engines[0] += 1
        return Engine(store=store, planner=Function(pays))

    report = simulated(bank, charge, make_engine=make_engine, faults=["slow_model"], at_most=1)
    assert "call main.2.0 of charge is in doubt, and its outcome cannot be known" in report.of("stuck")[0].what
    assert "give effects=" in report.of("stuck")[0].next


def test_an_error_after_the_effect_is_settled_by_looking_at_the_world() -> None:
    """With `effects` it is known whether a call that broke had its effect: nothing is done twice, and no result is no other answer."""
    bank, engines = Bank(), [0]

    @tool(name="charge", side_effect="write")
    async def charge(amount: int) -> str:
        """Charge, and break after it."""
        receipt = bank.charge(amount)
        if engines[0] > 2:
            raise OSError("the line went dead")
        return receipt

    def make_engine(store: Any) -> Engine:
        engines[0] += 1
        return Engine(store=store, planner=Function(pays))

    report = simulated(bank, charge, make_engine=make_engine, faults=["slow_model"], at_most=1, effects=lambda: bank.charges)
    report.raise_for_problems()
    assert "a person said: it had happened" in report.in_doubt[0].what
    assert report.trials[0].effects == {"5": 1}


BY_DEFAULT = ("reactive", "plan-execute", "tree-of-thought")
"""One pass, several, and passes side by side: `test_strategies` lets every strategy crash."""


@thinned
@pytest.mark.parametrize(
    "scenario", [pytest.param(s, id=name, marks=() if name in BY_DEFAULT else in_check) for name, s in SCENARIOS.items()]
)
def test_every_strategy_survives_what_is_simulated(scenario: Scenario) -> None:
    """No effect is repeated by any strategy of the house, none is lost unsaid, and every answer is that of the undisturbed run."""
    world = World()

    def reset() -> None:
        for kept in (world.sent, world.keys, world.looked):
            kept.clear()

    agent = scenario_agent(scenario, guards=["side_effect_once"])
    report = asyncio.run(
        simulate(
            lambda store: engine_of(scenario, world=world, store=store),
            agent,
            scenario.goal,
            faults=["crash", "store_conflict", "duplicate", "tool_timeout", "slow_model"],
            at_most=times(max(1, 8 // scenario.costly)),
            effects=lambda: world.sent,
            reset=reset,
        )
    )
    unheeded = {(trial.fault, found.kind) for trial in report.trials for found in trial.problems}
    assert unheeded <= {("tool_timeout", "lost")}, (
        report
    )  # these planners answer the same, also when they are told that a call did not happen
    assert report.undisturbed.output == scenario.output
    assert all(trial.injected for trial in report.trials)


# The report ---------------------------------------------------------------------------------------------------------------------


def test_the_report_says_what_where_why_and_what_next() -> None:
    """One line a fault point, then each problem with all its places; a test that fails shows it."""
    bank = Bank()
    report = simulated(bank, charging(bank, idempotent=True), faults=["crash", "store_conflict"])
    text = str(report)
    lines = text.splitlines()
    assert lines[0] == "agent 'clerk', goal 'Pay for the bolts': 22 fault points, 2 problems, no call in doubt"
    assert lines[1] == 'undisturbed: completed (final_answer): "paid, receipt 1"; effects: charge(amount=5)'
    assert len([line for line in lines if line.startswith(("  crash ", "  store_conflict "))]) == len(report.trials) == 22
    line = next(line for line in lines if "before write 5 of 8" in line)
    assert line.endswith('record 11: ToolFinished charge main.2.0): completed (final_answer): "paid, receipt 2"; REPEATED EFFECT')
    problem = text[text.index("Problems:") :]
    for part in (
        "1. REPEATED EFFECT: charge(amount=5) happened twice",
        "where: crash before write 5 of 8",
        "; store_conflict taken over before",
    ):
        assert part in " ".join(problem.split())
    assert f"which: call main.2.0, key {report.repeated[0].key}, record 13" in problem
    assert "why:   worker 1 made call main.2.0" in problem and "next:  let charge check context.idempotency_key" in problem
    assert max(map(len, problem.splitlines())) <= 120
    with pytest.raises(AssertionError) as failed:
        report.raise_for_problems()
    assert text in str(failed.value)
    assert report.problems == report.repeated and not report.lost


def test_a_warning_is_said_once_and_not_once_a_trial(caplog: pytest.LogCaptureFixture) -> None:
    """What Detent logs in every trial is one line; afterwards it logs as before."""
    agent = Agent(name="clerk", tools=[])
    for price_warnings in (1, 0):  # that one is said once a process
        asyncio.run(simulate(lambda store: Engine(store=store, planner=FakeModel(["done"])), agent, "Say so", faults=["slow_model"]))
        assert len([record for record in caplog.records if "no price for model" in record.getMessage()]) == price_warnings
        assert len(caplog.records) == price_warnings
        caplog.clear()
    logging.getLogger("detent").warning("said")
    assert [record.getMessage() for record in caplog.records] == ["said"]
