"""Who answers: names in the form in which they are compared and recorded, and what a process says about itself.

The normal form is made here, before anything is recorded: the fold compares strings.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
import sys
import unicodedata
from pathlib import Path

LONGEST = 200
"""How many characters of a name, and of what a process says about itself, are recorded."""

_UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]")
"""Letters, marks and code points that show nothing, beside those of the category Cf (Default_Ignorable_Code_Point of Unicode)."""

_TOGETHER = ({"LATIN", "CJK", "HIRAGANA", "KATAKANA"}, {"LATIN", "CJK", "HANGUL"}, {"LATIN", "CJK", "BOPOMOFO"})
"""Scripts that are written together: Japanese, Korean, Chinese ("highly restrictive" of UTS 39)."""

_PUNCTUATION = frozenset("\u00b7\u2010\u2011\u2013\u2018\u2019\u30fb")
"""What is written in names beyond letters and ASCII: dots in the middle, hyphens, apostrophes."""

MOST_MARKS = 3

_OF_ANY = ("COMBINING", "MODIFIER")
"""How the names of marks and letters begin that belong to no script."""


def person(name: str) -> str:
    """Return a name as it is compared: white space, case, invisible characters and compatibility forms make nobody another person."""
    for _ in range(4):  # what one step leaves may combine in the next
        before, name = name, _folded(name)
        if name == before:
            break
    return name


def _folded(name: str) -> str:
    seen = "".join(c for c in name if c.isspace() or not (unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") or _UNSEEN.match(c)))
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).casefold()).split())


def mixed_scripts(name: str) -> tuple[str, ...]:
    """Return the scripts of the letters of a name where nobody writes these together, such as a Cyrillic letter among Latin ones; else nothing.

    Names that look alike in one script are not found, nor those of which every letter is of another script than it seems.
    """
    found: dict[str, None] = {}
    for c in unicodedata.normalize("NFKC", name):
        if unicodedata.category(c)[0] in "LM":
            word = unicodedata.name(c, "unknown").split()[0].split("-")[0]
            found |= {} if word in _OF_ANY else {"CJK" if word == "IDEOGRAPHIC" else word: None}
    return () if len(found) < 2 or any(found.keys() <= together for together in _TOGETHER) else tuple(s.capitalize() for s in found)


def strange(name: str) -> str:
    """Return the character in a name that names are not written with, as `U+20E3 (...)`, "" where there is none; what is folded away counts as none.

    Letters, decimal digits, what ASCII has and some punctuation are. A mark belongs to a letter of its own script (three at most), or, where it
    is of no script, is one with its letter in the composed form, as in "José".
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
    """Return the user of the operating system as whom this process runs."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except ImportError:  # Windows
        return getpass.getuser()
    except KeyError:  # a user without a name, as in some containers
        return f"uid {os.getuid()}"


def poster() -> str:
    """Return what this process says about itself, as `user@host program`. Nobody checks it."""
    program = Path(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-c") else Path("python")
    name = program.parent.name if program.name == "__main__.py" else program.name
    said = f"{me()}@{socket.gethostname()} {name}"
    return "".join(c for c in said if c.isprintable())[:LONGEST]
