"""What redaction costs for each MB of text: by how many patterns are given, beside the floor measured in the same run.

    python benchmarks/redaction.py [--mb 2] [--times 5] [--quick] [--json]

The text is a log with a key every few lines; it is looked at in tool results of 64 kB. The floor is what nobody can leave out: one search
of the text for a fixed word, and one HMAC for each key that is found. Patterns are those of keys that people give first, and then 45 and more
that find nothing. The hostile one would backtrack for ever in an engine that does so; its text is the worst for it. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from detent.secrecy.redact import Redactor

RESULT = 64_000
KEYS = (
    *(r"sk-[A-Za-z0-9_-]{20,}", r"gh[pousr]_[A-Za-z0-9]{36}", r"AKIA[0-9A-Z]{16}", r"(?i)bearer\s+[a-z0-9._~+/-]+=*"),
    r"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+",
)
OTHERS = tuple(rf"\b(?:customer|account){n:02}-[A-Z]{{2}}\d{{8}}\b" for n in range(45))
HOSTILE = r"(a+)+\$"


def log(chars: int) -> str:
    """Return a log of about this length, with a key in every twentieth line."""
    lines: list[str] = []
    size = 0
    while size < chars:
        n = len(lines)
        said = (
            f"Authorization: Bearer {hashlib.sha256(str(n).encode()).hexdigest()}" if n % 20 == 0 else f"GET /orders/{n} 200 in {n % 97} ms"
        )
        lines.append(f"2026-03-01T12:{n % 60:02}:00Z worker-{n % 7} {said}")
        size += len(lines[-1]) + 1
    return "\n".join(lines)


def floor(text: str) -> None:
    """Search for a word, and make a digest at each place where it stands."""
    at = text.find("Bearer ")
    while at >= 0:
        hmac.new(b"key", text[at : at + 64].encode(), hashlib.sha256).hexdigest()
        at = text.find("Bearer ", at + 1)


def with_patterns(*patterns: str) -> Callable[[str], Any]:
    """Return what redacts a text by these patterns."""
    return Redactor(patterns, b"key").text


def measured(work: Callable[[str], Any], parts: list[str]) -> float:
    """Return the milliseconds of processor time for a MB."""
    begin = time.process_time()
    for part in parts:
        work(part)
    return (time.process_time() - begin) * 1e9 / sum(map(len, parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--mb", type=float, default=2.0, help="how much text")
    parser.add_argument("--times", type=int, default=5, help="how often each is run; the median counts")
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that everything works")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    given = parser.parse_args()
    if given.quick:
        given.mb, given.times = 0.2, 2
    text = log(int(given.mb * 1e6))
    parts = [text[at : at + RESULT] for at in range(0, len(text), RESULT)]
    works = {
        "floor": (floor, parts),
        "no pattern": (with_patterns(), parts),
        "5 patterns": (with_patterns(*KEYS), parts),
        "50 patterns": (with_patterns(*KEYS, *OTHERS), parts),
        "a hostile pattern": (with_patterns(HOSTILE), ["a" * len(part) for part in parts]),
    }
    spent: dict[str, list[float]] = {name: [] for name in works}
    for work, of in works.values():
        measured(work, of)
    for _ in range(given.times):  # they take turns, so that a slow moment hits them all
        for name, (work, of) in works.items():
            spent[name].append(measured(work, of))
    medians = {name: statistics.median(found) for name, found in spent.items()}
    rows = [{"what": name, "ms": ms, "floors": ms / medians["floor"]} for name, ms in medians.items()]
    if given.json:
        print(json.dumps({"python": platform.python_version(), "mb": given.mb, "rows": rows}, indent=1))
        return
    print(f"Python {platform.python_version()}, {given.mb:g} MB in texts of {RESULT // 1000} kB, median of {given.times}\n")
    for row in rows:
        print(f"{row['what']:<20} {row['ms']:9.2f} ms a MB   {row['floors']:8.1f} of the floor")


if __name__ == "__main__":
    main()
