"""What searches share: the terms of a query, their stems, and how found items become an answer."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from detent.ports.remembering import Found, Kind, MemoryItem, below, held, key_of, standing_of

MOST_TERMS = 64
"""How many different terms of a query count; a longer query costs no more."""
JOINED, MEANING = 20, 0.5
"""Reciprocal rank fusion: an item's score is 1 / (JOINED + its place) by words, plus MEANING / (JOINED + its place) by meaning."""
DIGITS = 5
"""The digits of a likeness that count: the others differ from one way to compare vectors to another, and no ranking may."""

_WORD = re.compile(r"[^\W_]+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_STOP = """
a about after all also am an and any are as at be because been before being but by can could d did do does doing for from get got had has have
having he her hers him his how i if in into is it its just ll m me might my no not of off on or our out over own re s said say says shall she
should so some such t than that the their theirs them then there these they this those through to too up us ve very was we were what when
where which while who whom whose why will with would you your yours
"""
STOP_WORDS = frozenset(_STOP.split())
"""English words that say little about what a text is about."""


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without accents."""
    plain = text.casefold()
    if not plain.isascii():
        plain = unicodedata.normalize("NFC", "".join(c for c in unicodedata.normalize("NFKD", plain) if not unicodedata.combining(c)))
    return _WORD.findall(plain)


def query_words(query: str) -> list[str]:
    """Return the different words that a query is about, in order: without stop words, unless it has no others."""
    said = list(dict.fromkeys(words(query)))
    return ([word for word in said if word not in STOP_WORDS] or said)[:MOST_TERMS]


_SUFFIXES = (
    ("ational", "ate"), ("fulness", "ful"), ("iveness", "ive"), ("ousness", "ous"), ("ization", "ize"), ("ations", "at"), ("ation", "at"),
    ("ments", "ment"), ("ities", "iti"), ("ness", ""), ("ings", ""), ("sses", "ss"), ("ies", "i"), ("ing", ""), ("edly", ""), ("ed", ""), ("es", "e"),
    ("ly", ""), ("ss", "ss"), ("us", "us"), ("s", ""),
)  # fmt: skip


def stem(word: str) -> str:
    """Return a word without its commonest English endings, so that forms of one word are equal. It need not be a word."""
    if len(word) > 3 and word.isascii() and word.isalpha():
        for suffix, instead in _SUFFIXES:
            if word.endswith(suffix) and len(word) - len(suffix) >= 3:
                word = word[: -len(suffix)] + instead
                break
        if len(word) > 4 and word[-1] == word[-2] and word[-1] not in "lsz":
            word = word[:-1]
        if len(word) > 4 and word.endswith("e"):
            word = word[:-1]
        if len(word) > 3 and word.endswith("y"):
            word = word[:-1] + "i"
    return word


def stems(text: str) -> list[str]:
    """Return the stems of the words of a text, in order."""
    return [stem(word) for word in words(text)]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A search: the prefix of the scopes, the query, and its vector if texts are embedded. At least one item is wanted, and none `without` (keys)."""

    prefix: str
    query: str
    kinds: tuple[Kind, ...]
    limit: int
    as_of: datetime | None
    now: datetime
    without: frozenset[str] = frozenset()
    vector: tuple[float, ...] = ()
    model: str = ""


def counts(item: MemoryItem, asked: Asked) -> bool:
    """Whether a search may find an item: it is in the scopes, of the kinds, and current, or held at `as_of`."""
    if not below(item.scope, asked.prefix) or (asked.kinds and item.kind not in asked.kinds) or key_of(item) in asked.without:
        return False
    return standing_of(item, asked.now) == "current" if asked.as_of is None else held(item, asked.as_of)


def age_order(item: MemoryItem) -> tuple[datetime, str]:
    """Return what orders items by age, oldest first."""
    return item.created_at or _EPOCH, key_of(item)


def answer(matched: Iterable[Found], others: Sequence[MemoryItem], limit: int, *, query: str) -> list[Found]:
    """Return at most `limit` found items, best first, the newer one first among equals.

    `others` are items that no word needs to fit: preferences, in at most half of the places and in those left free; with an empty query the newest.
    """
    best = sorted(matched, key=lambda found: age_order(found.item), reverse=True)
    best.sort(key=lambda found: found.score, reverse=True)
    places = limit - min(limit // 2, len(others)) if query.strip() else limit
    first = best[:places]
    seen = {key_of(found.item) for found in first}
    spare = [item for item in sorted(others, key=age_order, reverse=True) if key_of(item) not in seen]
    scored = {key_of(found.item): found for found in best[places:]}
    added = [scored.get(key_of(item)) or _beside(item, query) for item in spare]
    seen.update(key_of(found.item) for found in added)
    rest = [found for found in best[places:] if key_of(found.item) not in seen]
    half = min(limit // 2, len(added)) if query.strip() else len(added)
    chosen = [*first, *added[:half]]
    chosen += [*rest, *added[half:]][: max(0, limit - len(chosen))]
    chosen.sort(key=lambda found: found.score, reverse=True)
    return chosen[:limit]


def _beside(item: MemoryItem, query: str) -> Found:
    return Found(item=item, score=0.0, reasons=("preference" if query.strip() else "newest",))


def overlap(item: MemoryItem, terms: Sequence[str], stemmed: Sequence[str]) -> Found | None:
    """Return the item with the number of terms that it has (row K70); None if it has none. A term that only its context has counts half."""
    content = set(stems(item.content))
    fit = [word for word, root in zip(terms, stemmed, strict=True) if root in content]
    context: set[str] = set(stems(item.context)) if item.context else set()
    near = [word for word, root in zip(terms, stemmed, strict=True) if root in context and root not in content]
    if not fit and not near:
        return None
    reasons = [f"words: {', '.join(fit)}"] if fit else []
    return Found(item=item, score=len(fit) + len(near) / 2, reasons=(*reasons, *([f"near: {', '.join(near)}"] if near else [])))


CONTEXT = 0.4


class Match(msgspec.Struct, frozen=True):
    """An item that words found, and its BM25 score (higher is better)."""

    item: MemoryItem
    bm25: float


def bm25_of(items: Sequence[MemoryItem], query: str) -> list[Match]:
    """Return the items with a term of the query and their BM25 scores, for memories without an index. A word of the context counts `CONTEXT`."""
    roots = [stem(term) for term in query_words(query)]
    if not roots or not items:
        return []
    counted: list[tuple[MemoryItem, dict[str, float], int]] = []
    for item in items:
        content, context = stems(item.content), stems(item.context)
        counted.append((item, {root: content.count(root) + CONTEXT * context.count(root) for root in roots}, len(content) + len(context)))
    mean = sum(length for _, _, length in counted) / len(counted) or 1
    rarity = {root: _rarity(len(items), sum(1 for _, said, _ in counted if said[root])) for root in roots}
    matches: list[Match] = []
    for item, said, length in counted:
        norm = 1.2 * (0.25 + 0.75 * length / mean)
        if score := sum(rarity[root] * count * 2.2 / (count + norm) for root, count in said.items()):
            matches.append(Match(item=item, bm25=score))
    return matches


def _rarity(items: int, having: int) -> float:
    return math.log(1 + (items - having + 0.5) / (having + 0.5))


FULL, ENOUGH = 1.0, 20
"""How much more an item counts that has `ENOUGH` words or more; one with fewer gets its share. BM25 prefers short texts, and a short one is more often
a remark than an answer. Chosen on either half of the questions of `benchmarks/memory_set.json`, it finds more evidence for the other half, too."""


def weighed(matches: Sequence[Match], query: str) -> list[Found]:
    """Return matches, best first: their BM25 scores, weighed by what they say."""
    roots = {stem(term): term for term in query_words(query)}
    found: list[Found] = []
    for match in matches:
        content = stems(match.item.content)
        fit = [term for root, term in roots.items() if root in content]
        reasons = (f"words: {', '.join(fit)}" if fit else "words said near it", f"bm25 {match.bm25:.3g}")
        found.append(Found(item=match.item, score=match.bm25 * (1 + FULL * min(len(content), ENOUGH) / ENOUGH), reasons=reasons))
    return sorted(found, key=lambda one: one.score, reverse=True)


def joined(by_words: Sequence[Found], by_meaning: Sequence[tuple[MemoryItem, float]]) -> list[Found]:
    """Join two rankings by reciprocal rank: what both find comes before what one finds."""
    found: dict[str, Found] = {}
    for place, one in enumerate(by_words, 1):
        found[key_of(one.item)] = Found(item=one.item, score=1 / (JOINED + place), reasons=one.reasons)
    for place, (item, likeness) in enumerate(by_meaning, 1):
        known = found.get(key_of(item))
        score, reasons = (known.score, known.reasons) if known is not None else (0.0, ())
        found[key_of(item)] = Found(item=item, score=score + MEANING / (JOINED + place), reasons=(*reasons, f"meaning {likeness:.2f}"))
    return sorted(found.values(), key=lambda one: one.score, reverse=True)


def embedded(item: MemoryItem) -> str:
    """Return the text whose vector stands for an item: what it says, then what helps to find it."""
    return f"{item.content}\n{item.context}" if item.context else item.content


def unit(vector: Sequence[float]) -> list[float]:
    """Return a vector of length 1; zeros are kept."""
    size = math.sqrt(sum(x * x for x in vector))
    return [x / size for x in vector] if size else list(vector)
