"""The protocol of DESIGN 5 as a model: journal, claims and inbox, two workers, one run, two signals. Pure, and small enough to explore whole.

The run has one call with an effect that is not idempotent. A record of its log is one word:

    I1 O1 D1 L1    the intent of attempt 1; its outcome; it is in doubt; its outcome as a late worker recorded it
    W F            the run waits; it has finished
    +s -s          the signal s was accepted; it was refused (`AnswerRefused`)

A signal is named by its kind: `a` approves the call, `d` denies it, `c` cancels the run. Of attempt 1 in doubt a person who has looked says
`h1` (it happened) or `r1` (it did not: run it again). `A`, `R`, ... are the same, said by a second person.

`RULES` are what the protocol does. Without any one of them a promise (`Model.violation`, `Model.at_rest`) breaks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

RULES = {
    "sequence": "an append names the number of records that are there",
    "number": "an append names the number of its claim; only a late outcome needs none",
    "exclusive": "a claim is granted where the former holder released it, is dead, or let its lease expire",
    "own_release": "a release gives up the releasing holder's own claim, and no later one",
    "intent": "an intent is recorded before its effect",
    "durable_intent": "an intent is durable before its effect",
    "durable_outcome": "an outcome is durable before anybody is told",
    "durable_answer": "an answer is durable before it leaves the kernel",
    "durable_post": "a signal is durable before its sender is told",
    "doubt": "an attempt whose worker is gone is in doubt; it is not repeated",
    "late": "a worker that loses the append of an outcome records it all the same",
    "own_attempt": "a late outcome closes its own attempt, and not a later one that is open",
    "consumed": "the append that records a signal consumes it, in one transaction",
    "restored": "an append that vanishes gives back what it consumed",
    "same_id": "posting an id that was posted before changes nothing, also after it was consumed",
    "order": "signals are decided in the store's order",
    "checked": "a signal is checked where it is taken up",
    "attempt": "what a person says of a call in doubt counts for the attempt that the person saw",
    "refused": "a signal that does not count is recorded as refused",
    "after_end": "a signal that comes after the end is refused on the record",
    "cancel": "no intent is appended while a cancellation is in the inbox",
    "look_again": "who has released a claim looks into the inbox once more",
}

Log = tuple[str, ...]


class Worker(NamedTuple):
    """A process: where it is in its program, the log and inbox as it has read them, and its claim.

    `claim` is "held", "stale" (somebody else has taken the run since) or "". One that died is like one that was just started.
    """

    at: str = "idle"
    view: Log = ()
    inbox: Log = ()
    claim: str = ""


class State(NamedTuple):
    """The store, the world, the workers, and what people know.

    `durable` is how many records survive power loss. `posted` is every signal in the store's order. `effects` counts, by attempt, what happened;
    `zombie`: some of it in a worker whose run another one had taken. `told` is what somebody was told that was not durable then (whoever may be told is told at
    once), and `?r1` that a person is about to say so. `deaf`: a signal is there, and its sender has left it to the holder.
    """

    log: Log = ()
    durable: int = 0
    inbox: Log = ()
    posted: Log = ()
    holder: int = -1
    lapsed: bool = False
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    effects: tuple[int, int, int] = (0, 0, 0)
    zombie: bool = False
    told: frozenset[str] = frozenset()
    deaf: bool = False
    wrong: str = ""


class Run(NamedTuple):
    """The fold of a log."""

    attempt: int = 0
    open: bool = False
    doubt: int = 0
    known: bool = False
    approved: bool = False
    rejected: bool = False
    cancelled: bool = False
    finished: bool = False
    waiting: bool = False


@cache
def fold(log: Log, own_attempt: bool = True) -> Run:
    """Return what a log says of the run."""
    run = Run()
    for word in log:
        run = run._replace(waiting=run.waiting and word[0] == "-")
        match word[:2]:
            case "I1" | "I2":
                run = run._replace(attempt=int(word[1]), open=True)
            case "D1" | "D2":
                run = run._replace(open=False, doubt=int(word[1]))
            case "O1" | "O2" | "L1" | "L2":  # a late one may be of an earlier attempt than the last
                last = run.attempt == int(word[1]) or not own_attempt
                run = run._replace(known=True, open=run.open and not last, doubt=0 if last else run.doubt)
            case "+h" | "+H":
                run = run._replace(doubt=0, known=True)
            case "+r" | "+R":
                run = run._replace(doubt=0)
            case "+a" | "+A":
                run = run._replace(approved=True)
            case "+d" | "+D":
                run = run._replace(rejected=True)
            case "+c" | "+C":
                run = run._replace(cancelled=True)
            case "W":
                run = run._replace(waiting=True)
            case "F":
                run = run._replace(finished=True)
            case _:
                assert word[0] == "-", word
    return run


class Model(NamedTuple):
    """What is explored: the signals that may come, whether the call needs approval, and the rules that are kept."""

    signals: Log
    asks: bool = False
    rules: frozenset[str] = frozenset(RULES)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every next state with what led to it. What begins with `!` comes from outside, and nothing may rely on it."""
        for n in (0, 1):
            for said, after in self._work(state, n):
                yield f"worker {n} {said}", after
            if (me := state.workers[n]) != Worker():
                mine = me.claim == "held"
                after = _with(state, n, Worker(), holder=-1 if mine else state.holder, lapsed=state.lapsed and not mine)
                yield f"!worker {n} dies", after._replace(deaf=False)  # somebody resumes what was left, or a worker does
        if state.holder >= 0 and not state.lapsed:
            yield f"!worker {state.holder} is paused, its lease expires", state._replace(lapsed=True)
        for left in range(state.durable, len(state.log) + 1):
            yield f"!power fails, {left} records are left", self._without_power(state, left)
        for signal in self.signals:
            yield from self._people(state, signal)

    def fold(self, log: Log) -> Run:
        """Return what a log says of the run, by these rules."""
        return fold(log, "own_attempt" in self.rules)

    def _people(self, state: State, kind: str) -> Iterator[tuple[str, State]]:
        """A person looks, posts a signal, perhaps again, and is told what became of it."""
        said = next((one for one in state.posted if one[0] == kind), "")
        if not said:
            about = [word[1:] for word in state.told if word[:2] == f"?{kind}"] if kind in "rRhH" else [kind]
            for signal in about:
                after = state._replace(posted=(*state.posted, signal), inbox=(*state.inbox, signal), told=state.told - {f"?{signal}"})
                yield f"!{signal} is posted", after._replace(deaf=state.deaf or state.holder >= 0)  # "busy": the holder is to see it
            doubt = self.fold(state.log).doubt
            if not about and doubt and bool(state.effects[doubt]) == (kind in "hH"):
                yield f"!a person looks at attempt {doubt}", state._replace(told=state.told | {f"?{kind}{doubt}"})
            return
        if said not in state.inbox and "same_id" not in self.rules:
            yield f"!{said} is posted again", state._replace(inbox=(*state.inbox, said))

    def _without_power(self, state: State, left: int) -> State:
        """Power fails where the store is, and with it all who have read it; of what is not durable any end may be gone."""
        gone = {word[1:] for word in state.log[left:] if word[0] in "+-"} if "restored" in self.rules else set[str]()
        inbox = tuple(one for one in state.posted if one in state.inbox or one in gone) if "durable_post" in self.rules else ()
        told = frozenset(word for word in state.told if word[0] != "?")
        left_of = state.log[:left]
        return State(log=left_of, durable=left, inbox=inbox, posted=state.posted, effects=state.effects, zombie=state.zombie, told=told)

    # Workers --------------------------------------------------------------------------------------------------------------------

    def _work(self, state: State, n: int) -> Iterator[tuple[str, State]]:
        """Yield what worker `n` may do next: one operation of the store, or one effect in the world."""
        me = state.workers[n]
        place, attempt = (me.at[:-1], int(me.at[-1])) if me.at[-1] in "12" else (me.at, 0)
        match place:
            case "idle":
                run = self.fold(state.log)
                free = state.holder < 0 or state.lapsed or "exclusive" not in self.rules
                if free and ((state.inbox and not state.deaf) or not (run.waiting or run.finished)):
                    yield "claims the run", self._claimed(state, n)
            case "claimed":
                yield "reads the log", _with(state, n, me._replace(at="read", view=state.log))
            case "read":
                yield "reads the inbox", _with(state, n, me._replace(at="ready", inbox=state.inbox))
            case "ready":
                yield self._next(state, n)
            case "consume":  # only without the rule: the append that recorded the signal did not consume it
                left = tuple(one for one in state.inbox if one not in me.inbox)
                yield "consumes", _with(state, n, me._replace(at="read", inbox=()), inbox=left)
            case "effect":
                effects = [count + (at == attempt) for at, count in enumerate(state.effects)]
                zombie = state.zombie or me.claim == "stale"
                yield "has the effect", _with(state, n, me._replace(at=f"done{attempt}"), effects=tuple(effects), zombie=zombie)
            case "done":
                words = (f"O{attempt}",) if f"I{attempt}" in me.view else (f"I{attempt}", f"O{attempt}")
                durable = "durable_outcome" in self.rules
                yield f"appends {' '.join(words)}", self._append(state, n, words, lost=f"late{attempt}", durable=durable)
            case "late":
                yield "reads the log again", _with(state, n, me._replace(at=f"lost{attempt}", view=state.log))
            case "lost":
                there = {f"O{attempt}", f"L{attempt}"} & set(me.view)
                if there or "late" not in self.rules:
                    wrong = state.wrong if there else "what a living worker did is nowhere"
                    yield "leaves it at that", _with(state, n, _leaving(me), wrong=wrong)
                else:
                    after = self._append(state, n, (f"L{attempt}",), then="leaving", lost=f"late{attempt}", late=True)
                    yield f"appends L{attempt}", after
            case _:
                yield "releases its claim", self._released(state, n)

    def _claimed(self, state: State, n: int) -> State:
        other, wrong = state.workers[1 - n], state.wrong
        if other.claim == "held" and not state.lapsed:
            wrong = "a claim was taken from a living holder"
        after = _with(state, 1 - n, other._replace(claim=other.claim and "stale"))
        return _with(after, n, Worker("claimed", claim="held"), holder=n, lapsed=False, wrong=wrong)

    def _released(self, state: State, n: int) -> State:
        mine = state.workers[n].claim == "held" or "own_release" not in self.rules
        wrong = "the claim of a living holder was given up" if mine and state.holder == 1 - n else state.wrong
        after = _with(state, n, Worker(), holder=-1 if mine else state.holder, lapsed=state.lapsed and not mine, wrong=wrong)
        return after._replace(deaf=state.deaf and "look_again" not in self.rules)

    def _next(self, state: State, n: int) -> tuple[str, State]:
        """What the holder does follows from the log and the inbox as it has read them, and from nothing else."""
        me, run = state.workers[n], self.fold(state.workers[n].view)
        if me.inbox and ("after_end" in self.rules or not run.finished):
            return self._answer(state, n, me.inbox[0 if "order" in self.rules else -1], run)
        if run.open and "doubt" in self.rules:  # its worker is gone: this one has just read the log
            return f"appends D{run.attempt}", self._append(state, n, (f"D{run.attempt}",))
        if run.finished or (run.waiting and not run.cancelled):
            return "has nothing to do", _with(state, n, _leaving(me))
        waits = run.doubt or (self.asks and not run.approved)
        if run.cancelled or run.rejected or (run.known and not run.doubt):
            return "appends F", self._append(state, n, ("F",), then="leaving", durable="durable_answer" in self.rules)
        if waits:
            return "appends W", self._append(state, n, ("W",))
        if run.attempt == 2:  # a third attempt is the second one over again
            return "appends F", self._append(state, n, ("F",), then="leaving")
        attempt = run.attempt + 1
        if "intent" not in self.rules:
            return "goes ahead", _with(state, n, me._replace(at=f"effect{attempt}", inbox=()))
        if "cancel" in self.rules and {"c", "C"} & set(state.inbox):
            return "is refused the intent: a cancellation is there", _with(state, n, me._replace(at="read", inbox=()))
        durable = "durable_intent" in self.rules
        return f"appends I{attempt}", self._append(state, n, (f"I{attempt}",), then=f"effect{attempt}", durable=durable)

    def _answer(self, state: State, n: int, signal: str, run: Run) -> tuple[str, State]:
        """Decide one signal: accept it, or refuse it on the record."""
        match signal[0].lower():
            case "a" | "d":
                counts = self.asks and not (run.approved or run.rejected or run.cancelled or run.finished)
            case "c":
                counts = not (run.cancelled or run.finished)
            case _:
                counts = bool(run.doubt) and ("attempt" not in self.rules or signal[1] == str(run.doubt))
        accepted = counts or "checked" not in self.rules
        words = (f"{'+' if accepted else '-'}{signal}",) if accepted or "refused" in self.rules else ()
        at, consumed = ("read", signal) if "consumed" in self.rules else ("consume", "")
        after = self._append(state, n, words, then=at, consumed=consumed, durable=False)
        if accepted and signal[0] in "rRhH" and signal[1] != str(run.doubt):
            after = after._replace(wrong=after.wrong or "a call in doubt was settled by what was said of another attempt")
        if at == "consume" and after.workers[n].at == at:
            after = _with(after, n, after.workers[n]._replace(inbox=(signal,)))
        return f"decides {signal}: {' '.join(words) or 'nothing'}", after

    def _append(
        self,
        state: State,
        n: int,
        words: Log,
        *,
        then: str = "read",
        lost: str = "leaving",
        consumed: str = "",
        durable: bool = True,
        late: bool = False,
    ) -> State:
        """One transaction of the store: all of it, or nothing where somebody else was first."""
        me, wrong = state.workers[n], state.wrong
        fenced = "number" in self.rules and not late and me.claim != "held"
        if fenced or ("sequence" in self.rules and len(me.view) != len(state.log)):
            return _with(state, n, _leaving(me) if lost == "leaving" else me._replace(at=lost, view=(), inbox=()))
        if me.view != state.log:
            wrong = "a decision was appended to another log than it was made from"
        elif not late and me.claim != "held":
            wrong = "a worker advanced a run that another one has"
        elif words[0:1] in (("I1",), ("I2",)) and {"c", "C"} & set(state.inbox):
            wrong = "a call began after a cancellation was accepted"
        log = (*state.log, *words)
        told = state.told - set(log) if durable else state.told | {word for word in words if word[0] in "OF+-"}
        inbox = tuple(one for one in state.inbox if one != consumed)
        worker = _leaving(me) if then == "leaving" else me._replace(at=then, view=log, inbox=())
        return _with(state, n, worker, log=log, durable=len(log) if durable else state.durable, inbox=inbox, told=told, wrong=wrong)

    # Promises -------------------------------------------------------------------------------------------------------------------

    def violation(self, state: State) -> str:
        """Return the promise that does not hold in a state, "" where all do."""
        if state.wrong:
            return state.wrong
        log, run = state.log, self.fold(state.log)
        if run.finished and not set(log[log.index("F") + 1 :]).isdisjoint(("I1", "I2", "D1", "D2", "W", "F")):
            return "the run went on after its end"
        for word in state.told:
            if (word[0] in "OF" and word not in log) or (word[0] in "+-" and word.translate(_OPPOSITE) in log):
                return "somebody was told what is not so any more"
        return _of_effects(state, run) or _of_signals(state)

    def at_rest(self, state: State) -> bool:
        """Whether nobody is at work, the run has finished or waits, and everything that was said to it is decided."""
        run = self.fold(state.log)
        return state.workers == (Worker(), Worker()) and state.holder < 0 and not state.inbox and (run.finished or run.waiting)


