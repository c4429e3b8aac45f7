"""Text generators: a raw-text model's request, its result, and how any kind of generator is run to its end.

A generator is anything that can be called with a `Request`: a function or a coroutine function that returns the text, or one that yields
it in pieces. Blocking ones run in their own thread, which never keeps a program from ending.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Literal, Protocol, cast

import msgspec

from detent.core.budget import NOTHING, Usage
from detent.core.errors import ConfigError, Explained
from detent.planners.text.surrogates import whole_text
from detent.ports import MadeFile

Emit = Callable[[Literal["text", "thinking"], str], None]


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message of a prompt."""

    role: Literal["system", "user", "assistant"]
    content: str


class Request(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A request: an answer to `messages`, of at most `max_tokens`, that ends before any text of `stop`.

    `tokens` is about how many the messages have. `schema` is the JSON Schema that constrained decoding should enforce (None:
    free text). A generator ignores what it does not support.
    """

    messages: tuple[Message, ...]
    tokens: int = 0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    schema: dict[str, Any] | None = None

    @property
    def prompt(self) -> str:
        """The messages as one text, for models without a chat template."""
        names = {"system": "", "user": "User: ", "assistant": "Assistant: "}
        return "\n\n".join(f"{names[m.role]}{m.content}" for m in self.messages) + "\n\nAssistant: "


class Generation(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The generated text, whole or a piece of a stream; the pieces add up.

    `finish`: `stop`, or `length` if the limit cut the text off ("" if the generator cannot tell). If the generator does not count, `usage` is
    NOTHING and is estimated. `files` are what the model made beside its text.
    """

    text: str = ""
    thinking: str = ""
    usage: Usage = NOTHING
    model: str = ""
    finish: str = ""
    request_id: str = ""
    files: tuple[MadeFile, ...] = ()


Generated = str | Generation


class TextGenerator(Protocol):
    """Generates text. Returns or yields `str` or `Generation`, blocking or not. Raises `ModelCallFailure` for failures that it can classify.

    `model` and `provider`, if present, name it in the log and select the shared limits. `timeout_s` is the time limit of a request,
    with all its attempts.
    """

    def __call__(self, request: Request, /) -> Generated | Awaitable[Generated] | Iterator[Generated] | AsyncIterator[Generated]: ...


async def generate(generator: TextGenerator, request: Request, emit: Emit) -> Generation:
    """Run `generator` to its end and return the whole result; pieces of a stream are emitted as they come.

    Raises `ConfigError` if the result is not text.
    """
    whole = _Whole(emit)
    if _blocks(generator):
        await _in_thread(generator, request, whole)
        return whole.generation()
    answer: Any = generator(request)
    if inspect.isawaitable(answer):
        answer = await answer
    if hasattr(answer, "__aiter__"):
        try:
            async for piece in answer:
                whole.add(piece)
        finally:
            close = getattr(answer, "aclose", None)
            if close is not None:
                await close()
    else:
        whole.add(answer)
    return whole.generation()


def _blocks(generator: Any) -> bool:
    """Whether calling it may block: it is neither a coroutine function nor an asynchronous generator."""
    called = generator if inspect.isroutine(generator) else getattr(generator, "__call__", generator)  # noqa: B004 - the method is what is looked at
    return not (inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called))


class _Whole:
    """Adds pieces up."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._said: dict[str, Any] = {}
        self._files: list[MadeFile] = []

    def add(self, piece: Any) -> None:
        """Add a piece, and stream it."""
        if isinstance(piece, str):
            piece = Generation(text=piece)
        if not isinstance(piece, Generation):
            raise ConfigError(f"the text generator gave {type(piece).__name__}; it must return or yield str or Generation")
        if piece.thinking:
            self._thinking.append(piece.thinking)
            self._emit("thinking", piece.thinking)
        if piece.text:
            self._text.append(piece.text)
            self._emit("text", piece.text)
        if piece.usage != NOTHING:
            self._said["usage"] = piece.usage
        self._files += piece.files
        for field in ("model", "finish", "request_id"):
            if value := getattr(piece, field):
                self._said[field] = value

    def generation(self) -> Generation:
        """Return the sum of the pieces."""
        text, thinking = whole_text("".join(self._text)), whole_text("".join(self._thinking))
        return Generation(text=text, thinking=thinking, files=tuple(self._files), **self._said)


# Blocking generators ----------------------------------------------------------------------------------------------------------


async def _in_thread(generator: TextGenerator, request: Request, whole: _Whole) -> None:
    """Run a blocking generator in a daemon thread. If this task is cancelled, the thread ends at its next piece."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
    gone = threading.Event()

    def tell(kind: str, value: Any) -> None:
        try:
            loop.call_soon_threadsafe(pieces.put_nowait, (kind, value))
        except RuntimeError:  # the loop is closed: nobody listens any more
            gone.set()

    def work() -> None:
        try:
            answer: Any = generator(request)
            if inspect.isawaitable(answer) or hasattr(answer, "__aiter__"):
                tell("async", answer)
                return
            if isinstance(answer, str) or not isinstance(answer, Iterator):
                tell("piece", answer)
            else:
                for piece in cast("Iterator[Any]", answer):
                    tell("piece", piece)
                    if gone.is_set():
                        break
        except BaseException as error:  # noqa: BLE001 - foreign code: what a generator raises is raised where it was asked
            tell("error", error)
        else:
            tell("end", None)

    threading.Thread(target=work, name="detent-generator", daemon=True).start()
    try:
        while True:
            kind, value = await pieces.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            if kind == "async":
                await _drain(value, whole)
                return
            whole.add(value)
    finally:
        gone.set()


async def _drain(answer: Any, whole: _Whole) -> None:
    """Process a plain function's result that has to be awaited or iterated here."""
    if inspect.isawaitable(answer):
        answer = await answer
    if hasattr(answer, "__aiter__"):
        async for piece in answer:
            whole.add(piece)
    else:
        whole.add(answer)
