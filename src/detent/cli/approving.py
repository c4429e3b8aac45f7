"""Shows a person a call that waits for approval: the whole call or only its digest, and the facts about it.

Each line of the call begins with a bar, even where a terminal would have wrapped it, so that no argument can look like anything else. Above
`SHOWN_WHOLE_BYTES` only the digest is shown, and approving then needs `--digest`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from detent.cli.invocation import Invocation
from detent.cli.output import LEAST, as_json, broken, clean, room_of
from detent.core.errors import NotAllowedNow
from detent.core.events import Source
from detent.expressions.display import FURTHER, as_text, shortened
from detent.ports.remembering import told
from detent.running.results import Approval

BAR = "  | "
SHORT = 60
"""Arguments up to this many characters are shown on one line."""
VALUE = 200
"""How many characters of a changed value are shown; the call above has the whole value."""
WRITTEN = 2_000
"""How many characters are shown of a repaired call as the planner wrote it; `detent approvals --json` has all."""
MOST_CHANGED = 100
"""How many lines of the diff of a write are shown."""
MOST = 20
"""How many differences are shown."""
OF = {
    "user": "the user",
    "agent": "the agent's specification",
    "approver": "a person who edited the call",
    "trusted": "trusted",
    "memory": "memory",
    "ambiguous": "trusted and untrusted",
    "untrusted": "untrusted",
    "model": "the planner's own words",
    "earlier": "an earlier message, or the planner's own words",
    "short": "an unknown place: too short to search for",
    "empty": "empty",
}
"""The labels of origins as a person reads them."""


def request_lines(request: Approval, *, margin: int = 0) -> list[str]:
    """Return the call and the facts about it, wrapped for a terminal where `margin` columns are taken; not wrapped without a terminal."""
    columns = room_of(sys.stderr) or room_of(sys.stdout)
    width = None if columns is None else max(columns - margin, 2 * len(FURTHER))
    lines = [f"{BAR}{row}" for row in _rows(_call(request), width and width - len(BAR))]
    for name, text in _facts(request):
        first, *more = _rows([clean(text)], width and width - len(FURTHER)) or [""]
        lines += [f"  {name:<10}{first}", *(f"{FURTHER}{row}" for row in more)]
    return lines


def diff_lines(changes: Sequence[str]) -> list[str]:
    """Return the first `MOST_CHANGED` lines of the diff of a write, each behind a bar and wrapped like the call."""
    columns = room_of(sys.stderr)
    shown = [clean(line.expandtabs()) for line in changes[:MOST_CHANGED]]
    if len(changes) > MOST_CHANGED:
        shown.append(f"... and {len(changes) - MOST_CHANGED} more lines of the change; the call above is complete")
    rows = [f"{BAR}{row}" for row in _rows(shown, columns and max(columns - len(BAR), LEAST))]
    return ["  changes", *rows] if rows else []


def _call(request: Approval) -> list[str]:
    if request.too_long:
        return [f"{clean(request.tool)} (its arguments are too long to be shown here; `detent approvals {request.run_id} --json` has them)"]
    line = f"{clean(request.tool)} {as_text(request.args)}"
    return [line] if len(line) <= SHORT else f"{clean(request.tool)} {as_json(request.args)}".split("\n")


def _facts(request: Approval) -> Iterator[tuple[str, str]]:
    """Yield the facts about a call: a name of at most nine characters, and a text."""
    if request.too_long:
        yield "digest", request.digest
    if len(request.path) > 1:
        yield "asked by", f"{' > '.join(request.path)}, of run {request.root}"
    if request.sandbox:
        yield "runs", request.sandbox
    if request.healed is not None:
        text = request.healed.get("text") or f"{request.healed['tool']} {as_text(request.healed['args'])}"
        yield "written", shortened(text, WRITTEN)
        yield "repaired", "; ".join(request.healed["repairs"])
    if request.origins:
        yield "from", "; ".join(_origins(request.origins))
    if request.differs is not None:
        changed = list(request.differs["args"].items())
        yield "differs", f"{'' if changed else 'nothing, '}from {request.differs['call_id']}, the last approved call of {request.tool}"
        for path, one in changed[:MOST]:
            yield "", f"{path}: {_side(one, 'before')} -> {_side(one, 'now')}"
        if len(changed) > MOST:
            yield "", f"and {len(changed) - MOST} more"
    if request.approvers > 1:
        yield "approvers", f"{len(request.approved_by)} of {request.approvers}" + "".join(f", {by}" for by in request.approved_by)


def _origins(origins: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield each origin with the paths that came from it."""
    paths: dict[str, list[str]] = {}
    for path, leaf in origins.items():
        label, origin = OF.get(leaf["label"], ""), leaf.get("origin", "")
        where: str = f"{leaf['tool']} ({origin}), {label}" if "tool" in leaf else f"{label} ({origin})" if origin else label
        if "sources" in leaf:
            where = f"{label}: {'; or '.join(_chain(source) for source in leaf['sources'])}"
        paths.setdefault(where, []).append(path)
    for where, found in paths.items():
        yield f"{', '.join(found)} from {where}"


def _chain(source: dict[str, Any]) -> str:
    """Return how a value came from an earlier run."""
    return "; from ".join(told(msgspec.convert(source, Source)))


def _side(change: dict[str, Any], side: str) -> str:
    return shortened(as_json(change[side], indent=None), VALUE) if side in change else "(absent)"


def _rows(lines: Iterable[str], width: int | None) -> list[str]:
    """Return the lines, each split into as many as a terminal of this width needs."""
    return [row for line in lines for row in (broken(line, width) if width else [line])]


def refuse_unseen(invocation: Invocation, request: Approval, digest: str) -> None:
    """Raise `NotAllowedNow` if only the digest of a call can be shown and `digest` was not given."""
    if request.too_long and not digest:
        look = invocation.command("approvals", request.run_id, "--json")
        why = (
            f"the arguments of call {request.call_id!r} of run {request.run_id!r} are too long to be shown, so nobody has seen them here: "
            f"look at them and their digest with `{look}`, then approve with --digest DIGEST"
        )
        raise NotAllowedNow(request.run_id, why, reason_code="approval_not_shown")
