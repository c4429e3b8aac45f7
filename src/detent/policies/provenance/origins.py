"""Traces values to their origin: an index of what a run has seen, to find the source of each leaf of some arguments.

Theory of operation. Everything is derived from the run's state (the log records the trust of a tool with each outcome), so labels are the same
after resume, fork and compaction (`steps` are complete; compaction only hides them from the planner). The constant parts of a run (goal, variables,
specification) are indexed once. What a pass has seen is indexed as it grows. The index of a pass depends only on that pass and the constant parts,
never on when it was built, so the answers are the same with and without the cache. The cache holds the most recently used runs.

What other runs wrote keeps the labels that it had there (`kept`): recalled items, which are steps of the transcript; the conversation of the run's
session, which is constant; the goal and variables that its parent gave it; and what its children return.

These are not sources: the planner's words, notes, meta-tools (they answer from state), and the errors of a trusted tool.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import is_
from typing import Any, Literal, cast

import msgspec

from detent.core.events import Origin, Source
from detent.core.history import Seq
from detent.core.state import Child, Item, KernelState, RunState
from detent.policies.provenance.evidence import REMEMBERED_CHARS, Evidence, add_data, can_carry
from detent.policies.provenance.kept import Keepings, origin_in
from detent.policies.provenance.matching import MIN_CHARS, Needle, needle, normal, number_key, pieces
from detent.policies.provenance.sinks import Kind, kind_of_name

Label = Literal["user", "agent", "approver", "trusted", "memory", "ambiguous", "untrusted", "model", "empty"]
"""Where a leaf came from.

`user`: goal, replies, variables, attachments; `agent`: the agent's specification; `approver`: arguments that a person edited; `trusted`:
output of a tool declared as trusted; `memory`; `untrusted`: output of any other tool; `ambiguous`: found in the output of both a trusted and an
untrusted tool (or memory); `model`: not found anywhere; `empty`: null or an empty text, list or object.
"""

PROVEN: tuple[Label, ...] = ("user", "agent", "approver", "trusted", "empty")
"""The labels with which a sensitive argument is allowed."""
WORST_FIRST: tuple[Label, ...] = ("untrusted", "ambiguous", "model", "memory", "trusted", "approver", "agent", "user", "empty")

Trust = Mapping[str, str] | Callable[[str], str]
"""Trust by tool name that overrides the log: `trusted` or `untrusted`. For other tools the log counts."""

CACHED_RUNS = 16
CACHED_NEEDLES = 1_024


class Leaf(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A leaf of some arguments. `path` is for example `to` or `items[0].id`. `origin` names its source (`goal`, a call id, ...).

    `sources`: where the value came from in earlier runs, if its origin is a memory item or an entry of a conversation.
    """

    path: str
    label: Label
    origin: str = ""
    sources: tuple[Source, ...] = ()


Sources = dict[str, Evidence]
"""Evidence by label."""


