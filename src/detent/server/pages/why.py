"""Why a call happened, or did not: its trail from the plan to the outcome, and where each argument came from, back to the records."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec
from starlette.responses import Response

from detent.config.adapters import traced
from detent.core.errors import CorruptLog
from detent.core.records import Record
from detent.history.explaining import Earlier, Explanation, explain, follow
from detent.policies.provenance.origins import leaves
from detent.running.conversing import shown_of
from detent.running.lineage import forked_of, history
from detent.running.snapshots import state_of
from detent.server.pages.rendering import at_run
from detent.server.pages.run import reading_of
from detent.server.pages.visits import Page, Visit


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One place where a value was: the words, the address of the record that has it ("" if none is known), and whether it is still there."""

    said: str
    address: str = ""
    standing: str = ""


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """How the value of one argument came here, the newest place first. `label` is what provenance says of it."""

    path: str
    value: Any
    label: str
    nodes: Sequence[Node]


async def why(visit: Visit) -> Response:
    """Show the trail of a call, and the chains of its arguments."""
    engine = visit.served.engine
    run_id = await engine.runtime.visible(visit.path["run_id"], visit.caller.host)
    records = await history(engine.store, run_id)
    found = await follow(explain(records, visit.path["call_id"]), engine.store)
    return visit.page(
        "why.html", run_id=run_id, found=found, chains=await _chains(visit, run_id, found, records), goal=await _goal(visit, run_id)
    )


async def _goal(visit: Visit, run_id: str) -> str:
    head = await visit.served.engine.store.head(run_id)
    return "" if head is None else head.title or head.goal


async def _chains(visit: Visit, run_id: str, found: Explanation, records: Sequence[Record]) -> list[Chain]:
    """Return where each leaf of the arguments came from: this run's call or goal, and from there what is known of earlier runs."""
    facts = await _facts(visit, run_id, found)
    seen = {
        getattr(r.event, "call", ""): r for r in records if type(r.event).__name__ in ("ToolFinished", "SubagentJoined", "ToolReconciled")
    }
    calls = (await reading_of(visit)).tracer.calls
    chains: list[Chain] = []
    for path, value in leaves(found.args):
        fact = facts.get(path, {})
        nodes: list[Node] = []
        origin = str(fact.get("origin") or "")
        if (record := seen.get(origin)) is not None:
            tool = fact.get("tool") or (known.tool if (known := calls.get(origin)) else "a call")
            here = record.envelope
            nodes.append(
                Node(said=f"the result of {tool}, call {origin}", address=at_run(here.run, f"/records/{here.seq}"), standing="there")
            )
        elif origin == "goal" or fact.get("label") == "user":
            nodes.append(Node(said="the user's goal", address=at_run(run_id, "/records/1"), standing="there"))
        nodes += [_place(visit, one) for one in found.earlier if one.path == path]
        chains.append(Chain(path=path, value=value, label=str(fact.get("label", "")), nodes=nodes))
    return chains


def _place(visit: Visit, place: Earlier) -> Node:
    mine = place.run_id.partition("@")[2] == visit.caller.tenant
    address = (
        at_run(place.run_id, f"/records/{place.sequence}") if place.sequence and place.standing in ("there", "changed") and mine else ""
    )
    return Node(said=place.said, address=address, standing=place.standing)


async def _facts(visit: Visit, run_id: str, found: Explanation) -> dict[str, dict[str, Any]]:
    """Return what the policy found of each argument; if it does not look, what the same search finds now."""
    decided = [step for step in found.steps if step.kind == "policy_decided"]
    if decided and isinstance(kept := decided[-1].data.get("facts", {}).get("args"), dict):
        return cast("dict[str, dict[str, Any]]", kept)
    store = visit.served.engine.store
    sequence = decided[-1].sequence if decided else found.steps[0].sequence
    lines = await store.read(run_id, limit=sequence)
    given: Any = found.args
    if not isinstance(given, dict) or not lines or forked_of(lines[0]) is not None:
        return {}
    state = state_of(run_id, lines, None)
    args = cast("dict[str, Any]", given)
    with suppress(CorruptLog):
        return traced(args, state, found.call_id, await shown_of(store, state))
    return {}


PAGES = (Page(path="/ui/runs/{run_id}/calls/{call_id:path}", handle=why),)
