"""Where values come from: what a run has seen, indexed so that a leaf of some arguments can be traced.

Theory of operation. Everything is derived from the run's state and the declared trust of its tools, so labels are the same after resume,
fork and compaction (`steps` are complete; compaction only hides them from the planner). What never changes in a run (goal, variables,
specification) is indexed once, what a pass has seen as it grows. An index of a pass depends on that pass and the unchanging part alone,
never on when it was built: with and without the cache the answers are equal. The cache holds the last runs that were asked about.

Words of a planner are no source. Neither are notes, meta-tools (they answer from state), or the errors of a tool that is trusted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, cast

import msgspec

from detent.core.history import Seq
from detent.core.state import Item, KernelState, RunState
from detent.policies.matching import (
    MIN_CHARS,
    Needle,
    is_small,
    keys_in,
    needle,
    normal,
    number_key,
    stands_in,
    variants,
)
from detent.policies.sinks import kind_of_name

Label = Literal["user", "agent", "approver", "trusted", "memory", "ambiguous", "untrusted", "model", "empty"]
"""Where a leaf came from.

`user`: goal, replies, variables, attachments; `agent`: the agent's specification; `approver`: arguments that a person edited; `trusted`:
output of a tool that is declared so; `memory`; `untrusted`: output of any other tool; `ambiguous`: of a trusted and of an untrusted tool (or
memory) alike; `model`: nothing that was seen; `empty`: null or an empty text, list or object.
"""

PROVEN: tuple[Label, ...] = ("user", "agent", "approver", "trusted", "empty")
"""The labels that let a sensitive argument pass."""
WORST_FIRST: tuple[Label, ...] = ("untrusted", "ambiguous", "model", "memory", "trusted", "approver", "agent", "user", "empty")

Trust = Mapping[str, str] | Callable[[str], str]
"""The declared trust of a tool by name: `trusted` or `untrusted`; a name that is not there is untrusted."""

CHUNK_CHARS = 65_536
CACHED_RUNS = 16


class Leaf(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A leaf of some arguments: `path` such as `to`, `items[0].id`; `origin` names what it was found in (`goal`, a call id, ...)."""

    path: str
    label: Label
    origin: str = ""


class Evidence:
    """What one kind of source said: keys, and texts for phrases. It only grows."""

    __slots__ = ("_chunks", "_starts", "_tail", "_tail_chars", "keys")

    def __init__(self) -> None:
        self.keys: dict[str, str] = {}
        self._chunks: list[tuple[str, list[tuple[int, str]]]] = []
        self._tail: list[str] = []
        self._starts: list[tuple[int, str]] = []
        self._tail_chars = 0

    def add(self, text: str, origin: str, *, without: Iterable[str] = ()) -> None:
        """Add a text in every reading of it, leaving out what stands in `without` (normal texts)."""
        if text.isalpha() and text.isascii():  # most names of fields
            word = text.lower()
            if len(word) >= MIN_CHARS and word not in without:
                self.keys.setdefault(word, origin)
                self.keys.setdefault("=" + word, origin)
            return
        for said in variants(text):
            for left_out in without:
                if left_out in said:
                    said = said.replace(left_out, "\n")  # noqa: PLW2901 - no normal text has a line break
            for key in keys_in(said):
                self.keys.setdefault(key, origin)
            if " " in said or not said.isascii():
                self._starts.append((self._tail_chars, origin))
                self._tail.append(said)
                self._tail_chars += len(said) + 1
                if self._tail_chars > CHUNK_CHARS:
                    self._close_chunk()

    def add_number(self, value: float, origin: str, *, amount: bool) -> None:
        """Add a JSON number; `amount` where its field is named like one."""
        shown = number_key(value)
        if shown and not is_small(shown):
            self.keys.setdefault("n:" + shown, origin)
        if shown and amount:
            self.keys.setdefault("a:" + shown, origin)

    def _close_chunk(self) -> None:
        self._chunks.append(("\n".join(self._tail), self._starts))
        self._tail, self._starts, self._tail_chars = [], [], 0

    def find(self, wanted: Needle, *, amount: bool) -> str:
        """Return what the value was found in, "" when nowhere."""
        keys = self.keys
        for key in wanted.keys:
            if key in keys:
                return keys[key]
        if amount:
            for key in wanted.amounts:
                if key in keys:
                    return keys[key]
        if wanted.together and all(self._dated(key) for key in wanted.together):
            return self._dated(wanted.together[0])
        if not wanted.phrase:
            return ""
        for word in wanted.words:
            if word not in keys:
                return ""
        return self._phrase(wanted.phrase)

    def _dated(self, key: str) -> str:
        """Return where a date or time was seen; a date also counts where it was given without its year."""
        return self.keys.get(key) or (self.keys.get("m:" + key[7:], "") if key.startswith("d:") else "")

    def _phrase(self, phrase: str) -> str:
        for text, starts in self._chunks:
            if (at := stands_in(phrase, text)) >= 0:
                return _origin_at(at, starts)
        if len(self._tail) > 1:
            self._tail = ["\n".join(self._tail)]
        if self._tail and (at := stands_in(phrase, self._tail[0])) >= 0:
            return _origin_at(at, self._starts)
        return ""


