"""The seam of delegation: who advances the children of a run, and what a strategy asks of them and gets back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from detent.core.agent import AgentSpec
from detent.core.budget import NOTHING, Budget, Usage
from detent.core.errors import Explained
from detent.core.events import OnParentEnd
from detent.core.state import KernelState, RunState
from detent.ports.options import check_fields

GATHERS = "run.agents"
"""The entry in a pass's `meta` that says how many of its children are open `at_once`, and which ones of earlier passes it has `watched`."""


class AgentTask(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """A goal for one of the agents that the run may start (`Agent(subagents=)`). It becomes a child run.

    `label` tells its result apart ("": the agent's name). `budget` is the child's bound; unset sums are an equal share of what the run has left.
    `output_schema` replaces the one that the agent declares. `tools` and `scopes` leave the child only these of what it would have. `on_parent_end` says
    what happens to the child if the run ends first (None: what the entry in `subagents` says).
    """

    agent: str
    goal: str
    label: str = ""
    variables: dict[str, Any] = {}
    budget: Budget = Budget()
    output_schema: dict[str, Any] | None = None
    tools: tuple[str, ...] | None = None
    scopes: tuple[str, ...] | None = None
    on_parent_end: OnParentEnd | None = None

    __post_init__ = check_fields


class AgentResult(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The outcome of an `AgentTask`. A task that fails is a result too.

    `outcome`: how the child ended (`completed`, `failed`, `cancelled`, `bound_reached`, `lost`); `open`: it still runs; `refused`: it was not allowed to
    start, as `error` says; `not_run`: it was not its turn before enough others had ended. `partial` is what the child had so far.
    """

    label: str
    agent: str
    outcome: str
    output: Any = None
    error: str = ""
    partial: str = ""
    run_id: str = ""
    usage: Usage = NOTHING

    @property
    def ok(self) -> bool:
        """Whether the child has completed its goal."""
        return self.outcome == "completed"


Lets = Callable[..., Awaitable[AgentResult]]


class OwnAgent(AgentSpec, frozen=True, kw_only=True, dict=True):
    """The agent of a run. Called, it lets one of its `subagents` work on a goal: `await run.agent("facts", "researcher", "Find the date")`."""

    async def __call__(
        self,
        label: str,
        agent: str,
        goal: str,
        *,
        variables: dict[str, Any] | None = None,
        budget: Budget | None = None,
        output_schema: dict[str, Any] | None = None,
    ) -> AgentResult:
        """Start a child run under this label, and return its outcome: a failure is a result.

        The child is started once, whatever crashes. Raise `ConfigError` for an agent that is not declared.
        """
        bound = budget or Budget()
        task = AgentTask(agent=agent, goal=goal, label=label, variables=variables or {}, budget=bound, output_schema=output_schema)
        lets: Lets = vars(self)["lets"]
        return await lets(task)


def own_agent(agent: AgentSpec, lets: Lets) -> OwnAgent:
    """Return the agent of a run; `lets` starts a child for a task and waits for it."""
    own = OwnAgent(**{name: getattr(agent, name) for name in AgentSpec.__struct_fields__})
    vars(own)["lets"] = lets
    return own


def watches(state: KernelState, run: RunState) -> dict[str, bool]:
    """Return the children that a pass watches, and whether each is open."""
    watched = state.meta[GATHERS]["watched"]
    return {name: child.status == "open" for name, child in run.children.items() if child.spawned.call in state.calls or name in watched}


def children_full(state: KernelState, run: RunState, begun: int) -> bool:
    """Whether a pass has as many open children as it may, with those of `begun` calls that are about to start one."""
    return GATHERS in state.meta and begun + sum(watches(state, run).values()) >= state.meta[GATHERS]["at_once"]


def has_parent(run: RunState) -> bool:
    """Whether the run that started this one counts on it: it is a child and not a fork, and was not left."""
    return run.delegated is not None and not run.delegated.left and not run.ancestors


class Children(Protocol):
    """Advances child runs: in this process, or by submitting them to workers."""

    @property
    def submits(self) -> bool:
        """Whether children are left to workers."""
        ...

    @property
    def limits(self) -> Any:
        """The engine's limits of teams (`Bounds.children`)."""
        ...

    def begin(self, state: RunState, told: Sequence[str] = ()) -> None:
        """Begin with the open children of a run that are not advanced yet, as many at once as may be; the others follow when one has ended.

        The children `told` were sent something, so those that wait continue.
        """
        ...

    async def started(self, state: RunState, names: Sequence[str]) -> None:
        """Wait until these children of a run, if they are open, are durably started: a run without a log gets no message."""
        ...

    async def moved(self, run_id: str, news: Callable[[], bool]) -> bool:
        """Wait while children of the run are advanced in this process. Return whether one of them stopped, or there are `news` for the run."""
        ...

    async def begun(self, state: RunState) -> None:
        """Wait until each open child of a run that is about to end is durably started: nobody starts it afterwards."""
        ...

    def left(self, run_id: str, why: str) -> None:
        """Forget a run that this process no longer advances. If it was suspended (`why`), suspend its children here too."""
        ...

    def ended(self, state: RunState) -> None:
        """Continue the parent of a run that has just ended here, unless somebody advances it."""
        ...

    async def woken(self, state: RunState) -> None:
        """Wait for the runs above this one that `ended` continues, as far as they come."""
        ...
