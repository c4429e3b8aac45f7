"""Handoff: an agent takes over the conversation. It answers the user, or gives it to another one; the last answer is the run's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from detent.core.agent import AgentSpec
from detent.ports import AgentResult, Passed, StrategyRun, strategy
from detent.ports.options import check_fields
from detent.teams.members import TEXT, check_members, check_number, failure, members, record, section, without_answer


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """One agent passed the conversation to another."""

    old: str
    new: str
    why: str


class HandedOver(msgspec.Struct, frozen=True, kw_only=True):
    """Who answered in the end, and how the conversation got there."""

    result: AgentResult
    answer: Any
    trail: tuple[Handover, ...]


async def handoff(run: StrategyRun, first: str, agents: Sequence[str], *, most: int = 4) -> HandedOver:
    """Let `first` take over, and then whomever it names. After `most` handovers the agent that has the conversation must answer."""
    current, trail = first, list[Handover]()
    while True:
        others = [name for name in agents if name != current] if len(trail) < most else []
        result = await run.agent("handoff", current, _goal(run.goal, trail, others), output_schema=_form(run, others))
        said: dict[str, Any] = result.output if result.ok else {}
        new = said.get("hand_to") or ""
        if not new:
            return HandedOver(result=result, answer=said.get("answer"), trail=tuple(trail))
        trail.append(Handover(old=current, new=new, why=said.get("why") or ""))
        current = new


def _form(run: StrategyRun, others: Sequence[str]) -> dict[str, Any]:
    """Return the schema of an answer: the answer itself, or, while that is allowed, who takes over next."""
    answer, hands = record(answer=run.output_schema or TEXT), record(hand_to={"enum": list(others)}, why=TEXT)
    return {"anyOf": [answer, hands]} if others else answer


def _goal(goal: str, trail: Sequence[Handover], others: Sequence[str]) -> str:
    came = "\n".join(f"{one.old} -> {one.new}: {one.why}" for one in trail)
    may = f"Answer with `answer`, or name in `hand_to` who should take over ({', '.join(others)}), and `why`."
    must = "Answer with `answer`. The conversation changed hands as often as it may: nobody else can take it."
    return f"{goal}{section('How this came to you', came)}\n\n{may if others else must}"


class HandoffOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`first`: who begins ("": the first subagent). `agents`: who may take over (all subagents). `most`: how many handovers there may be."""

    first: str = ""
    agents: tuple[str, ...] = ()
    most: int = 4

    def __post_init__(self) -> None:
        check_fields(self)
        check_number(0, most=self.most)

    def check(self, agent: AgentSpec) -> None:
        """Raise `ConfigError` for an agent that is not declared."""
        check_members(agent, self.first, *self.agents)


@strategy(options=HandoffOptions)
async def ready(run: StrategyRun) -> Passed | Any:
    """Let the first agent take over, and answer with the last one's answer."""
    options = run.options(HandoffOptions)
    names = members(run.agent, options.agents)
    done = await handoff(run, options.first or names[0], names, most=options.most)
    return done.answer if done.result.ok else without_answer(failure([done.result]))
