"""When kernels run, how often and how configured: one file a strategy, each a plain async function over `StrategyRun` (DESIGN 6)."""

from __future__ import annotations

from detent.ports import Strategy
from detent.strategies.reactive import reactive

BUILT_IN: dict[str, Strategy] = {"reactive": reactive}
"""The strategies that every engine knows."""
