"""What can be said of a goal without asking a model: cheap, in English, and wrong at times."""

from __future__ import annotations

import re

from detent.core.agent import AgentSpec

TIERS = ("local", "mid", "large", "frontier")

_KINDS: tuple[tuple[str, str, re.Pattern[str]], ...] = (
    (
        "plan-execute",
        "it names several steps",
        re.compile(
            r"(?:^|\n)\s*(?:\d+[.)]|[-*])\s+\S.*\n\s*(?:\d+[.)]|[-*])\s|\b(?:step by step|steps|and then|plan|after that|finally)\b",
            re.IGNORECASE,
        ),
    ),
    (
        "tree-of-thought",
        "it asks to compare ways",
        re.compile(
            r"\b(?:compare|explore|alternatives?|trade-?offs?|brainstorm|pros and cons|different (?:ways|approaches|options))\b",
            re.IGNORECASE,
        ),
    ),
    (
        "reflexion",
        "it asks for work to be gone over",
        re.compile(r"\b(?:review|refine|improve|polish|revise|proofread|critique|rewrite)\b", re.IGNORECASE),
    ),
)


def tier_of(agent: AgentSpec) -> str:
    """Return the size of model that the agent's profile is for, mid without one."""
    tier = str(agent.profile.get("tier", "mid"))
    return tier if tier in TIERS else "mid"


def trivial(goal: str) -> bool:
    """Whether a goal is so short that no strategy can help it: at most 12 words and 80 characters."""
    return len(goal) <= 80 and len(goal.split()) <= 12


def chosen(goal: str, *, tools: int, tier: str) -> tuple[str, str]:
    """Return the strategy that a goal plainly calls for and why, ("", "") where only a model could say."""
    words = len(goal.split())
    if tier == "local":
        return "reactive", "the model is small"
    if trivial(goal) or (words <= 15 and not tools):
        return "reactive", "it is short"
    for name, why, pattern in _KINDS:
        if pattern.search(goal):
            return name, why
    return ("reactive", "it is short") if words <= 20 and tools else ("", "")
