"""Computes the origin of what a run writes for later runs: memory items, summaries, entries of a session's conversation. Pure.

The content is searched in what the run has seen, as the policy searches arguments. If a part of it is found nowhere, a model wrote it. Then it is
untrusted if the run has seen anything untrusted, with all of that as its sources. Otherwise it stays the model's: it proves nothing later, except the
values in it that were found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from detent.core.events import Origin, Source
from detent.core.state import Item, RunState
from detent.policies.provenance.evidence import Evidence
from detent.policies.provenance.kept import SAID, Keepings, name_of, origin_of_message, sources_of
from detent.policies.provenance.matching import EDGES, MIN_CHARS, Needle, needle, pieces
from detent.policies.provenance.origins import Origins, Seen, Sources, leaves, traced
from detent.ports.remembering import MemoryItem, sealed

MOST_SOURCES = 16
"""How many sources an origin names."""
MOST_BYTES = 12_000
"""How large the sources of an item are together; a memory keeps little more."""
FEW_SOURCES = 4
"""How many sources an entry of a conversation names."""
MOST_VALUES = 32
"""How many values one source proves."""
LONGEST_VALUE = 8
"""How many words a value has at most."""
MOST_WORDS = 512
"""How many words of a content are searched for values."""
SHOWN = 200
"""How many characters of a call's arguments are kept."""


def origin_of(state: RunState, call_id: str, content: Any, conversation: Sequence[Any] = (), *, origins: Origins | None = None) -> Origin:
    """Return where `content`, which a run writes now, came from. `call_id` is the call that writes it, "" if none does.

    `conversation` has the earlier messages of the run's session. Pass `origins` if you call this often for one run.
    """
    origins = origins or Origins()
    seen = origins.seen(state, conversation)
    call = state.call(call_id) if call_id else None
    if call is not None and call.edited:
        sources = [Source(label="approver", origin=", ".join(call.approved_by), run_id=state.run_id, whole=True)]
    else:
        sources = _Search(seen.among, seen.taints, _Names(state, seen).of, origins.needle).sources(content)
    found = _origin(_fitted(sources))
    place = {"run_id": state.run_id, "sequence": state.seq, "digest": state.digest, "call_id": call_id, "person": state.host.principal}
    return sealed(msgspec.structs.replace(found, **place), content)


class Wrote:
    """Computes the origins of what a run said, for the conversation of the next one. `earlier` is the conversation that it knew itself.

    That is not searched, so the time does not grow with it: what the run repeats of it keeps the sources that are not trusted, and proves no value
    again. The earlier messages still do.
    """

    def __init__(self, state: RunState, earlier: Sequence[Any]) -> None:
        self._origins = Origins()
        self._seen = self._origins.seen(state)
        before = {name_of(message): origin_of_message(message) for message in earlier if not message.origin.trusted}
        self._names = _Names(state, self._seen, before)
        self._taints = (*self._seen.taints(), *before)
        self._tainting = frozenset(self._taints)

    def origin(self, content: Any, call: Item | None = None) -> Origin:
        """Return the origin of some words of the run, or of a call with its result."""
        if call is not None and call.call_id in self._tainting:
            return _origin(self._names.of(call.call_id, "untrusted"))
        search = _Search(self._seen.among, lambda: self._taints, self._names.of, self._origins.needle, most=FEW_SOURCES)
        return _origin(search.sources(content))


def derived(content: Any, *, items: Sequence[MemoryItem] = (), conversation: Sequence[Any] = ()) -> Origin:
    """Return the origin of a text that was made from kept content alone, such as a summary of memory items or of the messages of a conversation."""
    sources: Sources = {}
    kept = Keepings(lambda label: sources.setdefault(label, Evidence()), lambda tool: "")
    for item in items:
        kept.add(f"memory:{item.id}", item.content, item.origin)
    kept.add_said(conversation)

    def named(name: str, label: str) -> list[Source]:
        return sources_of(name, kept.origins[name], label)

    return sealed(_origin(_Search((sources,), lambda: (*kept.taints, *kept.unknown), named, needle).sources(content)), content)


def raises_trust(proposal: MemoryItem, before: Iterable[MemoryItem]) -> bool:
    """Return whether a proposal claims to be trusted although it replaces or is made from something that is not (`before`)."""
    return proposal.origin.trusted and any(not item.origin.trusted for item in before)


class _Names:
    """What the names of origins stand for in a run."""

    def __init__(self, state: RunState, seen: Seen, earlier: Mapping[str, Origin] | None = None) -> None:
        self._state, self._seen, self._earlier = state, seen, earlier or {}

    def of(self, name: str, label: str) -> list[Source]:
        """Return the sources that a name stands for."""
        kept = self._earlier.get(name) or self._seen.origin(name)
        if kept is not None:
            return sources_of(name, kept, label)
        known = self._state.passes.get(name.rsplit(".", 2)[0])
        made = next((item for item in known.results if item.call_id == name), None) if known is not None else None
        if made is None:
            return [Source(label=label, origin=name, run_id=self._state.run_id)]
        said = msgspec.json.encode(made.arguments).decode()[:SHOWN] if made.arguments else ""
        return [Source(label=label, origin=name, run_id=self._state.run_id, tool=made.tool, said=said)]


