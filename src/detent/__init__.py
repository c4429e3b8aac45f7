"""Detent: a durable agent kernel. A run is a log of what happened; its state is a fold of that log.

The names below are loaded on first use. So `detent` and `python -m detent` can handle Ctrl-C before they load the rest.
"""

from __future__ import annotations

from detent.version import __version__ as __version__

TYPE_CHECKING = False  # type checkers treat it as `typing.TYPE_CHECKING`; loading `typing` takes longer than all of this

if TYPE_CHECKING:
    from detent.config.agents import Agent, Subagent
    from detent.config.engines import WorkspaceConfig
    from detent.config.groups import Bounds, ChildBounds, Models, Retention
    from detent.core.actions import (
        Abstain,
        AskUser,
        CancelSubagent,
        CompleteGoal,
        FinalAnswer,
        JoinSubagent,
        PushGoal,
        Schedule,
        SpawnSubagent,
        Stop,
        Thought,
        ToolCall,
    )
    from detent.core.agent import Host
    from detent.core.budget import Budget, Usage
    from detent.core.errors import DetentError, FatalToolError, NotExecuted, Suspended, ToolFailed
    from detent.engine import Engine
    from detent.history.backtest import Backtest
    from detent.history.comparing import Diff, Parting
    from detent.history.operations import Operation
    from detent.history.retention import Retained
    from detent.history.session_list import SessionHead
    from detent.history.sessions import Session
    from detent.history.trees import Tree
    from detent.history.upgrading import Upgrade, Upgraded
    from detent.history.versions import VersionUse
    from detent.history.why import Why
    from detent.metering.tenants import TenantBudget
    from detent.ports import Plan, ToolContext, View
    from detent.running.fleet import Fleet
    from detent.running.health import HealthAnswer
    from detent.running.overseeing import Wait
    from detent.running.receipts import Receipt
    from detent.running.results import Answered, Approval, Doubt, Erasure, LoadedRun, Outcome, Replay, Result, Verification
    from detent.running.versions import Shares
    from detent.running.working import Worked
    from detent.tools.functions.function import Tool, tool
    from detent.tools.mcp.settings import McpServer, ToolPins

__all__ = [
    "Abstain",
    "Agent",
    "Answered",
    "Approval",
    "AskUser",
    "Backtest",
    "Bounds",
    "Budget",
    "CancelSubagent",
    "ChildBounds",
    "CompleteGoal",
    "DetentError",
    "Diff",
    "Doubt",
    "Engine",
    "Erasure",
    "FatalToolError",
    "FinalAnswer",
    "Fleet",
    "HealthAnswer",
    "Host",
    "JoinSubagent",
    "LoadedRun",
    "McpServer",
    "Models",
    "NotExecuted",
    "Operation",
    "Outcome",
    "Parting",
    "Plan",
    "PushGoal",
    "Receipt",
    "Replay",
    "Result",
    "Retained",
    "Retention",
    "Schedule",
    "Session",
    "SessionHead",
    "Shares",
    "SpawnSubagent",
    "Stop",
    "Subagent",
    "Suspended",
    "TenantBudget",
    "Thought",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolFailed",
    "ToolPins",
    "Tree",
    "Upgrade",
    "Upgraded",
    "Usage",
    "Verification",
    "VersionUse",
    "View",
    "Wait",
    "Why",
    "Worked",
    "WorkspaceConfig",
    "tool",
]

_WHERE = {
    "history.backtest": "Backtest",
    "history.comparing": "Diff Parting",
    "history.sessions": "Session",
    "history.session_list": "SessionHead",
    "history.retention": "Retained",
    "history.trees": "Tree",
    "config.agents": "Agent Subagent",
    "config.engines": "WorkspaceConfig",
    "config.groups": "Bounds ChildBounds Models Retention",
    "core.actions": "Abstain AskUser CancelSubagent CompleteGoal FinalAnswer JoinSubagent PushGoal Schedule SpawnSubagent Stop Thought ToolCall",
    "core.agent": "Host",
    "core.budget": "Budget Usage",
    "core.errors": "DetentError FatalToolError NotExecuted Suspended ToolFailed",
    "engine": "Engine",
    "ports": "Plan ToolContext View",
    "running.fleet": "Fleet",
    "running.health": "HealthAnswer",
    "running.overseeing": "Wait",
    "running.receipts": "Receipt",
    "running.results": "Answered Approval Doubt Erasure LoadedRun Outcome Replay Result Verification",
    "running.versions": "Shares",
    "running.working": "Worked",
    "metering.tenants": "TenantBudget",
    "tools.functions.function": "Tool tool",
    "tools.mcp.settings": "McpServer ToolPins",
    "history.upgrading": "Upgrade Upgraded",
    "history.operations": "Operation",
    "history.versions": "VersionUse",
    "history.why": "Why",
}
"""The modules of the public names."""
_MODULES = {name: module for module, names in _WHERE.items() for name in names.split()}

_MOVED = {
    "detent.loading": "detent.config.loading",
    "detent.model_limits": "detent.metering.provider_limits",
    "detent.planners.generation": "detent.planners.raw_text.generation",
    "detent.planners.generators": "detent.planners.raw_text.generators",
    "detent.planners.on_device": "detent.planners.raw_text.planner",
    "detent.planners.transcription": "detent.planners.model.transcription",
    "detent.pricing": "detent.metering.pricing",
    "detent.tools.fetch": "detent.tools.web.fetch",
    "detent.tools.skills": "detent.tools.workspace.skills",
}
"""Module paths of 0.1, from before there were rooms, and their present paths."""


if not TYPE_CHECKING:
    from _thread import RLock  # importing it would load `threading` first

    _ONE_AT_A_TIME = RLock()  # threads that load modules of one package in different orders see each other's half-loaded ones

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module 'detent' has no attribute {name!r}")
        from importlib import import_module

        with _ONE_AT_A_TIME:
            value = globals()[name] = getattr(import_module(f"detent.{_MODULES[name]}"), name)
        return value

    class _Moved:
        """Finds modules under their old paths; the import gives the present module."""

        @classmethod
        def find_spec(cls, name: str, path: object = None, target: object = None) -> object:
            if name not in _MOVED:
                return None
            from importlib.machinery import ModuleSpec

            return ModuleSpec(name, cls)

        @staticmethod
        def create_module(spec: object) -> None:
            return None

        @staticmethod
        def exec_module(module: object) -> None:
            from importlib import import_module

            sys.modules[module.__name__] = import_module(_MOVED[module.__name__])

    import sys

    sys.meta_path.append(_Moved)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
