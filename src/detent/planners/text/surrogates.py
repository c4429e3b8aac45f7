"""Halves of surrogate pairs: a stream may cut a character in two, a model may write half of one, and UTF-8 can encode neither."""

from __future__ import annotations


def whole_text(text: str, lone: str = "replace") -> str:
    """Return a text with adjacent halves joined. `lone` decides what happens to other halves (an error handler of decoding)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", lone)
    return text