def _fitted(sources: list[Source]) -> list[Source]:
    """Return sources that fit into an item: without hops in the middle, then without proven values, then without arguments, if they must."""
    if len(msgspec.json.encode(sources)) > MOST_BYTES:
        sources = [msgspec.structs.replace(source, via=tuple(dict.fromkeys((*source.via[:1], *source.via[-1:])))) for source in sources]
    if len(msgspec.json.encode(sources)) > MOST_BYTES:
        sources = [msgspec.structs.replace(source, values=()) for source in sources]
    if len(msgspec.json.encode(sources)) > MOST_BYTES:
        sources = [msgspec.structs.replace(source, said="") for source in sources]
    return sources


def _origin(sources: list[Source]) -> Origin:
    labels = tuple(dict.fromkeys(source.label for source in sources))
    items = tuple(dict.fromkeys(s.via[0].item.partition(":")[2] for s in sources if s.via and s.via[0].item.startswith("memory:")))
    trusted = bool(labels) and all(label in SAID or label == "model" for label in labels)
    return Origin(labels=labels, trusted=trusted, items=items, sources=tuple(sources))


class _Search:
    """Finds the sources of one content."""

    def __init__(
        self,
        among: tuple[Sources, ...],
        taints: Callable[[], Iterable[str]],
        named: Callable[[str, str], list[Source]],
        look_for: Callable[[Any], Needle],
        *,
        most: int = MOST_SOURCES,
    ) -> None:
        self._most = most
        self._among, self._taints, self._named, self._look_for = among, taints, named, look_for
        self._found: dict[tuple[str, str], list[str]] = {}
        self._words = MOST_WORDS
        self._unknown = False

    def sources(self, content: Any) -> list[Source]:
        """Return the sources of all leaves of the content, the worst first."""
        leafs = [value for _, value in leaves(content)]
        for value in leafs:
            self._leaf(value)
        if not self._found:
            self._unknown = True
        whole = len(self._found) == 1 and not self._unknown
        made: dict[Source, tuple[Source, list[str]]] = {}

        def add(name: str, label: str, values: list[str]) -> None:
            for source in self._named(name, label):
                same = msgspec.structs.replace(source, via=())  # one way from a source is enough
                made.setdefault(same, (source, []))[1].extend(values)

        if self._unknown:
            tainted = list(islice(self._taints(), self._most))
            for name in tainted:
                add(name, "untrusted", [])
            if not tainted:
                made[Source(label="model")] = (Source(label="model"), [])
        for (label, name), values in self._found.items():
            add(name, label, values if label in SAID else [])
        ordered = sorted(made.values(), key=lambda one: one[0].label in SAID)[: self._most]
        return [
            msgspec.structs.replace(s, whole=whole and s.label in SAID, values=() if whole else tuple(dict.fromkeys(v))[:MOST_VALUES])
            for s, v in ordered
        ]

    def _leaf(self, value: Any) -> None:
        wanted = self._look_for(value)
        if wanted.empty or not (wanted.keys or wanted.amounts or wanted.phrase):
            return  # nothing that could prove anything
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        self._part(wanted, text)

    def _part(self, wanted: Needle, text: str) -> None:
        label, name = traced(wanted, self._among, "amount")
        if label not in ("model", "empty"):
            self._add(label, name, text)
        elif parts := pieces(wanted):
            for part in parts:
                if part.keys or part.phrase:
                    self._part(part, part.phrase or part.keys[0][1:])
        else:
            self._unknown = True
            self._values(text)

    def _add(self, label: str, name: str, text: str) -> None:
        for one in name.split(", "):
            self._found.setdefault((label, one), []).append(text)

    def _values(self, text: str) -> None:
        """Find the values in a text that was written by a model: the longest groups of words that a source has."""
        words = text.split()[: self._words]
        self._words -= len(words)
        at = 0
        while at < len(words):
            longest = LONGEST_VALUE if any(c.isdigit() for c in words[at]) or self._proven(words[at]) else 0
            for width in range(min(longest, len(words) - at), 0, -1):
                value = " ".join(words[at : at + width]).strip(EDGES)
                if (found := self._proven(value)) is not None:
                    self._add(*found, value)
                    at += width - 1
                    break
            at += 1

    def _proven(self, value: str) -> tuple[str, str] | None:
        value = value.strip(EDGES)
        found = traced(self._look_for(value), self._among, "amount") if len(value) >= MIN_CHARS else ("model", "")
        return found if found[0] in SAID else None
