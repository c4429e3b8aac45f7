"""Drawing for terminals only: rendered Markdown, highlighted code, and the diff of a write.

Rule: what models and tools write is data. Everything drawn is cleaned once more after layout, none of their text is left out, and a link is shown
with its whole address.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from detent.cli.output import Output, as_json, coloured, room_of
from detent.core.errors import DetentError
from detent.expressions.display import as_text, clean

MOST_CHARS = 100_000
"""A longer answer is shown as it is, because layout takes time."""
MOST_BYTES = 1_000_000
"""Larger files are not read for a diff."""
THEME = "ansi_dark"
"""Uses the terminal's own colours, so that code is readable on a light background, too."""


def show_answer(output: Output, answer: Any, *, by_model: bool) -> None:
    """Write an answer to stdout. At a terminal, a model's text is drawn as Markdown and data as coloured JSON; elsewhere both stay as they are."""
    drawn = sys.stdout.isatty() and not output.json
    if drawn and not isinstance(answer, str):
        from rich.syntax import Syntax

        draw(Syntax(as_json(answer), "json", theme=THEME, word_wrap=True, background_color="default"), sys.stdout)
    elif drawn and by_model and len(answer) <= MOST_CHARS:
        draw(markdown(answer), sys.stdout)
    else:
        output.show(as_text(answer).rstrip("\n"))


def draw(renderable: Any, stream: Any) -> None:
    """Write a rich renderable to a terminal; all its text is cleaned after layout."""
    from rich.console import Console
    from rich.segment import Segment, Segments

    style = coloured(stream)
    console = Console(
        file=stream, width=room_of(stream), color_system="auto" if style else None, markup=False, highlight=False, emoji=False
    )
    rows = console.render_lines(renderable, pad=False)
    kept = [[Segment(clean(one.text), one.style and one.style.update_link(None)) for one in row if not one.control] for row in rows]
    while kept and not "".join(one.text for one in kept[-1]).strip():
        kept.pop()
    console.print(Segments([one for row in kept for one in (*row, Segment.line())]), end="", soft_wrap=True)


def markdown(text: str) -> Any:
    """Return a text as a renderable. It keeps line breaks and what Markdown would hide: HTML, entities, addresses, definitions."""
    from markdown_it import MarkdownIt
    from rich.markdown import Markdown, TableElement

    class Folded(TableElement):
        """A table that wraps long words instead of cutting them."""

        def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
            for table in super().__rich_console__(console, options):
                for column in cast("Any", table).columns:
                    column.overflow = "fold"
                yield table

    class Shown(Markdown):
        elements = {**Markdown.elements, "table_open": Folded}  # noqa: RUF012 - rich declares it so

    found = Shown("", code_theme=THEME, hyperlinks=False)
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable(["entity", "reference"])
    found.parsed = parser.parse(clean(text, lines=True))
    for token in found.parsed:
        if token.children:
            token.children = list(_inline(token.children))
    return found


def _inline(tokens: Iterable[Any]) -> Iterator[Any]:
    """Yield the parts of a paragraph with its line breaks, and with the address after the words of each link and image."""
    from markdown_it.token import Token

    address, words = "", ""
    for token in tokens:
        match token.type:
            case "softbreak":
                yield Token("hardbreak", "br", 0)
            case "image":
                yield Token("text", "", 0, content=f"![{token.content}]({token.attrs.get('src', '')})")
            case "link_open":
                address, words = str(token.attrs.get("href", "")), ""
            case "link_close":
                if address != words:
                    yield Token("text", "", 0, content=f" ({address})")
            case _:
                words += token.content
                yield token


# Writes -------------------------------------------------------------------------------------------------------------------------


def present(root: Any, args: Any, redact: Sequence[str]) -> str | None:
    """Return the current text of the file that a call names in the workspace `root`, without what the patterns of `redact` match.

    It is "" if there is no file, and None if the text cannot be shown.
    """
    path = args.get("path") if isinstance(args, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not (isinstance(root, str) and isinstance(path, str)):
        return None
    from detent.secrecy.redact import Redactor
    from detent.tools.workspace.confine import Workspace
    from detent.tools.workspace.writing import current

    try:
        workspace = Workspace(root)
        with workspace.place(path) as place:
            if (found := current(workspace, place, need_data=False).found) is not None and found.st_size > MOST_BYTES:
                return None
            return Redactor(redact, b"").without((current(workspace, place).data or b"").decode())
    except (DetentError, OSError, UnicodeDecodeError):  # the tool reports the problem
        return None


def diff_of(tool: str, args: Any, before: str | None) -> list[str]:
    """Return the change that a call of a workspace tool makes, as lines of a diff; `before` is the old file. Empty for any other call."""
    given: dict[str, Any] = cast("dict[str, Any]", args) if isinstance(args, dict) else {}
    match tool, given:
        case "write_file", {"path": str(), "content": str(new)} if before is not None:
            return list(_differences(before, new))
        case "create_file" | "append_file", {"path": str(), "content": str(new)}:
            return [f"+{line}" for line in new.splitlines()]
        case "replace_in_file", {"path": str(), "old": str(old), "new": str(new)}:
            return list(_differences(old, new))
        case "apply_patch", {"patch": str(patch)}:
            return patch.splitlines()
        case _:
            return []


def _differences(old: str, new: str) -> Iterator[str]:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="")
    return (line for line in lines if not line.startswith(("--- ", "+++ ")))


def style_of_line(line: str) -> str:
    """Return the colour of a line of a diff."""
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")
