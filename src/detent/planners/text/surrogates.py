"""Halves of surrogate pairs: a stream may cut a character in two, a model may write half of one, and no UTF-8 holds either."""

from __future__ import annotations


def whole_text(text: str, lone: str = "replace") -> str:
    """Return a text with halves that stand side by side put together; `lone` is what becomes of others (a way of decoding errors)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", lone)
    return text
