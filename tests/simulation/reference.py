"""What may happen, on a page: the reference model that every commit and every end of a schedule is held to.

at each commit   the chain goes on; the records may follow; an outcome is there at most once, and no attempt follows one that is in doubt
unless somebody settled it; a call that needs people has them and is decided again after they spoke, and a denied one never begins; nothing
with an effect begins after a cancellation; no bound of the run is exceeded; what leaves the inbox is on record
at each effect   its intent is durable, and it is the first of its kind
at the end       the world has what the logs say and nothing else; accepted answers are in the log; accounts hold what the logs say; folds,
snapshots and replays are equal; every run has ended, or waits for something that is shown
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, ClassVar

from detent.core import events as e
from detent.core.codec import read_log, read_record
from detent.core.errors import CorruptLog, IllegalEvent
from detent.core.fold import evolve
from detent.core.records import Record
from detent.core.state import RunState
from detent.ports import Signal
from simulation.disks import Disk, DiskStore, Kept
from simulation.families import MANAGING, Families, without_ledger
from simulation.inputs import READING, Ledger

REPEATABLE = ("set", *READING, "fatal")
_NO_RUN = Kept()
PEOPLE = {"wipe": 1, "pair": 2}


def repeatable(tool: str) -> bool:
    """Whether an attempt may follow one that is in doubt."""
    return tool in REPEATABLE or without_ledger(tool)


class Violation(AssertionError):
    """Something happened that must not; `promise` is which promise was broken. `raised` has all, also those that an engine has swallowed."""

    raised: ClassVar[list[BaseException]] = []

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise
        self.raised.append(self)


def demand(holds: object, promise: str, what: str) -> None:
    """Raise `Violation` unless it holds."""
    if not holds:
        raise Violation(promise, what)


class Calls:
    """What the records of one run say of its calls."""

    def __init__(self) -> None:
        self.tool: dict[str, str] = {}
        self.key: dict[str, str] = {}
        self.open: dict[str, bool] = {}
        self.attempt: dict[str, int] = {}
        self.ended: dict[str, str] = {}
        self.agreed: dict[str, set[str]] = {}
        self.denied: set[str] = set()
        self.undecided: set[str] = set()
        self.late: set[str] = set()
        self.cancelled = self.cancels = False
        self.taken: list[str] = []

    def hear(self, record: Record, run_id: str) -> None:
        """Take a record; raise `Violation`."""
        what = f"record {record.envelope.seq} of {run_id}"
        if signal := getattr(record.event, "signal", ""):
            self.taken.append(signal)
        match record.event:
            case e.ToolStarted(call=call, tool=tool) as started:
                self._begins(started, what)
                self.tool[call], self.key[call], self.open[call], self.attempt[call] = tool, started.key, True, started.attempt
                self.ended.pop(call, None)
            case e.ToolFinished(call=call, error=error) | e.SubagentJoined(call=call, error=error) if call:
                demand(call not in self.ended, "an outcome at most once", f"{what} is a second outcome of call {call}")
                self.open.pop(call, None)
                self.ended[call] = "done" if error is None else error.code
            case e.ToolInDoubt(call=call):
                self.open[call] = False
            case e.ToolReconciled(call=call, outcome=outcome, source=source) as settled:
                if source == "late_worker":
                    self.late.add(call)
                    demand(
                        settled.attempt, "a late outcome names its attempt", f"{what} says what came of {call}, and not in which attempt"
                    )
                    own = settled.attempt == self.attempt.get(call)  # else it says nothing of the attempt that has begun since
                    if own and (self.open.pop(call, None) is not None or call not in self.ended):
                        self.ended[call] = "done" if settled.error is None else settled.error.code
                    return
                doubt = f"{what} settles call {call} of {self.tool.get(call)}, by {source}"
                demand(call in self.open, "doubt is settled once", f"{doubt}, which is not open")
                stopped = bool(settled.via)  # the holder that was stopped before the retry: its tool had said that nothing happened
                demand(source != "retry" or stopped or repeatable(self.tool[call]), "no doubt is silently settled", doubt)
                demand(source != "person" or settled.by, "no doubt is silently settled", f"{doubt}: nobody")
                del self.open[call]
                if outcome == "happened":
                    self.ended[call] = "done" if settled.error is None else settled.error.code
            case e.ApprovalResolved(call=call, decision="approved", by=by) | e.ApprovalEdited(call=call, by=by):
                self.agreed.setdefault(call, set()).add(by)
                self.undecided.add(call)
            case e.PolicyDecided(call=call):
                self.undecided.discard(call)
            case e.ApprovalResolved(call=call) | e.ApprovalExpired(call=call):
                self.denied.add(call)
            case e.RunFinished(in_doubt=listed):
                doubts = {call for call, running in self.open.items() if not running}
                demand(doubts <= set(listed), "open doubts are shown", f"{what} ends the run with {listed} in doubt, not {doubts}")
            case e.CancelRequested():
                self.cancelled = self.cancels = True
            case e.RunReopened():
                self.cancelled = False
            case _:
                pass

    def _begins(self, started: e.ToolStarted, what: str) -> None:
        call, tool = started.call, started.tool
        effect = tool not in READING and tool != "fatal"
        what = f"{what}: attempt {started.attempt} of {tool} ({call}) begins"
        demand(call not in self.ended, "an outcome at most once", f"{what} after its outcome")
        if effect:
            demand(not self.cancelled, "nothing begins after a cancellation", what)
            demand(call not in self.denied, "what was denied does not run", what)
            demand(call not in self.undecided, "what was approved is decided once more", what)
            people = len(self.agreed.get(call, ()))
            demand(people >= PEOPLE.get(tool, 0), "an approval before the effect", f"{what}, approved by {people}")
        if call in self.open and not repeatable(tool):
            known = started.previous is not None and started.previous.code == "not_executed" and self.open[call]
            demand(known or started.previous is not None, "no doubt is silently settled", f"{what} while the one before it is in doubt")
        demand(self.key.get(call, started.key) == started.key, "one key for all attempts", what)


class Reference:
    """The reference model of one schedule."""

    def __init__(self, disk: Disk, ledger: Ledger) -> None:
        self.disk, self.ledger = disk, ledger
        self.states: dict[str, RunState] = {}
        self.calls: dict[str, Calls] = {}
        self.accepted: dict[str, dict[str, Signal]] = {}
        self.damaged: set[str] = set()
        self.erased: set[str] = set()
        self.zombies: set[tuple[str, str]] = set()
        self.owed: dict[tuple[str, str], tuple[DiskStore, bytes]] = {}
        self.began: set[tuple[str, str, DiskStore]] = set()
        self.tell: Callable[[str], Any] | None = None
        self.told: list[tuple[str, int, str]] = []
        self.most_tool_calls: int | None = None
        self.families, self.wide = Families(self, demand), False
        disk.watched, disk.claimed, disk.erased = self.commit, self.claim, self.erase

    # At each commit -------------------------------------------------------------------------------------------------------------

    def commit(self, store: DiskStore, run_id: str, expected: int, lines: Sequence[bytes], consumed: Sequence[str]) -> None:
        """Check what is being appended; raise `Violation`."""
        if run_id in self.damaged or run_id in self.erased:
            return
        state, before = self.state(run_id), self.state(run_id).usage
        calls = self.calls.setdefault(run_id, Calls())
        if state.seq != expected:
            raise Violation("the log is what was committed", f"{run_id} has {state.seq} records, {expected} are said")
        taken: set[str] = set()
        earlier, events = state, list[Any]()
        try:
            for record in read_log(run_id, lines, previous=state.digest, after=expected):
                if isinstance(record.event, e.Forked) or (isinstance(record.event, e.RunStarted) and record.event.parent in self.damaged):
                    self._forget(run_id, self.damaged)
                    return
                events.append(record.event)
                if isinstance(record.event, e.ToolStarted):
                    self.began.add((run_id, record.event.call, store))
                state = evolve(state, record)
                calls.hear(record, run_id)
                if self.tell is not None:
                    self.tell(f"{store.host} {run_id} {record.envelope.seq} {record.envelope.scope} {_said(record.event)}")
                if (signal := getattr(record.event, "signal", "")) and signal in self.disk.runs.get(run_id, _NO_RUN).inbox:
                    self._as_given(self.disk.runs[run_id].inbox[signal], record.event)
                taken.add(signal)
                if isinstance(record.event, (e.ToolFinished, e.ToolReconciled)) and (artifact := getattr(record.event, "artifact", None)):
                    self._kept(run_id, artifact)
        except (CorruptLog, IllegalEvent) as error:
            raise Violation("what is recorded may follow", f"{run_id}: {error}") from error
        late = all(b'"source":"late_worker"' in line for line in lines)
        holder = self.disk.claims.get(run_id)
        if not late and holder is not store:
            raise Violation("one advancing holder", f"{run_id} is advanced by who does not hold it")
        self._within_bounds(state)
        if self.wide:
            self.families.hear(run_id, earlier, state, events)
        now, was = state.usage, before
        grown = now.iterations >= was.iterations and now.tool_calls >= was.tool_calls and now.total_tokens >= was.total_tokens
        if not grown:
            raise Violation("what was used stays used", f"{run_id}: {was} became {now}")
        for signal in consumed:
            known = self.disk.runs[run_id].inbox.get(signal)
            moot = known is None or known.kind == "timer" or known.payload.get("decision") == "expired"
            moot = moot or (known is not None and known.kind == "cancel" and state.cancel is not None) or known.kind == "child"
            if not moot and signal not in taken:
                raise Violation("no answer is lost", f"{run_id}: {known} left the inbox, and no record says so")
        self.states[run_id] = state

    def claim(self, store: DiskStore, run_id: str, holder: DiskStore | None) -> None:
        """Check that a claim may be taken: nobody has it, or who has it is dead, or its lease has run out."""
        free = holder is None or holder is store or holder.dead
        if not free and holder is not None:
            free = holder.expires_here <= store.monotonic() if holder.host == store.host else holder.expires <= store.now()
        demand(free, "one advancing holder", f"the claim of {run_id} is taken from a process that lives")

    def _as_given(self, signal: Signal, event: Any) -> None:
        """An answer is recorded as it was given."""
        said, refused = signal.payload.get("decision"), isinstance(event, e.AnswerRefused)
        told = "approved" if isinstance(event, e.ApprovalEdited) else getattr(event, "decision", said)
        demand(refused or (said in (told, "expired")), "answers are recorded as given", f"{signal} became {event}")
        demand(refused or not signal.by or event.by == signal.by, "answers are recorded as given", f"{signal} became {event}")

    def _kept(self, run_id: str, artifact: e.ArtifactRef) -> None:
        """What a record names is there."""
        data = self.disk.blobs.get(run_id, {}).get(artifact.key)
        sound = data is not None and sha256(data).hexdigest() == artifact.key and len(data) == artifact.size_bytes
        demand(sound, "artifacts are what the log says", f"{run_id}: {artifact} is {'missing' if data is None else 'another'}")

    def answer(self, state: RunState, *, now: float) -> None:
        """Note how a run stands, as somebody was told; of a finished one nothing is reserved any more."""
        run_id = state.run_id
        if run_id in self.damaged or run_id in self.erased or state.status == "running":
            return
        self.told.append((run_id, state.seq, state.digest))
        if state.terminal:
            left = [key for key, (until, _) in self.disk.reserved.items() if key[0] == run_id and until > now]
            demand(not left, "what is reserved is given back", f"{run_id} has finished, and {left} are reserved")

    def accept(self, run_id: str, signal: Signal) -> None:
        """Note what a sender was told is accepted."""
        self.accepted.setdefault(run_id, {})[signal.id] = signal

    def refused(self, store: DiskStore, run_id: str, lines: Sequence[bytes]) -> None:
        """Note which outcomes a process could not record because somebody else has written: it owes them to the log, unless it did not hear of them."""
        kept, calls = self.disk.runs.get(run_id, _NO_RUN), self.calls.get(run_id)
        for line in lines if calls is not None else ():
            event = read_record(line).event
            tool = calls.tool.get(event.call, "fatal") if isinstance(event, e.ToolFinished) else "fatal"
            effect = tool not in (*READING, "fatal") and not tool.startswith("agent_") and tool not in MANAGING
            if effect and line not in kept.records and (run_id, event.call, store) in self.began:  # else a guard refused it there
                self.owed[run_id, event.call] = store, line

    def excuse(self, store: DiskStore) -> None:
        """Forget what a process owes: its store has failed since."""
        self.owed = {key: owes for key, owes in self.owed.items() if owes[0] is not store}

    def state(self, run_id: str) -> RunState:
        """Return the state of a run, as far as it is committed."""
        known = self.states.get(run_id)
        return known if known is not None else RunState(run_id=run_id)

    def _within_bounds(self, state: RunState) -> None:
        used, most = state.usage, state.budget
        for name, bound in (
            ("iterations", most.max_iterations),
            ("model_calls", most.max_model_calls),
            ("tool_calls", most.max_tool_calls),
        ):
            if bound is not None and getattr(used, name) > bound:
                raise Violation("no bound is exceeded", f"{state.run_id}: {name} {used} of {bound}")

    def erase(self, store: DiskStore, run_id: str) -> None:
        """Note that a run has no content any more. Whoever erases it holds it, and nobody else holds what goes on from it."""
        holder = self.disk.claims.get(run_id)
        demand(holder is store, "one advancing holder", f"{run_id} is erased by who does not hold it")
        for fork, kept in self.disk.runs.items():
            began = read_record(kept.records[0]).event
            if isinstance(began, e.Forked) and began.parent == run_id and len(kept.records) > 1:  # else who writes it takes it back
                self.claim(store, fork, self.disk.claims.get(fork))
        self._forget(run_id, self.erased)

    def _forget(self, run_id: str, among: set[str]) -> None:
        """Leave a run to the checks of the end: an erased one has no content, a fork goes on from another log."""
        self.states.pop(run_id, None)
        self.calls.pop(run_id, None)
        among.add(run_id)

    def power_was_lost(self) -> None:
        """Know again what is on the disk."""
        for run_id in [*self.states]:
            self.states.pop(run_id)
            self.calls.pop(run_id, None)
            kept = self.disk.runs.get(run_id)
            if kept is None or run_id in self.damaged or run_id in self.erased:
                continue
            calls, state = Calls(), RunState(run_id=run_id)
            for record in read_log(run_id, kept.records):
                state = evolve(state, record)
                calls.hear(record, run_id)
            self.states[run_id], self.calls[run_id] = state, calls
        self.what_was_told()
        self.families.survive()
        if not self.damaged and not self.erased:
            intended = {key for calls in self.calls.values() for key in calls.key.values()}
            for name, key in self.ledger.order:
                demand(key in intended, "intent before effect", f"{name} had its effect, and its intent did not survive power loss")

    # At each effect -------------------------------------------------------------------------------------------------------------

    def effect(self, run_id: str, call_id: str, name: str, key: str, *, late: bool) -> None:
        """Check that an effect may happen now; it is `late` where its process has lost the run, which nobody can prevent."""
        if run_id in self.damaged or run_id in self.erased:
            return
        calls = self.calls.get(run_id)
        known = calls is not None and calls.key.get(call_id) == key
        demand(known, "intent before effect", f"{name} of {run_id} ({call_id}) has its effect, and no intent of it is on record")
        if late:
            self.zombies.add((name, key))
        twice = self.ledger.done[name, key] and name not in REPEATABLE and (name, key) not in self.zombies
        demand(not twice, "an effect at most once", f"{name} of {run_id} ({call_id}) a second time")

    def what_was_told(self) -> None:
        """Check that what somebody was told is there yet."""
        for run_id, seq, digest in self.told:
            if run_id in self.damaged or run_id in self.erased:
                continue
            kept = self.disk.runs.get(run_id)
            there = kept is not None and len(kept.records) >= seq and kept.records[seq - 1].endswith(b'"digest":"%b"}' % digest.encode())
            demand(there, "what was told stays", f"somebody was told of record {seq} of {run_id}, and it is not there")

    # At the end -----------------------------------------------------------------------------------------------------------------

    def ends(self, run_id: str) -> None:
        """Check a run at the end of the schedule, when it has finished."""
        kept, state, calls = self.disk.runs[run_id], self.state(run_id), self.calls[run_id]
        taken = calls.taken
        once = len(taken) == len(set(taken)) or next(one for one in taken if taken.count(one) > 1).startswith(("timer:", "expired:"))
        demand(once, "an answer counts once", f"{run_id}: {taken}")
        holder = self.disk.claims.get(run_id)
        free = holder is None or holder.dead or self.disk.numbers[run_id] >> 61  # a bit of its number was flipped: nobody can give it back
        demand(free, "who is done holds nothing", f"{run_id} has finished, and a process that lives has its claim")
        heard = set(taken)
        for signal in self.accepted.get(run_id, {}).values():
            repeated = signal.kind == "cancel" and calls.cancels
            there = signal.id in heard or signal.id in kept.inbox or repeated
            demand(there, "no accepted answer is lost", f"{run_id}: {signal.kind} {signal.payload} of {signal.by} is nowhere")
        for (run, call), (store, line) in self.owed.items():
            late = run != run_id or store.dead or call in calls.late or line in kept.records  # the last where a claim was altered, and back
            demand(
                late,
                "a late outcome is on record",
                f"{run_id}: {call} ended in a process that had lost the run, and the log does not say how",
            )
        for call, name in calls.tool.items():
            if name in READING or name == "fatal" or without_ledger(name):
                continue
            did = self.ledger.done[name, calls.key[call]]
            end = calls.ended.get(call)
            demand(end != "done" or did, "the log says what happened", f"{run_id}: {name} ({call}) is done on record, and it was not")
            if did and end is not None and call not in state.in_doubt and (name, calls.key[call]) not in self.zombies:
                demand(end == "done", "the world has what the log says", f"{run_id}: {name} ({call}) was done, and the log says {end}")

    def accounts(self, tenant: str) -> None:
        """Check what a tenant is charged with at the end."""
        used = self.disk.used(tenant, "")
        if not self.disk.torn_writes and not self.damaged and not self.erased:
            said = sum(state.usage.tool_calls for state in self.states.values())
            demand(used.tool_calls == said, "accounts hold what the logs say", f"{used.tool_calls} calls are charged, {said} are on record")
        most = self.most_tool_calls
        demand(
            most is None or used.tool_calls <= most, "no bound is exceeded", f"the tenant has used {used.tool_calls} tool calls of {most}"
        )


def _said(event: Any) -> str:
    text = f"{type(event).__name__} {getattr(event, 'call', '')} {getattr(event, 'status', '')}{getattr(event, 'decision', '')}"
    return f"{text} {getattr(event, 'tool', '')} {getattr(event, 'source', '')} {getattr(event, 'outcome', '')}".strip()
