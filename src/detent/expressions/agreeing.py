"""How answers are compared and counted: the key of an answer, and the most frequent key. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec


def plain(answer: Any) -> str:
    """Return the key under which an answer is counted: its text without case, extra spaces, and a full stop at its end.

    Data is counted as JSON whose fields are sorted.
    """
    text = answer if isinstance(answer, str) else msgspec.json.encode(answer, order="sorted").decode()
    return " ".join(text.casefold().split()).rstrip(".!")


def plurality(keys: Sequence[str | None]) -> tuple[int | None, int]:
    """Return the place of the first answer with the most frequent key, and how often it occurs; (None, 0) without an answer.

    None stands for an answer that is missing. If two are equally frequent, the one wins that gets there first.
    """
    counts = Counter(key for key in keys if key is not None)
    most, seen = max(counts.values(), default=0), Counter[str]()
    for key in keys:
        if key is not None:
            seen[key] += 1
            if seen[key] == most:
                return keys.index(key), most
    return None, 0
