"""One schedule: processes with an engine each on one virtual disk, people who answer, and whatever goes wrong; all of it decided by `Choices`.

storm   processes are killed, paused, cut off, their clocks jump; the disk is full, loses power, flips a bit; people say what they like
calm    nothing goes wrong any more, and everything must come to its end
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextvars import Context
from datetime import timedelta
from typing import Any, Literal, cast

import msgspec

from detent import Budget, Engine
from detent.core.codec import read_record
from detent.core.errors import (
    BudgetRefused,
    CancelWaits,
    ConfigError,
    Conflict,
    CorruptLog,
    DetentError,
    NotAllowedNow,
    RunBusy,
    RunErased,
    RunNotFound,
    StoreBusy,
    StoreFull,
    Suspended,
)
from detent.memories import keeping
from detent.metering.tenants import TenantBudget
from detent.ports import Signal
from detent.running import children, snapshots, watcher
from detent.running.results import Result
from detent.testing.clocks import EPOCH
from simulation.choices import Choices
from simulation.disks import DISKS, LEASE_S
from simulation.families import FamilyPlans, family_of, members
from simulation.inputs import Ledger, Plans, Task, task_of
from simulation.loop import PROCESS, WORLD, Stuck, VirtualLoop, within
from simulation.processes import Died, Process
from simulation.reference import Reference, Violation, demand

Setting = Literal["whole", "small", "wide"]
"""`small`: one run of two turns, nobody works by himself, and people say little. `wide`: a tree of runs with a memory, in three processes."""
LEAST_DECISIONS = 30
"""People go on until so many were made."""
FAULTS = ("crash", "busy", "full", "pause", "partition", "clock", "power", "flip")
ALLOWED = (RunBusy, Conflict, Suspended, StoreBusy, StoreFull, NotAllowedNow, RunNotFound, RunErased, BudgetRefused, CancelWaits)
"""What a command may raise when others are faster, or the weather is bad."""
HARMLESS = ("RunBusy", "Conflict", "Suspended", "StoreBusy", "StoreFull", "RunErased", "RunNotFound")
CALM_ROUNDS = 80


def setting_of(seed: int, asked: str = "mixed") -> Setting:
    """Return the setting of a seed: as it is asked for, or where that is mixed, each fourth one is wide."""
    return ("wide" if seed % 4 == 3 else "whole") if asked == "mixed" else cast("Setting", asked)


class Schedule:
    """See the module. `trace` is what happened, line by line."""

    def __init__(self, choices: Choices, *, trace: bool = False, setting: Setting = "whole") -> None:
        """Set up processes, a disk and the weather, as the choices say."""
        self.choices, self.trace = choices, list[str]()
        self.small, self.wide = setting == "small", setting == "wide"
        self.loop = VirtualLoop(choices)
        self.loop.errors = Violation.raised
        self.stormy, self.full = True, False
        faults = FAULTS[:-1] if setting == "wide" else FAULTS  # a parent of a damaged run waits until somebody removes it
        self.weather = tuple(fault for fault in faults if choices.chance(0.3))
        self.disk, self.ledger = choices.one_of(DISKS)(), Ledger()
        self.reference = Reference(self.disk, self.ledger)
        self.reference.tell = self.tell if trace else None
        self.reference.wide = self.wide
        self._tracing = trace
        alone = self.small or self.wide
        many = range(1 + (not alone and choices.chance(0.25)))
        self.tasks = [family_of(choices)] if self.wide else [task_of(choices, number, small=self.small) for number in many]
        self.tenant = not alone and choices.chance(0.15)
        self.accounts = {"*": TenantBudget(max_tool_calls=3)} if self.tenant else {}
        if self.tenant:
            self.tasks = [task_of(choices, number) for number in range(2)]
            if not set(self.weather) & {
                "clock",
                "pause",
                "partition",
            }:  # with these a reservation may lapse before what it is for is recorded
                self.reference.most_tool_calls = 3
        self.every = choices.one_of([1000, 3, 7])
        self.working = not self.small and choices.chance(0.5)
        self.roles: list[Process] = []
        self.started = self.turn = 0
        self.violation: BaseException | None = None
        self.outlived: asyncio.Task[None] | None = None
        self.beside: list[asyncio.Task[None]] = []
        self.flipped: dict[str, Callable[[], bool]] = {}
        self.answer = ("", "", "")
        """By run, whether what was altered is there yet: power loss may have taken it, or a later write replaced it."""

    def tell(self, line: str) -> None:
        """Note what happens."""
        if self._tracing:
            self.trace.append(f"{self.loop.time():9.3f} {line}")

    def planner_of(self, process: Process) -> Any:
        """Return who plans in a process: by the agent's task."""
        if self.wide:
            return FamilyPlans(self.tasks[0], process.breathe)
        return Plans({task.run_id: (task.turns, task.usage) for task in self.tasks}, process.breathe)

    # Processes --------------------------------------------------------------------------------------------------------------------

    def start(self, role: int) -> Process:
        """Start a process in a role."""
        self.started += 1
        made = Process(self, self.started, role)
        self.tell(f"{made.name} starts as {role}")
        if self.working:
            within(made, made.engine.work)
        return made

    def kill(self, process: Process) -> None:
        """End a process at once."""
        if process.dead:
            return
        self.tell(f"{process.name} dies")
        process.store.dead = True
        self.loop.kill(process)
        for answer in process.waiting:
            if not answer.done():
                answer.set_result(Died())

    async def keep_alive(self, role: int) -> None:
        """Start the process of a role again whenever it is dead."""
        while True:
            await asyncio.sleep((0.1, 3.0, 50.0)[self.choices.below(3)] if self.stormy else 0.1)
            if self.roles[role].dead:
                self.roles[role] = self.start(role)

    # The storm --------------------------------------------------------------------------------------------------------------------

    async def blow(self) -> None:
        """Let things go wrong from outside, a few times."""
        outside = [fault for fault in self.weather if fault != "busy"]
        for _ in range(self.choices.below(4) if outside else 0):
            await asyncio.sleep((0.01, 0.05, 0.3, 4.0)[self.choices.below(4)])
            process = self.roles[self.choices.below(len(self.roles))]
            fault = self.choices.one_of(outside)
            self.tell(f"outside: {fault} {process.name}")
            match fault:
                case "crash":
                    self.kill(process)
                case "pause":
                    self.pause(process)
                case "partition":
                    self.cut_off(process)
                case "clock":
                    process.clock.offset_s += (40.0, -40.0, 3600.0)[self.choices.below(3)]
                case "full":
                    self.full = True
                    self.loop.call_later(5.0, setattr, self, "full", False, context=Context())
                case "power":
                    self.lose_power()
                case "flip":
                    self.flip()
                case _:
                    pass

    def pause(self, process: Process) -> None:
        """Stop a process for a while; its clocks go on."""
        process.held = True
        self.loop.call_later((1.0, 45.0)[self.choices.below(2)], self._go_on, process, "held", context=Context())

    def cut_off(self, process: Process) -> None:
        """Keep a process from the disk for a while."""
        process.cut_off = True
        self.loop.call_later((3.0, 60.0)[self.choices.below(2)], self._go_on, process, "cut_off", context=Context())

    def outlive(self, process: Process, run_id: str) -> None:
        """Stop a process amid a call for longer than its lease. Another one takes the run over, and perhaps tries the call again, before it comes back."""
        self.tell(f"{process.name} stops amid a call of {run_id}")
        process.held = True
        back = LEASE_S + 1.0 + (0.0, 0.03, 0.06, 0.1, 0.2, 2.0)[self.choices.below(6)]
        self.loop.call_later(back, self._go_on, process, "held", context=Context())
        world = Context()
        world.run(PROCESS.set, WORLD)  # nothing of the process is in it
        self.outlived = self.loop.create_task(self._take_over(process, run_id), context=world)

    async def _take_over(self, process: Process, run_id: str) -> None:
        await asyncio.sleep(LEASE_S + 1.0)
        others = [other for other in self.roles if other is not process and not other.dead]
        if others:
            self.tell(f"{others[0].name} takes {run_id} over")
            await others[0].ask(lambda engine: engine.resume(run_id))

    def _go_on(self, process: Process, what: str) -> None:
        setattr(process, what, False)

    def lose_power(self) -> None:
        """The host of the disk stops: whatever is not durable may be gone."""
        if self.disk.every_commit_is_durable:
            return
        for process in self.roles:
            self.kill(process)
        self.disk.lose_power(self.choices.below)
        self.reference.power_was_lost()

    def flip(self) -> None:
        """One bit of a stored record is another, or of an artifact that a record names, of what says how long the log is, of an answer, or of a claim."""
        names = [name for name, run in self.disk.runs.items() if run.records]
        if not names or self.flipped:
            return
        name = self.choices.one_of(names)
        run, blobs = self.disk.runs[name], self.disk.blobs.get(name, {})
        named = [key for key in blobs if any(key.encode() in line for line in run.records)]
        told = [one for one, signal in run.inbox.items() if signal.digest]
        match self.choices.below(6):
            case 2 if run.sealed is not None:
                altered = run.sealed = run.sealed[0], self.altered(run.sealed[1].encode()).decode()
                self.flipped[name] = lambda: run.sealed is altered
            case 3 if named:
                key = self.choices.one_of(named)
                blobs[key] = data = self.altered(blobs[key])
                self.flipped[name] = lambda: blobs.get(key) is data and any(key.encode() in line for line in run.records)
            case 4 if told:
                one = self.choices.one_of(told)
                signal = run.inbox[one]
                by = self.altered(signal.by.encode() or b"x").decode(errors="replace")
                run.inbox[one] = given = msgspec.structs.replace(signal, by=by)
                self.flipped[name] = lambda: run.inbox.get(one) is given
                self.answer = name, one, signal.by
            case 5 if name in self.disk.claims:
                self.disk.numbers[name] ^= 1 << 61  # who has the run finds that it is lost; nothing else may come of it
                return
            case _:
                at = self.choices.below(len(run.records))
                if b"\n" in (line := self.altered(run.records[at])):
                    return
                run.records[at] = line
                self.flipped[name] = lambda: line in self.disk.runs[name].records
        self.reference.damaged.add(name)

    def altered(self, data: bytes) -> bytes:
        """Return the bytes with one bit of them another."""
        found = bytearray(data)
        found[self.choices.below(len(found))] ^= 1 << self.choices.below(7)
        return bytes(found)

    # People -----------------------------------------------------------------------------------------------------------------------

    async def person(self) -> None:
        """Start the runs, and say this and that."""
        for task in self.tasks:
            await self.begin(task)
        left = self.choices.below(3 if self.small else 8)
        while left > 0 or len(self.choices.made) < LEAST_DECISIONS:
            left -= 1
            await asyncio.sleep((0.0, 0.05, 1.0)[self.choices.below(3)])
            run_id, what = self.choices.one_of(self.members()), self.choices.below(5 if self.small else 14)
            if what == 13:
                self.beside.append(self.loop.create_task(self.erase_beside(run_id)))
            else:
                await self.say(run_id, what)

    def members(self) -> list[str]:
        """Return the runs that there are to say something about: those that were begun, and the runs below them."""
        return [run_id for task in self.tasks for run_id in members(list(self.disk.runs), task.run_id)]

    async def begin(self, task: Task) -> None:
        """Have a run started, if need be by another process."""
        options: dict[str, Any] = {"run_id": task.run_id, "budget": task.budget}
        for _ in range(30):
            method = "submit" if self.working and self.choices.below(2) else "run"
            said = await self.command(method, lambda engine, m=method: getattr(engine, m)(task.agent, task.goal, **options))
            if task.run_id in self.disk.runs or isinstance(said, BudgetRefused):
                return
            await asyncio.sleep(1.0)

    async def say(self, run_id: str, what: int, *, calm: bool = False) -> None:
        """Do one of the things that people do with a run."""
        state = self.reference.state(run_id)
        self.turn += calm
        by = ("ann", "bob", "cat")[self.turn % 3 if calm else self.choices.below(3)]
        resume = calm or bool(self.choices.below(2))
        if what < 8:
            if state.approvals:
                call = self.choices.one_of(list(state.approvals))
                if self.choices.below(4) == 3 and not calm:
                    await self.command("deny", lambda engine: engine.deny(run_id, call, by=by, reason="no", resume=resume))
                else:
                    await self.command("approve", lambda engine: engine.approve(run_id, call, by=by, resume=resume))
            elif state.in_doubt:
                await self.tell_the_truth(run_id, state.in_doubt[0], by, resume=resume)
            elif state.asks:
                ask = self.choices.one_of(list(state.asks))
                await self.command("reply", lambda engine: engine.reply(run_id, "well", by=by, ask_id=ask, resume=resume))
            if calm or not (state.approvals or state.in_doubt or state.asks):
                await self.command("resume", lambda engine: engine.resume(run_id))
        elif what == 8:
            await self.command("cancel", lambda engine: engine.cancel(run_id, by=by, why="enough"))
        elif what == 9:
            await self.command("reopen", lambda engine: engine.reopen(run_id, by=by, budget=_MORE, resume=resume))
        elif what == 10:
            await self.command("fork", lambda engine: engine.fork(run_id, child_id=f"{run_id}-fork", resume=resume))
        elif what == 11:
            await self.command("suspend", _suspended)
        else:
            await self.command("erase", lambda engine: engine.erase(run_id, by=by, why="asked for"))

    async def erase_beside(self, run_id: str) -> None:
        """Erase a run while a fork of it is advanced."""
        await self.command("fork", lambda engine: engine.fork(run_id, child_id=f"{run_id}-fork", resume=False))
        going_on = self.loop.create_task(self.command("resume", lambda engine: engine.resume(f"{run_id}-fork")))
        await asyncio.sleep((0.0, 0.03, 0.06)[self.choices.below(3)])
        await self.say(run_id, 12)
        await going_on

    async def tell_the_truth(self, run_id: str, call_id: str, by: str, *, resume: bool) -> None:
        """Settle a call in doubt as the world has it."""
        calls = self.reference.calls.get(run_id)
        key = calls.key.get(call_id, "") if calls else ""
        process = self.disk.claims.get(run_id)
        if process is not None and not process.dead:
            return  # somebody may be doing it yet: nobody knows the truth
        did = self.ledger.happened(key)
        result = "it did" if did else None
        await self.command("reconcile", lambda engine: engine.reconcile(run_id, call_id, happened=did, result=result, by=by, resume=resume))

    async def command(self, name: str, begin: Callable[[Engine], Awaitable[Any]]) -> Any:
        """Give a command to a process that lives; return its answer, None where there was none."""
        able = [process for process in self.roles if not process.dead]
        if not able:
            return None
        process = self.choices.one_of(able)
        self.tell(f"{process.name} {name} begins")
        said = await process.ask(begin)
        shown = getattr(said, "status", "") or type(said).__name__
        self.tell(f"{process.name} {name}: {shown} {said if isinstance(said, Exception) else ''}")
        if isinstance(said, Violation):
            raise said
        if isinstance(said, Result):
            self.reference.answer(said.state, now=process.clock.now().timestamp())
        if isinstance(said, Exception) and not isinstance(said, (Died, *ALLOWED)):
            known = (self.flipped and isinstance(said, (CorruptLog, ValueError, ConfigError))) or (
                name == "fork" and isinstance(said, ConfigError)
            )
            demand(known, "commands answer", f"{name} raised {type(said).__name__}: {said}")
        return said

    # The calm, and the end --------------------------------------------------------------------------------------------------------

    async def main(self) -> None:
        """Run the schedule."""
        many = 3 if self.wide else 2
        self.roles = [self.start(role) for role in range(many)]
        keepers = [self.loop.create_task(self.keep_alive(role)) for role in range(many)]
        blowing = self.loop.create_task(self.blow())
        await self.person()
        await blowing
        for beside in (*self.beside, *([self.outlived] if self.outlived is not None else ())):
            await beside
        self.stormy, self.full = False, False
        for keeper in keepers:
            keeper.cancel()
        await self.calm()
        await self.check()

    async def calm(self) -> None:
        """Let all processes live and people answer, until every run has ended."""
        await asyncio.sleep(70.0 if self.weather else 1.0)  # leases have run out, and reservations that nobody gives back
        for process in self.roles:
            process.held = process.cut_off = False
            process.clock.offset_s = max(0.0, process.clock.offset_s)
        self.roles = [self.start(role) if process.dead else process for role, process in enumerate(self.roles)]
        for round_ in range(CALM_ROUNDS):
            left = [run_id for run_id in self.members() if not self.over(run_id)]
            if not left:
                return
            for run_id in left:
                await self.say(run_id, 0, calm=True)
            await asyncio.sleep(10.0 if round_ > 3 else 1.0)
            if round_ == CALM_ROUNDS // 2:
                await asyncio.sleep(10_000.0)  # a clock may have been an hour ahead when a timer was set
        for run_id in left:
            state = self.reference.state(run_id)
            shown = {"waiting_for_approval": state.approvals, "waiting_for_user": state.asks, "waiting_for_schedule": state.timers}
            shown["waiting_for_subagent"] = {child for child, known in state.children.items() if known.status == "open"}
            what = f"{run_id} is {state.status} after {state.seq} records, and nothing is open"
            demand(shown.get(state.status, True), "a run waits for what is shown", what)
            raise Violation("every run ends", f"{run_id} is {state.status} after {state.seq} records and {CALM_ROUNDS} rounds of answers")

    def over(self, run_id: str) -> bool:
        """Whether nothing is to be expected of a run any more."""
        gone = run_id not in self.disk.runs or run_id in self.reference.damaged or run_id in self.reference.erased
        return gone or self.reference.state(run_id).terminal

    def refused(self, run_id: str) -> None:
        """Check that an answer that was altered in its inbox, and was taken up, was refused."""
        run, (name, signal, by) = self.disk.runs[run_id], self.answer
        if name != run_id or signal in run.inbox or run_id in self.reference.erased:
            return
        taken = [event for line in run.records if getattr(event := read_record(line).event, "signal", "") == signal]
        sound = all(getattr(event, "code", "") == "altered" or event.by == by for event in taken)  # its holder may have read it before
        demand(sound, "an altered byte is found", f"{run_id}: {taken}")

    async def check(self) -> None:
        """Check what is left."""
        process = self.roles[0]
        for run_id in self.disk.runs:
            if (there := self.flipped.get(run_id)) is not None:
                if not there():
                    self.refused(run_id)
                    continue
                found = await process.ask(lambda engine, r=run_id: engine.verify(r))
                demand(getattr(found, "ok", None) is False, "an altered byte is found", f"{run_id}: {found}")
                continue
            if self.flipped.keys() & {run_id.removesuffix("-fork")}:
                found = await process.ask(lambda engine, r=run_id: engine.verify(r))
                known = isinstance(found, CorruptLog) or not isinstance(found, Exception)
                demand(known, "an altered byte is found", f"{run_id}, whose parent has one: {found!r}")
                continue
            erased = run_id in self.reference.erased
            if run_id not in self.reference.damaged and not erased:
                self.reference.ends(run_id)
            verified = await process.ask(lambda engine, r=run_id: engine.verify(r))
            lost = any(words in str(verified) for words in ("branched from", "continues from record"))
            demand(not lost, "a fork has what it goes on from", f"{run_id}: {verified}")
            demand(getattr(verified, "ok", False), "chains are whole", f"{run_id}: {verified}")
            if self.flipped or erased or (run_id in self.reference.damaged and self.reference.erased):
                continue
            loaded = await process.ask(lambda engine, r=run_id: engine.load(r))
            if run_id not in self.reference.damaged:
                demand(loaded == self.reference.state(run_id), "folds are equal", f"{run_id}: what is loaded is not the fold of the log")
            again = await process.ask(lambda engine, r=run_id: engine.replay(r))
            demand(not isinstance(again, CorruptLog), "a fork has what it goes on from", f"{run_id}: {again}")
            demand(getattr(again, "identical", False), "replays are equal", f"{run_id}: {getattr(again, 'divergence', again)}")
        self.reference.what_was_told()
        self.reference.families.survive()
        if self.tenant:
            self.reference.accounts("")


