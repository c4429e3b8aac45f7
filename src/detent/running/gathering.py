"""Children that a strategy starts and waits for: `run.agent` and `run.agents`.

They are one pass of one turn. Its plan has one call of `spawn_agent` for each task, so there is no second path to a child. The act phase begins as many
calls as the pass may have open children, and the next one when a child has ended. The pass is done when enough children have ended, or when its timer
has fired: both are records, so a replay decides alike. Its output says the outcome of each task; the results of children are in their own records.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from detent.config.adapters import interpreter
from detent.config.groups import ChildBounds
from detent.core import events as e
from detent.core.actions import ToolCall
from detent.core.budget import Budget
from detent.core.durations import seconds as in_seconds
from detent.core.errors import ConfigError
from detent.core.settle import waits
from detent.core.state import CallState, KernelState, RunState
from detent.kernel.context import KernelContext, Run
from detent.kernel.deciding import refuse
from detent.kernel.kernel import Kernel, make_kernel
from detent.ports import Branch, Passed, Plan
from detent.ports.copies import copied
from detent.ports.delegation import GATHERS, AgentResult, AgentTask, OwnAgent, own_agent, watches
from detent.ports.interpreting import ProgramAnswer, ProgramLimits, ProgramMove
from detent.ports.outside import taken
from detent.running.delegating import SUMS, child_id, left_of, managing, portion, subagents_of
from detent.running.phase_hooks import hooked
from detent.running.programs import Course

AGENTS = "agents"
"""The name of the kernel, and the usual label of its passes."""

Join = Literal["all", "any"] | int
Rest = Literal["let", "cancel"]


class Waits(BaseException):
    """No pass can continue; `status` says what the run waits for."""

    def __init__(self, status: str) -> None:
        self.status = status


class AgentPasses:
    """The children and the programs of a strategy; see `ports.StrategyRun`."""

    __slots__ = ("_agent", "_programs", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._programs = 0
        self._agent: OwnAgent | None = None

    @abstractmethod
    def _scope(self, label: str) -> str:
        """Return the key of the next pass under this label."""

    @abstractmethod
    async def _pass(self, branch: Branch, scope: str, limits: Budget | None = None, *, kernel: Kernel | None = None) -> Passed:
        """Run a pass, unless it has ended."""

    @abstractmethod
    async def effect(self, label: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """Return a recorded value, or make and record it."""

    @abstractmethod
    def parted(self, logged: str, now: str) -> BaseException:
        """Return the error for something that differs from the log."""

    async def program(
        self,
        label: str,
        text: str,
        functions: Sequence[str],
        answer: Callable[[ProgramMove], Awaitable[ProgramAnswer]],
        limits: ProgramLimits = ProgramLimits(),  # noqa: B008 - frozen
    ) -> ProgramMove:
        """Run a program to its end; see `ports.StrategyRun.program`."""
        self._programs += 1
        async with interpreter() as one:
            course = Course(
                label,
                text,
                functions,
                limits,
                run_id=self._run.state.run_id,
                number=self._programs,
                world=self._run.world,
                interpreter=one,
                effect=self.effect,
                parted=self.parted,
            )
            return await course.run(answer)

    @property
    def agent(self) -> OwnAgent:
        """The agent of the run; see `ports.StrategyRun.agent`."""
        if self._agent is None:
            self._agent = own_agent(self._run.state.agent, self._one)
        return self._agent

    async def _one(self, task: AgentTask) -> AgentResult:
        return (await self.agents(task, label=task.label))[0]

    async def agents(
        self,
        *tasks: AgentTask | AgentResult,
        label: str = AGENTS,
        concurrency: int | None = None,
        join: Join = "all",
        deadline: float | str | None = None,
        rest: Rest = "let",
    ) -> tuple[AgentResult, ...]:
        """Let agents work side by side, and return the outcome of each task. See `ports.StrategyRun.agents`."""
        run, lasts = self._run.state, None if deadline is None else in_seconds(deadline, "run.agents: deadline")
        given = [_known(task, run) for task in tasks]
        needs = {"all": len(given), "any": 1}.get(join, join) if isinstance(join, str) else join
        if isinstance(needs, str) or needs < 0 or isinstance(join, bool):
            raise ConfigError(f"run.agents: join is {join!r}; it is 'all', 'any', or how many must have ended")
        if rest not in ("let", "cancel") or (concurrency is not None and concurrency < 1):
            raise ConfigError("run.agents: rest is 'let' or 'cancel', and concurrency is at least 1")
        new = [task for task in given if isinstance(task, AgentTask)]
        watched = [task.run_id for task in given if isinstance(task, AgentResult) and task.outcome == "open"]
        if not new and not watched:
            return tuple([task for task in given if isinstance(task, AgentResult)])
        branch = Branch(
            label=label,
            task=", ".join(task.label or task.agent for task in given),
            calls=tuple(map(_call, new)),
            tools=("spawn_agent",),
            output_schema={},
            meta={
                GATHERS: {
                    "at_once": concurrency or ChildBounds().at_once,
                    "watched": watched,
                    "join": needs,
                    "deadline_s": lasts,
                    "rest": rest,
                }
            },
        )
        kernel = hooked(gathering(branch.calls), self._run.hooks)
        passed = await self._pass(branch, self._scope(label), kernel=kernel)
        if passed.status != "done":  # a hook stopped it
            return tuple([_made(task, {"outcome": "refused", "error": passed.error}, self._run.state) for task in given])
        return _results(given, passed.output, self._run.state)


def _known(task: Any, run: RunState) -> AgentTask | AgentResult:
    """Return a task of `run.agents`; raise `ConfigError` for one that cannot be started or waited for."""
    if isinstance(task, AgentResult):
        if task.outcome == "open" and task.run_id not in run.children:
            raise ConfigError(f"run.agents: this run has no child {task.run_id!r} to wait for")
        return task
    if not isinstance(task, AgentTask):
        raise ConfigError(f"run.agents: {type(task).__name__} is not a task; give AgentTask(agent=, goal=), or a result that is open")
    if task.agent not in run.agent.subagents:
        known = ", ".join(run.agent.subagents) or "none"
        raise ConfigError(
            f"agent {run.agent.name!r} may not start {task.agent!r}: who may be started must be declared (subagents; it has: {known})"
        )
    return task


def _call(task: AgentTask) -> ToolCall:
    """Return the call that starts the child of a task."""
    said: dict[str, Any] = {"agent": task.agent, "goal": task.goal}
    if task.variables:
        said["variables"] = task.variables
    if task.budget != Budget():
        said["budget"] = msgspec.to_builtins(task.budget)
    if task.on_parent_end is not None:
        said["on_parent_end"] = task.on_parent_end
    narrower = {name: value for name in ("output_schema", "tools", "scopes") if (value := getattr(task, name)) is not None}
    return ToolCall(tool="spawn_agent", args={**said, **narrower})


def gathering(calls: Sequence[ToolCall]) -> Kernel:
    """Return the kernel that carries out these calls of `spawn_agent` as there is room, and ends when enough children have ended."""

    async def plan(state: KernelState, context: KernelContext) -> KernelState:
        run, lasts = context.run, _asked(state)["deadline_s"]
        if calls and state.plan is None:
            hidden = await run.world.hide(Plan(actions=_with_shares(calls, run.state)), context.known)
            await run.world.breathe()
            run.record(context.scope, e.Planned(actions=hidden.actions))
        if lasts is not None and "-1:deadline:0" not in context.state.effects:

            async def due() -> float:
                return await run.world.reading("now") + max(0.0, lasts)

            at = await run.effect(context.scope, "deadline", due)
            run.journal.record(e.ScheduleSet(timer_id=_timer(context.scope), due=datetime.fromtimestamp(at, UTC)))
        return context.state

    async def act(state: KernelState, context: KernelContext) -> KernelState:
        run = context.run
        while not _enough(context.state, run.state):
            await context.execute()
            state = context.state
            if state.ended or run.state.cancel is not None or waits(run.state, state):
                return state
            if not _enough(state, run.state) and not await run.world.children_move(run):
                raise Waits("waiting_for_subagent")
        state = context.state
        found = _found(state, run.state)
        for call in state.calls.values():
            if call.item is None:
                refuse(call, context, "not_run", "not run: enough others have ended")
        if _asked(state)["rest"] == "cancel":
            left = [run.state.children[name] for name, is_open in watches(state, run.state).items() if is_open]
            why = f"the pass {context.scope!r} has ended without it"
            run.record(context.scope, *[e.SubagentCancelled(child=one.child, why=why) for one in left if not one.cancel])
        run.record(context.scope, e.PassFinished(status="done", reason="done_tool", output=found))
        return context.state

    spawns: Any = (managing("spawn_agent"),)  # the agent need not list it for its strategy to start others
    return make_kernel(phases=(plan, act), meta_tools=spawns, name=AGENTS)


def _with_shares(calls: Sequence[ToolCall], run: RunState) -> tuple[ToolCall, ...]:
    """Return the calls with the sums that each child gets: an equal part of what the run has left, beside one for the run, unless it asks for others.

    They are all decided here, because the calls do not begin together.
    """
    left = left_of(run, taken(run), run.calls_of)
    known, parts = subagents_of(run.agent), len(calls)

    def shared(call: ToolCall) -> ToolCall:
        args: dict[str, Any] = dict(call.args)
        said = known[args["agent"]]
        asked = msgspec.convert(args.get("budget", {}), Budget).over(Budget() if isinstance(said, str) else said.budget)
        share = portion(left, left, asked, parts)
        sums = {name: value for one in SUMS if (value := getattr(share, name := f"max_{one}")) is not None}
        most: dict[str, int] = dict(share.max_calls_of or ())
        budget = {**args.get("budget", {}), **sums, **({"max_calls_of": most} if most else {})}
        return msgspec.structs.replace(call, args={**args, "budget": budget} if budget else args)

    return tuple([shared(call) for call in calls])


def _asked(state: KernelState) -> dict[str, Any]:
    """Return how the pass was asked to gather."""
    return state.meta[GATHERS]


def _timer(scope: str) -> str:
    """Return the id of a pass's deadline. No pass waits for it: no scope ends with "#deadline"."""
    return f"{scope}#deadline.1"


