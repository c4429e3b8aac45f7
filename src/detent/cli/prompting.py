"""Reads what a person types in `detent chat`: an editor at a terminal (the extra `chat`), plain lines elsewhere.

Rule: reading never blocks the event loop, so signals, servers and work in the background are attended to while a person thinks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from detent.cli.output import Output, coloured
from detent.core.errors import ConfigError
from detent.expressions.display import clean

MOST_BYTES = 1_000_000
"""The limit of a message's size, because it becomes part of every prompt."""
CONTINUES = "\\"
"""At the end of a line: the message continues on the next line."""


class Prompt(msgspec.Struct, frozen=True):
    """What is shown before a line is typed: the mark, what the turn and the session cost, and a text to be edited."""

    mark: str = "> "
    costs: str = ""
    text: str = ""


class Reader(Protocol):
    """Where lines come from. `edits`: a given text can be edited."""

    edits: bool

    async def read(self, prompt: Prompt) -> str:
        """Return the next message or command; raise `EOFError` at the end."""
        ...


class Lines:
    """Lines of stdin. `attended`: a person types them, so the prompt is shown."""

    edits = False

    def __init__(self, output: Output, *, attended: bool) -> None:
        self._output, self._attended = output, attended
        self._read, self._ended = b"", sys.stdin is None

    async def read(self, prompt: Prompt) -> str:
        """Return the next line with those that continue it. Raise `EOFError`, and `ConfigError` if it is too long or no text."""
        costs = f"{prompt.costs} " if prompt.costs else ""
        self._show(f"{costs}{prompt.mark}")
        text = ""
        while (line := await self._line()) is not None:
            if not line.endswith(CONTINUES):
                return text + line
            text += f"{line.removesuffix(CONTINUES)}\n"
            self._show(". ")
        if not text:
            raise EOFError
        return text

    def _show(self, text: str) -> None:
        if self._attended:
            sys.stderr.write(clean(text))
            sys.stderr.flush()

    async def _line(self) -> str | None:
        while b"\n" not in self._read and not self._ended:
            data = await self._more()
            self._ended = not data
            self._read += data
            if len(self._read) > MOST_BYTES and b"\n" not in self._read:
                raise ConfigError(f"a line on stdin has more than {MOST_BYTES:,} bytes; put the text in a file and name the file")
        if not self._read:
            return None
        line, _, self._read = self._read.partition(b"\n")
        try:
            return line.decode().rstrip("\r")
        except UnicodeDecodeError as error:
            raise ConfigError(f"a line on stdin is not UTF-8 text (byte {error.start}); convert it first: iconv -t UTF-8") from None

    async def _more(self) -> bytes:
        loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()
        ready: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_reader(stdin, lambda: ready.done() or ready.set_result(None))
        except PermissionError:  # a file, which can always be read
            pass
        else:
            try:
                await ready
            finally:
                loop.remove_reader(stdin)
        return os.read(stdin, 65536)


class Editor:
    """The editor of prompt_toolkit: history in a file, several lines, completion with Tab.

    `keep` returns the text that the history file may hold; `complete` what may take the place of the last word. Raises `ImportError` without the extra.
    """

    edits = True

    def __init__(self, *, history: Path | None, keep: Callable[[str], str], complete: Callable[[str], list[str]]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import ColorDepth
        from prompt_toolkit.output.vt100 import Vt100_Output
        from prompt_toolkit.shortcuts import CompleteStyle

        self._session: PromptSession[str] = PromptSession(
            history=_history(history, keep),
            completer=_completer(complete),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation=". ",
            output=Vt100_Output.from_pty(sys.stderr),
            color_depth=None if coloured(sys.stderr) else ColorDepth.DEPTH_1_BIT,
        )

    async def read(self, prompt: Prompt) -> str:
        """Return what was typed. Raise `EOFError` for Ctrl-D and Ctrl-C on an empty line."""
        from prompt_toolkit.formatted_text import FormattedText

        return await self._session.prompt_async(
            FormattedText([("bold", prompt.mark)]),
            rprompt=FormattedText([("italic", prompt.costs)]),
            default=prompt.text,
            handle_sigint=False,
        )


def _history(path: Path | None, keep: Callable[[str], str]) -> Any:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class Kept(FileHistory):
        """A file that only its owner may read. A file that cannot be written is left as it is."""

        def load_history_strings(self) -> Iterable[str]:
            with contextlib.suppress(OSError):
                yield from super().load_history_strings()

        def store_string(self, string: str) -> None:
            with contextlib.suppress(OSError):
                os.close(os.open(self.filename, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
                super().store_string(keep(string))

    return Kept(path) if path is not None else InMemoryHistory()


def _completer(complete: Callable[[str], list[str]]) -> Any:
    from prompt_toolkit.completion import Completer, Completion

    class Offered(Completer):
        def get_completions(self, document: Any, complete_event: Any) -> Iterable[Completion]:
            before = document.text_before_cursor
            start = len(before) - max(before.rfind(" "), before.rfind("\n"), before.rfind("\t")) - 1
            for text in complete(before):
                yield Completion(text, start_position=-start, display=os.path.basename(text.rstrip("/")) + "/" * text.endswith("/"))  # noqa: PTH119

    return Offered()


def _keys() -> Any:
    """Return the keys: Enter ends the text, Alt-Enter begins a new line, Ctrl-C empties the line or, if it is empty, ends like Ctrl-D."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: Any) -> None:
        buffer = event.current_buffer
        if buffer.document.current_line_before_cursor.endswith(CONTINUES) and buffer.document.is_cursor_at_the_end:
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event: Any) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=EOFError)

    return keys
