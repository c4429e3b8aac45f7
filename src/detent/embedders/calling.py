"""One call of an embedding model, through the run's gateway if there is one."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec.structs import replace

from detent.core.budget import NOTHING
from detent.core.errors import ModelCallFailure
from detent.ports import Embeddings, ModelAnswer, Models


async def called(
    send: Callable[[], Awaitable[ModelAnswer]], texts: Sequence[str], *, model: str, provider: str, models: Models | None
) -> Embeddings:
    """Return the result of `send`, counted once: by the gateway, or in the embeddings' own usage.

    The answer's value is the list of vectors. Raises `ModelCallFailure`, also if there is not one vector per text.
    """

    async def checked(_limit: int | None = None) -> ModelAnswer:
        answer = await send()
        _check(answer.value, len(texts), model)
        return answer

    if models is None:
        answer = await checked()
    else:
        size = sum(-(-len(text) // 4) for text in texts)
        answer = await models.call(model, checked, provider=provider, purpose="embed", input_tokens=size)
    vectors = tuple(tuple(float(x) for x in vector) for vector in answer.value)
    return Embeddings(vectors=vectors, model=model, usage=NOTHING if models is not None else replace(answer.usage, model_calls=1))


def _check(vectors: Any, wanted: int, model: str) -> None:
    """Raise `ModelCallFailure` unless there is one vector of finite numbers per text, all of the same length."""
    problem = ""
    if len(vectors) != wanted:
        problem = f"{len(vectors)} vectors came for {wanted} texts"
    elif len({len(vector) for vector in vectors}) > 1 or any(not vector for vector in vectors):
        problem = "the vectors are empty, or have different lengths"
    elif not all(_finite(x) for vector in vectors for x in vector):
        problem = "a vector holds something that is not a finite number"
    if problem:
        raise ModelCallFailure(f"embedding model {model!r}: {problem}", kind="server")


def _finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False
