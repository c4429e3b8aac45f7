"""Effects of trials: what happened in the world because of a run and of those that it started, so that an effect that a fault repeated or lost is counted.

An effect is a call of a tool that changes something, told apart by the tool and its arguments. How often it happened in a trial is the sum over the
calls with this tool and these arguments, and for each call the largest of

- once if the log has its success, or that it was settled as happened
- once if the tool has a `reconcile` and that says so
- how often the tool's own code succeeded under the call's key, as the evaluation saw it, whether or not it was recorded; of an idempotent tool,
  equal results under one key count once

*Repeated* is how often an effect happened beyond the most that an undisturbed trial of the same case shows, at least once. *Lost* are calls whose success
the log has while the tool's `reconcile` denies them; and, in a trial that passed or gave the answer of an undisturbed trial that passed,
the effects that are missing: for each tool, how many fewer different effects happened than in each undisturbed trial of the case that passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from detent.core import events as e
from detent.core.agent import Host
from detent.core.codec import digest_of
from detent.core.records import Record
from detent.core.state import RunState
from detent.engine import Engine
from detent.evals.folding import traced
from detent.history.traces import make_trace
from detent.ports import ToolContext
from detent.running.calling import SETTLE_S
from detent.secrecy.vault import Vault
from detent.testing.ledgers import Ledger, shown_args

MOST_SHOWN = 200


class Effects(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The effects of a trial: how often each happened, by tool and then by arguments; and the calls that succeeded only according to the log."""

    times: dict[str, dict[str, int]] = {}
    denied: tuple[str, ...] = ()


async def effects_of(records: Sequence[Record], state: RunState, engine: Engine, ledger: Ledger) -> Effects:
    """Return the effects of a trial's run, or of all runs of its talk, with those of the runs that they started. Tools are asked where they can be."""
    times: dict[str, dict[str, int]] = {}
    denied: list[str] = []
    runs: dict[str, list[Record]] = {}
    for record in records:
        runs.setdefault(record.envelope.run, []).append(record)
    children = [record.event.child for record in records if isinstance(record.event, e.SubagentSpawned)]
    while children:
        if (child := children.pop()) not in runs:
            runs[child], _ = await traced(engine.store, child)  # none of a child that has not begun
            children += [record.event.child for record in runs[child] if isinstance(record.event, e.SubagentSpawned)]
    for run_id, own in runs.items():  # a talk has several
        keys = {
            r.event.call: r.event.key for r in own if isinstance(r.event, e.ToolStarted) and r.event.side_effect not in ("none", "read")
        }
        for call in [call for turn in make_trace(own).iterations for call in turn.calls] if keys else ():
            if (key := keys.get(call.call_id)) is None or call.source:
                continue
            said = await _asked(engine, state.host, run_id, call.call_id, tool=call.tool, key=key)
            logged = call.outcome == "ok"
            what = _shown(call.args)
            if logged and said is False:
                denied.append(f"{call.tool}({what})")
            count = max(logged and said is not False, said is True, ledger.times(key))
            known = times.setdefault(call.tool, {})
            known[what] = known.get(what, 0) + count
    return Effects(
        times={tool: found for tool, made in times.items() if (found := {w: n for w, n in made.items() if n})}, denied=tuple(denied)
    )


def _shown(args: Any) -> str:
    text = shown_args(cast("dict[str, Any]", args)) if isinstance(args, dict) else str(args)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}… ({digest_of([text])[:8]})"


async def _asked(engine: Engine, host: Host, run_id: str, call_id: str, *, tool: str, key: str) -> bool | None:
    """Return whether the call with this key happened according to its tool; None if it cannot be asked, or does not know in time."""
    parts = engine.runtime.parts
    try:
        found = parts.tools.get(tool)
        secrets = Vault(parts.secrets, host)
        context = ToolContext(run_id=run_id, call_id=call_id, tool=found.spec, host=host, idempotency_key=key, secrets=secrets)
        async with asyncio.timeout(SETTLE_S):
            known = await found.settle(context)
    except Exception:  # noqa: BLE001 - foreign code: a tool that raises does not know
        return None
    return None if known is None else known.kind != "not_executed"


def repeated(made: Effects, undisturbed: Sequence[Effects]) -> dict[str, int]:
    """Return the effects that happened too often, with how many times too many."""
    found: dict[str, int] = {}
    for tool, effects in made.times.items():
        for what, count in effects.items():
            usual = max((other.times.get(tool, {}).get(what, 0) for other in undisturbed), default=0)
            if (more := count - max(1, usual)) > 0:
                found[f"{tool}({what})"] = more
    return found


def missing(made: Effects, undisturbed: Sequence[Effects]) -> dict[str, int]:
    """Return by tool how many effects are missing that each of these undisturbed trials has."""
    usual: Mapping[str, Any] = {tool: min(len(other.times.get(tool, {})) for other in undisturbed) for tool in _tools(undisturbed)}
    return {tool: fewer for tool, least in usual.items() if (fewer := least - len(made.times.get(tool, {}))) > 0}


def _tools(undisturbed: Sequence[Effects]) -> list[str]:
    return list(dict.fromkeys(tool for one in undisturbed for tool in one.times))
