"""Strategies decide when, how often and with which settings the kernel runs. Each file has one plain async function over `StrategyRun`.

Rule: a strategy has no loop over tool calls and no planner input of its own; everything goes through passes, which the log records.
Start with `reactive`, one pass. The planning strategies share `work` and `plans`. `wording` has the prompts, `showing` limits how much they show.
`code_action` lets the model write programs; `programs` has the tools as functions.
"""  # DESIGN 6

from __future__ import annotations

from detent.ports import Strategy
from detent.strategies.adaptive import adaptive
from detent.strategies.blueprint import blueprint
from detent.strategies.code_action import code_action
from detent.strategies.direct import direct
from detent.strategies.plan_execute import plan_execute
from detent.strategies.plan_then_execute import plan_then_execute
from detent.strategies.reactive import reactive
from detent.strategies.reflexion import reflexion
from detent.strategies.self_consistent import self_consistent
from detent.strategies.switching import switching
from detent.strategies.tree_of_thought import tree_of_thought

BUILT_IN: dict[str, Strategy] = {
    "adaptive": adaptive,
    "blueprint": blueprint,
    "code-action": code_action,
    "direct": direct,
    "plan-execute": plan_execute,
    "plan-then-execute": plan_then_execute,
    "reactive": reactive,
    "reflexion": reflexion,
    "self-consistent": self_consistent,
    "switching": switching,
    "tree-of-thought": tree_of_thought,
}
"""The strategies that every engine knows."""
