"""Detent's clocks, names and embedders keep their contracts; broken ones are found out."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from detent.clock import RandomIds, SystemClock
from detent.core.budget import NOTHING, Usage
from detent.core.errors import ModelCallFailure
from detent.embedders import HashingEmbedder, OpenAICompatibleEmbedder, PydanticAIEmbedder
from detent.ports import Clock, Embedder, Embeddings, Ids, ModelAnswer
from detent.testing import FakeClock, SequentialIds
from detent.testing.conformance.basics import ClockContract, ClockMaker, EmbedderContract, EmbedderMaker, IdsContract, IdsMaker
from planners.raw_text.texts import Exchange, model_server
from testing.conformance.rejecting import checks_of, failing


class Clocks(ClockMaker):
    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def clock(self) -> Clock:
        return self._make()


class Names(IdsMaker):
    def __init__(self, make: Callable[[], Any], *, random: bool = True) -> None:
        self._make, self.random = make, random

    def ids(self) -> Ids:
        return self._make()


@pytest.mark.parametrize("make", [SystemClock, FakeClock, lambda: FakeClock(tick_s=0.5)], ids=["system", "fake", "ticking"])
class TestClocks(ClockContract):
    @pytest.fixture
    def maker(self, make: Callable[[], Any]) -> ClockMaker:
        return Clocks(make)


@pytest.mark.parametrize(("make", "random"), [(RandomIds, True), (SequentialIds, False)])
class TestIds(IdsContract):
    @pytest.fixture
    def maker(self, make: Callable[[], Any], random: bool) -> IdsMaker:
        return Names(make, random=random)


class LocalTime(SystemClock):
    def now(self) -> datetime:
        return datetime.now(UTC).astimezone(tz=None).replace(tzinfo=None) + timedelta(hours=2)


class GoesBack(SystemClock):
    def __init__(self) -> None:
        self.left = itertools.cycle([1.0, 2.0, 1.5])

    def monotonic(self) -> float:
        return next(self.left)


@pytest.mark.parametrize(("make", "failed"), [(LocalTime, {"test_now_is_utc"}), (GoesBack, {"test_the_monotonic_clock_never_goes_back"})])
def test_the_suite_rejects_a_clock_that_is_broken(make: Any, failed: set[str]) -> None:
    """The check about the broken promise fails, and no other."""
    assert failing(ClockContract, lambda: Clocks(make)) == failed


class Shouts(RandomIds):
    def token(self, length: int) -> str:
        return super().token(length).upper()


class IsShort(RandomIds):
    def token(self, length: int) -> str:
        return super().token(min(length, 22))


class BeginsAlike(RandomIds):
    """Two processes that begin from one seed."""

    def __init__(self) -> None:
        self.count = SequentialIds()

    def token(self, length: int) -> str:
        return self.count.token(length)


class Repeats(RandomIds):
    def token(self, length: int) -> str:
        return "a" * length


LETTERS = "test_a_token_has_the_length_and_the_letters_that_were_asked_for"
TWICE = "test_no_token_comes_twice"


@pytest.mark.parametrize(("make", "failed"), [(Shouts, {LETTERS}), (IsShort, {LETTERS}), (BeginsAlike, {TWICE}), (Repeats, {TWICE})])
def test_the_suite_rejects_ids_that_are_broken(make: Any, failed: set[str]) -> None:
    """The check about the broken promise fails, and no other."""
    assert failing(IdsContract, lambda: Names(make)) == failed


# Embedders ----------------------------------------------------------------------------------------------------------------------


class Hashing(EmbedderMaker):
    def embedder(self) -> Embedder:
        return HashingEmbedder()


class Served(EmbedderMaker):
    """A server on loopback with OpenAI's `/embeddings`; `make` makes an embedder for its URL."""

    asks_models = True

    def __init__(self, make: Callable[[str], Embedder]) -> None:
        self._make, self._asked = make, 0
        self._stack = contextlib.AsyncExitStack()

    async def open(self) -> None:
        self._url = await self._stack.enter_async_context(model_server(self._serve))

    async def close(self) -> None:
        await self._stack.aclose()

    async def _serve(self, exchange: Exchange) -> None:
        self._asked += 1
        if not exchange.path.endswith("/v1/embeddings"):
            await exchange.answer({"error": {"message": "no"}}, status=401)
            return
        texts = exchange.body["input"]
        made = await HashingEmbedder().embed([texts] if isinstance(texts, str) else texts)
        entries = [{"object": "embedding", "index": n, "embedding": list(vector)} for n, vector in enumerate(made.vectors)]
        usage = {"prompt_tokens": 3, "total_tokens": 3}
        answer = {"object": "list", "model": "served", "data": entries[::-1], "usage": usage}
        await exchange.answer(answer, headers={"content-type": "application/json"})

    def embedder(self) -> Embedder:
        return self._make(f"{self._url}/v1")

    def broken(self) -> Embedder:
        return self._make(f"{self._url}/v0")

    def asked(self) -> int:
        return self._asked


