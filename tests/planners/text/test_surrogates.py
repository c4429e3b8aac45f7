"""Halves of characters, in texts of both kinds of models."""

from __future__ import annotations

import asyncio

import pytest

from detent.planners.raw_text.generation import Generation, Request, generate
from detent.planners.text.surrogates import whole_text

HIGH, LOW = "\ud83d", "\ude00"


@pytest.mark.parametrize(
    ("text", "sound"),
    [
        ("plain", "plain"),
        ("ü 😀", "ü 😀"),
        (f"a{HIGH}{LOW}b", "a😀b"),
        (f"a{HIGH}b", "a\ufffdb"),
        (LOW, "\ufffd"),
        (f"😀{HIGH}", "😀\ufffd"),
    ],
)
def test_halves_side_by_side_are_one_character_and_others_are_none(text: str, sound: str) -> None:
    """Nothing else is touched."""
    assert whole_text(text) == sound
    assert whole_text(text).encode().decode() == sound


def test_a_character_that_a_stream_cut_in_two_is_put_together() -> None:
    """Whoever generates the pieces."""

    async def says(_: Request) -> Generation:
        return Generation(text=f"I {HIGH}" + LOW, thinking=HIGH)

    got = asyncio.run(generate(says, Request(messages=()), lambda _kind, _piece: None))
    assert (got.text, got.thinking) == ("I 😀", "\ufffd")
