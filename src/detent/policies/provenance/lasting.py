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
from detent.policies.provenance.kept import LONGEST, SAID, name_of, origin_of_message, sources_of
from detent.policies.provenance.matching import EDGES, MIN_CHARS, Needle, pieces
from detent.policies.provenance.origins import Origins, Seen, Sources, leaves, traced
from detent.ports.remembering import coded, names_in, names_of, packed, sealed, unpacked

MOST_SOURCES = 16
"""How many sources an origin names."""
MOST_BYTES = 12_000
"""How large the sources of an item are together; a memory keeps little more."""
FEW_SOURCES = 4
"""How many sources an entry of a conversation names."""
MOST_TAINTS = 256
"""How many of the things that a run has seen are told as sources of what its model wrote."""
ALSO_BYTES = 2_400
"""How large the names are together of sources that an origin has no room for: those of about 250."""
MOST_VALUES = 32
"""How many values one source proves."""
LONGEST_VALUE = 8
"""How many words a value has at most."""
MOST_WORDS = 512
"""How many words of a content are searched for values."""
SHOWN = 200
"""How many characters of a call's arguments are kept."""
MORE = "…"
"""Stands among names that are not all."""


def origin_of(
    state: RunState,
    call_id: str,
    content: Any,
    conversation: Sequence[Any] = (),
    *,
    origins: Origins | None = None,
    worst: bool = False,
) -> Origin:
    """Return where `content`, which a run writes now, came from. `call_id` is the call that writes it, "" if none does.

    `conversation` has the earlier messages of the run's session. Pass `origins` if you call this often for one run. With `worst`, the content is only
    as trustworthy as the worst that the run has seen, even if all its parts were found elsewhere.
    """
    origins = origins or Origins()
    seen = origins.seen(state, conversation)
    call = state.call(call_id) if call_id else None
    if call is not None and call.edited:
        found = _origin([Source(label="approver", origin=", ".join(call.approved_by), run_id=state.run_id, whole=True)], ())
    else:
        found = _Search(seen.among, seen.taints, _Names(state, seen), origins.needle, worst=worst).origin(content)
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
            return _origin(self._names.of(call.call_id, "untrusted"), self._names.coded(call.call_id, "untrusted"))
        return _Search(self._seen.among, lambda: self._taints, self._names, self._origins.needle, most=FEW_SOURCES).origin(content)


class _Tainted(msgspec.Struct, frozen=True):
    """What made a context untrusted: the sources, their labels and coded names, and whether there are more."""

    sources: dict[Source, Source]
    labels: dict[str, None]
    names: dict[str, None]
    more: bool


NOTHING = _Tainted({}, {}, {}, False)


def _same(source: Source) -> Source:
    """Return what is alike in sources that differ only in how their content came here: one way from a source is enough."""
    return msgspec.structs.replace(source, via=())


class _Names:
    """What the names of origins stand for in a run."""

    def __init__(self, state: RunState, seen: Seen, earlier: Mapping[str, Origin] | None = None) -> None:
        self._state, self._seen, self._earlier, self._cache = state, seen, earlier or {}, seen.run.named
        self._tainted: _Tainted | None = None

    def kept(self, name: str) -> Origin | None:
        """Return the origin of what an earlier run wrote, by its name."""
        return self._earlier.get(name) or self._seen.origin(name)

    def of(self, name: str, label: str) -> list[Source]:
        """Return the sources that a name stands for."""
        if (known := self._cache.known.get((name, label))) is None:
            known = self._cache.known[name, label] = self._of(name, label)
        return known

    def coded(self, name: str, label: str) -> list[str]:
        """Return the coded names of all sources that a name stands for, and `MORE` if they are not all known."""
        if (known := self._cache.coded.get((name, label))) is None:
            kept, said = self.kept(name), [one for source in self.of(name, label) for one in names_in(source)]
            if kept is not None and kept.person:
                said.append(f"person:{kept.person}")
            known = self._cache.coded[name, label] = list(map(coded, said))
            if kept is not None:
                known += [*sorted(unpacked(kept.also)), *([MORE] if kept.more else [])]
        return known

    def tainted(self, taints: Callable[[], Iterable[str]]) -> _Tainted:
        """Return what made the context untrusted. It is computed once: `taints` are the same for all that a run writes at one moment.

        What was computed at an earlier moment is continued, and not changed.
        """
        if self._tainted is None:
            named, (told, before) = list(islice(taints(), MOST_TAINTS + 1)), self._cache.tainted
            if before is None or named[: len(told)] != told:
                told, before = [], NOTHING
            if len(named) == len(told):
                self._tainted = before
                return before
            sources, labels, names = dict(before.sources), dict(before.labels), dict(before.names)
            for name in named[len(told) :]:
                for source in self.of(name, "untrusted"):
                    sources[same] = sources.pop(same := _same(source), source)
                    labels[source.label] = None
                names.update(dict.fromkeys(self.coded(name, "untrusted")))
            self._tainted = _Tainted(sources, labels, names, len(named) > MOST_TAINTS)
            self._cache.tainted = named, self._tainted
        return self._tainted

    def untraced(self, tainted: _Tainted, most: int) -> Origin:
        """Return the origin of a content that was found nowhere: what made the context untrusted, or else the model."""
        same, told, known = self._cache.untraced
        if known is None or same is not tainted or told != most:
            shown = list(islice(tainted.sources.values(), most)) or [Source(label="model")]
            known = _origin(shown, tainted.names, labels=tainted.labels, most=most, more=tainted.more)
            self._cache.untraced = tainted, most, known
        return known

    def _of(self, name: str, label: str) -> list[Source]:
        if (kept := self.kept(name)) is not None:
            return sources_of(name, kept, label)
        known = self._state.passes.get(name.rsplit(".", 2)[0])
        made = next((item for item in known.results if item.call_id == name), None) if known is not None else None
        if made is None:
            return [Source(label=label, origin=name, run_id=self._state.run_id)]
        said = msgspec.json.encode(made.arguments).decode() if made.arguments else ""
        return [Source(label=label, origin=name, run_id=self._state.run_id, tool=made.tool, said=said)]


