"""The commands submit, which leaves a new run to a worker, and worker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from functools import partial
from types import TracebackType
from typing import Annotated, Any

import typer

from detent.cli import options as o
from detent.cli.invocation import Invocation
from detent.cli.logged import name_in, own_agents
from detent.cli.orders import ForWhom, Order
from detent.cli.output import SUSPENDED, USAGE, WAITING, code_of_status
from detent.cli.standing import document
from detent.cli.values import duration
from detent.cli.worker_lines import WorkerLines
from detent.config.agents import Agent
from detent.config.groups import Models
from detent.config.loading import RECORDED
from detent.core.errors import ConfigError
from detent.engine import Engine
from detent.expressions.display import shortened
from detent.ports import Observer
from detent.running.results import Result, result_of
from detent.running.working import Hand, Worked
from detent.workers.health import HealthListener, place_of
from detent.workers.taking import Patience


def submit(
    goal: o.Goal = None,
    *,
    priority: Annotated[
        int, typer.Option("--priority", metavar="N", help="Order among the waiting runs of one key: lower values first. Default: 0.")
    ] = 0,
    fair_key: Annotated[
        str, typer.Option("--fair-key", metavar="NAME", help="Runs of different keys take turns. Default: the tenant's name.")
    ] = "",
    weight: Annotated[int, typer.Option("--weight", metavar="N", help="How many runs of the key a turn has. Default: 1.", min=1)] = 1,
    dedupe_key: Annotated[
        str, typer.Option("--dedupe-key", metavar="NAME", help="What this submission has in common with others, for --on-same.")
    ] = "",
    on_same: Annotated[
        str,
        typer.Option(
            "--on-same",
            metavar="RULE",
            help="If unfinished runs have the same --dedupe-key: queue (default, start this one too), skip (start nothing), replace (cancel them), "
            "latest (cancel those that have not begun).",
        ),
    ] = "queue",
    debounce: Annotated[
        str | None,
        typer.Option(
            "--debounce",
            metavar="DURATION",
            help="Begin after this time, unless another submission with the same --dedupe-key takes its place.",
        ),
    ] = None,
    order: Order,
) -> int:
    """Record a new run for a worker (`detent worker`) and print its id.

    The agent is found as in `detent run`. Keys and the workspace are needed where the worker runs, not here.
    """
    invocation = order.invocation()
    arguments = order.arguments(invocation, goal)
    arguments |= {"priority": priority, "fair_key": fair_key, "weight": weight, "dedupe_key": dedupe_key, "on_same": on_same}
    arguments["debounce"] = None if debounce is None else duration(debounce, "--debounce")
    if invocation.engine.store.url == "ram:":
        raise ConfigError("a store in memory ends with this command, so no worker can see the run; give --store URL")

    async def work(engine: Engine) -> Result:
        return result_of(await engine.load(await engine.submit(**arguments)))

    result = invocation.drive(work)
    invocation.output.document(document(result, invocation))
    invocation.output.show(result.run_id)
    if result.state.seq > 1:
        invocation.output.say(f"the run exists already: {result.status}")
    else:
        invocation.output.say("submitted; a worker will pick it up, `detent tail` follows it")
        invocation.output.say(f"  next: {invocation.command('worker')}")
    return 0


def worker(
    *,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency", metavar="N", help="How many runs to advance at once. Default: 4, or the value in detent.toml.", min=1
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host", metavar="NAME", help="Who passes runs to this worker: in_process or restate. Default: the value in detent.toml."
        ),
    ] = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Exit when no run can be advanced now.")] = False,
    waiting_only: Annotated[
        bool, typer.Option("--waiting-only", help="Advance only waiting runs whose time has come or whose answer has arrived.")
    ] = False,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only runs of this tenant.")] = None,
    drain: Annotated[
        str | None,
        typer.Option(
            "--drain",
            metavar="DURATION",
            help="When stopped, give calls with side effects so long to finish: 90, 1m30s. Default: 25, or the value in detent.toml.",
        ),
    ] = None,
    health: Annotated[
        str | None,
        typer.Option(
            "--health",
            metavar="ADDRESS",
            help="Serve /healthz, /readyz and /metrics over HTTP at ADDRESS: 127.0.0.1:9464, or a port of loopback. Default: not at all.",
        ),
    ] = None,
    setup: o.Setup,
) -> int:
    """Advance submitted runs, runs whose worker died or stopped, and waiting runs that can continue, until Ctrl-C or SIGTERM.

    With --host restate (or host = "restate" in the table worker of detent.toml), a Restate server says when which worker advances a run. This worker
    registers itself there.

    Tools, MCP servers and skills come from the configuration here and the agent files that it names, never from a run's log.

    Any number of workers may share one store. If a run cannot be advanced, the worker tries again after a pause and gives up in the end.
    `detent list --status waiting_for_operator` lists given-up runs; `detent reopen RUN` continues one. `detent top` shows all workers.

    When stopped, a worker starts no more runs, lets calls with side effects finish (--drain), suspends its runs and exits with 0. A second
    signal cuts those calls off. With --until-idle it exits with the worst exit code of its runs: 0 if all completed or wait.
    """
    drain_s = None if drain is None else duration(drain, "--drain")
    if health is not None:
        place_of(health)  # refused before a store is opened
    invocation = Invocation(setup, changes=True, patient=True, drain_s=drain_s, worker_host=host)
    if invocation.engine.store.url == "ram:":
        raise ConfigError("a store in memory starts empty with this command, and no other process sees it; give --store URL")
    for file in own_agents(invocation.config):
        invocation.trust.need_agent(file)
    invocation.engine.runtime.find_agent = partial(agent_called, invocation)
    invocation.creates, whose = not until_idle, ForWhom(tenant=tenant).host()
    passes = invocation.engine.worker_host
    if concurrency is not None and isinstance(passes, Patience):
        passes.concurrency = concurrency
    shown = invocation.config.output.progress is not False

    def again(lent: dict[str, Any]) -> Invocation:
        return Invocation(setup, changes=True, patient=True, asks=False, lent=lent, drain_s=drain_s, worker_host=host)

    with WorkerLines(invocation, shown=shown) as lines:

        async def work(engine: Engine) -> Worked:
            async with contextlib.AsyncExitStack() as stack:
                listener = await stack.enter_async_context(HealthListener(health, engine.health)) if health is not None else None
                lines.begin(getattr(passes, "concurrency", 1), health=listener.url if listener else "")
                crew = await stack.enter_async_context(Crew(invocation, again, lines))
                return await engine.work(until_idle=until_idle, waiting_only=waiting_only, host=whose, hand_for=crew.hand)

        worked = invocation.drive(work, missing=Worked())
    invocation.output.document(worked)
    _summarise(worked, invocation, lines.in_progress.difference(worked.failed, worked.left, worked.dead_letters))
    if invocation.stops.by:
        return SUSPENDED if until_idle else 0
    return _code(worked)


def agent_called(invocation: Invocation, name: str) -> Agent | None:
    """Return the agent of this name that the configuration, or the working directory, has; None if there is none. Raise `ConfigError`."""
    file = next((file for file in own_agents(invocation.config) if name_in(file) == name), None)
    return None if file is None else invocation.agent(named=str(file))


class Crew:
    """The engines of one worker. Runs share an engine if they need the same tools of the same workspace."""

    def __init__(self, first: Invocation, again: Callable[[dict[str, Any]], Invocation], observer: Observer) -> None:
        self._first, self._again, self._observer = first, again, observer
        self._invocations: dict[str, Invocation] = {}
        self._open, self._making = contextlib.AsyncExitStack(), asyncio.Lock()

    async def __aenter__(self) -> Crew:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._open.aclose()

    async def hand(self, run_id: str) -> Hand:
        """Return the engine's hand for the run, with its tools from the configuration here; raise `ConfigError` if some are missing."""
        state = await self._first.engine.load(run_id)
        await self._first.name(run_id)
        key = repr([*(state.agent.meta.get(name) for name in RECORDED), state.agent.subagents])
        async with self._making:
            invocation = self._invocations.get(key) or await self._make(key)
        invocation.equip(state, own=True)
        return invocation.engine.hand([self._observer])

    async def _make(self, key: str) -> Invocation:
        parts = self._first.engine.hand().parts
        models = Models(limits=parts.traffic.limits, retries=parts.traffic.retries, titles=parts.titles) if parts.traffic else Models()
        invocation = self._again({"models": models, "scheduler": parts.scheduler})
        await self._open.enter_async_context(invocation.engine)
        self._first.stops.engines.append(invocation.engine)
        self._invocations[key] = invocation
        return invocation


