"""Planners: who proposes the next action. `RulePlanner` does it from an ordered list of rules, without a model."""

from detent.planners.rules.files import load_rules
from detent.planners.rules.planner import RulePlanner

__all__ = ["RulePlanner", "load_rules"]
