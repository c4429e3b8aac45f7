"""Titles: names of runs in lists. The agent's small model is called for one once, before the run's first plan.

The call goes through the run's gateway like any other (purpose `title`), and its outcome is an `EffectRecorded` outside of what is replayed: a
resumed run does not ask a second time, and a replay takes the record as it is. If anything goes wrong, the run continues without a title.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence

from detent.core.actions import FinalAnswer
from detent.core.agent import AgentSpec
from detent.core.errors import StoreError, Suspended
from detent.core.events import ASIDE, TITLE, EffectRecorded
from detent.core.state import Item, RunState
from detent.kernel.journal import Journal
from detent.ports import Models, Plan, Planner, View, models_asked, prompt_limits
from detent.ports.outside import Interrupted
from detent.running.asides import Once, aside
from detent.secrecy.redact import Redactor

log = logging.getLogger("detent")

LONGEST = 80
"""The longest title, in characters."""
MOST_TOKENS = 256
"""The output limit of the one call."""
PATIENCE_S = 20.0
"""The longest wait for a title, including retries."""
SHOWN_GOAL = 2_000
"""How many characters of the goal the model is shown."""
THINKING = re.compile(r"<think(ing)?>.*?(</think(ing)?>|\Z)", re.DOTALL)
ASK = (
    "Write a title of at most eight words for the task below. Do not do the task. Answer with the title alone, in the task's language.\n\n"
)


def title_of(state: RunState) -> str:
    """Return the run's title, "" without one."""
    return state.effects.get(TITLE) or ""


class Titling:
    """Plans as `planner` does, and gets a title before the first plan of a run whose agent has a small model."""

    def __init__(self, planner: Planner, journal: Journal, patterns: Sequence[str] = ()) -> None:
        self._planner, self._journal, self._patterns = planner, journal, patterns
        self._asked = False

    async def plan(self, view: View) -> Plan:
        """Return the planner's plan."""
        if not self._asked and view.models is not None and _wanted(self._journal.state):
            self._asked = True
            title = await self._title(view, view.models)
            self._journal.record(EffectRecorded(label="title", phase=ASIDE, value=title or None))
            await self._journal.commit()
        return await self._planner.plan(view)

    def models_asked(self, agent: AgentSpec) -> tuple[tuple[str, str], ...]:
        """Return the models that are called for the agent; see `ports.models_asked`."""
        return models_asked(self._planner, agent)

    def prompt_limits(self, agent: AgentSpec) -> tuple[int, Callable[[Item], int] | None]:
        """See `ports.prompt_limits`."""
        return prompt_limits(self._planner, agent)

    async def _title(self, view: View, models: Models) -> str:
        """Return the small model's title for the run, "" if it gives nothing usable."""
        try:
            if not models_asked(self._planner, view.agent):
                return ""  # a script would use up an answer meant for the run's own turns
            async with asyncio.timeout(PATIENCE_S):
                asked = aside(view, ASK + view.goal[:SHOWN_GOAL], Once(models, "title", MOST_TOKENS), scope="title")
                plan = await self._planner.plan(asked)
        except (StoreError, Suspended, Interrupted):
            raise
        except Exception as error:  # noqa: BLE001 - foreign code: no planner fails a run over its title
            log.info("run %s has no title: %s", view.run_id, error)
            return ""
        said = next((action.content for action in plan.actions if isinstance(action, FinalAnswer)), "")
        without = Redactor(self._patterns, b"").without
        return readable(without(said), without) if isinstance(said, str) else ""


def readable(said: str, without: Callable[[str], str] = str) -> str:
    """Return the first line with content, without markup, quotes and terminal control characters, at most `LONGEST` characters.

    A model's thinking aloud is not a title. `without` removes secrets from the result, because they may be complete only now.
    """
    plain = "".join(c if c.isprintable() else "\n" if c in "\r\n" else " " for c in THINKING.sub("", said))
    lines = (re.sub(r"\s+", " ", re.sub(r"^\W*title\W*:|\*\*|__|`", "", line, flags=re.IGNORECASE)) for line in plain.split("\n"))
    line = next((bare for line in lines if (bare := without(line).strip(" \"'`*_#.-“”„«»{}"))), "")
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1].rstrip()}…"


def _wanted(state: RunState) -> bool:
    """Whether the run is at its beginning, and can spare a call for a title."""
    most = state.budget.max_model_calls
    spare = most is None or most > 1
    return bool(state.agent.small_model) and not state.agent.rules and not state.usage.model_calls and TITLE not in state.effects and spare
