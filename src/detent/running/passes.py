"""What a strategy works with: passes and values, each recorded once under its label and occurrence. `driving` runs the strategy.

Theory of operation. A strategy is an async function over `StrategyRun`. After a crash, or when a wait is over, it starts from its top. Values in the
log return at once, and an open pass continues from its fold, so the function gets back to where it was. Some outcomes cannot return to the function
and leave it as an exception that it does not catch: the end of the run (`Ends`), a wait (`Waits`). A pass ends the run only for reasons that concern
the run: cancellation, its bounds, a stop by governance, a fatal tool. In all other cases it returns to the strategy.

Effects have one implementation, `kernel.context.Run.effect`: it takes the value from the fold, else lets the world make it, and records it. Phases,
hooks and strategies use it; a live world makes the value, a replay reads it from the log. A failure is a value: it is recorded at once and raised
(`EffectFailed`) whenever it is requested. There is one exception: when a run that ended as `kernel_error` is opened again or forked, the failure is
dropped if the strategy recorded nothing after it. A cancellation ends an effect that is being made: nothing is recorded of it, and the run ends.

A run that is opened again or forked follows its earlier path: a failed pass continues only if the strategy recorded nothing after it
(`RunState.unanswered`). All other passes began before these, so their digests are binding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from types import CoroutineType
from typing import Any

import msgspec

from detent.core import events as e
from detent.core.actions import AskUser, FinalAnswer
from detent.core.budget import Budget, exhausted, remaining
from detent.core.codec import digest_of
from detent.core.durations import seconds as in_seconds
from detent.core.errors import ConfigError, Divergence, PassFailed, UnknownName, unknown_arguments
from detent.core.settle import CALLS, Settled, Wait
from detent.core.state import CLOSED, WAITING, Item, KernelState, RunState
from detent.kernel.act import act
from detent.kernel.context import KernelContext, Run
from detent.kernel.kernel import Kernel, make_kernel
from detent.kernel.runner import run_kernel
from detent.kernel.think import think
from detent.ports import Branch, ContextProfile, MetaTool, OptionsT, Passed, Plan, ToolSpec, json_problem, offered, shared
from detent.ports.copies import copied
from detent.ports.outside import BRANCH, BoundReached, Hold, Interrupted, Turns, made, taken
from detent.running.endings import answers_goal, ends_run, finished, honest
from detent.running.foreign import sheltered
from detent.running.gathering import AgentPasses, Waits
from detent.running.live import refuse_inside_effect
from detent.running.pass_context import Pass, make_context, meta_tools_of, refuse_unusable
from detent.running.phase_hooks import hooked
from detent.running.questions import asked, asking, refuse_unanswerable, replied
from detent.running.strategy_options import options_of
from detent.running.verifying import behind_act, holds, presenting, unchecked

ASK = make_kernel(phases=(think, act), name="ask")
"""One model call that must answer: no tools, one turn."""
WAYS_OUT = "Install the code that the run was started with, run `detent check-upgrade`, or fork the run before this pass"

ASKING = ("instructions", "guidance", "limits", "meta", "model", "planner", "settings")
"""The fields of a `Branch` that `run.ask` takes."""


class Ends(BaseException):
    """Ends the run; passes through a strategy without its involvement."""

    def __init__(self, settled: Settled) -> None:
        self.settled = settled


class TurnsUsed(BaseException):
    """The requested turns are done."""


def end_pass(run: Run, scope: str, settled: Settled) -> None:
    """Record that an open pass ends with its run. A finished pass stays as it is."""
    state = run.state.passes[scope]
    for call in state.calls.values():
        if call.status == "started" and not call.read_only:
            run.record(scope, e.ToolInDoubt(call=call.call_id, why="the run ended before its outcome was known"))
    if state.status not in CLOSED:
        run.record(scope, e.PassFinished(status="failed", reason=settled.reason, error=settled.error))


class StrategyPasses(AgentPasses):
    """What a strategy works with (`ports.StrategyRun`)."""

    __slots__ = ("_kernel_of", "_seen", "_turns", "_unasked", "hold")

    def __init__(self, run: Run, kernel_of: Callable[[str], Kernel], turns: Turns) -> None:
        super().__init__(run)
        self._kernel_of, self._turns = kernel_of, turns
        self._seen: dict[str, int] = {}
        self.hold = Hold()
        self._unasked = {scope: None for scope, state in run.state.passes.items() if state.digest}

    # Reading the run --------------------------------------------------------------------------------------------------------------

    @property
    def goal(self) -> str:
        """The goal in the user's words."""
        return self._run.state.goal

    @property
    def variables(self) -> dict[str, Any]:
        """The run's variables; a fresh copy."""
        return msgspec.json.decode(msgspec.json.encode(self._run.state.variables))

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """The schema that the run's output must satisfy."""
        return copied(self._run.state.output_schema)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the agent lists, without meta-tools: those are for the planner that calls them."""
        return tuple(copied(tool.spec) for tool in self._run.tools.values() if not isinstance(tool, MetaTool))

    def options(self, kind: type[OptionsT]) -> OptionsT:
        """Return the agent's options for its strategy; see `ports.StrategyRun.options`."""
        return options_of(self._run.state.agent, kind)

    @property
    def budget_remaining(self) -> Budget:
        """What is left of each bound of the run. It changes with time: base decisions on it only through `effect`."""
        state = self._run.state
        return remaining(state.budget, taken(state), running_s=state.running_ms / 1000, total_s=state.total_s)

    @property
    def profile(self) -> ContextProfile:
        """How much a model of the agent's size is shown."""
        return self._run.profile

    # Passes ---------------------------------------------------------------------------------------------------------------------

    def kernel(self, label: str, **options: Any) -> CoroutineType[Any, Any, Passed]:
        """Run one pass and return its outcome; see `ports.StrategyRun.kernel`."""
        return self._pass(Branch(label=label, **options), self._scope(label))

    async def ask(self, label: str, prompt: str, schema: dict[str, Any] | None = None, *, small: bool = True, **options: Any) -> Any:
        """Make one model call and return its answer. Raise `PassFailed` if there is none. See `ports.StrategyRun.ask`."""
        if problem := unknown_arguments("run.ask()", options, ASKING):
            raise TypeError(problem)
        branch = Branch(label=label, task=prompt, kernel=ASK.name, tools=(), output_schema=schema or {}, small=small, **options)
        passed = await self._pass(branch, self._scope(label), Budget(max_iterations=1).over(branch.limits))
        return self._output(passed)

    async def ask_user(self, label: str, question: str, expected: dict[str, Any] | None = None) -> Any:
        """Ask the user and return the reply; see `ports.StrategyRun.ask_user`."""
        branch = Branch(label=label, question=AskUser(question=question, expected=expected), tools=(), output_schema={})
        return self._output(await self._pass(branch, self._scope(label)))

    def _output(self, passed: Passed) -> Any:
        """Return the result of a pass. Raise `PassFailed` if there is none."""
        if passed.status != "done":
            raise PassFailed(self._run.state.run_id, passed)
        return passed.output

    async def parallel(self, *branches: Branch) -> tuple[Passed, ...]:
        """Run several passes side by side, each with its share of what is left; see `ports.StrategyRun.parallel`."""
        with self.hold:
            return await self._side_by_side(branches)

    async def _side_by_side(self, branches: Sequence[Branch]) -> tuple[Passed, ...]:
        if not branches:
            return ()
        pairs = [(branch, self._scope(branch.label)) for branch in branches]
        shares = _shares(self.budget_remaining, branches)
        new = [(*pair, share) for pair, share in zip(pairs, shares, strict=True) if pair[1] not in self._run.state.passes]
        for branch, scope, share in new:
            self._begin(branch, scope, branch.limits.over(share), kernel=self._chosen(branch), beside=True)
        if new:
            await self._run.journal.commit()
        self._refuse_late([scope for _, scope in pairs])
        ended = await asyncio.gather(*(self._branch(*pair) for pair in pairs), return_exceptions=True)
        if self._run.world.cancelled:
            await self._run.world.absorb(
                self._run, fresh=False
            )  # here, and not when it came while the last passes ended: a replay finds it here too
        return self._together(ended)

    def _refuse_late(self, scopes: Sequence[str]) -> None:
        """End the run if its time is over and calls of open turns would begin: here, where no pass has continued and changed the reading."""
        state = self._run.state
        going_on = [known for scope in scopes if (known := state.passes[scope]).status not in CLOSED and not known.ended]
        if state.cancel is None and any(call.status != "finished" for known in going_on for call in known.calls.values()):
            running_s, total_s = state.running_ms / 1000, state.total_s
            bound = exhausted(state.budget, state.usage, running_s=running_s, total_s=total_s, only=("running_s", "total_s"))
            if bound is not None:
                raise Ends(Settled(reason="budget_exhausted", error=bound.said, bound=bound))

    async def _branch(self, branch: Branch, scope: str) -> Passed:
        BRANCH.set(scope)  # of this task alone
        return await self._pass(branch, scope)

    @staticmethod
    def _together(ended: Sequence[Passed | BaseException]) -> tuple[Passed, ...]:
        """Return the results, or raise the most important outcome: an error, a stopped pass with open work, the end of the run, a wait."""
        raised = [one for one in ended if isinstance(one, BaseException)]
        if raised:
            raise min(raised, key=_lightness)
        return tuple([one for one in ended if isinstance(one, Passed)])

    async def presented(self, returned: Any) -> Any:
        """Return what the strategy returned. If that is an answer that no pass had checked, return the outcome of its check."""
        branch = Branch(label="verify", guards=("side_effect_once",))
        behind = behind_act(self._kernel_of(branch.kernel))
        if not unchecked(self._run, returned, behind=behind):
            return returned
        output = returned.output if isinstance(returned, Passed) else returned
        return await self._pass(branch, self._scope(branch.label), kernel=sheltered(presenting(output, behind)))

    async def _pass(self, branch: Branch, scope: str, limits: Budget | None = None, *, kernel: Kernel | None = None) -> Passed:
        run, kernel = self._run, kernel or self._chosen(branch)
        if scope not in run.state.passes:
            self._begin(branch, scope, branch.limits if limits is None else limits, kernel=kernel)
        elif (known := run.state.passes[scope].digest) and known != (digest := self._digest(branch, kernel)):
            raise self.parted(
                f"pass {scope!r} with input digest {known}", f"{digest}: the strategy gives it another kernel, limits or input"
            )
        if run.state.passes[scope].status in CLOSED:
            return passed(run.state, scope, branch.label)
        self.all_asked_for(f"pass {scope!r}")
        with self.hold:
            await run.journal.commit()
            context = make_context(run, scope, kernel, configured(branch))
            verdict = await run_kernel(kernel, context, self._turns)
        if verdict is None:
            raise TurnsUsed
        if isinstance(verdict, Wait):
            raise Waits(verdict.status)
        assert isinstance(verdict, Settled)  # noqa: S101 - `run_kernel` returns nothing else
        verdict = honest(run.state, verdict, only=None if answers_goal(context) else ())
        if ends_run(verdict):
            end_pass(run, scope, verdict)
            raise Ends(verdict)
        if context.state.status not in CLOSED:
            run.record(scope, finished(verdict))
        return passed(run.state, scope, branch.label)

    def _begin(self, branch: Branch, scope: str, limits: Budget, *, kernel: Kernel, beside: bool = False) -> None:
        known = {**self._run.tools, **meta_tools_of(kernel, branch.tools or ())}
        for name in branch.tools or ():
            if name not in known:
                raise UnknownName("tool", name, known)
        if branch.question is not None:
            refuse_unanswerable(branch.question)
        refuse_unusable(self._run.state.agent, configured(branch), f"the pass {scope!r}")
        if problem := json_problem(branch, escaping=True):
            raise ConfigError(f"the pass {scope!r} was started with input that is not JSON data, so the log cannot keep it: {problem}")
        self.all_asked_for(f"pass {scope!r}")
        digest = self._digest(branch, kernel)
        began = e.PassStarted(
            key=scope,
            kernel=kernel.name,
            limits=limits,
            digest=digest,
            input=branch.task,
            meta=dict(branch.meta),
            model=branch.model,
            planner=branch.planner,
            settings=dict(branch.settings),
            holds=not (branch.calls or branch.question) and holds(kernel, self._run, branch.task),
            marks=beside,
        )
        self._run.record(scope, began)

    def all_asked_for(self, now: str) -> None:
        """Raise `Divergence` if the log has a pass that the strategy has not asked for before `now`: its label changed, or it is left out."""
        for left in self._unasked:
            raise self.parted(f"pass {left!r}", f"{now}: the strategy does not ask for that pass")

    def parted(self, logged: str, now: str) -> BaseException:
        """Return the end that a strategy gives if it differs from the log's. A cancelled run ends in any case: its end uses none of the code."""
        run = self._run.state
        if run.cancel is not None:
            return Ends(Settled(reason="cancelled", error=run.cancel))
        return Divergence(run.run_id, run.seq, logged, f"{now}. {WAYS_OUT}")

    def _chosen(self, branch: Branch) -> Kernel:
        if branch.calls:
            return hooked(carrying_out(branch, self._kernel_of(branch.kernel) if branch.kernel else None), self._run.hooks)
        if branch.question is not None:
            return hooked(asking(branch.question), self._run.hooks)
        return hooked(ASK if branch.kernel == ASK.name else sheltered(self._kernel_of(branch.kernel)), self._run.hooks)

    def _digest(self, branch: Branch, kernel: Kernel) -> str:
        """Return the digest that a restart compares: kernel, limits and input of the pass."""
        return digest_of([kernel.name, kernel.version, self.goal, msgspec.to_builtins(branch)])

    def _scope(self, label: str) -> str:
        """Return the key of the next pass under this label: label, occurrence. Raise `ValueError` for an invalid label."""
        refuse_inside_effect(f"the pass {label!r}")
        if not label.strip() or "#" in label:
            raise ValueError(
                f"a pass cannot be labelled {label!r}: a label is not blank, and has no '#', which precedes the number of its occurrence"
            )
        before = self._before(label)
        scope = f"{label}#{before + 1}" if before else label
        self._unasked.pop(scope, None)
        return scope

    # Values ---------------------------------------------------------------------------------------------------------------------

    def _before(self, label: str) -> int:
        """Return how often the strategy has used this label before, and count this use."""
        self._seen[label] = self._seen.get(label, 0) + 1
        return self._seen[label] - 1

    async def effect(self, label: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """Return the JSON value recorded under the label and its occurrence, or make and record it now; raise `EffectFailed`."""
        return copied(made(await self._value(label, make, self._before(f"effect {label}"), commit=True)))

    async def _value(self, label: str, make: Callable[[], Awaitable[Any]], occurrence: int = 0, *, commit: bool = False) -> Any:
        """Return the value of an effect of the run (`Run.effect`). If a cancellation ends it, the strategy does not continue."""
        run = self._run
        try:
            with self.hold:
                return await run.effect("", label, make, occurrence=occurrence, commit=commit)
        except Interrupted:
            await self._run.world.absorb(self._run, fresh=False)
            raise Ends(Settled(reason="cancelled", error=self._run.state.cancel or "cancelled")) from None
        except BoundReached as late:
            raise Ends(Settled(reason="budget_exhausted", error=str(late), bound=late.bound)) from None

    async def offered(self) -> tuple[ToolSpec, ...]:
        """Return the tools that a planner is shown before it has discovered any; see `ports.StrategyRun.offered`."""
        run, found = self._run, self._run.state.agent.required_tools

        async def read() -> list[str]:
            specs = [spec for spec in self.tools if "discover_tools" not in run.tools or spec.ends_turn or spec.name in found]
            return [spec.name for spec in specs if offered(run.policy, spec, run.state)]

        names = await self.effect("offered", read)
        return tuple(spec for spec in self.tools if spec.name in names)

    async def full(self, item: Item) -> Any:
        """Return the whole value of a tool item; see `ports.StrategyRun.full`."""
        with self.hold:
            return await self._run.world.full(item)

    async def now(self) -> float:
        """Return the recorded time, in seconds since 1970."""
        return await self.effect("now", lambda: self._run.world.reading("now"))

    async def random(self) -> float:
        """Return a recorded random number in [0, 1)."""
        return await self.effect("random", lambda: self._run.world.reading("random"))

    async def sleep(self, seconds: float | str) -> None:
        """Wait that long. The wait takes no memory, and any process can continue the run."""
        lasts = in_seconds(seconds, "sleep")
        run, timer = self._run, f"sleep#{self._before('sleep') + 1}"
        begins = f"-1:{timer}:0" not in run.state.effects
        due = await self._value(timer, lambda: self._due(lasts))
        if begins:
            run.journal.record(e.ScheduleSet(timer_id=timer, due=datetime.fromtimestamp(due, UTC)))
        if timer in run.state.timers:
            raise Waits("waiting_for_schedule")

    async def _due(self, seconds: float) -> float:
        return await self._run.world.reading("now") + max(0.0, seconds)

    async def switch(self, name: str, why: str = "") -> None:
        """Record once that the strategy `name` takes over. After a restart, the run still begins with its original strategy."""
        run, before = self._run, self._before("switch")
        if f"-1:switch:{before}" not in run.state.effects:
            run.journal.record(e.StrategySwitched(old=run.state.strategy, new=name, why=why))
            run.journal.record(e.EffectRecorded(label="switch", occurrence=before, value=name))


def configured(branch: Branch) -> Pass:
    """Return the configuration of a branch's pass."""
    return Pass(**{field: getattr(branch, field) for field in Pass.__struct_fields__})


def _shares(left: Budget, branches: Sequence[Branch]) -> list[Budget]:
    """Return the share of each branch. If there are too few model calls for all, branches that only make calls are the last to get one."""
    parts = len(branches)
    ranked = sorted(range(parts), key=lambda number: bool(branches[number].calls))
    most = {number: shared(left, parts, rank).max_model_calls for rank, number in enumerate(ranked)}
    return [msgspec.structs.replace(shared(left, parts, number), max_model_calls=most[number]) for number in range(parts)]


def _lightness(raised: BaseException) -> int:
    """Return the rank of an outcome among several passes: the lower, the more important."""
    match raised:
        case Exception():
            return 0
        case asyncio.CancelledError():
            return 1
        case Ends():
            return 3
        case TurnsUsed():
            return 4
        case Waits(status=status):
            return 5 + WAITING.index(status)
        case _:
            return 2


def passed(run: RunState, scope: str, label: str) -> Passed:
    """Return the outcome of a finished pass."""
    state = run.passes[scope]
    plan = state.plan
    whole = Passed(
        label=label,
        scope=state.scope,
        status="done" if state.status == "done" else "failed",
        reason=state.ended,
        output=state.output,
        error=state.error,
        bound=state.bound,
        partial=state.partial,
        text=plan.text if plan is not None and not isinstance(plan.actions[0], FinalAnswer) else "",
        usage=state.usage,
        tools_used=state.tools_used,
        results=state.results if state.kernel_type != CALLS else replied(run, state),
    )
    return copied(whole)


def carrying_out(branch: Branch, chosen: Kernel | None = None) -> Kernel:
    """Return the kernel that executes the calls of a branch as one batch, on the one path of every call; no planner is called.

    It has the guards and meta-tools of the kernel that is `chosen` for the pass.
    """

    async def plan(state: KernelState, context: KernelContext) -> KernelState:
        if state.plan is None and state.iteration == 1:
            world = context.run.world
            hidden = await world.hide(Plan(actions=branch.calls), context.known)
            await world.breathe()  # passes beside this one continue here, live and in a replay alike
            context.run.record(context.scope, e.Planned(actions=hidden.actions, provenance=branch.provenance))
        return context.state

    async def conclude(state: KernelState, context: KernelContext) -> KernelState:
        waits = any(call.item is None for call in state.calls.values()) or asked(context.run.state, context.scope)
        if not waits and not state.ended:
            await context.run.world.breathe()
            failed = [f"{item.tool}: {item.error.code}: {item.error.message}" for item in state.results if item.error is not None]
            end = {"status": "failed", "reason": "failure_threshold", "error": "; ".join(failed)} if failed else {"status": "done"}
            context.run.record(context.scope, e.PassFinished(**{"reason": "done_tool", **end}))  # type: ignore[arg-type]
        return context.state

    kernel = make_kernel(phases=(plan, act, conclude), name=CALLS)
    return (
        kernel if chosen is None else msgspec.structs.replace(kernel, guards=(*kernel.guards, *chosen.guards), meta_tools=chosen.meta_tools)
    )
