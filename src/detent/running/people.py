"""Names of people in the form that is compared and recorded, and what a process says about itself.

The names are normalised here, before anything is recorded: the fold compares strings.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
import sys
import unicodedata
from functools import cache, lru_cache
from pathlib import Path

LONGEST = 200
"""The longest recorded name, and the longest text of a process about itself, in characters."""

_UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]")
"""Invisible letters, marks and code points outside the category Cf (Default_Ignorable_Code_Point of Unicode)."""

_TOGETHER = ({"LATIN", "CJK", "HIRAGANA", "KATAKANA"}, {"LATIN", "CJK", "HANGUL"}, {"LATIN", "CJK", "BOPOMOFO"})
"""Scripts that are written together: Japanese, Korean, Chinese ("highly restrictive" of UTS 39)."""

_PUNCTUATION = frozenset("\u00b7\u2010\u2011\u2013\u2018\u2019\u30fb")
"""Characters in names beyond letters and ASCII: middle dots, hyphens, apostrophes."""

MOST_MARKS = 3

_OF_ANY = ("COMBINING", "MODIFIER")
"""Beginnings of the Unicode names of marks and letters that belong to no script."""


def person(name: str) -> str:
    """Return a name in the form that is compared: white space, case, invisible characters and compatibility forms make no difference."""
    for _ in range(4):  # the result of one step may combine in the next
        before, name = name, _folded(name)
        if name == before:
            break
    return name


def _folded(name: str) -> str:
    seen = "".join(c for c in name if c.isspace() or not (unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") or _UNSEEN.match(c)))
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).casefold()).split())


def mixed_scripts(name: str) -> tuple[str, ...]:
    """Return the scripts of a name's letters if nobody writes these together, such as a Cyrillic letter among Latin ones; else nothing.

    It misses names that look alike in one script, and names whose letters all come from another script than it seems.
    """
    found: dict[str, None] = {}
    for c in unicodedata.normalize("NFKC", name):
        if unicodedata.category(c)[0] in "LM":
            word = unicodedata.name(c, "unknown").split()[0].split("-")[0]
            found |= {} if word in _OF_ANY else {"CJK" if word == "IDEOGRAPHIC" else word: None}
    return () if len(found) < 2 or any(found.keys() <= together for together in _TOGETHER) else tuple(s.capitalize() for s in found)


def strange(name: str) -> str:
    """Return a character that names are not written with, as `U+20E3 (...)`, or "". Characters that normalising removes do not count.

    Allowed are letters, decimal digits, ASCII and some punctuation. A mark must belong to a letter of its own script (three marks at most). A mark of
    no script must form one composed character with its letter, as in "José".
    """
    marks = 0
    for c in unicodedata.normalize("NFC", name):
        kind, said = unicodedata.category(c), unicodedata.name(c, "")
        if c.isspace() or kind == "Cf" or _UNSEEN.match(c) or " " <= c <= "~":
            continue
        marks = marks + 1 if kind in ("Mn", "Mc") else 0
        raised = kind == "Lm" and unicodedata.decomposition(c).startswith(("<super>", "<sub>"))
        written = (kind in ("Lu", "Ll", "Lt", "Lo", "Lm", "Nd") and not raised) or c in _PUNCTUATION
        if not written and not (0 < marks <= MOST_MARKS and not said.startswith("COMBINING")):
            return f"U+{ord(c):04X} ({said or 'no character'})"
    return ""


def me() -> str:
    """Return the user of the operating system that this process runs as."""
    try:
        return _user(os.getuid())
    except AttributeError:  # Windows
        return getpass.getuser()


@cache
def _user(uid: int) -> str:
    """Return the name of a user: the system reads a file for it, or asks a server."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a user without a name, as in some containers
        return f"uid {uid}"


def poster() -> str:
    """Return the process's own description, as `user@host program`. Nobody checks it."""
    return _described(f"{me()}@{socket.gethostname()}", sys.argv[0] if sys.argv else "")


@lru_cache(maxsize=8)
def _described(who: str, started_as: str) -> str:
    program = Path(started_as if started_as not in ("", "-c") else "python")
    name = program.parent.name if program.name == "__main__.py" else program.name
    return "".join(c for c in f"{who} {name}" if c.isprintable())[:LONGEST]