def _origin_at(at: int, starts: list[tuple[int, str]]) -> str:
    low, high = 0, len(starts)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if starts[middle][0] <= at else (low, middle)
    return starts[low][1]


Sources = dict[str, Evidence]
"""Evidence by label."""


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of each leaf of JSON data; an empty list or object is a leaf."""
    if isinstance(value, dict) and value:
        for key, inner in cast("dict[str, Any]", value).items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, (list, tuple)) and value:
        for index, inner in enumerate(cast("list[Any]", value)):
            yield from leaves(inner, f"{path}[{index}]")
    else:
        yield path, None if isinstance(value, (dict, list, tuple)) else value


def field_of(path: str) -> str:
    """Return the name of the field that a path ends in, without list indices."""
    return path.rsplit(".", 1)[-1].split("[", 1)[0]


def _add_data(evidence: Evidence, value: Any, origin: str, *, field: str = "", without: Iterable[str] = ()) -> None:
    """Add every text and number of JSON data, the keys of objects included."""
    if isinstance(value, str):
        evidence.add(value, origin, without=without)
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, (int, float)):
        if number_key(value) not in without:
            evidence.add_number(value, origin, amount=kind_of_name(field) == "amount")
    elif isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            if len(key) >= MIN_CHARS:
                evidence.add(key, origin, without=without)
            _add_data(evidence, inner, origin, field=key, without=without)
    elif isinstance(value, (list, tuple)):
        for inner in cast("list[Any]", value):
            _add_data(evidence, inner, origin, field=field, without=without)


def can_carry(value: Any) -> bool:
    """Return whether a result could say anything: a text or number that would count as a proof. `{"ok": true}` could not."""
    if isinstance(value, str):
        return len(normal(value)) >= MIN_CHARS
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return not is_small(number_key(value) or "0")
    if isinstance(value, dict):
        return any(" " in key or can_carry(inner) for key, inner in cast("dict[str, Any]", value).items())
    return any(can_carry(inner) for inner in cast("list[Any]", value)) if isinstance(value, (list, tuple)) else False


_OWN_WORDS: tuple[Label, ...] = ("user", "agent", "approver")
_LOOKED: tuple[Label, ...] = (*_OWN_WORDS, "trusted", "untrusted", "memory")


def trace(value: Any, among: Iterable[Sources], *, field: str = "") -> tuple[Label, str]:
    """Return the label of one leaf and what it was found in."""
    wanted = needle(value)
    return _traced(wanted, tuple(among), amount=kind_of_name(field) == "amount")


def _traced(wanted: Needle, among: tuple[Sources, ...], *, amount: bool) -> tuple[Label, str]:
    if wanted.empty:
        return "empty", ""
    found: dict[str, str] = {}
    for label in _LOOKED:
        for sources in among:
            evidence = sources.get(label)
            if evidence is not None and (origin := evidence.find(wanted, amount=amount)):
                if label in _OWN_WORDS:
                    return label, origin
                found[label] = origin
                break
    if "trusted" in found:
        other = found.get("untrusted") or found.get("memory")
        return ("ambiguous", f"{found['trusted']}, {other}") if other else ("trusted", found["trusted"])
    if found:
        label = "untrusted" if "untrusted" in found else "memory"
        return label, found[label]
    parts = [_traced(piece, among, amount=False) for piece in wanted.pieces]
    return min(parts, key=lambda part: WORST_FIRST.index(part[0])) if parts else ("model", "")


class PassIndex:
    """What one pass has seen, up to a number of its steps."""

    __slots__ = ("_of_run", "_seen", "by_tool", "sources", "tainted_by")

    def __init__(self, of_run: RunIndex) -> None:
        self._of_run = of_run
        self._seen: Seq[Item] = Seq()
        self.sources: Sources = {}
        self.tainted_by = ""
        self.by_tool: dict[str, list[Item]] = {}

    def covers_prefix_of(self, steps: Seq[Item]) -> bool:
        """Return whether `steps` go on where this index ends; views of one storage that only grows share what they hold."""
        mine, theirs = self._seen._items, steps._items  # pyright: ignore[reportPrivateUsage]
        return len(self._seen) == 0 or (mine is theirs and len(self._seen) <= len(steps))

    def extend(self, steps: Seq[Item], trust: Callable[[Item], str]) -> None:
        """Index the steps that are new."""
        for position in range(len(self._seen), len(steps)):
            item = steps[position]
            if item.kind == "user":
                self._add_user(item, first=position == 0)
            elif item.kind == "tool" and not item.meta:
                self._add_outcome(item, trusted=trust(item) == "trusted")
        self._seen = steps

    def _evidence(self, label: Label) -> Evidence:
        return self.sources.setdefault(label, Evidence())

    def _add_user(self, item: Item, *, first: bool) -> None:
        """Add a reply. The first step is the pass's input, which a strategy may have written: only the goal itself is the user's."""
        if not first:
            self._evidence("user").add(item.text, f"reply {item.iteration}")

    def _add_outcome(self, item: Item, *, trusted: bool) -> None:
        if not item.executed and not item.ok:
            return
        if getattr(item, "edited", False):
            _add_data(self._evidence("approver"), item.arguments, item.call_id)
        if item.error is not None:
            if not trusted:
                self._taint(item, [item.error.message, item.error.details])
            return
        self.by_tool.setdefault(item.tool, []).append(item)
        value = msgspec.json.decode(item.result) if item.result else None
        if trusted:
            _add_data(self._evidence("trusted"), value, item.call_id, without=self._unproven(item))
        else:
            self._taint(item, value)

    def _taint(self, item: Item, value: Any) -> None:
        if can_carry(value):
            self.tainted_by = self.tainted_by or item.call_id
        _add_data(self._evidence("untrusted"), value, item.call_id)

    def _unproven(self, item: Item) -> tuple[str, ...]:
        """Return the normal texts of the item's arguments that nothing vouches for: a trusted tool that repeats them proves nothing."""
        among = (self._of_run.sources, self.sources)
        said: list[str] = []
        for path, value in leaves(item.arguments):
            if isinstance(value, (str, int, float)) and not isinstance(value, bool):
                text = normal(value) if isinstance(value, str) else number_key(value)
                if len(text) >= MIN_CHARS and trace(value, among, field=field_of(path))[0] not in PROVEN:
                    said.append(text)
        return tuple(said)


