"""Templates of the inspector, and how values are shown in them. Everything is escaped but our own style sheet."""

from __future__ import annotations

from collections.abc import Sequence, Set
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from detent.core.budget import Usage
from detent.expressions.display import as_text, clean, counted, gist, plain
from detent.history.model_calls import ModelCall, spent, told
from detent.history.traces import Call, Iteration
from detent.policies.provenance.origins import leaves

HERE = Path(__file__).parent
TONES = {"completed": "good", "failed": "bad", "stopped": "quiet", "running": "live"}
"""What a status means to the eye; those that wait are `waits`."""
WORDS = {
    "waiting_for_approval": "waits for approval",
    "waiting_for_user": "waits for an answer",
    "waiting_for_reconciliation": "call in doubt",
    "waiting_for_operator": "given up",
    "waiting_for_subagent": "waits for its children",
    "waiting_for_schedule": "sleeps",
}


def tone(status: str) -> str:
    """Return what a status means to the eye: live, good, bad, waits or quiet."""
    return TONES.get(status, "waits" if status.startswith("wait") else "quiet")


def words(status: str) -> str:
    """Return a status in words."""
    return WORDS.get(status, status.replace("_", " "))


def lasted(seconds: float | None) -> str:
    """Return a duration in the two units that matter: `340 ms`, `12.4 s`, `3 min 20 s`, `2 d 4 h`."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, unit, below, least in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit}" + (f" {rest} {least}" if rest else "")
    return f"{whole} s"


def ago(at: datetime | None) -> str:
    """Return how long ago a time is."""
    return "" if at is None else f"{lasted(max(60.0, (datetime.now(UTC) - at).total_seconds()))} ago" if _older(at) else "just now"


def _older(at: datetime) -> bool:
    return (datetime.now(UTC) - at).total_seconds() >= 60


def moment(at: datetime | None) -> str:
    """Return a time in UTC."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def money(cost: float | None) -> str:
    """Return an amount of money; "" for none that is known."""
    return "" if not cost else f"{cost:.4f} USD" if cost < 1 else f"{cost:,.2f} USD"


def figure(value: Any) -> str:
    """Return a number for people."""
    return "" if value is None else f"{value:,.4g}" if isinstance(value, float) and value % 1 else f"{value:,.0f}"


def text(value: Any, most: int = 20_000) -> str:
    """Return any value as text; a long one is cut, and says so."""
    said = as_text(value)
    return said if len(said) <= most else f"{said[:most]}… ({len(said) - most:,} more characters are in the record)"


def line(value: Any, most: int = 160) -> str:
    """Return any value as one line of text."""
    said = clean(" ".join(as_text(value).split()))
    return said if len(said) <= most else f"{said[: most - 1]}…"


def at_run(run_id: str, more: str = "") -> str:
    """Return the address of a run's page."""
    return f"/ui/runs/{quote(run_id, safe='')}{more}"


def bar(used: float | None, limit: float) -> int:
    """Return how much of a bound is used, in per cent."""
    return min(100, round(100 * (used or 0) / limit)) if limit else 100


def outcome(call: Call) -> str:
    """Return how a call stands, in words."""
    if call.outcome:
        return {"ok": "done"}.get(call.outcome, call.outcome)
    if call.decision == "deny":
        return "denied"
    return "waits for approval" if call.approval and "decision" not in call.approval else "in progress" if call.attempts else "not begun"


def folded(calls: Sequence[Call], low: Set[str]) -> list[tuple[bool, list[Call]]]:
    """Return calls in groups; neighbours of low importance that succeeded are one folded group."""
    groups: list[tuple[bool, list[Call]]] = []
    for call in calls:
        fold = call.tool in low and call.outcome == "ok"
        if groups and groups[-1][0] == fold:
            groups[-1][1].append(call)
        else:
            groups.append((fold, [call]))
    return groups


def turn_cost(turn: Iteration) -> str:
    """Return what the model calls of a turn cost; "" if that is not known."""
    return money(sum(model.usage.cost_usd or 0.0 for model in turn.models))


def model_line(call: ModelCall) -> str:
    """Return a model call on one line."""
    return told(call)


LABELS = {
    "user": "the user",
    "agent": "the agent's configuration",
    "approver": "who approved",
    "trusted": "a trusted tool",
    "untrusted": "an untrusted source",
    "ambiguous": "several sources, one of them untrusted",
    "memory": "memory",
    "model": "the model: nothing that it read has it",
    "short": "unknown: too short to search for",
    "empty": "nothing: it is empty",
}
"""The labels of provenance in words."""


def origin_words(origin: dict[str, Any]) -> str:
    """Return where a value came from, in words."""
    label = str(origin.get("label", ""))
    said, tool, place = LABELS.get(label, label.replace("_", " ")), str(origin.get("tool") or ""), str(origin.get("origin") or "")
    by = f"{tool}, call {place}" if tool and place else tool or place
    return f"{said} ({by})" if said and by and by != label else said


def written_args(args: Any) -> str:
    """Return arguments as a person reads and edits them."""
    return msgspec.json.format(msgspec.json.encode(plain(args)), indent=2).decode()


def usage(of: Usage) -> str:
    """Return tokens and cost in words."""
    return spent(of)


def _visible(value: Any) -> Any:
    """Return a text without characters that hide or disguise what is written, whether or not its template thought of that."""
    return clean(value, lines=True) if type(value) is str else value


@cache
def _environment() -> Any:
    made: Any = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    of_values = (ago, bar, clean, counted, figure, gist, lasted, leaves, line, moment, money, origin_words, plain, text, written_args)
    of_runs = (folded, model_line, outcome, tone, turn_cost, usage, words)
    made.filters |= {one.__name__: one for one in (*of_values, *of_runs)}
    made.globals |= {"at_run": at_run, "counted": counted}
    return made


def show_pages(paths: frozenset[str]) -> None:
    """Tell the templates which pages there are, so that none links to one that is missing."""
    _environment().globals["pages"] = paths


def render(template: str, **values: Any) -> str:
    """Return a template with these values."""
    return _environment().get_template(template).render(**values)