_KEYED: tuple[Kind | None, ...] = ("recipient", "identifier")
"""Kinds of values that also occur as keys of an object."""


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of each leaf of JSON data. An empty list or object is a leaf.

    Some keys are values too, and are leaves at `path{}`: a key that is not a name (`{"bob@example.com": "write"}`), and a key in a field of people
    or identifiers (`permissions`: `{"bob": "write"}`), unless the key is itself the name of such a field. Paths may repeat.
    """
    if isinstance(value, dict) and value:
        said_by_key = bool(path) and kind_of_name(field_of(path)) in _KEYED
        for key, inner in cast("dict[str, Any]", value).items():
            if not key.replace("-", "_").isidentifier() or (said_by_key and kind_of_name(key) is None):
                yield path + "{}", key
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, (list, tuple)) and value:
        for index, inner in enumerate(cast("list[Any]", value)):
            yield from leaves(inner, f"{path}[{index}]")
    else:
        yield path, None if isinstance(value, (dict, list, tuple)) else value


def field_of(path: str) -> str:
    """Return the name of the last field in a path, without list indices."""
    return path.rsplit(".", 1)[-1].split("[", 1)[0].removesuffix("{}")


_OWN_WORDS: tuple[Label, ...] = ("user", "agent", "approver")


def trace(value: Any, among: Iterable[Sources], *, field: str = "", look_for: Callable[[Any], Needle] = needle) -> tuple[Label, str]:
    """Return the label of one leaf of the argument `field`, and the source in which it was found. `look_for` may cache needles."""
    return traced(look_for(value), tuple(among), kind_of_name(field))


_IN_PIECES: tuple[Kind | None, ...] = ("content", "path", None)
"""Kinds of values that may combine several sources. Addresses, identifiers and commands may not."""


def traced(wanted: Needle, among: tuple[Sources, ...], kind: Kind | None) -> tuple[Label, str]:
    """Return the label of a needle that is used as a value of this kind, and the source in which it was found."""
    amount = kind == "amount"
    if wanted.empty:
        return "empty", ""
    found: dict[str, str] = {}
    for sources in among:
        for label, evidence in sources.items():
            if label not in found and (origin := evidence.find(wanted, amount=amount)):
                found[label] = origin
    for label in _OWN_WORDS:
        if label in found:
            return label, found[label]
    if "trusted" in found:
        other = found.get("untrusted") or found.get("memory")
        return ("ambiguous", f"{found['trusted']}, {other}") if other else ("trusted", found["trusted"])
    if found:
        label = "untrusted" if "untrusted" in found else "memory"
        return label, found[label]
    parts = [traced(piece, among, kind) for piece in pieces(wanted)] if kind in _IN_PIECES else []
    return min(parts, key=lambda part: WORST_FIRST.index(part[0])) if parts else ("model", "")


class PassIndex:
    """The content that one pass has seen, up to a number of its steps."""

    __slots__ = ("_of_run", "_seen", "by_tool", "kept", "sources", "taints")

    def __init__(self, of_run: RunIndex, declared: Callable[[str], str]) -> None:
        self._of_run = of_run
        self._seen: Seq[Item] = Seq()
        self.sources: Sources = {}
        self.kept = Keepings(self._evidence, declared)
        self.taints = self.kept.taints
        self.by_tool: dict[str, list[Item]] = {}

    def covers_prefix_of(self, steps: Seq[Item]) -> bool:
        """Return whether `steps` continue from the end of this index."""
        return len(self._seen) == 0 or steps.continues(self._seen)

    def extend(self, steps: Seq[Item], trust: Callable[[Item], str], child_of: Callable[[Item], Child | None]) -> None:
        """Index the new steps."""
        for position, item in enumerate(steps[len(self._seen) :], len(self._seen)):
            if item.kind == "user":
                self._add_user(item, first=position == 0)
            elif item.kind == "note" and item.arguments:  # its parent's words
                self.kept.add_returned(f"parent:{item.arguments.get('call', '')}", item.arguments.get("text"), origin_in(item.arguments))
            elif item.kind == "tool" and (child := child_of(item)) is not None:
                said = item.content if item.error is None else [item.error.message, item.error.details]
                self.kept.add_returned(f"child:{child.child}", said, child.origin)
            elif item.kind == "tool" and not item.meta:
                self._add_outcome(item, trusted=trust(item) == "trusted")
            elif item.kind == "memory":
                for data in cast("Iterable[dict[str, Any]]", item.arguments):
                    self.kept.add(f"memory:{data.get('id', '')}", data.get("content"), origin_in(data), cut=bool(data.get("cut")))
        self._seen = steps

    def _evidence(self, label: Label) -> Evidence:
        return self.sources.setdefault(label, Evidence())

    def _add_user(self, item: Item, *, first: bool) -> None:
        """Add a reply. The first step is the pass's input, which a strategy may have written, so it is skipped. Only the goal itself is the user's."""
        if not first:
            self._evidence("user").add(item.text, f"reply {item.iteration}")

    def _add_outcome(self, item: Item, *, trusted: bool) -> None:
        if not item.executed and not item.ok:
            return
        if item.edited:
            add_data(self._evidence("approver"), item.arguments, item.call_id)
        if item.error is not None:
            if not trusted:
                self._taint(item, [item.error.message, item.error.details])
            return
        self.by_tool.setdefault(item.tool, []).append(item)
        value = msgspec.json.decode(item.result) if item.result else None
        unproven = [] if item.edited or not trusted else self._unproven(item)
        if trusted and all(label not in ("untrusted", "ambiguous") for label, _ in unproven):
            add_data(self._evidence("trusted"), value, item.call_id, without=[said for _, said in unproven])
        else:
            self._taint(item, value)

    def _taint(self, item: Item, value: Any) -> None:
        if can_carry(value):
            self.taints.append(item.call_id)
        add_data(self._evidence("untrusted"), value, item.call_id)

    def _unproven(self, item: Item) -> list[tuple[Label, str]]:
        """Return label and normal text of the unproven arguments of the item.

        A trusted tool that only repeats them proves nothing, and a tool that was given untrusted values is trusted no more than these values.
        """
        among = (self._of_run.sources, self.sources)
        found: list[tuple[Label, str]] = []
        for path, value in leaves(item.arguments):
            if isinstance(value, (str, int, float)) and not isinstance(value, bool):
                text = normal(value) if isinstance(value, str) else number_key(value)
                label = trace(value, among, field=field_of(path))[0]
                if len(text) >= MIN_CHARS and label not in PROVEN:
                    found.append((label, text))
        return found


class Named:
    """What the names in a run stand for, as far as it was worked out (`lasting`): a run with many children is asked the same for each of them."""

    __slots__ = ("coded", "known", "tainted", "untraced")

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], list[Source]] = {}
        self.coded: dict[tuple[str, str], list[str]] = {}
        self.tainted: tuple[list[str], Any] = ([], None)
        self.untraced: tuple[Any, int, Origin | None] = (None, 0, None)


class RunIndex:
    """The content that a run began with, and an index of each of its passes."""

    __slots__ = ("_began", "_children", "_counted", "_declared", "_uncalled", "_waits", "kept", "named", "passes", "sources")

    def __init__(self, state: RunState, conversation: Sequence[Any], declared: Callable[[str], str]) -> None:
        self._began, self._declared = _beginning(state, conversation), declared
        self.sources: Sources = {"agent": Evidence(), "user": Evidence(), "memory": Evidence()}
        self.kept = Keepings(lambda label: self.sources.setdefault(label, Evidence()), declared)
        self.passes: dict[str, PassIndex] = {}
        self.named = Named()
        self._children: Mapping[str, Child] = {}
        self._waits: dict[str, Child] = {}
        self._counted, self._uncalled = 0, list[str]()
        agent = state.agent
        add_data(self.sources["agent"], [agent.instructions, list(agent.rules), agent.meta], "agent")
        add_data(self.sources["memory"], list(state.seed_memory), "memory")
        if state.delegated is not None:  # its parent's planner wrote its goal
            self.kept.add_returned(f"parent:{state.delegated.call}", goal_of(state.goal, state.variables), state.delegated.origin)
        elif not state.parent:
            self.sources["user"].add(state.goal, "goal")
            for name, value in state.variables.items():
                add_data(self.sources["user"], value, f"variables.{name}", field=name)
            add_data(self.sources["user"], list(state.attachments), "attachments")
        self.kept.add_said(conversation)

    def fits(self, state: RunState, conversation: Sequence[Any]) -> bool:
        """Return whether the state belongs to the run of this index."""
        return all(map(is_, self._began, _beginning(state, conversation)))

    def waits(self, children: Mapping[str, Child]) -> Mapping[str, Child]:
        """Return the children by the calls that wait for them."""
        if self._children is not children:
            self._children, self._waits = children, {child.waits: child for child in children.values() if child.waits}
        return self._waits

    def uncalled(self, children: Mapping[str, Child]) -> bool:
        """Whether a child has ended that no call has started, as in old logs. Children are only added, so those that are known are not looked at again."""
        if len(children) < self._counted:
            self._counted, self._uncalled = 0, []
        self._uncalled += [name for name in islice(children, self._counted, None) if not children[name].spawned.call]
        self._counted = len(children)
        return any(children[name].status not in ("open", "cancelled") for name in self._uncalled)

    def of_pass(self, state: KernelState, trust: Callable[[Item], str], child_of: Callable[[Item], Child | None]) -> PassIndex:
        """Return the index of a pass, updated to `state`."""
        known = self.passes.get(state.scope)
        if known is None or not known.covers_prefix_of(state.steps):
            self.named = Named()
            known = self.passes[state.scope] = PassIndex(self, self._declared)
        known.extend(state.steps, trust, child_of)
        return known


def _beginning(state: RunState, conversation: Sequence[Any]) -> tuple[Any, ...]:
    return (state.goal, state.variables, state.attachments, state.agent, state.seed_memory, state.parent, state.delegated, conversation)


def goal_of(goal: str, variables: dict[str, Any]) -> dict[str, Any]:
    """Return what a parent gives to its child as one content."""
    return {"goal": goal, **({"variables": variables} if variables else {})}


class Seen(msgspec.Struct, frozen=True):
    """What a run has seen at one moment: the sources, the outcomes by tool, and what made the context untrusted ("" if nothing; `taints` yields all)."""

    among: tuple[Sources, ...]
    passes: tuple[PassIndex, ...]
    untrusted: str
    run: RunIndex
    state: RunState
    trusts_memory: bool

    def origin(self, name: str) -> Origin | None:
        """Return the origin of what an earlier run wrote, by its name."""
        return next((one.kept.origins[name] for one in (self.run, *self.passes) if name in one.kept.origins), None)

    def taints(self) -> Iterator[str]:
        """Yield all that made the context untrusted: calls, items and messages by their names, `memory`, `child`, `parent`."""
        for known in (*self.passes, self.run):
            yield from known.kept.taints
        if not self.trusts_memory:
            for known in (self.run, *self.passes):
                yield from known.kept.unknown
            if self.state.seed_memory or any(p.memory or p.recalled for p in self.state.passes.values()):
                yield "memory"
        if self.state.children and self.run.uncalled(self.state.children):
            yield "child"
        if self.state.parent and self.state.delegated is None:
            yield "parent"


class Origins:
    """Traces the values of runs. `trust` overrides the trust of tools in the log. `trust_memory`: memory counts like a trusted tool.

    Runs may share one object: a value of one run is never found in another.
    """

    def __init__(self, trust: Trust | None = None, *, trust_memory: bool = False) -> None:
        self._declared: Callable[[str], str] = trust if callable(trust) else (trust or {}).get  # type: ignore[assignment]
        self._trust_memory = trust_memory
        self._runs: OrderedDict[str, RunIndex] = OrderedDict()
        self._needles: dict[str, Needle] = {}
        self._lock = threading.Lock()

    def trust(self, item: Item) -> str:
        """Return how far the output of a tool is trusted: as recorded in the log, unless `trust` overrides it."""
        return self._declared(item.tool) or item.trust

    def _child_of(self, run: RunIndex, children: Mapping[str, Child], item: Item) -> Child | None:
        """Return the child that returned this outcome of a call, unless it is declared how far the output of its tool is trusted."""
        found = run.waits(children).get(item.call_id) if children else None
        if found is None and item.tool == "join_agent":
            said: Any = item.arguments
            found = children.get(said.get("child", "")) if isinstance(said, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        return None if found is None or item.call_id in found.freed or self._declared(item.tool) else found

    def needle(self, value: Any) -> Needle:
        """Return the needle of a value (`matching.needle`). Short texts are cached, because calls repeat them."""
        if type(value) is not str or len(value) > REMEMBERED_CHARS:
            return needle(value)
        known = self._needles.get(value)
        if known is None:
            if len(self._needles) >= CACHED_NEEDLES:
                self._needles.clear()
            known = self._needles[value] = needle(value)
        return known

    def seen(self, state: RunState, conversation: Sequence[Any] = ()) -> Seen:
        """Return what the run has seen in `state`. `conversation` has the earlier messages of its session."""
        with self._lock:
            run = self._runs.get(state.run_id)
            if run is None or not run.fits(state, conversation):
                run = self._runs[state.run_id] = RunIndex(state, conversation, self._declared)
            self._runs.move_to_end(state.run_id)
            if len(self._runs) > CACHED_RUNS:
                self._runs.popitem(last=False)
            child_of = partial(self._child_of, run, state.children)
            passes = tuple([run.of_pass(known, self.trust, child_of) for known in state.passes.values()])
        recalled = _recalled(state)
        among = (run.sources, *(p.sources for p in passes), *([recalled] if recalled else []))
        if self._trust_memory:
            among = (*among, *({"trusted": sources["memory"]} for sources in among if "memory" in sources))
            among = tuple({k: v for k, v in sources.items() if k != "memory"} for sources in among)
        for known in passes:
            if known.taints:
                return Seen(among, passes, known.taints[0], run, state, self._trust_memory)
        seen = Seen(among, passes, "", run, state, self._trust_memory)
        untrusted = next(seen.taints(), "")
        return Seen(among, passes, untrusted, run, state, self._trust_memory) if untrusted else seen


def _recalled(state: RunState) -> Sources | None:
    """Return the last recalled memory. It is replaced as a whole, so it is not part of a growing index."""
    recalled = [p.memory for p in state.passes.values() if p.memory and p.memory is not state.seed_memory]
    if not recalled:
        return None
    evidence = Evidence()
    for items in recalled:
        add_data(evidence, list(items), "memory")
    return {"memory": evidence}
