"""A fleet on a real Restate server: engines that only submit, workers here or in processes of their own, and what their tool did.

`python tests/workers/fleet.py STORE DIRECTORY OPTIONS MACHINE` is one worker; OPTIONS are those of its host, as JSON, and
`lease_s` and `orphan_s` of its store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from datetime import datetime
from pathlib import Path
from typing import Any

from detent import Agent, AskUser, Engine, FinalAnswer, Plan, ToolCall, ToolContext, View, tool
from detent.config.groups import Bounds
from detent.core.actions import Schedule
from detent.core.events import RunResumed
from detent.ports import Clock, EventStore, RunQuery, WorkerHost
from detent.stores import open_store
from detent.stores.postgres import session
from detent.stores.postgres.store import PostgresStore
from detent.tools import Happened, NotHappened
from detent.workers import InProcessHost
from detent.workers.restate import RestateHost

STEP_S = 0.02
"""How long a call of the tool takes."""


class Clerk:
    """Plans by the goal: `put N` puts N things down, `ask` asks first, `later S` waits first, `share N` has N children that `meet`."""

    def __init__(self, directory: Path) -> None:
        self._broken = directory / "broken"

    def begin_run(self, run_id: str) -> None:
        """Fail where a file says so."""
        if self._broken.exists():
            raise RuntimeError("the planner is out of order")

    async def plan(self, view: View) -> Plan:
        """See the class."""
        what, _, rest = view.goal.partition(" ")
        if what == "ask" and view.iteration == 1:
            return Plan(actions=(AskUser(question="Really?"),))
        if what == "later" and view.iteration == 1:
            return Plan(actions=(Schedule(delay_s=float(rest)),))
        if what == "share" and not view.results:
            return Plan(actions=tuple(ToolCall(tool="agent_clerk", args={"goal": f"meet {n}"}) for n in range(int(rest))))
        if what == "put" and len(view.results) < int(rest.split()[0]):
            return Plan(actions=(ToolCall(tool="put", args={"text": f"{view.run_id} {len(view.results)}"}),))
        if what in ("hang", "meet", "freeze", "wait") and not view.results:
            return Plan(actions=(ToolCall(tool=what, args={}),))
        return Plan(actions=(FinalAnswer(content="done"),))


class Desk:
    """The tools of one worker, and the agents. Each effect is a line in a file that all workers share: text, key and worker."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "effects"
        self.clerk = Clerk(directory)
        self.hanging = asyncio.Event()

        async def settled(key: str) -> Any:
            return Happened("put") if key in (line.split("\t")[1] for line in lines_of(directory)) else NotHappened()

        @tool(side_effect="write", reconcile=settled)
        async def put(text: str, context: ToolContext) -> str:
            """Put it down."""
            await asyncio.sleep(STEP_S)
            self.note(text, context.idempotency_key)
            await asyncio.sleep(STEP_S)
            return "put"

        @tool(side_effect="write", idempotent=True)
        async def meet(context: ToolContext) -> str:
            """Wait until another worker is here, too."""
            self.note("here", context.idempotency_key)
            while len({line.split("\t")[2] for line in lines_of(directory)}) < 2:
                await asyncio.sleep(0.01)
            return "met"

        @tool(side_effect="write")
        async def freeze(context: ToolContext) -> str:
            """Put something down, and freeze with the whole process before that is said."""
            self.note("frozen", context.idempotency_key)
            os.kill(os.getpid(), signal.SIGSTOP)
            return "thawed"

        @tool(side_effect="write")
        async def wait(context: ToolContext) -> str:
            """Put something down, and wait for a file before that is said."""
            self.note("waiting", context.idempotency_key)
            while not (directory / "go").exists():
                await asyncio.sleep(0.01)
            return "waited"

        @tool(side_effect="read")
        async def hang() -> str:
            """Wait until the call is interrupted."""
            self.hanging.set()
            await asyncio.Event().wait()
            return "never"

        self.tools = [put, hang, meet, freeze, wait]
        self.agent = Agent(name="clerk", tools=("put", "hang", "meet", "freeze", "wait"), actions=("ask_user", "schedule"))
        self.boss = Agent(name="boss", subagents={"clerk": self.agent})

    def note(self, text: str, key: str) -> None:
        """Write an effect down."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{text}\t{key}\t{os.getpid()}-{id(self)}\n")
            file.flush()

    def engine(self, store: str | EventStore, host: WorkerHost, clock: Clock | None = None) -> Engine:
        """Return an engine on this store."""
        return Engine(
            store=store,
            planner=self.clerk,
            tools=self.tools,
            approver="caller",
            worker_host=host,
            clock=clock,
            bounds=Bounds(drain_s=1, grace_s=0.1),
        )


def lines_of(directory: Path) -> list[str]:
    """Return the effects so far."""
    file = directory / "effects"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def doubled(directory: Path) -> list[str]:
    """Return the effects that happened twice."""
    return [text for text, count in Counter(line.split("\t")[0] for line in lines_of(directory)).items() if count > 1]


class Fleet:
    """Workers of one virtual object, at one address, on one store; `options` are those of their hosts."""

    def __init__(self, server: Any, store: str, directory: Path, *, port: int, **options: Any) -> None:
        self.store, self.directory = store, directory
        self.options: dict[str, Any] = {
            "host": "restate",
            "ingress": server.ingress,
            "admin": server.admin,
            "bind": f"127.0.0.1:{port}",
            "service": f"t{secrets.token_hex(6)}",
            "sweep_s": 300.0,  # what is pushed must be found without it
            "retry_pause_s": 0.1,
            **options,
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def desk(self) -> Desk:
        """Return new tools."""
        return Desk(self.directory)

    def host(self) -> WorkerHost:
        """Return a new host."""
        return host_of(self.options)

    @contextlib.asynccontextmanager
    async def engine(self, clock: Clock | None = None) -> AsyncGenerator[Engine]:
        """An engine that works on nothing."""
        engine = self.desk().engine(self.store, self.host(), clock)
        async with engine:
            yield engine

    @contextlib.asynccontextmanager
    async def worker(self, desk: Desk | None = None, clock: Clock | None = None) -> AsyncGenerator[Engine]:
        """A worker of this process."""
        engine = (desk or self.desk()).engine(self.store, self.host(), clock)
        async with engine:
            working = asyncio.create_task(engine.work())
            try:
                yield engine
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)

    def start(self, count: int = 1, *, machine: str = "", store: str = "") -> list[subprocess.Popen[bytes]]:
        """Start workers in processes of their own, with PostgreSQL also as those of another `machine`; `store`: how they reach it."""
        words = [sys.executable, __file__, store or self.store, str(self.directory), json.dumps(self.options), machine]
        with (self.directory / "workers.log").open("ab") as log:
            made = [subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": _path()}) for _ in range(count)]
        self.processes += made
        return made

    def stop(self, how: int = signal.SIGKILL) -> None:
        """End all processes."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(how)
        for process in self.processes:
            process.wait()
        self.processes.clear()