_MORE = Budget(max_tool_calls=100, max_model_calls=200, max_iterations=50)


async def _suspended(engine: Engine) -> None:
    engine.suspend("somebody pressed Ctrl-C")
    await asyncio.sleep(0)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule came to: the promise that was broken ("": none), and the decisions that lead there again."""

    promise: str
    what: str
    made: list[int]
    steps: int
    weather: tuple[str, ...]
    trace: list[str] = []


def run_schedule(seed: int | None = None, *, given: Sequence[int] = (), trace: bool = False, setting: Setting = "whole") -> Outcome:
    """Run one schedule, by a seed or by its decisions."""
    choices = Choices(seed, given=given)
    random.seed(0)
    Violation.raised = []  # what earlier schedules left behind is none of this one's
    promise = what = ""
    with _alone() as said:
        schedule = Schedule(choices, trace=trace, setting=setting)
        snapshots.EVERY = schedule.every
        keeping.utcnow = lambda: EPOCH + timedelta(seconds=schedule.loop.time())
        main: Coroutine[Any, Any, None] = schedule.main()
        try:
            schedule.loop.run(main)
            for line in said:
                if not schedule.flipped:
                    raise Violation("workers go on", line)
        except Violation as error:
            promise, what = error.promise, str(error)
        except Stuck as error:
            promise, what = "every run ends", str(error)
        except DetentError as error:
            promise, what = "nothing else is raised", f"{type(error).__name__}: {error}"
        finally:
            main.close()
    return Outcome(promise=promise, what=what, made=choices.made, steps=schedule.loop.steps, weather=schedule.weather, trace=schedule.trace)


def tidy(seed: int) -> None:
    """Collect what schedules left behind, where nobody else does: every few of them, as long as it is in the processor's cache, and all at times."""
    if not seed % 5:
        gc.collect(0 if seed % 100 else 2)