def _code(worked: Worked) -> int:
    """Return the worst exit code of the runs."""
    codes = [code_of_status(status) for status in worked.came_to if not status.startswith("waiting")]
    codes += [WAITING] if worked.dead_letters else []
    codes += [USAGE] if worked.left else []
    codes += [SUSPENDED] if worked.failed else []
    return max(codes, default=0)


def _summarise(worked: Worked, invocation: Invocation, suspended: Collection[str]) -> None:
    """Print what was done, and what is left to do."""
    say = invocation.output.say
    counts = [f"{count} {status.replace('_', ' ')}" for status, count in sorted(worked.came_to.items())]
    if invocation.stops.by and suspended:
        counts.append(f"{len(suspended)} suspended, left to the next worker")
    done = ", ".join(counts) or ("no runs" if invocation.there else f"there is no store yet at {invocation.engine.store.url}")
    say(f"the worker {f'was stopped ({invocation.stops.by})' if invocation.stops.by else 'has nothing left to do'}: {done}")
    for run_id, why in worked.dead_letters.items():
        say(f"  given up: run {invocation.short(run_id)}: {shortened(why, None)}", "red")
        say(f"  next: {invocation.command('reopen', run_id)}")
    for run_id, why in worked.failed.items():
        say(f"  failed, will be tried again: run {invocation.short(run_id)}: {shortened(why, None)}", "yellow")
    for run_id, why in worked.left.items():
        say(f"  left to other workers: run {invocation.short(run_id)}: {shortened(why, None)}", "yellow")
