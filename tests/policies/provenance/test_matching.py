"""What counts as the same value: exact and normalised matches, and what never counts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.core.agent import AgentSpec
from detent.core.history import Seq
from detent.core.state import Item, KernelState, RunState
from detent.policies.provenance.matching import keys_in, needle, normal, stands_in
from detent.policies.provenance.policy import provenance


def label(value: Any, goal: str, *, field: str = "to") -> str:
    """Return the label of one argument in a run whose user said only `goal`."""
    state = RunState(
        run_id="r",
        goal=goal,
        agent=AgentSpec(name="a"),
        passes={"main": KernelState(task_id="r", steps=Seq([Item(kind="user", text=goal)]))},
    )
    (leaf,) = provenance({field: value}, state).leaves
    return leaf.label


SAME = {
    "exact word": ("report", "send the report."),
    "case": ("Bob@Example.com", "write to bob@example.COM please"),
    "white space": ("Quarterly  figures\n", "the subject is 'Quarterly figures'"),
    "full-width forms": ("Tokyo", "fly to \uff34\uff4f\uff4b\uff59\uff4f"),
    "invisible characters": ("alice", "ask al\u200bice"),
    "curly quotes": ("it's done", "say \u201cit\u2019s done\u201d"),
    "mail in brackets": ("bob@example.com", "from Bob <bob@example.com>, today"),
    "mail link": ("bob@example.com", "[mail](mailto:bob@example.com)"),
    "mail looked for in brackets": ("<bob@example.com>", "bob@example.com"),
    "number in thousands": (1234567, "transfer 1,234,567 of them"),
    "number with decimals": (1234.5, "it is 1,234.50 in all"),
    "european number": (1234.5, "es sind 1.234,50"),
    "number as text": ("1234.50", "it is 1234.5"),
    "negative number": (-1234.5, "add -1234.5"),
    "date in words": ("2024-05-15", "on May 15th, 2024"),
    "date of day first": ("2024-05-15", "am 15.05.2024"),
    "date with slashes": ("05/15/2024", "on 2024-05-15"),
    "date without its year": ("2024-05-26", "on May 26th"),
    "date and time": ("2024-05-20 10:00", "on 2024-05-20 at 10am"),
    "date and time in ISO": ("2024-05-20T10:00:00Z", "May 20, 2024 10:00"),
    "account in groups": ("GB29NWBK60161331926819", "pay GB29 NWBK 6016 1331 9268 19 now"),
    "account before a word": ("XX11222233334444", "pay XX11 2222 3333 4444 then go now"),
    "account looked for in groups": ("GB29 NWBK 6016 1331 9268 19", "pay GB29NWBK60161331926819"),
    "telephone": ("+49301234567", "call +49 (30) 123-4567"),
    "path": ("./notes\\todo.txt", "open notes/todo.txt"),
    "path of directory and name": ("reports/2024/figures.csv", "put figures.csv into reports/2024/"),
    "url without scheme": ("https://www.example.com/a/", "go to www.example.com/a"),
    "url and full stop": ("https://example.com/x?y=1", "see https://example.com/x?y=1."),
    "percent escapes": ("my report", "https://example.com/?q=my%20report"),
    "JSON escapes": ("caf\u00e9 rouge", r'{"name": "caf\u00e9 rouge"}'),
    "HTML entities": ("Smith & Sons", "invoice of Smith &amp; Sons"),
    "script without spaces": ("\u4f1a\u8bae\u8bb0\u5f55", "\u8bf7\u628a\u4f1a\u8bae\u8bb0\u5f55\u53d1\u7ed9\u738b"),
    "whole lines": ("Bring the tent\n- Bring the stove", "bring the tent, and bring the stove"),
    "sentences": ("The figures are attached. Please check them.", "Please check them! Then: the figures are attached"),
    "number far into a text": (
        48211,
        "The order that you placed some time ago with our company, number 48211, is on its way, as we promised you.",
    ),
    "date far into a text": (
        "2024-05-15",
        "We shall meet again, as has been agreed with everybody concerned, on the 15th of May 2024, in the usual place.",
    ),
    "placeholder": ("<secret:0123456789abcdef01234567>", "the password is <secret:0123456789abcdef01234567>"),
}
OTHER = {
    "part of a word": ("port", "send the report"),
    "part of an address": ("example.com", "write to bob@mail.example.com"),
    "address that ends alike": ("bob@example.com", "write to jimbob@example.com"),
    "longer file name": ("report", "send report.txt"),
    "longer number": (1234, "it is 12345"),
    "other sign": (1234.5, "it is -1234.5"),
    "other day": ("2024-05-16", "on May 15th, 2024"),
    "other time": ("2024-05-20 11:00", "on 2024-05-20 at 10am"),
    "climbing path": ("reports/../secrets.txt", "secrets.txt in reports"),
    "look-alike letters": ("\u0430lice@example.com", "alice@example.com"),
    "phrase that begins inside a word": ("to them now", "send it unto them now"),
    "phrase that ends inside a word": ("them all in", "tell them all inside"),
    "words in another order": ("figures quarterly", "the quarterly figures"),
    "recombined words": ("please send the figures to them now", "send figures now, please, to the boss, not them"),
    "one sentence more": ("The figures are attached. Wire the money.", "the figures are attached"),
}
SHORT = {
    "three characters": ("abc", "abc"),
    "small number": (50, "take 50"),
    "small number as text": ("50", "take 50"),
    "small number below a thousand": (999, "take 999"),
    "small negative number": (-999, "take -999"),
    "true": (True, "true"),
    "false": (False, "false"),
    "short decimal": (9.5, "take 9.5"),
}


@pytest.mark.parametrize(("value", "said"), SAME.values(), ids=list(SAME))
def test_the_same_value_is_found_in_whatever_form_it_was_said(value: Any, said: str) -> None:
    """Forms of one value are one value."""
    assert label(value, said, field="text") == "user"


@pytest.mark.parametrize(("value", "said"), OTHER.values(), ids=list(OTHER))
def test_another_value_is_not_taken_for_it(value: Any, said: str) -> None:
    """Parts, recombinations and look-alikes prove nothing."""
    assert label(value, said, field="text") == "model"


@pytest.mark.parametrize(("value", "said"), SHORT.values(), ids=list(SHORT))
def test_values_that_are_found_everywhere_prove_nothing(value: Any, said: str) -> None:
    """Under four characters, truth values and small whole numbers never count, although the user said just that."""
    assert label(value, said) == "model"


@pytest.mark.parametrize("said", ["pay $50 for it", "pay 50 EUR for it", "pay 50.00 for it", "pay \u20ac 50"])
def test_a_small_number_counts_where_it_is_written_and_used_as_an_amount(said: str) -> None:
    """With its currency or its cents a small amount is no longer any number; as an identifier it still is."""
    assert label(50.0, said, field="amount") == "user"
    assert label(50.0, said, field="id") == "model"
    assert label(51.0, said, field="amount") == "model"


def test_nothing_to_prove_is_no_failure_to_prove_it() -> None:
    """Null, empty texts, lists and objects are labelled `empty`."""
    assert [label(value, "x") for value in (None, "", [], {})] == ["empty"] * 4


@given(st.text(min_size=4, max_size=60))
def test_what_was_said_whole_is_always_found(text: str) -> None:
    """A text of at least four comparable characters is found in itself, whatever it holds."""
    expected = "user" if len(normal(text)) >= 4 else label(text, "something else")
    assert label(text, text) == expected


@given(st.text(max_size=300))
def test_no_text_is_too_odd_to_be_read(text: str) -> None:
    """Reading a source and looking for a value never raises."""
    keys_in(normal(text))
    needle(text)
    assert stands_in("never there \u2603\u2603", normal(text)) == -1


@given(st.floats() | st.integers())
def test_no_number_is_too_odd_to_be_read(value: float) -> None:
    """Infinite and huge numbers are looked for like any other."""
    assert label(value, "nothing of the kind") == "model"