class _Listening(logging.Handler):
    """Hears of workers that met an error which nobody expects."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        told = (
            line.partition("): ")[2]
            if " failed (attempt" in line
            else line.partition("): ")[2]
            if "failure cannot be recorded" in line
            else ""
        )
        if told and not told.startswith(HARMLESS):
            self.said.append(line)


@contextlib.contextmanager
def _alone() -> Generator[list[str]]:
    """Hold what is the whole program's for the time of one schedule: logging, snapshots, what tasks of dead processes leave behind."""
    log, listening = logging.getLogger("detent"), _Listening()
    before, every, poll = (log.handlers[:], log.propagate, log.level, log.disabled), snapshots.EVERY, watcher.POLL_S
    look, utcnow = children.LOOK_S, keeping.utcnow
    hook, collects = sys.unraisablehook, gc.isenabled()
    log.handlers, log.propagate = [listening], False
    watcher.POLL_S = children.LOOK_S = 5.0
    sys.unraisablehook = lambda _unraisable: None
    gc.disable()
    try:
        yield listening.said
    finally:
        if collects:
            gc.enable()
        log.handlers, log.propagate, log.level, log.disabled = before
        snapshots.EVERY, watcher.POLL_S, children.LOOK_S, keeping.utcnow = every, poll, look, utcnow
        sys.unraisablehook = hook


__all__ = ["Outcome", "Schedule", "Signal", "run_schedule"]
