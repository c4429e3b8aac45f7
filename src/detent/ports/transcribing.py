"""Speech to text."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from detent.core.budget import NOTHING, Usage
from detent.core.errors import Explained
from detent.ports.models import Models


class Word(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """One word of a transcript, with its start and end in seconds from the beginning."""

    word: str
    start: float
    end: float


class Segment(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A segment of a transcript, usually a sentence, with its start and end in seconds from the beginning."""

    id: int
    start: float
    end: float
    text: str


class Transcript(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The text of a recording, and what the server reports about it. "" and None mean that it does not report a value.

    `task` is "transcribe" or "translate", `duration` is the length of the recording in seconds. `usage` is the cost if no run counted it.
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
    """Turns speech into text. `model` is the name of the model."""

    @property
    def model(self) -> str: ...

    async def transcribe(self, audio: dict[str, Any], *, hint: str = "", language: str = "", models: Models | None = None) -> Transcript:
        """Return the transcript of an audio attachment with `data` or a `url`.

        `hint` names words that may occur, `language` is an ISO 639-1 code. With a run's gateway in `models`, the log records the call and the run
        is charged for it (`usage` is then NOTHING). Raises `ModelCallFailure`.
        """
        ...