def _path() -> str:
    root = Path(__file__).resolve().parents[2]
    return os.pathsep.join((str(root / "src"), str(root / "tests")))


async def ended(engine: Engine, run_ids: list[str], seconds: float = 60.0, status: str = "completed") -> None:
    """Wait until all these runs have this status."""
    until, left = time.monotonic() + seconds, set(run_ids)
    while left:
        left -= {head.run_id for head in await engine.store.list_runs(RunQuery(status=(status,)))}
        states = {run_id: (await engine.load(run_id)).status for run_id in sorted(left)[:5]} if time.monotonic() > until else {}
        assert time.monotonic() < until, f"after {seconds:g} s, {len(left)} of {len(run_ids)} runs are not {status}: {states}"
        await asyncio.sleep(0.02)


async def resumed(engine: Engine, run_id: str, count: int) -> datetime:
    """Wait until the run was resumed so many times; return when."""
    while True:
        found = [record.envelope.at for record in await engine.records(run_id) if isinstance(record.event, RunResumed)]
        if len(found) >= count:
            return found[count - 1]
        await asyncio.sleep(0.02)


def host_of(options: dict[str, Any]) -> WorkerHost:
    """Return a host with those of the options that it knows; `host` says which."""
    given = {name: value for name, value in options.items() if name not in ("host", "lease_s", "orphan_s")}
    if options["host"] == "restate":
        return RestateHost(**given)
    return InProcessHost(**{name: value for name, value in given.items() if name in ("concurrency", "max_attempts", "retry_pause_s")})


async def _work(store: str, directory: Path, options: dict[str, Any], machine: str) -> None:
    leased = {"lease_s": options.pop("lease_s")} if "lease_s" in options else {}
    session.ORPHAN_S = options.pop("orphan_s", session.ORPHAN_S)
    made = PostgresStore(store, host=machine, **leased) if machine else open_store(store, **leased)
    engine = Desk(directory).engine(made, host_of(options))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, engine.suspend, "SIGTERM")
    async with engine:
        (directory / f"ready-{os.getpid()}").touch()
        await engine.work()
    await made.close()


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]))