def _enough(state: KernelState, run: RunState) -> bool:
    """Whether the pass is done: enough children have ended, or all that could be started, or its time is over."""
    states = watches(state, run)
    if _asked(state)["deadline_s"] is not None and _timer(state.scope) not in run.timers:
        return True
    begun = all(call.item is not None for call in state.calls.values())
    return len(states) - sum(states.values()) >= _asked(state)["join"] or (begun and not any(states.values()))


def _found(state: KernelState, run: RunState) -> list[dict[str, Any]]:
    """Return the outcomes of the tasks at the end of a pass: first of those that it has started, then of those that earlier passes have."""
    cancels = _asked(state)["rest"] == "cancel"
    return [
        *(_of_call(call, run, cancels=cancels) for call in state.calls.values()),
        *(_of_child(one, run, cancels=cancels) for one in _asked(state)["watched"]),
    ]


def _of_call(call: CallState, run: RunState, *, cancels: bool) -> dict[str, Any]:
    child = child_id(run.run_id, call.call_id)
    if child in run.children:
        return _of_child(child, run, cancels=cancels)
    if call.item is None or call.item.error is None:
        return {"outcome": "not_run", "error": "not run: enough others have ended"}
    return {"outcome": "refused", "error": f"{call.item.error.code}: {call.item.error.message}"}


