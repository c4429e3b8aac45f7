"""Think blocks: a model's thinking before its answer, separated from the answer, whole or in a stream."""

from __future__ import annotations

import re
from typing import Literal

_NAMES = ("think", "thinking", "thought", "reasoning", "reflection")
_OPEN = re.compile(rf"<\|?({'|'.join(_NAMES)})\|?>", re.IGNORECASE)
_CLOSE = re.compile(rf"</\|?({'|'.join(_NAMES)})\|?>|<\|/({'|'.join(_NAMES)})\|>", re.IGNORECASE)
_DATA = re.compile(r"\s*(?:[{\[]|```)")
_CUT_TAG = re.compile(r"<[^<>]{0,14}\Z")

Kind = Literal["text", "thinking"]


def split_thinking(text: str) -> tuple[str, str]:
    """Return (thinking, answer). A block that is never closed is thinking to its end: a draft in it is not an answer.

    A closing tag without an opening one ends thinking that began with the text (templates that open the block in the prompt).
    """
    thoughts: list[str] = []
    at, opened = 0, _OPEN.search(text)
    while (close := _CLOSE.search(text, at)) is not None and _DATA.match(text, at) is None:
        if opened is not None and opened.end() <= close.start():
            break
        thoughts.append(text[at : close.start()])
        at = close.end()
    rest: list[str] = []
    while (opened := _OPEN.search(text, at)) is not None and "{" not in text[
        at : opened.start()
    ]:  # a tag after an object may be inside a string
        close = _CLOSE.search(text, opened.end())
        thoughts.append(text[opened.end() : close.start() if close else len(text)])
        rest.append(text[at : opened.start()])
        at = close.end() if close else len(text)
    return "\n".join(t.strip() for t in thoughts if t.strip()), "".join([*rest, text[at:]])


class ThinkingSplitter:
    """Separates thinking from text in a stream. A tag that is cut between two pieces is held back until it is complete."""

    def __init__(self) -> None:
        self._held, self._thinking, self._said = "", False, False

    def feed(self, piece: str) -> list[tuple[Kind, str]]:
        """Return the parts that are certain by now."""
        out: list[tuple[Kind, str]] = []
        text, self._held = self._held + piece, ""
        while text:
            if self._said:
                out.append(("text", text))  # thinking comes before the answer: no need to search any more
                break
            tag = (_CLOSE if self._thinking else _OPEN).search(text)
            if tag is None:
                cut = _CUT_TAG.search(text)
                self._held = cut[0] if cut else ""
                self._give(out, text.removesuffix(self._held))
                break
            self._give(out, text[: tag.start()])
            if not self._said:
                self._thinking = not self._thinking
                text = text[tag.end() :]
            else:
                text = text[tag.start() :]
        return out

    def end(self) -> list[tuple[Kind, str]]:
        """Return the text that was held back."""
        out: list[tuple[Kind, str]] = []
        self._give(out, self._held)
        self._held = ""
        return out

    def _give(self, out: list[tuple[Kind, str]], text: str) -> None:
        if text:
            self._said = not self._thinking and bool(text.strip())
            out.append(("thinking" if self._thinking else "text", text))
