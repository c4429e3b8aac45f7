"""`brief`, `pulse`, `discover_tools`: the status of the run, whether it makes progress, and which tools exist."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from detent.core.budget import FIELDS, remaining
from detent.core.state import KernelState, RunState
from detent.meta_tools.declaring import DISCOVERED, declared, noted, results_of, size_of
from detent.ports import Answer, ToolSpec

SECTIONS = ("tools", "results", "notes", "goals", "budget")
FOUND = 8
"""Most tools that one search finds."""
SHOWN = 20


class BriefArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `brief`."""

    section: Annotated[Literal["all", "tools", "results", "notes", "goals", "budget"], Meta(description="Only this part of the page.")] = (
        "all"
    )


async def _brief(args: BriefArgs, state: KernelState, context: Any) -> Answer:
    run: RunState = context.run.state
    parts = {"tools": _tools, "results": _results, "notes": _notes, "goals": _goals, "budget": _budget}
    wanted = SECTIONS if args.section == "all" else (args.section,)
    return Answer(content="\n".join(f"{name}: {parts[name](run, state, context)}" for name in wanted))


def _tools(run: RunState, state: KernelState, context: Any) -> str:
    used = Counter(item.tool for item in results_of(run))
    return ", ".join(f"{spec.name}{f' ({used[spec.name]} ok)' if used[spec.name] else ''}" for spec in context.specs) or "none"


def _results(run: RunState, state: KernelState, context: Any) -> str:
    found = results_of(run)
    last = [f"{item.call_id} {item.tool} {size_of(item)} bytes" for item in found[-SHOWN:]]
    earlier = [f"{len(found) - len(last)} earlier"] if len(found) > len(last) else []
    return "; ".join([*earlier, *last]) or "none"


def _notes(run: RunState, state: KernelState, context: Any) -> str:
    return ", ".join([*noted(run), *state.scratchpad]) or "none"


def _goals(run: RunState, state: KernelState, context: Any) -> str:
    return "; ".join([run.goal, *(goal.goal for goal in run.goals)])


def _budget(run: RunState, state: KernelState, context: Any) -> str:
    left = remaining(run.budget, run.usage, running_s=run.running_ms / 1000, total_s=run.total_s)
    lines: list[str] = []
    for field in FIELDS:
        limit, rest = getattr(run.budget, field), getattr(left, field, None)
        if limit and rest is not None:
            share = 1 - rest / limit
            mark = next((f" ({percent} % used)" for percent in (90, 75, 50) if share * 100 >= percent), "")
            lines.append(f"{field.removeprefix('max_')} {rest:g} of {limit:g} left{mark}")
    return ", ".join(lines) or "no bounds"


brief = declared(
    "brief",
    "One page on where this work stands: tools, stored results by key, notes, goals, what is left of the budget.",
    BriefArgs,
    _brief,
)


class PulseArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `pulse`."""

    question: Annotated[str, Meta(description="What you are unsure of; it is not answered, it stands in the log.")] = ""


async def _pulse(args: PulseArgs, state: KernelState, context: Any) -> Answer:
    run: RunState = context.run.state
    recent = [item for item in state.results if not item.meta][-10:]
    good = sum(bool(item.ok) for item in recent)
    acts = [(item.tool, msgspec.json.encode(item.arguments)) for item in recent]
    blockers = [f"{item.tool}: {item.error.code}" for item in recent[-3:] if item.error is not None]
    lacking = {tool: count for tool, count in run.agent.required_tools.items() if sum(i.tool == tool for i in results_of(run)) < count}
    blockers += [f"required: {tool}" for tool in lacking]
    stalled, repeated = state.turns_without_progress, len(acts) - len(set(acts))
    signal = "stalled" if stalled >= 3 else "failing" if recent and not good else "repeating" if repeated > len(acts) // 2 else "moving"
    ready = good > 0 and not blockers
    advice = {
        "stalled": "nothing new for several turns: do something different, answer, or say what is missing",
        "failing": "no recent call succeeded: read the errors, change the arguments or the tool",
        "repeating": "you repeat the same calls: their results are known, use them",
        "moving": "answer if you have what you need; else go on" if ready else "go on",
    }
    told = {
        "signal": signal,
        "behaviour": {
            "calls": len(recent),
            "success_rate": round(good / len(recent), 2) if recent else None,
            "repeated_calls": repeated,
            "different_tools": len({tool for tool, _ in acts}),
            "turns_without_progress": stalled,
        },
        "recommendation": advice[signal],
        "ready_to_answer": ready,
        "blockers": blockers,
    }
    return Answer(content=msgspec.json.encode(told).decode())


pulse = declared("pulse", "Whether this work is getting anywhere: success rate, repetition, stagnation, what blocks it.", PulseArgs, _pulse)


class DiscoverArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `discover_tools`."""

    query: Annotated[str, Meta(description="What you want to do, in a few words; empty lists all.")] = ""


async def _discover(args: DiscoverArgs, state: KernelState, context: Any) -> Answer:
    words = set(re.findall(r"\w+", args.query.lower()))
    ranked = sorted(context.specs, key=lambda spec: (-_score(spec, words), spec.name))
    found = [spec for spec in ranked if _score(spec, words) or not words][: FOUND if words else None]
    if not found:
        return Answer(content=f"no tool fits {args.query!r}; there are {', '.join(spec.name for spec in context.specs)}")
    known: list[str] = list(state.meta.get("meta_tools", {}).get("discovered", ()))
    names = list(dict.fromkeys([*known, *(spec.name for spec in found)]))
    lines = [
        f"{spec.name} ({spec.side_effect}): {spec.description.strip().splitlines()[0] if spec.description.strip() else ''}"
        for spec in found
    ]
    return Answer(content="\n".join(["you can call these from the next turn on:", *lines]), notes={DISCOVERED: names})


def _score(spec: ToolSpec, words: set[str]) -> int:
    name = set(re.findall(r"[a-z0-9]+", spec.name.lower()))
    told = set(re.findall(r"\w+", spec.description.lower()))
    return sum(3 * (word in name) + (word in told) for word in words)


discover_tools = declared(
    "discover_tools", "Find tools by what they do; those that are found are offered from the next turn on.", DiscoverArgs, _discover
)
