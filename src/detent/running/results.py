"""What the engine answers: plain frozen data."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from datetime import datetime
from html import escape
from textwrap import shorten
from typing import Any, Generic, Literal, Protocol, cast

import msgspec

from detent.config.output_types import OutputT
from detent.core.budget import Usage
from detent.core.events import ArtifactRef
from detent.core.state import Item, RunState, RunStatus
from detent.running.receipts import Receipt, receipt_of
from detent.running.requests import differs, healed, origins
from detent.running.titles import title_of
from detent.running.tracebacks import traceback_behind, tracebacks

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
SHOWN_WHOLE_BYTES = 64 * 1024
"""A terminal does not show arguments over this many bytes of JSON, only the digest that the approval binds."""


Reason = Literal[
    "", "final_answer", "done_tool", "max_iterations", "budget_exhausted", "no_progress", "failure_threshold", "policy_stopped",
    "approval_rejected", "approval_expired", "cancelled", "abstained", "stop_action", "fatal_tool_error", "policy_denied", "malformed_plan",
    "answer_refused", "model_refused", "context_overflow", "output_schema_failed", "missing_required_tool", "planner_error", "kernel_error",
]  # fmt: skip
"""Why a run ended, "" while it has not: the keys of `core.settle.REASONS`."""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of what somebody sent to a run: it counts, it does not (`code` and `why` say why), or nobody has decided yet (`posted`).

    `signal` is its id in the log once it is decided.
    """

    signal: str
    outcome: Literal["accepted", "refused", "posted"]
    code: str = ""
    why: str = ""


class Outcome(Protocol):
    """The status of a run: `run` and `load` both return one, for functions that take either."""

    @property
    def store(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def status(self) -> RunStatus: ...
    @property
    def reason(self) -> str: ...
    @property
    def output(self) -> Any: ...
    @property
    def partial(self) -> str: ...
    @property
    def error(self) -> str | None: ...
    @property
    def usage(self) -> Usage: ...
    @property
    def iterations(self) -> int: ...
    @property
    def state(self) -> RunState: ...
    @property
    def steps(self) -> tuple[Item, ...]: ...
    @property
    def tool_calls(self) -> tuple[Item, ...]: ...
    @property
    def tools_used(self) -> frozenset[str]: ...
    @property
    def artifacts(self) -> tuple[ArtifactRef, ...]: ...
    @property
    def title(self) -> str: ...
    @property
    def traceback(self) -> str: ...
    @property
    def receipt(self) -> Receipt: ...
    @property
    def total_tokens(self) -> int: ...


def _state(outcome: Any) -> RunState:
    return outcome.state


class Readings:
    """What a result and a loaded run offer beside their fields, all read from the state."""

    __slots__ = ()

    @property
    def steps(self) -> tuple[Item, ...]:
        """The transcript of all passes, in the order in which they began."""  # row S0-16
        return tuple(item for p in _state(self).passes.values() for item in p.steps)

    @property
    def artifacts(self) -> tuple[ArtifactRef, ...]:
        """The files that models created in any turn, beside an answer or a call, each once; `engine.artifact(run_id, key)` returns the bytes."""
        return files_of(_state(self))

    @property
    def tools_used(self) -> frozenset[str]:
        """The tools with a successful call."""
        return frozenset(name for p in _state(self).passes.values() for name in p.tools_used)

    @property
    def title(self) -> str:
        """The run's title in lists, "" without one (`Engine(models=Models(titles=True))`)."""
        return title_of(_state(self))

    @property
    def traceback(self) -> str:
        """The traceback of your own code as Python prints it: the one behind `error` if that failed the run, else the last one; "" if there is none.

        Redacted and bounded. `detent show RUN` shows all that are stored with the run.
        """
        kept, behind = tracebacks(_state(self)), traceback_behind(_state(self), _state(self).error)
        return kept[behind - 1].text if kept and (behind or not _state(self).error) else ""

    @property
    def receipt(self) -> Receipt:
        """What the run's answer is based on, what it produced, who intervened, why it ended."""
        return receipt_of(_state(self))

    @property
    def total_tokens(self) -> int:
        """Input and output tokens of all model calls."""
        return _state(self).usage.total_tokens

    @property
    def tool_calls(self) -> tuple[Item, ...]:
        """The observed calls of all passes."""
        return tuple(item for p in _state(self).passes.values() for item in p.results if not item.meta)


class Result(Readings, msgspec.Struct, Generic[OutputT], frozen=True, kw_only=True):
    """The result of a run so far. `completed` has an output; `failed` and `stopped` have none, and may have a `partial`.

    `partial` is the last text that the planner gave with its actions (`Plan.text`), "" if it gave none. Models do; your own planner sets it.

    `tool_calls` holds every executed or refused call that got an observation, in index order, without those of meta-tools. `answered` is set if
    something was sent to the run: its outcome. `stayed`: the calls with an effect of the run that this message of a session rolled back. `store` is the
    URL of its store without a password, for the commands that are printed.
    """

    run_id: str
    status: RunStatus
    reason: Reason
    output: OutputT
    partial: str
    error: str | None
    usage: Usage
    iterations: int
    state: RunState
    answered: Answered | None = None
    stayed: tuple[Item, ...] = ()
    store: str = ""

    def __str__(self) -> str:
        """Return the status of the run, in at most five lines."""
        return _lines(self, WHOLE)

    def __repr__(self) -> str:
        """Return the same, each line shortened to the width of a terminal."""
        return _lines(self, SHORT)

    def _repr_html_(self) -> str:
        """Return the same as a table, for notebooks."""
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(said)}</td></tr>" for name, said in _said(self, SHORT))
        return f"<table>{rows}</table>"


