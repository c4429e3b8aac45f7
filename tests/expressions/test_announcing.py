"""Which answers only announce. A wrong objection costs a turn, so what may be an answer is none of them."""

from __future__ import annotations

import pytest

from detent.expressions.announcing import announces
from detent.expressions.markup import without_tags


@pytest.mark.parametrize(
    "text",
    [
        "I will now search for the file.",
        "I'll check the logs.",
        "Let me look at the configuration first.",
        "Sure! I will look that up. One moment.",
        "Okay, let me search the archive for it:",
        "First, I need to read the file.",
        "I\u2019m going to run the tests now\u2026",
        "Let's start by listing the files.",
        'I will now search the web for "Paris" and then summarise it.',
        "**Now I'll call the weather tool.**",
        "I'll use the weather tool to find out.",
        "Great. Next, I will fetch the page:\n",
    ],
)
def test_a_text_that_says_only_what_comes_next_announces(text: str) -> None:
    """With or without a lead, an emphasis, a colon at its end."""
    assert announces(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The answer is 42.",
        "I searched the archive.",
        "I will check the logs every morning: 3 errors today.",
        "I will now search. There are 3 errors.",
        "Let me know if you need more.",
        "I will not do that.",
        "I cannot search.",
        "I'll check? No: 5.",
        "Paris has 2 million people. Let me know if I should search more.",
        "I will be there at 5.",
        "We will use PostgreSQL because it is durable.",
        "I will use PostgreSQL.",
        "I will need your approval.",
        "I will now search for " + "the file and " * 40 + "the rest.",
    ],
)
def test_a_text_that_may_be_an_answer_does_not(text: str) -> None:
    """Something beside the announcement, a refusal, a question, a promise, or a long text."""
    assert not announces(text)


@pytest.mark.parametrize(
    ("text", "left"), [("<answer></answer>", ""), ("a < b", "a < b"), ("<b>7</b>", "7"), ("```json\n{}\n```", "\n{}\n")]
)
def test_what_is_left_without_tags(text: str, left: str) -> None:
    """Text between tags, and what stands in code, is something to read."""
    assert without_tags(text) == left
