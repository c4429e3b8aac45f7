"""What you need to extend Detent: the seams, and what a tool, store, planner, policy, phase or strategy of your own is made of.

A program that only runs agents needs nothing from here; `from detent import ...` is its door. The contract suites for what you write are in
`detent.testing.conformance`, ready-made adapters in the rooms named after their seams (`detent.tools`, `detent.policies`, ...).
"""

from __future__ import annotations

from detent import ports
from detent.core import events
from detent.core.errors import (
    CancelWaits,
    ClaimLost,
    ConfigError,
    Conflict,
    CorruptLog,
    DetentError,
    FatalToolError,
    InvalidArguments,
    MalformedPlan,
    ModelCallFailure,
    NotAllowedNow,
    NotExecuted,
    PlannerFailed,
    RunBusy,
    RunErased,
    RunNotFound,
    StoreError,
    StoreFull,
    ToolFailed,
)
from detent.core.fold import fold
from detent.core.records import Record, RunHead
from detent.core.state import KernelState, RunState, transition
from detent.kernel.act import act
from detent.kernel.guards import default_guards
from detent.kernel.kernel import Kernel, Phase, make_kernel
from detent.kernel.think import think
from detent.ports import *  # noqa: F403 - every seam, and the data that crosses it

__all__ = [
    "CancelWaits",
    "ClaimLost",
    "ConfigError",
    "Conflict",
    "CorruptLog",
    "DetentError",
    "FatalToolError",
    "InvalidArguments",
    "Kernel",
    "KernelState",
    "MalformedPlan",
    "ModelCallFailure",
    "NotAllowedNow",
    "NotExecuted",
    "Phase",
    "PlannerFailed",
    "Record",
    "RunBusy",
    "RunErased",
    "RunHead",
    "RunNotFound",
    "RunState",
    "StoreError",
    "StoreFull",
    "ToolFailed",
    "act",
    "default_guards",
    "events",
    "fold",
    "make_kernel",
    "think",
    "transition",
]
__all__ += ports.__all__