WHOLE, SHORT = 2_000, 68
"""How many characters of a value `str` and `repr` show."""


def _lines(outcome: Outcome, most: int) -> str:
    return "\n".join(f"{name:<7} {_CONTROLS.sub('?', said)}" for name, said in _said(outcome, most))


def _said(outcome: Outcome, most: int) -> Iterator[tuple[str, str]]:
    used, cost, state = outcome.usage, outcome.usage.cost_usd, outcome.state
    yield "run", f"{outcome.run_id}: {outcome.status.replace('_', ' ')}" + (f" ({outcome.reason})" if outcome.reason else "")
    waits, commands = _waits(state, outcome.store)
    for name, said in (("output", state.output), ("error", outcome.error), ("waits", "; ".join(waits)), ("next", "; ".join(commands))):
        if said not in (None, ""):
            yield name, shorten(said if isinstance(said, str) else msgspec.json.encode(said).decode(), most, placeholder="…")
    if kept := tracebacks(state):
        yield "raised", shorten(f"{kept[-1].error} ({kept[-1].at}); result.traceback has it all", SHORT, placeholder="…")
    spent = "" if cost is None else f" · ${cost:.4f}"
    yield "used", f"iterations {used.iterations} · tool calls {used.tool_calls} · tokens {used.total_tokens}{spent}"


def _waits(state: RunState, store: str) -> tuple[list[str], list[str]]:
    """Return what an unfinished run waits for, and the commands that answer it from a shell; none if only this process has its store."""
    waits, commands = list[str](), list[str]()
    run, at = shlex.quote(state.run_id), f" --store {shlex.quote(store)}" if store else ""
    for call_id, asked in () if state.terminal else state.approvals.items():
        waits.append(f"approval of {asked.tool} ({call_id})")
        commands.append(f"detent approve {run} {call_id} --digest {asked.digest}{at}")
    for ask_id, ask in () if state.terminal else state.asks.items():
        waits.append(f"answer to {ask.question} ({ask_id})")
        commands.append(f"detent reply {run} TEXT{at}")
    for call_id in state.in_doubt:
        call = state.call(call_id)
        waits.append(f"outcome of {call.tool if call else 'a call'} ({call_id})")
        commands.append(f"detent reconcile {run} {call_id}{at} (--happened RESULT | --not)")
    return waits, [] if store == "ram:" else commands


