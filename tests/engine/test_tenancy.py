"""Tenancy: a call with a host sees and touches that tenant's runs only, and takes a run on only as who started it (rows K8, K138, K139)."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from amounts import crossed, thinned
from detent import Agent, AskUser, Budget, Engine, Host, Stop
from detent.core.errors import NotAllowedNow, RunContextMismatch, RunNotFound, UnknownName
from detent.ports import RunQuery, Signal
from detent.running.working import Worked
from kernel.runs import END, Desk, Script, call, engine_for, run_async
from running.waiting import due, resumed

pytestmark = thinned

OWNER = Host(tenant="acme", workspace="lab", principal="ann")
STRANGERS = (Host(tenant="other", workspace="lab", principal="ann"), Host(workspace="lab", principal="ann"), Host(tenant="Acme"), Host())
GOAL = "a goal that nobody else may read"
AGENT = Agent(name="worker", tools=["wipe"])
KEPT = "r@acme"
"""Under which id the store has the run that its tenant calls "r"."""

CALLS: dict[str, Callable[[Engine, Host], Any]] = {
    "run": lambda n, h: n.run(AGENT, GOAL, run_id="r", host=h),
    "submit": lambda n, h: n.submit(AGENT, GOAL, run_id="r", host=h),
    "step": lambda n, h: n.step(run_id="r", host=h),
    "stream": lambda n, h: collected(n.stream(AGENT, GOAL, run_id="r", host=h)),
    "resume": lambda n, h: n.resume("r", host=h),
    "reopen": lambda n, h: n.reopen("r", host=h, budget=Budget(max_iterations=60)),
    "approvals": lambda n, h: n.approvals(run_id="r", host=h),
    "doubts": lambda n, h: n.doubts(run_id="r", host=h),
    "follow": lambda n, h: anext(n.follow("r", host=h)),
    "approve": lambda n, h: n.approve("r", "main.1.0", by="b", host=h),
    "deny": lambda n, h: n.deny("r", "main.1.0", by="b", host=h),
    "reply": lambda n, h: n.reply("r", "yes", host=h),
    "reconcile": lambda n, h: n.reconcile("r", "main.1.0", happened=True, host=h),
    "cancel": lambda n, h: n.cancel("r", host=h),
    "signal": lambda n, h: n.signal("r", Signal(id="s", kind="cancel", by="ann"), host=h),
    "decided": lambda n, h: n.decided("r", "s", host=h),
    "load": lambda n, h: n.load("r", host=h),
    "records": lambda n, h: n.records("r", host=h),
    "artifact": lambda n, h: n.artifact("r", "key", host=h),
    "replay": lambda n, h: n.replay("r", host=h),
    "verify": lambda n, h: n.verify("r", host=h),
    "erase": lambda n, h: n.erase("r", host=h),
    "delete": lambda n, h: n.delete("r", host=h),
    "fork": lambda n, h: n.fork("r", at=2, child_id="f", host=h),
    "diff": lambda n, h: n.diff("r", "r", host=h),
    "bisect": lambda n, h: n.bisect("r", "r", host=h),
    "check_upgrade": lambda n, h: n.check_upgrade("r", host=h),
    "plans": lambda n, h: n.plans("r", host=h),
    "tree": lambda n, h: n.tree("r", host=h),
    "waits": lambda n, h: n.waits("r", host=h),
    "why": lambda n, h: n.why("r", host=h),
    "held": lambda n, h: n.held("r", host=h),
}
"""Every public method that takes the id of a run, called with a host."""

ABOUT_MANY = {"list_runs", "approvals", "doubts", "backtest", "work", "session", "sessions", "versions"}
"""Public methods that look at runs without naming one; each has a test below, `doubts` in `test_following.py`, `session` and `sessions` in
`tests/sessions`, `versions` in `tests/running`.

`approvals` and `doubts` do both."""

ABOUT_NONE = {
    *("from_config", "close", "suspend", "run_sync", "call_sync", "gc", "retain", "hand", "wrap", "embed", "transcribe", "roll_out"),
    *("pause", "unpause", "holds", "fleet", "health"),
}
"""What concerns this engine or the whole store, and is the operator's; `run_sync` is `run`."""

ADVANCING = ("run", "submit", "step", "stream", "resume", "reopen", "fork")
"""What takes a run on, and so must come from who started it; the others are answers, and may be another person's of the tenant."""

STARTING = ("run", "submit", "stream")
"""What begins a run of one's own where one has none with this id."""

SITUATIONS: dict[str, list[Any]] = {
    "waiting for approval": [call("wipe", n=1), END],
    "waiting for an answer": [AskUser(question="may I?"), END],
    "completed": [END],
    "stopped": [Stop(reason="enough")],
    "running": [],
}


async def collected(items: Any) -> list[Any]:
    return [item async for item in items]


async def started(situation: str, desk: Desk) -> Engine:
    """Return an engine whose store holds the run "r" of the owner, and one of another tenant."""
    engine = engine_for(Script([*SITUATIONS[situation], END, END, END]), *desk.all)
    await engine.run(AGENT, GOAL, run_id="r", host=OWNER, **({"turns": 0} if situation == "running" else {}))
    return engine


async def stored(engine: Engine) -> Any:
    """Return all that the store has of the run."""
    store = engine.store
    blobs = {key: await store.get_blob(KEPT, key) for key in await store.list_blobs(KEPT)}
    return await store.read(KEPT), await store.signals([KEPT]), blobs, await store.head(KEPT), await store.get_snapshot(KEPT)


