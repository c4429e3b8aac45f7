"""The default governor: what it refuses, whoever proposes it."""

from __future__ import annotations

from collections.abc import Callable
from unicodedata import category, normalize

from detent.core.errors import ItemConflict
from detent.ports.remembering import ITEM_BYTES, Memory, MemoryItem, key_of

MOST_LIKE = 5
"""How many of the most similar items are compared with a proposal."""


class DefaultGovernor:
    """Refuses what repeats an item, contains what redaction would hide, is too large, or claims more trust than what it replaces or is made from.

    A proposal may not repeat another one that waits for a review either.

    `hides` returns whether redaction would hide a part of a text.
    """

    def __init__(self, *, max_bytes: int = ITEM_BYTES, hides: Callable[[str], bool] = lambda text: False) -> None:
        self._max_bytes, self._hides = max_bytes, hides

    async def refuses(self, proposal: MemoryItem, memory: Memory, *, host: str) -> str:
        """Return why the proposal is refused; "" accepts it. The reason has nothing of its content."""
        size = len(proposal.content.encode())
        if size > self._max_bytes:
            return f"it has {size:,} bytes; an item has at most {self._max_bytes:,}. Shorten it, or keep it elsewhere and remember where"
        if any(map(self._hides, (proposal.content, proposal.context, proposal.why))):
            return "it contains something that must not be kept, such as a secret; leave that out"
        if proposal.origin.trusted:
            for name in (*proposal.supersedes, *proposal.origin.items):
                try:
                    before = await memory.get(name, host=host)
                except ItemConflict as error:
                    return f"it replaces or is made from {name}: {error}"
                if before is not None and not before.origin.trusted:
                    return f"it would raise trust: {before.id} is not trusted, and this replaces it or is made from it"
        said = _bare(proposal.content)
        like = [found.item for found in await memory.search(proposal.content, host=host, scope=proposal.scope, limit=MOST_LIKE)]
        for item in like + (await _waiting(proposal.scope, memory, host) if proposal.proposed else []):
            if _bare(item.content) == said and key_of(item) != key_of(proposal):
                return f"it repeats {item.id}" + (", which waits for a review" if item.proposed else "")
        return ""


async def _waiting(scope: str, memory: Memory, host: str) -> list[MemoryItem]:
    """Return the proposals at or below a scope that wait for a review."""
    found = list[MemoryItem]()
    while page := await memory.list(scope, host=host, standings=("proposed",), after=key_of(found[-1]) if found else ""):
        found += page
    return found


def _bare(text: str) -> str:
    """Return what a text says, without what nobody sees and the punctuation at its end."""
    seen = "".join(char for char in normalize("NFKC", text).casefold() if category(char) != "Cf")
    return " ".join(seen.split()).rstrip(" .,;:!?") or text
