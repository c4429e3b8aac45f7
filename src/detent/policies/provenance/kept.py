"""Content that an earlier run wrote, as a source of a later run: memory items, and entries of a session's conversation.

It keeps the labels that it had. What a web page said is untrusted in every run that recalls it, and what the user said stays the user's. Content
without a known origin is `memory`, or untrusted in a conversation. Content that does not fit its seal is untrusted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from detent.core.events import Hop, Origin, Source
from detent.policies.provenance.evidence import Evidence, add_data, can_carry
from detent.ports.remembering import fits, unproven

SAID = ("user", "agent", "approver", "trusted")
"""The labels under which a source in an earlier run proves a value."""
TAINTED = ("untrusted", "ambiguous")
UNKNOWN = Origin()


def origin_in(data: Any) -> Origin:
    """Return the origin of a recalled item, as the log has it. One that cannot be read is unknown."""
    try:
        return msgspec.convert(data.get("origin"), Origin)
    except (msgspec.ValidationError, AttributeError):
        return UNKNOWN


class Keepings:
    """The kept content that a run or a pass has seen: `origins` by name (`memory:ID`, `session:MESSAGE.ENTRY`), and the names of what is not trusted.

    `unknown` are those of unknown source, which count as trusted if the policy trusts memory.
    """

    __slots__ = ("_declared", "_evidence", "origins", "taints", "unknown")

    def __init__(self, evidence: Callable[[Any], Evidence], declared: Callable[[str], str]) -> None:
        self._evidence, self._declared = evidence, declared
        self.origins: dict[str, Origin] = {}
        self.taints: list[str] = []
        self.unknown: list[str] = []

    def add(self, name: str, content: Any, origin: Origin, *, cut: bool = False) -> None:
        """Add a memory item. `cut`: the content is only its beginning."""
        origin = unproven(origin) if cut else origin
        carries = bool(content)  # however short it is: several short items make a long value
        self._add(name, content, origin, sound=fits(origin, content), unknown="memory", carries=carries)

    def add_returned(self, name: str, content: Any, origin: Origin) -> None:
        """Add what a child returned, or what its parent gave to a child."""
        self._add(name, content, origin, sound=fits(origin, content), unknown="untrusted", carries=can_carry(content))

    def add_said(self, conversation: Sequence[Any]) -> None:
        """Add the messages of a conversation. They need no seals, because the log names the whole conversation by digest."""
        for message in conversation:
            said = said_by(message)
            self._add(name_of(message), said, origin_of_message(message), sound=True, unknown="untrusted", carries=can_carry(said))

    def _add(self, name: str, content: Any, origin: Origin, *, sound: bool, unknown: str, carries: bool) -> None:
        while self.origins.get(name, origin) != origin:
            name += "'"  # ids of items are unique only in their scope, and a run says several things
        self.origins[name] = origin
        good = [
            source
            for source in origin.sources
            if sound and source.label in SAID and not (source.tool and self._declared(source.tool) == "untrusted")
        ]
        for source in good:
            add_data(self._evidence(source.label), content if source.whole else list(source.values), name)
        if sound and origin.trusted and len(good) == len([s for s in origin.sources if s.label in SAID]):
            return
        label = "untrusted" if (origin.seal and not sound) or origin.trusted or set(origin.labels) & set(TAINTED) else unknown
        add_data(self._evidence(label), content, name)
        if carries:
            (self.unknown if label == "memory" else self.taints).append(name)


def hops(name: str, origin: Origin, source: Source) -> Source:
    """Return a source of kept content with the hop that brought it into this run. It proves nothing yet."""
    hop = Hop(item=name, run_id=origin.run_id, call_id=origin.call_id, sequence=origin.sequence, digest=origin.digest)
    return msgspec.structs.replace(source, via=(hop, *source.via), whole=False, values=())


LONGEST = 8
"""How many hops of a source are kept."""


def sources_of(name: str, origin: Origin, label: str) -> list[Source]:
    """Return the sources of kept content that have this label; those that are not trusted if `label` is not. At least one."""
    wanted = [source for source in origin.sources if (source.label == label if label in SAID else source.label not in SAID)]
    return [hops(name, origin, source) for source in wanted or [Source(label=label, run_id=origin.run_id)]]


def name_of(message: Any) -> str:
    """Return the name of a message as an origin of values."""
    return f"session:{message.number}:{message.kind}"


def said_by(message: Any) -> Any:
    """Return what a message says: its text, or call and result."""
    return message.text if message.kind != "tool" else [message.args, message.content]


def origin_of_message(message: Any) -> Origin:
    """Return the origin of a message, with the run that said it."""
    return msgspec.structs.replace(message.origin, run_id=message.run_id)
