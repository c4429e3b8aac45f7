"""What tests of agents and of adapters need: a planner that follows a script or a recorded run, a settable clock, countable ids, a store that crashes.

`detent.testing.conformance` holds the contract suites of the seams.
"""

from detent.testing.clocks import FakeClock, SequentialIds
from detent.testing.faults import Crash, CrashingStore
from detent.testing.recorded import RecordedPlanner
from detent.testing.scripted import ScriptedPlanner

__all__ = ["Crash", "CrashingStore", "FakeClock", "RecordedPlanner", "ScriptedPlanner", "SequentialIds"]
