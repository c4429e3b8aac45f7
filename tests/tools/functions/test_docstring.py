"""Docstrings in Google style: what is description, what belongs to which argument."""

from __future__ import annotations

from typing import Any

import pytest

from detent.tools.functions.docstring import read


def documented(text: str | None) -> Any:
    """Return a function with the docstring `text`."""

    def function() -> None: ...

    function.__doc__ = text
    return function


@pytest.mark.parametrize(
    ("text", "description", "arguments"),
    [
        (None, "", {}),
        ("", "", {}),
        ("Do it.", "Do it.", {}),
        ("Do it.\n\n    More text:\n    still.\n", "Do it.\n\nMore text:\nstill.", {}),
        ("Do it.\n\n    Args:\n        a: first\n        b (int): second\n    ", "Do it.", {"a": "first", "b": "second"}),
        (
            "Do it.\n\n    Arguments:\n      a: first\n         goes on: here\n\n      b: second",
            "Do it.",
            {"a": "first goes on: here", "b": "second"},
        ),
        (
            "Do it.\n\n    Args:\n        *args: many\n        **kw: named\n    Returns:\n        a: no argument",
            "Do it.",
            {"args": "many", "kw": "named"},
        ),
        ("Do it.\n\n    Returns:\n        x\n\n    Args:\n        a: first\n\n    Raises:\n        OSError: b", "Do it.", {"a": "first"}),
        ("Args:\n    a: first", "", {"a": "first"}),
        ("Do it.\n\n    Args:\n        a:\n            on the next line", "Do it.", {"a": "on the next line"}),
        ("Do it.\n\n    Args:\n        no entry here\n        a: first", "Do it.", {"a": "first"}),
        ("Do it.\n\n    Parameters:\n        a (dict[str, int], optional): first", "Do it.", {"a": "first"}),
    ],
)
def test_a_docstring_gives_a_description_and_the_arguments(text: str | None, description: str, arguments: dict[str, str]) -> None:
    """The description ends at the first section; deeper lines continue the entry before them."""
    assert read(documented(text)) == (description, arguments)