def _origin(
    sources: Sequence[Source], names: Iterable[str], *, labels: Iterable[str] = (), most: int = MOST_SOURCES, more: bool = False
) -> Origin:
    """Return the origin with these sources: the first `most` with what is known of each, and the coded `names` of all. `labels` has more labels."""
    labels = tuple(dict.fromkeys((*(source.label for source in sources), *labels)))
    trusted = bool(labels) and all(label in SAID or label == "model" for label in labels)
    shown = _fitted(sources[:most])
    items = tuple(dict.fromkeys(s.via[0].item.partition(":")[2] for s in shown if s.via and s.via[0].item.startswith("memory:")))
    found = Origin(labels=labels, trusted=trusted, items=items, sources=shown)
    told = {MORE, *map(coded, names_of(found))}
    also, left = packed((name for name in names if name not in told), ALSO_BYTES)
    return msgspec.structs.replace(found, also=also, more=more or left or MORE in names)


def _fitted(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Return sources that fit into an item: without hops in the middle, then without proven values, then without arguments, if they must."""
    sources = [msgspec.structs.replace(source, said=source.said[:SHOWN], via=source.via[:LONGEST]) for source in sources]
    if len(msgspec.json.encode(sources)) > MOST_BYTES:
        sources = [msgspec.structs.replace(source, via=tuple(dict.fromkeys((*source.via[:1], *source.via[-1:])))) for source in sources]
    if len(msgspec.json.encode(sources)) > MOST_BYTES:
        sources = [msgspec.structs.replace(source, values=()) for source in sources]
    if len(msgspec.json.encode(sources)) > MOST_BYTES:
        sources = [msgspec.structs.replace(source, said="") for source in sources]
    return tuple(sources)


class _Search:
    """Finds the sources of one content."""

    def __init__(
        self,
        among: tuple[Sources, ...],
        taints: Callable[[], Iterable[str]],
        names: _Names,
        look_for: Callable[[Any], Needle],
        *,
        most: int = MOST_SOURCES,
        worst: bool = False,
    ) -> None:
        self._most, self._worst = most, worst
        self._among, self._taints, self._names, self._look_for = among, taints, names, look_for
        self._found: dict[tuple[str, str], list[str]] = {}
        self._words = MOST_WORDS
        self._unknown = False

    def origin(self, content: Any) -> Origin:
        """Return where all leaves of the content came from, the worst source first."""
        for _, value in leaves(content):
            self._leaf(value)
        if not self._found:
            self._unknown = True
        whole = len(self._found) == 1 and not self._unknown
        tainted = self._names.tainted(self._taints) if self._unknown or self._worst else NOTHING
        if not self._found:
            return self._names.untraced(tainted, self._most)
        names, made = dict(tainted.names), {same: (source, list[str]()) for same, source in tainted.sources.items()}
        if self._unknown and not made:
            made[Source(label="model")] = (Source(label="model"), [])

        def add(name: str, label: str, values: list[str]) -> None:
            names.update(dict.fromkeys(self._names.coded(name, label)))
            for source in self._names.of(name, label):
                made.setdefault(_same(source), (source, []))[1].extend(values)

        for (label, name), values in self._found.items():
            add(name, label, values if label in SAID else [])
        ordered = sorted(made.values(), key=lambda one: one[0].label in SAID)
        shown = [
            msgspec.structs.replace(s, whole=whole and s.label in SAID, values=() if whole else tuple(dict.fromkeys(v))[:MOST_VALUES])
            for s, v in ordered[: self._most]
        ]
        return _origin([*shown, *(s for s, _ in ordered[self._most :])], names, most=self._most, more=tainted.more)

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
