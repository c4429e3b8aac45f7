"""Decides whether an answer may end the run: evidence, required tools, no internal markup. Pure.

An answer without readable text is not accepted. The answer of an agent with `required_tools` or `deliverables` is checked against them. The first
answer that falls short is not accepted: the planner is told what is missing, once a pass. The second ends the run: as `missing_required_tool`, or, if
no call has succeeded at all, as `abstained`, because two answers in a row rested on nothing. A missing deliverable alone never fails a run; its
receipt says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec

from detent.core.actions import Abstain, FinalAnswer, is_blank
from detent.core.events import PassFinished, RunFinished
from detent.core.settle import REASONS, Settled
from detent.core.state import Item, KernelState, RunState
from detent.expressions.announcing import announces
from detent.expressions.markup import clean, without_tags
from detent.kernel.context import KernelContext
from detent.ports.tools import shown_tools
from detent.running.tracebacks import traceback_behind

ENDS_RUN = ("cancelled", "policy_stopped", "policy_denied", "approval_rejected", "approval_expired", "fatal_tool_error")
"""Reasons that end the run in whatever pass they occur. `policy_denied` and `approval_rejected` end a pass only if the agent is set to."""


def ends_run(verdict: Settled) -> bool:
    """Whether the end of a pass ends the run, so that no strategy continues after it."""
    return verdict.reason in ENDS_RUN or (verdict.bound is not None and verdict.bound.of == "run")


REFUSED = "answer_refused"
"""The error code of a call that would have ended the turn with an answer that falls short."""


# What was done ------------------------------------------------------------------------------------------------------------------


def work(run: RunState) -> Iterator[Item]:
    """Yield the observed calls that did work: no meta-tools, no calls that were never to run, no calls that only submit the answer."""
    for state in run.passes.values():
        for item in state.results:
            call = state.calls.get(item.call_id)
            if (
                not item.meta
                and not (call is not None and call.ends_turn)
                and (item.error is None or item.error.code not in ("not_run", REFUSED))
            ):
                yield item


def missing_tools(run: RunState) -> dict[str, int]:
    """Return the required tools that have not succeeded often enough, and how often they still must."""
    wanted = run.agent.required_tools
    if not wanted:
        return {}
    done = dict.fromkeys(wanted, 0)
    for item in work(run):
        if item.tool in done and item.ok and item.executed:
            done[item.tool] += 1
    return {tool: count - done[tool] for tool, count in wanted.items() if done[tool] < count}


def produced(run: RunState, deliverable: dict[str, str], output: Any) -> bool:
    """Whether a successful call that may have changed something named a declared file, or the answer contains a declared section."""
    if "section" in deliverable:
        return has_section(output, deliverable["section"])
    return any(
        same_file(deliverable["file"], text)
        for item in work(run)
        if item.ok and item.changes
        for text in (*_texts(item.arguments), *_texts(item.content))
    )


def same_file(declared: str, said: str) -> bool:
    """Whether a path that a call named is the declared one: equal, or the end of it if only one of them is absolute."""
    wanted, given = _parts(declared), _parts(said)
    if not wanted or not given or len(said) > 4096 or "\n" in said:
        return False
    absolute = declared.startswith("/"), said.startswith("/")
    if absolute[0] == absolute[1]:
        return wanted == given
    short, long = (wanted, given) if absolute[1] else (given, wanted)
    return len(short) <= len(long) and long[-len(short) :] == short


def _parts(path: str) -> list[str]:
    return [part for part in path.replace("\\", "/").split("/") if part not in ("", ".")]


def has_section(output: Any, heading: str) -> bool:
    """Whether an answer has text under a heading: Markdown heading or bold line, `Heading:`, or a key of a typed answer."""
    if isinstance(output, dict):
        fields = cast("dict[str, Any]", output)
        return any(_word(key) == _word(heading) and value not in (None, "", [], {}) for key, value in fields.items())
    if not isinstance(output, str):
        return False
    name = re.escape(heading.strip())
    match = re.search(
        rf"^[ \t]*(?:#{{1,6}}[ \t]*{name}[ \t#]*:?|\*\*{name}:?\*\*:?|{name}[ \t]*:)[ \t]*", output, re.IGNORECASE | re.MULTILINE
    )
    rest = output[match.end() :].strip() if match else ""
    return bool(rest) and not rest.startswith("#")


def _word(text: str) -> str:
    return re.sub(r"[\s_-]+", " ", text).strip().lower()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in cast("dict[str, Any]", value).values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in cast("Sequence[Any]", value):
            yield from _texts(part)


# Whether an answer is accepted --------------------------------------------------------------------------------------------------


def answers_goal(context: KernelContext) -> bool:
    """Whether the pass answers the run's goal itself, alone or with the earlier findings below it, and not a step towards it."""
    return is_for(context.input.task, context.run.state.goal)


def is_for(task: str, goal: str) -> bool:
    """Whether a task is the goal itself; see `answers_goal`."""
    return task == goal or task.startswith(f"{goal}\n")


def refusals(states: Iterable[KernelState]) -> int:
    """Return how many answers were not accepted in these passes."""
    return sum(_was_refused(item) for state in states for item in state.steps)


def _was_refused(item: Item) -> bool:
    if item.kind == "model":
        return item.plan is not None and bool(item.plan.refused)
    return item.error is not None and item.error.code == REFUSED


