"""Calls in the text of an answer: what stands before one, and which could be meant."""

from __future__ import annotations

from typing import Any

import pytest

from detent.ports.embedded_calls import call_in, calls_in

TOOLS = ("search", "web-search", "x" * 64)
CALL = 'search({"q": 1})'


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (CALL, ("", CALL)), (f" \n{CALL}\n ", ("", CALL)), (f"Let me check:\n {CALL}", ("Let me check:", CALL)), (f"a: b: {CALL}", ("a: b:", CALL)),
        ('web-search ( {"q": 1} )', ("", 'web-search ( {"q": 1} )')), ("search({\n})", ("", "search({\n})")), ("x" * 64 + "({})", ("", "x" * 64 + "({})")),
        ("x" * 65 + "({})", None), (f"Words {CALL}", None), (f"{CALL} words", None), ("search()", None), ("search(1)", None), ('other({"q": 1})', None),
        ("", None), ("search({", None), (f"Words.\n{CALL}", None),
    ],
)  # fmt: skip
def test_a_call_is_the_whole_text_or_stands_after_a_colon(answer: str, found: Any) -> None:
    """With the words before it, trimmed."""
    call = call_in(answer, TOOLS)
    assert (None if call is None else (call[0], call[1][0])) == found


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (CALL, [(CALL, "search", {"q": 1})]), (f"{CALL}\n", [(CALL, "search", {"q": 1})]), (f"FINAL ANSWER: {CALL}", [(CALL, "search", {"q": 1})]),
        (f"I must not run it.\n{CALL}\n", [(CALL, "search", {"q": 1})]), ('Words.\nother({"q": 1})', []), (f"Words {CALL}", []), (f"{CALL}\nwords", []),
        ("search({'q': 1})", []), ('search({"q": 1, "q": 2})', []), ("search({" + '"a":{' * 5000 + "}" * 5001 + ")", []), ('search({"q": "\\ud800"})', []),
         (5, []),
        (None, []), ({"search": {}}, []), ("", []),
    ],
)  # fmt: skip
def test_what_could_be_a_call_is_found_made_or_not(answer: Any, found: list[Any]) -> None:
    """As the whole, after a colon, or as the last line; what is no JSON is none."""
    assert list(calls_in(answer, TOOLS)) == found