def _of_effects(state: State, run: Run) -> str:
    log, busy = state.log, {worker.at for worker in state.workers}
    for attempt in (1, 2):
        if state.effects[attempt] > 1:
            return "an attempt was made twice"
        if state.effects[attempt] and f"I{attempt}" not in log:
            return "an effect happened that no intent announces"
        open_ = (run.open and run.attempt == attempt) or {f"{at}{attempt}" for at in ("done", "late", "lost")} & busy
        if state.effects[attempt] and not open_ and not {f"{word}{attempt}" for word in "OLD"} & set(log):
            return "an outcome is lost"
    if "I2" in log and not any(word[:2] in ("+r", "+R") for word in log[: log.index("I2")]):
        return "a call in doubt was repeated, and nobody said that it did not happen"
    if sum(state.effects) > 1 and not state.zombie:
        return "an effect happened twice, and not in a worker that was given up"
    return ""


def _of_signals(state: State) -> str:
    decided = [word[1:] for word in state.log if word[0] in "+-"]
    if all(worker.at != "consume" for worker in state.workers) and sorted((*decided, *state.inbox)) != sorted(state.posted):
        return "a signal is not once in the inbox or in the log"
    if decided != [one for one in state.posted if one in decided]:
        return "signals were decided in another order than they came"
    if sum(word[:2] in ("+a", "+A", "+d", "+D") for word in state.log) > 1:
        return "a question was answered twice"
    return ""


_OPPOSITE = str.maketrans("+-", "-+")


def _leaving(worker: Worker) -> Worker:
    return Worker("leaving", claim=worker.claim)


def _with(state: State, n: int, worker: Worker, **changes: Any) -> State:
    workers = (worker, state.workers[1]) if n == 0 else (state.workers[0], worker)
    return state._replace(workers=workers, **changes)
