"""The seams: what the kernel needs from the world, as Protocols and the plain data that crosses them (DESIGN 7).

The kernel knows these and nothing behind them. What others write for it (stores, planners, tools, policies, guards, observers, approvers,
capabilities, secret sources, embedders, clocks, ids) has an in-process reference and a contract suite in `detent.testing.conformance`.
"""

from detent.ports.clocks import Clock, Ids
from detent.ports.embedding import Embedder, Embeddings
from detent.ports.governance import Block, Call, Guard, Policy, Verdict, offered
from detent.ports.observing import Abort, Chunk, KernelHooks, Observer, PhaseHook, Skip, noop_hooks
from detent.ports.planning import ContextProfile, ModelAnswer, Models, Plan, Planner, ResultCompression, View
from detent.ports.stores import EventStore, RunQuery, Signal, Spent, Wakes, wait_for_news
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

__all__ = [
    "Abort",
    "Answer",
    "Block",
    "Branch",
    "Call",
    "Cancellation",
    "Capabilities",
    "Chunk",
    "Clock",
    "ContextProfile",
    "Denied",
    "Embedder",
    "Embeddings",
    "EventStore",
    "Guard",
    "Ids",
    "KernelHooks",
    "MetaTool",
    "ModelAnswer",
    "Models",
    "Observer",
    "OptionsT",
    "Passed",
    "PhaseHook",
    "Plan",
    "Planner",
    "Policy",
    "Resolution",
    "ResultCompression",
    "RunQuery",
    "SecretSource",
    "Secrets",
    "Signal",
    "Skip",
    "Spent",
    "Strategy",
    "StrategyRun",
    "Tool",
    "ToolContext",
    "ToolOutcome",
    "ToolSpec",
    "Toolbox",
    "Verdict",
    "View",
    "Wakes",
    "as_given",
    "noop_hooks",
    "offered",
    "strategy",
    "wait_for_news",
]
