"""Detent: a durable agent kernel. A run is a log of what happened; its state is a fold of that log."""

from __future__ import annotations

from detent.comparing import Diff, Parting
from detent.config import Agent
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
from detent.ports import Plan, ToolContext, View
from detent.receipts import Receipt
from detent.results import Result
from detent.tenants import TenantBudget
from detent.tools.function import Tool, tool
from detent.tools.mcp.settings import McpServer, ToolPins
from detent.upgrading import Upgrade, Upgraded

__version__ = "0.1.0"

__all__ = [
    "Abstain",
    "Agent",
    "AskUser",
    "Budget",
    "CancelSubagent",
    "CompleteGoal",
    "DetentError",
    "Diff",
    "Engine",
    "FatalToolError",
    "FinalAnswer",
    "Host",
    "JoinSubagent",
    "McpServer",
    "NotExecuted",
    "Parting",
    "Plan",
    "PushGoal",
    "Receipt",
    "Result",
    "Schedule",
    "SpawnSubagent",
    "Stop",
    "Suspended",
    "TenantBudget",
    "Thought",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolFailed",
    "ToolPins",
    "Upgrade",
    "Upgraded",
    "Usage",
    "View",
    "tool",
]