class RunIndex:
    """What a run began with, and an index of each of its passes."""

    __slots__ = ("_began", "passes", "sources")

    def __init__(self, state: RunState) -> None:
        self._began = _beginning(state)
        self.sources: Sources = {"agent": Evidence(), "user": Evidence(), "memory": Evidence()}
        self.passes: dict[str, PassIndex] = {}
        agent = state.agent
        _add_data(self.sources["agent"], [agent.instructions, list(agent.rules), agent.meta], "agent")
        _add_data(self.sources["memory"], list(state.seed_memory), "memory")
        if not state.parent:  # a child's goal was written by the planner of its parent
            self.sources["user"].add(state.goal, "goal")
            for name, value in state.variables.items():
                _add_data(self.sources["user"], value, f"variables.{name}", field=name)
            _add_data(self.sources["user"], list(state.attachments), "attachments")

    def fits(self, state: RunState) -> bool:
        """Return whether the state is one of the run that this was made of."""
        return all(a is b for a, b in zip(self._began, _beginning(state), strict=True))

    def of_pass(self, state: KernelState, trust: Callable[[Item], str]) -> PassIndex:
        """Return the index of a pass as it is in `state`."""
        known = self.passes.get(state.scope)
        if known is None or not known.covers_prefix_of(state.steps):
            known = self.passes[state.scope] = PassIndex(self)
        known.extend(state.steps, trust)
        return known