def objection(action: Any, context: KernelContext) -> str:
    """Return why an answer or abstention is not accepted yet, "" if it is; at most once a pass, never in its last turn."""
    run, state, agent = context.run.state, context.state, context.agent
    if not isinstance(action, (FinalAnswer, Abstain)):
        return ""
    said = _said_badly(action.content, context) if isinstance(action, FinalAnswer) and isinstance(action.content, str) else ""
    if not said and (not (agent.required_tools or agent.deliverables) or not answers_goal(context)):
        return ""
    if state.wrapping_up or last_turn(run, state) or refusals((state,)):
        return ""
    if said:
        return said
    missing = {tool: count for tool, count in missing_tools(run).items() if tool in context.tools}
    if isinstance(action, Abstain):
        tried = {item.tool for item in work(run)}
        untried = [tool for tool in missing if tool not in tried]
        return f"Not accepted yet: {_counts(missing)} must be tried first." if untried and len(untried) == len(missing) else ""
    said = [f"this work requires {_counts(missing)}; call it first"] if missing else []
    unmade = [one for one in agent.deliverables if _can_make(one, context) and not produced(run, one, action.content)]
    if unmade:
        said.append(f"not produced yet: {', '.join(named(one) for one in unmade)}")
    return f"This answer is not accepted yet: {'; '.join(said)}. An answer based on less is not accepted." if said else ""


def _offers_work(context: KernelContext) -> bool:
    return any(not spec.ends_turn for spec in shown_tools(context.state, context.specs, context.tools, context.agent))


def _said_badly(answer: str, context: KernelContext) -> str:
    """Return the fault of an answer's wording, whatever its subject; "" if there is none."""
    text = clean(answer)
    if is_blank(text) or (context.agent.plain_answers and is_blank(without_tags(text))):
        return "This answer is not accepted: it is empty, or has only internal markup. Answer in plain words."
    if context.agent.plain_answers and announces(text) and _offers_work(context):
        return (
            "This answer is not accepted: it only announces what comes next. Do that now with a tool call; answer when you have what "
            "was asked for, or say plainly what is missing."
        )
    return ""


def _can_make(deliverable: dict[str, str], context: KernelContext) -> bool:
    return "section" in deliverable or any(not tool.spec.read_only for tool in context.tools.values())


def last_turn(run: RunState, state: KernelState) -> bool:
    """Whether no turn may follow the current one; turns that correct an answer do not count against the share of the pass."""
    mine = state.usage.iterations - state.refused
    bounds = ((run.budget.max_iterations, run.counted.iterations), (state.limits.max_iterations, mine))
    return any(most is not None and used >= most for most, used in bounds)


def named(deliverable: dict[str, str]) -> str:
    """Return a deliverable as text."""
    return " ".join(f"{kind} {name!r}" for kind, name in deliverable.items())


def _counts(tools: dict[str, int]) -> str:
    return ", ".join(tool if count == 1 else f"{tool} ({count} times more)" for tool, count in tools.items())


def honest(run: RunState, settled: Settled, *, only: Sequence[str] | None = None) -> Settled:
    """Return the end that the run may report: an answer without internal markup, or no answer if required tools are missing.

    `only` narrows which required tools count (none: ()): a pass that works on a step of the goal is not responsible for any of them.
    """
    if REASONS[settled.reason] != "completed":
        return settled
    missing = {tool: count for tool, count in missing_tools(run).items() if only is None or tool in only}
    if not missing:
        return msgspec.structs.replace(settled, output=clean(settled.output))
    error = f"required, and not done: {_counts(missing)}"
    if any(item.ok and item.executed for item in work(run)) or not refusals(run.passes.values()):
        return msgspec.structs.replace(settled, reason="missing_required_tool", output=None, error=error)
    return msgspec.structs.replace(
        settled, reason="abstained", output=None, error=f"two answers were based on no successful call (missing: {', '.join(missing)})"
    )


def finished(settled: Settled) -> PassFinished:
    """Return the end of a pass that does not end the run; a blank answer does not count as an answer."""
    output = settled.output
    done = REASONS[settled.reason] == "completed" and not is_blank(output)
    reason = settled.reason if done or REASONS[settled.reason] != "completed" else "planner_error"
    error = "" if done else settled.error or ("the answer is empty" if reason == "planner_error" else "")
    bound = settled.bound
    return PassFinished(
        status="done" if done else "failed",
        reason=reason,
        output=output if done else None,
        error=error,
        dimension=bound.dimension if bound else "",
        limit=bound.limit if bound else None,
        used=bound.used if bound else None,
    )


def finish(run: RunState, settled: Settled) -> RunFinished:
    """Return the one exit of a run; a blank output never counts as completed."""
    status = REASONS[settled.reason]
    output, reason, error = settled.output, settled.reason, settled.error
    if status == "completed" and is_blank(output):
        status, reason, error, output = "failed", "planner_error", "the answer is empty", None
    partial = "" if status == "completed" else next((p.partial for p in reversed(tuple(run.passes.values())) if p.partial), "")
    bound, error = settled.bound, "" if status == "completed" else error
    return RunFinished(
        status=status,
        reason=reason,
        dimension=bound.dimension if bound else "",
        limit=bound.limit if bound else None,
        used=bound.used if bound else None,
        output=output if status == "completed" else None,
        partial=clean(partial),
        error=error,
        in_doubt=run.in_doubt,
        traceback=traceback_behind(run, error),
    )
