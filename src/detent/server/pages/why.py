"""Why a call happened, or did not: its trail from the plan to the outcome, and where each argument came from, back to the records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec
from starlette.responses import Response

from detent.config.adapters import traced
from detent.core import events as e
from detent.core.errors import CorruptLog, DetentError, RunNotFound
from detent.core.records import Record
from detent.history.explaining import Earlier, Explanation, explain, follow
from detent.policies.provenance.origins import leaves
from detent.running.conversing import shown_of
from detent.running.lineage import forked_of, history
from detent.running.snapshots import state_of
from detent.server.pages.rendering import at_run
from detent.server.pages.run import reading_of
from detent.server.pages.visits import Page, Visit

LONGEST = 40
"""So many places of a way are drawn; the provenance policy keeps fewer."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A place where a value was: the words, the address of the record that has it ("" if none is known), and whether it is still there.

    `earlier` are the places from which it came to this one. `again`: it is drawn already, with these, where another way leads to it.
    """

    said: str
    address: str = ""
    standing: str = ""
    earlier: tuple[Node, ...] = ()
    again: bool = False


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """How values of some arguments came here, the newest places first. `label` is what provenance says of them."""

    values: Sequence[tuple[str, Any]]
    label: str
    nodes: tuple[Node, ...]


async def why(visit: Visit) -> Response:
    """Show the trail of a call, and the chains of its arguments."""
    engine = visit.served.engine
    run_id = await engine.runtime.visible(visit.path["run_id"], visit.caller.host)
    records = await history(engine.store, run_id)
    found = await follow(explain(records, visit.path["call_id"]), engine.store)
    graphs = await _graphs(visit, run_id, found, records)
    if (head := await engine.store.head(run_id)) is None:
        raise RunNotFound(run_id, "this server")
    return visit.page("why.html", run_id=run_id, found=found, graphs=graphs, head=head)


async def _graphs(visit: Visit, run_id: str, found: Explanation, records: Sequence[Record]) -> list[Graph]:
    """Return where the leaves of the arguments came from: records of this run, and from there what is known of children and earlier runs.

    Leaves that came the same way share a graph.
    """
    facts = await _facts(visit, run_id, found)
    here = await _here(visit, run_id, records)
    graphs: dict[tuple[str, tuple[Node, ...]], list[tuple[str, Any]]] = {}
    for path, value in leaves(found.args):
        fact = facts.get(path, {})
        ways: dict[int, list[Earlier]] = {}
        for one in found.earlier:
            if one.path == path and len(way := ways.setdefault(one.source, [])) < LONGEST:
                way.append(one)
        chains: list[list[Node]] = []
        for name in str(fact.get("origin") or "").split(", "):
            begin = [here[name]] if name in here else []
            mine = [number for number, way in ways.items() if way[0].said.startswith(f"{name}, ")]
            chains += [[*begin, *[await _place(visit, one) for one in ways.pop(number)]] for number in mine] or [begin]
        chains += [[await _place(visit, one) for one in way] for way in ways.values()]
        graphs.setdefault((str(fact.get("label", "")), _joined(chains)), []).append((path, value))
    return [Graph(values=values, label=label, nodes=nodes) for (label, nodes), values in graphs.items()]


def _joined(chains: Sequence[Sequence[Node]]) -> tuple[Node, ...]:
    """Return chains as one graph: a record is one place, however many ways lead to it. A place without a record is one of its way only."""
    after: dict[Any, dict[Any, Node]] = {}
    for chain in chains:
        at: Any = None
        for node in chain:
            key = node if node.address else (at, node)
            after.setdefault(at, {})[key] = node
            at = key
    drawn = set[Any]()

    def below(at: Any) -> Iterator[Node]:
        for key, node in after.get(at, {}).items():
            again = key in drawn
            drawn.add(key)
            yield msgspec.structs.replace(node, again=again, earlier=() if again else tuple(below(key)))

    return tuple(below(None))


async def _here(visit: Visit, run_id: str, records: Sequence[Record]) -> dict[str, Node]:
    """Return the records of this run that values come from, by the names that provenance gives to them."""
    calls = (await reading_of(visit)).tracer.calls
    first = at_run(run_id, "/records/1")
    found = {"goal": Node(said="the user's goal", address=first), "agent": Node(said="the agent's configuration", address=first)}
    for record in records:
        event, at = record.event, at_run(record.envelope.run, f"/records/{record.envelope.seq}")
        match event:
            case e.ToolFinished(call=call) | e.ToolReconciled(call=call):
                tool = calls[call].tool if call in calls else "a call"
                found[call] = Node(said=f"the result of {tool}, call {call}", address=at)
            case e.SubagentJoined(child=child, call=call):
                found[f"child:{child}"] = found[call] = Node(said=f"what the child {child} returned", address=at)
            case e.MemoryRecalled(items=items):
                recalled = [cast("dict[str, Any]", one) for one in items if isinstance(one, dict)]
                found |= {f"memory:{one.get('id', '')}": Node(said="recalled from memory", address=at) for one in recalled}
            case e.UserReplied():
                found[f"reply {record.envelope.iteration}"] = Node(said="a reply of the user", address=at)
            case e.RunStarted():
                found |= {f"variables.{name}": Node(said=f"the user's variable {name}", address=at) for name in event.variables}
                if event.delegated is not None:
                    found[f"parent:{event.delegated.call}"] = Node(said="the goal that the parent gave", address=at)
            case _:
                pass
    return found


async def _place(visit: Visit, place: Earlier) -> Node:
    mine, sequence = place.run_id.partition("@")[2] == visit.caller.tenant, place.sequence
    if mine and place.run_id and not sequence:
        with suppress(DetentError):  # that run is not here any more
            calls = (await visit.served.readings.of(visit.served.engine, place.run_id, host=visit.caller.host)).tracer.calls
            call = calls.get(place.call_id)
            sequence = call.records[-1] if call is not None and call.records else 0 if place.call_id else 1
    address = at_run(place.run_id, f"/records/{sequence}") if sequence and place.standing in ("there", "changed") and mine else ""
    return Node(said=place.said.partition(", digest ")[0], address=address, standing=place.standing)


async def _facts(visit: Visit, run_id: str, found: Explanation) -> dict[str, dict[str, Any]]:
    """Return what the policy found of each argument; if it does not look, what the same search finds now."""
    decided = [step for step in found.steps if step.kind == "policy_decided"]
    if decided and isinstance(kept := decided[-1].data.get("facts", {}).get("args"), dict):
        return {
            path: fact for path, fact in cast("dict[str, Any]", kept).items() if isinstance(fact, dict)
        }  # another policy says what it wants
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
