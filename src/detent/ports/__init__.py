"""The seams: what the kernel needs from the world, as Protocols and the plain data that crosses them (DESIGN 7).

Rule: the kernel knows these and nothing behind them; a protocol has an in-process reference and a contract suite in `detent.testing.conformance`.
Start with `stores`, `planning`, `tools` and `governance`. `outside` is the world of one run as its kernel sees it, `telling` how observers and
hooks are told, `json_data` what counts as JSON data. Programs import these names from `detent.extend`.
"""

from detent.ports.clocks import Clock, Ids
from detent.ports.embedded_calls import UNREADABLE, calls_in
from detent.ports.embedding import Embedder, Embeddings
from detent.ports.governance import Block, Call, Guard, Policy, Verdict, offered
from detent.ports.json_data import MOST_NESTED, json_problem, nests_too_deep, read_json, unstorable, written
from detent.ports.observing import PATIENCE, Abort, Chunk, KernelHooks, Observer, PhaseHook, Skip, awaited, noop_hooks
from detent.ports.phases import PhaseContext
from detent.ports.planning import ContextProfile, ModelAnswer, Models, Plan, Planner, ResultCompression, View, models_asked
from detent.ports.scheduling import Job, Scheduler, Together, refuse_failed
from detent.ports.stores import (
    Balance,
    EventStore,
    Looks,
    Reservation,
    RunQuery,
    Signal,
    Spent,
    Wakes,
    give_back,
    look_at,
    read_signal,
    wait_for_news,
)
from detent.ports.strategies import Branch, OptionsT, Passed, Strategy, StrategyRun, strategy
from detent.ports.tools import (
    Answer,
    Cancellation,
    Capabilities,
    Denied,
    MetaTool,
    Resolution,
    Secrets,
    SecretSource,
    Tool,
    Toolbox,
    ToolContext,
    ToolOutcome,
    ToolSpec,
    as_given,
)
from detent.ports.working import Backlog, Due, Tries, WorkerHost

__all__ = [
    "MOST_NESTED",
    "PATIENCE",
    "UNREADABLE",
    "Abort",
    "Answer",
    "Backlog",
    "Balance",
    "Block",
    "Branch",
    "Call",
    "Cancellation",
    "Capabilities",
    "Chunk",
    "Clock",
    "ContextProfile",
    "Denied",
    "Due",
    "Embedder",
    "Embeddings",
    "EventStore",
    "Guard",
    "Ids",
    "Job",
    "KernelHooks",
    "Looks",
    "MetaTool",
    "ModelAnswer",
    "Models",
    "Observer",
    "OptionsT",
    "Passed",
    "PhaseContext",
    "PhaseHook",
    "Plan",
    "Planner",
    "Policy",
    "Reservation",
    "Resolution",
    "ResultCompression",
    "RunQuery",
    "Scheduler",
    "SecretSource",
    "Secrets",
    "Signal",
    "Skip",
    "Spent",
    "Strategy",
    "StrategyRun",
    "Together",
    "Tool",
    "ToolContext",
    "ToolOutcome",
    "ToolSpec",
    "Toolbox",
    "Tries",
    "Verdict",
    "View",
    "Wakes",
    "WorkerHost",
    "as_given",
    "awaited",
    "calls_in",
    "give_back",
    "json_problem",
    "look_at",
    "models_asked",
    "nests_too_deep",
    "noop_hooks",
    "offered",
    "read_json",
    "read_signal",
    "refuse_failed",
    "strategy",
    "unstorable",
    "wait_for_news",
    "written",
]