def public(kind: type) -> dict[str, Any]:
    """Return the public methods of a class."""
    return {name: member for name, member in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_every_public_method_is_placed_in_this_file() -> None:
    """A new method that takes a run's id, or looks at runs, must be added here, and so be tested; and it must take a host."""
    methods = public(Engine)
    assert set(methods) == {*CALLS, *ABOUT_MANY & set(methods), *ABOUT_NONE}, "add the new method to CALLS, ABOUT_MANY or ABOUT_NONE"
    for name, method in methods.items():
        parameters = inspect.signature(method).parameters
        if "run_id" in parameters:
            assert name in CALLS, f"{name} takes a run's id; add it to CALLS"
        if name in {*CALLS, *ABOUT_MANY}:
            assert "host" in parameters or "options" in parameters, f"{name} takes no host"


@crossed
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("name", CALLS)
def test_another_tenant_neither_sees_nor_touches_a_run(name: str, situation: str) -> None:
    """As if it were not there: refused, or a run of its own is begun; nothing of the other is said, and the store holds of it what it held."""

    async def main() -> None:
        desk = Desk()
        engine = await started(situation, desk)
        before, ran = await stored(engine), list(desk.ran)
        for stranger in STRANGERS:
            if name in STARTING:
                await CALLS[name](engine, stranger)
                assert await engine.load("r", host=stranger) != await engine.load("r", host=OWNER)
                await engine.delete("r", host=stranger)
            else:
                with pytest.raises(RunNotFound) as refused:
                    await CALLS[name](engine, stranger)
                said = f"{refused.value} {vars(refused.value)}"
                assert not any(word in said for word in ("acme", "worker", "nobody else", "main.1")), said
            assert await stored(engine) == before and desk.ran == ran
        await engine.close()

    run_async(main)


@pytest.mark.parametrize("name", ADVANCING)
@pytest.mark.parametrize(
    ("host", "fields"),
    [
        (Host(tenant="acme", workspace="lab", principal="bob"), ["host.principal"]),
        (Host(tenant="acme", workspace="other", principal="ann"), ["host.workspace"]),
        (Host(tenant="acme"), ["host.workspace", "host.principal"]),
    ],
)
def test_a_run_is_taken_on_only_as_who_started_it(name: str, host: Host, fields: list[str]) -> None:
    """Within the tenant the differences are named, with both values; nothing is recorded. As the owner it goes."""

    async def main() -> None:
        engine = await started("stopped", Desk())
        before = await stored(engine)
        with pytest.raises(RunContextMismatch) as refused:
            await CALLS[name](engine, host)
        assert [wrong["field"] for wrong in refused.value.mismatches] == fields
        assert {wrong["expected"] for wrong in refused.value.mismatches} <= {"lab", "ann"}
        assert await stored(engine) == before
        await CALLS[name](engine, OWNER)
        await engine.close()

    run_async(main)


def test_another_agent_or_goal_is_refused_with_what_differs() -> None:
    """Attaching with the id of a run that did something else."""

    async def main() -> None:
        engine = await started("completed", Desk())
        for agent, goal, field in ((Agent(name="other"), GOAL, "agent"), (Agent(name="worker"), GOAL, "agent"), (AGENT, "another", "goal")):
            with pytest.raises(RunContextMismatch) as refused:
                await engine.run(agent, goal, run_id="r", host=OWNER)
            assert [wrong["field"] for wrong in refused.value.mismatches] == [field]
        await engine.close()

    run_async(main)


@pytest.mark.parametrize("name", sorted({*CALLS} - {*ADVANCING}))
def test_another_person_of_the_tenant_may_look_and_answer(name: str) -> None:
    """Who approves is somebody else than who asked; what is refused is refused for another reason than the host."""

    async def main() -> None:
        engine = await started("waiting for approval", Desk())
        with contextlib.suppress(NotAllowedNow, UnknownName):
            await CALLS[name](engine, Host(tenant="acme", principal="bob"))
        await engine.close()

    run_async(main)


@pytest.mark.parametrize("host", [Host(tenant="other"), Host()])
def test_looking_at_many_runs_shows_a_host_its_own(host: Host) -> None:
    """Lists, open approvals, backtests; also where a query names the other tenant."""

    async def main() -> None:
        engine = await started("waiting for approval", Desk())
        assert await engine.list_runs(host=host) == []
        assert await engine.list_runs(RunQuery(tenant="acme"), host=host) == []
        assert await engine.list_runs(tenant="acme", host=host) == []
        assert await engine.approvals(host=host) == []
        assert [head.run_id for head in await engine.list_runs(host=OWNER)] == [KEPT]
        assert [request.run_id for request in await engine.approvals(host=OWNER)] == [KEPT]
        await engine.signal("r", Signal(id="s", kind="cancel", by="ann"), host=OWNER)
        before = await stored(engine)
        assert (await due(engine, host=host), await resumed(engine, host=host)) == ([], [])
        assert await engine.work(until_idle=True, host=host) == Worked()
        assert await stored(engine) == before
        assert await due(engine, host=OWNER) == [KEPT]
        assert (await engine.backtest(host=host)).runs == 0
        assert (await engine.backtest(host=OWNER)).runs == 1
        assert (await engine.work(until_idle=True, host=OWNER)).came_to == {"stopped": 1}
        await engine.close()

    run_async(main)


def test_calls_without_a_host_are_the_operators() -> None:
    """They see every tenant, and may take any run on."""

    async def main() -> None:
        engine = await started("waiting for approval", Desk())
        assert [head.tenant for head in await engine.list_runs()] == ["acme"]
        assert (await engine.resume(KEPT)).status == "waiting_for_approval"
        assert (await engine.cancel(KEPT)).status == "stopped"
        await engine.close()

    run_async(main)
