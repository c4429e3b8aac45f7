"""What tests of agents and of adapters need: fake models, tools, time and names, faults, assertions, and `simulate`.

    report = asyncio.run(simulate(make_engine, agent, "Pay the invoice"))
    report.raise_for_problems()

Rule: fakes, not mocks; nothing here imports pytest but `detent.testing.conformance`, the contract suites of the seams.
Start with `scripted` (a planner that says what you wrote) and `simulating`, which runs an agent once for every fault.
"""

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
from detent.testing.disturbing import FAULTS
from detent.testing.fake_models import FakeModel, calls, fails, says
from detent.testing.fake_tools import FakeTool, breaks
from detent.testing.faults import Crash, CrashingStore
from detent.testing.recorded import RecordedPlanner
from detent.testing.reports import Finding, Report, Trial
from detent.testing.scripted import Entry, ScriptedPlanner
from detent.testing.simulating import simulate

__all__ = [
    "FAULTS",
    "CapturingBus",
    "Crash",
    "CrashingStore",
    "Entry",
    "FakeClock",
    "FakeModel",
    "FakeTool",
    "Finding",
    "RecordedPlanner",
    "Report",
    "ScriptedPlanner",
    "SequentialIds",
    "Trial",
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
    "calls",
    "fails",
    "says",
    "simulate",
]