def files_of(state: RunState) -> tuple[ArtifactRef, ...]:
    """Return the files that models created in a run, each once, in the order of its passes."""
    plans = (item.plan for p in state.passes.values() for item in p.steps)
    return tuple(dict.fromkeys(file for plan in plans if plan is not None for file in plan.files))


class LoadedRun(Readings, RunState, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The state of a loaded run, with everything that a `Result` has.

    If the type of its answers is known, `output` is an instance, and `recorded` is the state with the JSON from the log.
    """

    recorded: RunState | None = None
    store: str = ""

    def __str__(self) -> str:
        """Return the status of the run, as a `Result` does."""
        return _lines(self, WHOLE)

    def __repr__(self) -> str:
        """Return the same, each line shortened."""
        return _lines(self, SHORT)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same state, loaded or not."""
        theirs: Any = other.state if isinstance(other, LoadedRun) else other
        names = RunState.__struct_fields__
        return isinstance(theirs, RunState) and all(getattr(self.state, name) == getattr(theirs, name) for name in names)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = RunState.__hash__

    @property
    def state(self) -> RunState:
        """The state as the log has it."""
        return self if self.recorded is None else self.recorded

    @property
    def iterations(self) -> int:
        """The turns that reached the kernel."""
        return self.usage.iterations


def loaded(state: RunState, output: Any, store: str = "") -> LoadedRun:
    """Return a state as `load` does, with its output or the instance created from it, and the URL of its store."""
    fields: dict[str, Any] = {"store": store, **{name: getattr(state, name) for name in RunState.__struct_fields__}}
    return LoadedRun(**fields) if output is state.output else LoadedRun(**{**fields, "output": output}, recorded=state)


def result_of(state: RunState, store: str = "") -> Result:
    """Return the result for `state`, and the URL of its store."""
    return Result(
        run_id=state.run_id,
        status=state.status,
        reason=cast("Reason", state.reason),
        output=state.output,
        partial=state.partial,
        error=state.error or None,
        usage=state.usage,
        iterations=state.usage.iterations,
        state=state,
        store=store,
    )


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for a person: approve or deny exactly this.

    `digest` is that of the arguments and of the tool's declaration: pass it with the answer to make sure that nothing changed in between. `rule` and
    `policy` say who asks, `facts` what the decision was based on, `approved_by` which of the required `approvers` people have approved.

    `sandbox`: where the programs that the tool starts would run ("": it starts none). `healed`: the call as it was written, {"tool", "args",
    "repairs"}, if it was repaired, and "text" if it was read from a text with broken JSON in it. `origins`: where each leaf of the arguments came
    from, path -> {"label", "origin", "tool"}. `differs`: what is new since the last call of that tool that was approved in this run, {"call_id",
    "args": path -> {"before", "now"}}; None: there was none.

    `answered_by`, in the result of `Engine.approvals`: who has sent an answer that is decided when the run continues. `root` is the run at the top of the
    tree that the run belongs to, and `path` has the agents from there to this run.
    """

    run_id: str
    call_id: str
    tool: str
    args: Any
    reason: str
    requested_at: datetime | None
    digest: str = ""
    rule: str = ""
    policy: str = ""
    facts: dict[str, Any] = {}
    approvers: int = 1
    approved_by: tuple[str, ...] = ()
    expires_at: datetime | None = None
    sandbox: str = ""
    healed: dict[str, Any] | None = None
    origins: dict[str, dict[str, Any]] = {}
    differs: dict[str, Any] | None = None
    answered_by: tuple[str, ...] = ()
    root: str = ""
    path: tuple[str, ...] = ()

    @property
    def too_long(self) -> bool:
        """Whether the arguments are too long to read in a terminal: it shows only their digest, and approving needs it."""
        return len(msgspec.json.encode(self.args)) > SHOWN_WHOLE_BYTES


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """A call in doubt: it may or may not have happened. Look at the system that it called, then tell `Engine.reconcile`.

    `why`: what interrupted it. `key`: the idempotency key that the tool got, the same for each attempt; `attempt` counts these from 1.

    `answered_by`, in the result of `Engine.doubts`: who has sent an answer that is decided when the run continues.
    """

    run_id: str
    call_id: str
    tool: str
    args: Any
    why: str
    key: str = ""
    attempt: int = 0
    answered_by: tuple[str, ...] = ()


def doubts_of(state: RunState) -> list[Doubt]:
    """Return the calls in doubt of a run, also of one that has ended."""
    known = [call for call_id in state.in_doubt if (call := state.call(call_id)) is not None]
    return [
        Doubt(
            run_id=state.run_id,
            call_id=call.call_id,
            tool=call.tool,
            args=msgspec.json.decode(msgspec.json.encode(call.args)),
            why=call.why,
            key=call.key,
            attempt=call.attempt,
        )
        for call in known
    ]


def approvals_of(state: RunState) -> list[Approval]:
    """Return the open approvals of a run, with what a person should know about each."""
    found: list[Approval] = []
    for call_id, asked in () if state.terminal else state.approvals.items():
        call = state.call(call_id)
        args = msgspec.json.decode(msgspec.json.encode(call.args)) if call else None
        found.append(
            Approval(
                run_id=state.run_id,
                call_id=call_id,
                tool=asked.tool,
                args=args,
                reason=asked.reason,
                requested_at=asked.requested_at,
                digest=asked.digest,
                rule=asked.rule,
                policy=asked.policy,
                facts=asked.facts,
                approvers=asked.approvers,
                approved_by=call.approved_by if call else (),
                expires_at=asked.expires_at,
                sandbox=asked.sandbox,
                healed=healed(state, call) if call else None,
                origins=origins(state, call, asked.facts) if call else {},
                differs=differs(state, call) if call else None,
                root=state.run_id if state.delegated is None else state.delegated.root,
                path=(state.agent.name,) if state.delegated is None else state.delegated.path,
            )
        )
    return found


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference between a replay and the log: the sequence, what the log has, what the code gives (JSON text)."""

    sequence: int
    expected: str
    actual: str


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of replaying a log: identical, or the first divergence; `records` were compared.

    `judged_by` are the versions of policies that were stored with the run as data, other than the engine's: they judged their own decisions again.
    `not_judged` are the calls that any other policy had decided, `not_checked` those of tools whose declaration has changed: these decisions, and the
    findings about the arguments, are taken from the log and not judged again.
    """

    run_id: str
    identical: bool
    divergence: Difference | None
    records: int
    not_judged: tuple[str, ...] = ()
    judged_by: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """What remains of an erased run beside its digests: `ids_with_goal_words`, which stay because the chain covers them (its own, its forks').

    `later` are the later runs of its session whose conversations had its words, and have them no more. `remembered` are the keys of memory items that
    came from the run and are still there: `engine.memory.forget(run=...)` forgets them.
    """

    run_id: str
    ids_with_goal_words: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    remembered: tuple[str, ...] = ()


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a run is sound: number of records and head digest, or why not (`problem`), and the record concerned (`sequence`).

    Without `sequence` the records are sound, and something stored beside them is not. `further` are more problems like it; `missing` is the number of
    missing hidden values, as after an archive was imported: it is not a problem of the log. `listing` is the problem that concerns the listing entry
    alone, which can be rebuilt from the log. `parent_erased` is the erased run that it continues from, "" if there is none: it can neither be loaded
    nor resumed.
    """

    run_id: str
    ok: bool
    records: int
    digest: str
    erased: bool = False
    parent_erased: str = ""
    sequence: int | None = None
    problem: str = ""
    further: tuple[str, ...] = ()
    missing: int = 0
    listing: str = ""
