"""A server on loopback with `/embeddings` and `/audio/transcriptions`, which keeps what it was asked."""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from planners.raw_text.texts import Exchange, model_server

SOUND = base64.b64encode(b"RIFF....WAVE").decode()
SPEECH = {
    "task": "transcribe",
    "language": "english",
    "duration": 90.0,
    "text": " Ship it on Monday. ",
    "words": [{"word": "Ship", "start": 0.0, "end": 0.4}, {"word": "broken", "start": "x"}],
    "segments": [{"id": 0, "start": 0.0, "end": 1.5, "text": " Ship it on Monday.", "tokens": [1, 2], "temperature": 0.0}],
    "usage": {"type": "duration", "seconds": 90},
}
TOPICS = (("car", "vehicle", "automobile"), ("cook", "soup", "kitchen"))


def vector_of(text: str) -> list[float]:
    """Return a vector whose direction is what the text is about, whichever words it has for it."""
    return [float(any(word in text.lower() for word in words)) for words in TOPICS] + [0.01]


class Services:
    """Answers; `changed` is given each answer and returns what is sent in its place, or (status, body)."""

    def __init__(self, changed: Callable[[dict[str, Any]], Any] = lambda answer: answer) -> None:
        self.asked: list[Exchange] = []
        self._changed = changed

    def serve(self) -> AbstractAsyncContextManager[str]:
        """Serve; gives the URL without `/v1`."""
        return model_server(self._answer)

    async def _answer(self, exchange: Exchange) -> None:
        self.asked.append(exchange)
        if exchange.path.endswith("/embeddings"):
            texts: list[str] = exchange.body["input"]
            data = [{"index": n, "embedding": vector_of(text)} for n, text in enumerate(texts)]
            answer: Any = {"model": "vectors", "data": data, "usage": {"prompt_tokens": 7 * len(texts)}}
        else:
            answer = SPEECH
        answer = self._changed(answer)
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        await exchange.answer(body, status=status)

    def texts(self) -> list[list[str]]:
        """Return the texts of each embedding call."""
        return [exchange.body["input"] for exchange in self.asked if exchange.path.endswith("/embeddings")]
