"""What tests of agents and of adapters need: planners that follow a script, and (in `conformance`) contract suites for every seam."""

from detent.testing.scripted import ScriptedPlanner

__all__ = ["ScriptedPlanner"]