def _beginning(state: RunState) -> tuple[Any, ...]:
    return (state.goal, state.variables, state.attachments, state.agent, state.seed_memory, state.parent)


class Seen(msgspec.Struct, frozen=True):
    """What a run has seen at one moment: sources to trace among, outcomes by tool, and what made the context untrusted ("" if nothing)."""

    among: tuple[Sources, ...]
    passes: tuple[PassIndex, ...]
    untrusted: str


class Origins:
    """Traces values of a run. `trust` is the declared trust of tools; `trust_memory` says that what memory gives is as good as a trusted tool's.

    May be shared by runs: nothing of one is ever found in another.
    """

    def __init__(self, trust: Trust | None = None, *, trust_memory: bool = False) -> None:
        self._declared: Callable[[str], str] = trust if callable(trust) else (trust or {}).get  # type: ignore[assignment]
        self._trust_memory = trust_memory
        self._runs: OrderedDict[str, RunIndex] = OrderedDict()
        self._lock = threading.Lock()

    def trust(self, item: Item) -> str:
        """Return the trust that was on record with an outcome, else what is declared of its tool."""
        return getattr(item, "trust", "") or self._declared(item.tool) or "untrusted"

    def seen(self, state: RunState) -> Seen:
        """Return what `state` has seen."""
        with self._lock:
            run = self._runs.get(state.run_id)
            if run is None or not run.fits(state):
                run = self._runs[state.run_id] = RunIndex(state)
            self._runs.move_to_end(state.run_id)
            if len(self._runs) > CACHED_RUNS:
                self._runs.popitem(last=False)
            passes = tuple([run.of_pass(known, self.trust) for known in state.passes.values()])
        recalled = _recalled(state)
        among = (run.sources, *(p.sources for p in passes), *([recalled] if recalled else []))
        if self._trust_memory:
            among = tuple({("trusted" if k == "memory" else k): v for k, v in sources.items()} for sources in among if sources)
        return Seen(among, passes, self._untrusted(state, passes))

    def _untrusted(self, state: RunState, passes: tuple[PassIndex, ...]) -> str:
        for known in passes:
            if known.tainted_by:
                return known.tainted_by
        if not self._trust_memory and (state.seed_memory or any(p.memory for p in state.passes.values())):
            return "memory"
        if any(child.status not in ("open", "cancelled") for child in state.children.values()):
            return "child"
        return "parent" if state.parent else ""


def _recalled(state: RunState) -> Sources | None:
    """Return what memory was recalled last; it is replaced as a whole, so it is no part of an index that grows."""
    recalled = [p.memory for p in state.passes.values() if p.memory and p.memory is not state.seed_memory]
    if not recalled:
        return None
    evidence = Evidence()
    for items in recalled:
        _add_data(evidence, list(items), "memory")
    return {"memory": evidence}