def _of_child(child: str, run: RunState, *, cancels: bool) -> dict[str, Any]:
    status = run.children[child].status
    return {"outcome": ("cancelled" if cancels else "open") if status == "open" else status, "child": child, "open": status == "open"}


def _results(given: Sequence[AgentTask | AgentResult], found: Sequence[dict[str, Any]], run: RunState) -> tuple[AgentResult, ...]:
    """Return the outcomes of the tasks, in their order."""
    count = sum(isinstance(task, AgentTask) for task in given)
    started, earlier = iter(found[:count]), iter(found[count:])
    made: list[AgentResult] = []
    for task in given:
        if isinstance(task, AgentResult) and task.outcome != "open":
            made.append(task)
        else:
            made.append(_made(task, next(started if isinstance(task, AgentTask) else earlier), run))
    return tuple(made)


def _made(task: AgentTask | AgentResult, found: dict[str, Any], run: RunState) -> AgentResult:
    child = found.get("child", "")
    label, outcome = task.label or task.agent, found["outcome"]
    if not child or found["open"]:
        return AgentResult(label=label, agent=task.agent, outcome=outcome, error=found.get("error", ""), run_id=child)
    ended = run.children[child].result
    if ended is None:
        return AgentResult(label=label, agent=task.agent, outcome=outcome, error="a call of this run has its result", run_id=child)
    return copied(
        AgentResult(
            label=label,
            agent=task.agent,
            outcome=outcome,
            output=ended.output,
            error="" if ended.error is None else ended.error.message,
            partial=ended.partial,
            run_id=child,
            usage=ended.usage,
        )
    )
