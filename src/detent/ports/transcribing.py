"""Speech written down."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from detent.core.budget import NOTHING, Usage
from detent.core.errors import Explained
from detent.ports.models import Models


class Word(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """One word of a transcript, and when it was said, in seconds from the beginning."""

    word: str
    start: float
    end: float


class Segment(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A piece of a transcript, mostly a sentence, and when it was said, in seconds from the beginning."""

    id: int
    start: float
    end: float
    text: str


class Transcript(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What was said, and what the server reports about it: "" and None stand for what it does not report.

    `task` is "transcribe" or "translate", `duration` is that of the recording in seconds. `usage` is what it cost where no run counted it.
    """

    text: str
    model: str = ""
    task: str = ""
    language: str = ""
    duration: float | None = None
    words: tuple[Word, ...] = ()
    segments: tuple[Segment, ...] = ()
    usage: Usage = NOTHING


class Transcriber(Protocol):
    """Writes speech down. `model` names what does it."""

    @property
    def model(self) -> str: ...

    async def transcribe(self, audio: dict[str, Any], *, hint: str = "", language: str = "", models: Models | None = None) -> Transcript:
        """Return the transcript of an audio attachment with `data` or a `url`.

        `hint` names what may be spoken of, `language` is an ISO 639-1 code. With a run's gateway in `models` the call is recorded and charged there
        (`usage` is then NOTHING). Raises `ModelCallFailure`.
        """
        ...