def over_http(url: str) -> Embedder:
    return OpenAICompatibleEmbedder("served", base_url=url, batch=4)


class TestHashingEmbedder(EmbedderContract):
    @pytest.fixture
    def maker(self) -> EmbedderMaker:
        return Hashing()


class TestOpenAICompatibleEmbedder(EmbedderContract):
    @pytest.fixture
    def maker(self) -> EmbedderMaker:
        return Served(over_http)


class OfPydanticAI(EmbedderMaker):
    """The embedding model that pydantic-ai has for tests, which makes vectors of nothing but their length."""

    asks_models = True

    def __init__(self) -> None:
        from pydantic_ai.embeddings import EmbeddingModel

        outer = self
        self._asked = 0

        class Model(EmbeddingModel):
            fails = False

            @property
            def model_name(self) -> str:
                return "served"

            @property
            def system(self) -> str:
                return "test"

            async def embed(self, inputs: Any, *, input_type: Any, settings: Any = None) -> Any:
                from pydantic_ai.embeddings import EmbeddingResult
                from pydantic_ai.usage import RequestUsage

                outer._asked += 1
                if self.fails:
                    raise ConnectionError("refused")
                texts = [inputs] if isinstance(inputs, str) else list(inputs)
                made = await HashingEmbedder().embed(texts)
                return EmbeddingResult(
                    embeddings=[list(vector) for vector in made.vectors],
                    inputs=texts,
                    input_type=input_type,
                    model_name="served",
                    provider_name="test",
                    usage=RequestUsage(input_tokens=3),
                )

        self._model = Model

    def embedder(self) -> Embedder:
        return PydanticAIEmbedder(self._model())

    def broken(self) -> Embedder:
        model = self._model()
        model.fails = True
        return PydanticAIEmbedder(model)

    def asked(self) -> int:
        return self._asked


class TestPydanticAIEmbedder(EmbedderContract):
    @pytest.fixture
    def maker(self) -> EmbedderMaker:
        return OfPydanticAI()


class Sound:
    """An embedder over a model by hand that keeps the contract."""

    model = "mind"

    def __init__(self, maker: Minds) -> None:
        self.maker = maker
        self.down = False

    async def embed(self, texts: Sequence[str], *, purpose: Any = "document", models: Any = None) -> Embeddings:
        if not texts:
            return Embeddings(vectors=(), model=self.model)

        async def send(limit: int | None) -> ModelAnswer:
            return ModelAnswer(value=await self.ask(texts), usage=Usage(input_tokens=3), model="mind")

        answer = await send(None) if models is None else await models.call(self.model, send, purpose="embed")
        return Embeddings(vectors=answer.value, model=self.model, usage=NOTHING if models is not None else answer.usage)

    async def ask(self, texts: Sequence[str]) -> tuple[tuple[float, ...], ...]:
        self.maker.count += 1
        if self.down:
            raise ModelCallFailure("nobody answers", kind="connection")
        return (await HashingEmbedder().embed(texts)).vectors


class Changed(Sound):
    def change(self, found: Embeddings, purpose: str) -> Embeddings:
        return found

    async def embed(self, texts: Sequence[str], *, purpose: Any = "document", models: Any = None) -> Embeddings:
        return self.change(await super().embed(texts, purpose=purpose, models=models), purpose)


class SortsItsTexts(Sound):
    async def ask(self, texts: Sequence[str]) -> tuple[tuple[float, ...], ...]:
        return await super().ask(sorted(texts))


class LeavesOutBlankTexts(Sound):
    async def ask(self, texts: Sequence[str]) -> tuple[tuple[float, ...], ...]:
        return await super().ask([text for text in texts if text])


