"""Planners propose the next action: a model, a model that only writes text, or an ordered list of rules.

Rule: a planner sees the view and nothing else, and remembers nothing: the same view gives the same request.
Start with `rules` (no model), `model` (native tool calls) or `raw_text` (text). The rest is shared: `text` reads calls in text,
`trimming` cuts, `verifiers` check answers, `providers` and `settings` say which model is called and how, `fallback` tries several.
"""

from detent.planners.rules.files import load_rules
from detent.planners.rules.planner import RulePlanner

__all__ = ["RulePlanner", "load_rules"]
