"""Tools for testing agents and adapters: fake models, tools, time and names, faults, assertions, and `simulate`.

    report = asyncio.run(simulate(make_engine, agent, "Pay the invoice"))
    report.raise_for_problems()

Rule: fakes, not mocks. Only the contract suites of the seams (`CONTRACTS`) import pytest. Every part is loaded on first access.
Start with `scripted` (a planner that returns the plans that you wrote) and `simulating`, which runs an agent once for every fault.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detent.testing.assertions import (
        assert_completed,
        assert_each_call_once,
        assert_ended,
        assert_events,
        assert_no_event,
        assert_tool_called,
        assert_tool_not_called,
        assert_tool_order,
        assert_within,
    )
    from detent.testing.capturing import CapturingBus
    from detent.testing.clocks import FakeClock, SequentialIds
    from detent.testing.conformance.approver import ApproverContract, ApproverMaker
    from detent.testing.conformance.basics import ClockContract, ClockMaker, EmbedderContract, EmbedderMaker, IdsContract, IdsMaker
    from detent.testing.conformance.capabilities import CapabilitiesContract, CapabilitiesMaker, SecretSourceContract, SecretSourceMaker
    from detent.testing.conformance.compactor import CompactorContract, CompactorMaker
    from detent.testing.conformance.memory import MemoryContract, MemoryMaker
    from detent.testing.conformance.observer import ObserverContract, ObserverMaker
    from detent.testing.conformance.planner import PlannerContract, PlannerMaker
    from detent.testing.conformance.policy import GuardContract, GuardMaker, PolicyContract, PolicyMaker, call_of, declared
    from detent.testing.conformance.scheduler import SchedulerContract, SchedulerMaker
    from detent.testing.conformance.store import Place, StoreContract
    from detent.testing.conformance.tool import ToolboxContract, ToolboxMaker, ToolContract, ToolMaker
    from detent.testing.conformance.worker_host import PullingHostContract, WorkerHostContract, WorkerHostMaker
    from detent.testing.disturbing import FAULTS
    from detent.testing.fake_models import FakeModel, calls, fails, says
    from detent.testing.fake_tools import FakeTool, breaks
    from detent.testing.faults import Crash, CrashingStore
    from detent.testing.phases import FakeContext, fake_context, run_phase
    from detent.testing.recorded import RecordedPlanner
    from detent.testing.reports import Finding, Report, Trial
    from detent.testing.scripted import Entry, ScriptedPlanner
    from detent.testing.simulating import simulate

CONTRACTS = {
    "approver": "ApproverContract ApproverMaker",
    "basics": "ClockContract ClockMaker EmbedderContract EmbedderMaker IdsContract IdsMaker",
    "capabilities": "CapabilitiesContract CapabilitiesMaker SecretSourceContract SecretSourceMaker",
    "compactor": "CompactorContract CompactorMaker",
    "memory": "MemoryContract MemoryMaker",
    "observer": "ObserverContract ObserverMaker",
    "planner": "PlannerContract PlannerMaker",
    "policy": "GuardContract GuardMaker PolicyContract PolicyMaker call_of declared",
    "scheduler": "SchedulerContract SchedulerMaker",
    "store": "Place StoreContract",
    "tool": "ToolContract ToolMaker ToolboxContract ToolboxMaker",
    "worker_host": "PullingHostContract WorkerHostContract WorkerHostMaker",
}
"""The contract suites and their makers, by their file in `detent.testing.conformance`; they need pytest."""
_WHERE = {
    "assertions": "assert_completed assert_each_call_once assert_ended assert_events assert_no_event "
    "assert_tool_called assert_tool_not_called assert_tool_order assert_within",
    "capturing": "CapturingBus",
    "clocks": "FakeClock SequentialIds",
    "disturbing": "FAULTS",
    "fake_models": "FakeModel calls fails says",
    "fake_tools": "FakeTool breaks",
    "faults": "Crash CrashingStore",
    "phases": "FakeContext fake_context run_phase",
    "recorded": "RecordedPlanner",
    "reports": "Finding Report Trial",
    "scripted": "Entry ScriptedPlanner",
    "simulating": "simulate",
}
"""The modules of the other names: whoever needs one of them need not wait for all."""
_MODULES = {name: f"detent.testing.{module}" for module, names in _WHERE.items() for name in names.split()} | {
    name: f"detent.testing.conformance.{module}" for module, names in CONTRACTS.items() for name in names.split()
}

__all__ = [
    "FAULTS",
    "ApproverContract",
    "ApproverMaker",
    "CapabilitiesContract",
    "CapabilitiesMaker",
    "CapturingBus",
    "ClockContract",
    "ClockMaker",
    "CompactorContract",
    "CompactorMaker",
    "Crash",
    "CrashingStore",
    "EmbedderContract",
    "EmbedderMaker",
    "Entry",
    "FakeClock",
    "FakeContext",
    "FakeModel",
    "FakeTool",
    "Finding",
    "GuardContract",
    "GuardMaker",
    "IdsContract",
    "IdsMaker",
    "MemoryContract",
    "MemoryMaker",
    "ObserverContract",
    "ObserverMaker",
    "Place",
    "PlannerContract",
    "PlannerMaker",
    "PolicyContract",
    "PolicyMaker",
    "PullingHostContract",
    "RecordedPlanner",
    "Report",
    "SchedulerContract",
    "SchedulerMaker",
    "ScriptedPlanner",
    "SecretSourceContract",
    "SecretSourceMaker",
    "SequentialIds",
    "StoreContract",
    "ToolContract",
    "ToolMaker",
    "ToolboxContract",
    "ToolboxMaker",
    "Trial",
    "WorkerHostContract",
    "WorkerHostMaker",
    "assert_completed",
    "assert_each_call_once",
    "assert_ended",
    "assert_events",
    "assert_no_event",
    "assert_tool_called",
    "assert_tool_not_called",
    "assert_tool_order",
    "assert_within",
    "breaks",
    "call_of",
    "calls",
    "declared",
    "fails",
    "fake_context",
    "run_phase",
    "says",
    "simulate",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'detent.testing' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value