class GivesNoNumbers(Changed):
    def change(self, found: Embeddings, purpose: str) -> Embeddings:
        return msgspec.structs.replace(found, vectors=tuple((float("nan"), *vector[1:]) for vector in found.vectors))


class GivesOneVectorForAll(Changed):
    def change(self, found: Embeddings, purpose: str) -> Embeddings:
        return msgspec.structs.replace(found, vectors=tuple((1.0, 0.0) for _ in found.vectors))


class NamesAnother(Changed):
    def change(self, found: Embeddings, purpose: str) -> Embeddings:
        return msgspec.structs.replace(found, model=f"mind-{purpose}")


class AsksForNothing(Sound):
    async def embed(self, texts: Sequence[str], *, purpose: Any = "document", models: Any = None) -> Embeddings:
        if not texts:
            await self.ask(())
        return await super().embed(texts, purpose=purpose, models=models)


class HasLongerQueries(Changed):
    def change(self, found: Embeddings, purpose: str) -> Embeddings:
        if purpose == "document":
            return found
        return msgspec.structs.replace(found, vectors=tuple((*vector, 0.0) for vector in found.vectors))


class IsChargedTwice(Changed):
    def change(self, found: Embeddings, purpose: str) -> Embeddings:
        return msgspec.structs.replace(found, usage=Usage(input_tokens=3))


class GoesPastTheGateway(Sound):
    async def embed(self, texts: Sequence[str], *, purpose: Any = "document", models: Any = None) -> Embeddings:
        found = await super().embed(texts, purpose=purpose)
        return msgspec.structs.replace(found, usage=NOTHING)


class AsksWhenRefused(Sound):
    async def embed(self, texts: Sequence[str], *, purpose: Any = "document", models: Any = None) -> Embeddings:
        try:
            return await super().embed(texts, purpose=purpose, models=models)
        except ModelCallFailure:
            raise
        except Exception:  # noqa: BLE001 - what is broken in it
            return await super().embed(texts, purpose=purpose)


class LetsForeignErrorsOut(Sound):
    async def ask(self, texts: Sequence[str]) -> tuple[tuple[float, ...], ...]:
        if self.down:
            raise ConnectionError("refused")
        return await super().ask(texts)


class Minds(EmbedderMaker):
    asks_models = True

    def __init__(self, kind: type[Sound]) -> None:
        self.kind, self.count = kind, 0

    def embedder(self) -> Any:
        return self.kind(self)

    def broken(self) -> Any:
        made = self.kind(self)
        made.down = True
        return made

    def asked(self) -> int:
        return self.count


EACH = "test_each_text_has_its_vector_in_order"
NO_TEXTS = "test_no_texts_are_no_vectors"
PURPOSES = "test_queries_and_documents_can_be_compared"
CHARGED = "test_a_run_is_charged_once"
REFUSED = "test_a_refusal_of_the_gateway_goes_through"
FAILURE = "test_a_model_that_cannot_be_reached_is_a_model_call_failure"

REJECTED: dict[Any, set[str]] = {
    Sound: set(),
    SortsItsTexts: {EACH},
    LeavesOutBlankTexts: {EACH, CHARGED},
    GivesNoNumbers: {EACH, PURPOSES, CHARGED},
    GivesOneVectorForAll: {EACH},
    NamesAnother: {EACH, PURPOSES, CHARGED},
    AsksForNothing: {NO_TEXTS},
    HasLongerQueries: {PURPOSES},
    IsChargedTwice: {CHARGED},
    GoesPastTheGateway: {CHARGED, REFUSED},
    AsksWhenRefused: {REFUSED},
    LetsForeignErrorsOut: {FAILURE},
}


@pytest.mark.parametrize("kind", REJECTED)
def test_the_suite_rejects_an_embedder_that_is_broken(kind: Any) -> None:
    """The checks about the broken promise fail, and no other; a sound one fails none."""
    assert failing(EmbedderContract, lambda: Minds(kind)) == REJECTED[kind]


def test_every_check_rejects_something() -> None:
    """No check of these suites is there for nothing."""
    rejecting = {*set().union(*REJECTED.values()), LETTERS, TWICE, "test_now_is_utc", "test_the_monotonic_clock_never_goes_back"}
    assert {name for suite in (ClockContract, IdsContract, EmbedderContract) for name in checks_of(suite)} - rejecting == set()
