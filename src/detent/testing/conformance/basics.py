"""The contracts of a `Clock`, of `Ids` and of an `Embedder`, as tests.

class TestMyEmbedder(EmbedderContract):
    @pytest.fixture
    def maker(self):
        return MyEmbedderMaker()
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from detent.core.budget import NOTHING
from detent.core.errors import ModelCallFailure
from detent.ports import Clock, Embedder, Embeddings, Ids
from detent.testing.conformance.planner_makers import Gateway, Refused
from detent.testing.conformance.promises import Maker, documented, made

__all__ = ["ClockContract", "ClockMaker", "EmbedderContract", "EmbedderMaker", "IdsContract", "IdsMaker"]


class ClockMaker(Maker):
    """Makes clocks."""

    def clock(self) -> Clock:
        """Return a new clock."""
        raise NotImplementedError


@documented(page="howto/extend/conformance.md#capabilities-secrets-embedders-clocks-names", port="Clock")
class ClockContract:
    """All that a `Clock` promises. A subclass gives the fixture `maker`."""

    def test_now_is_utc(self, maker: ClockMaker) -> None:
        """The time has its zone, so that records from different places can be compared."""
        now = maker.clock().now()
        assert now.utcoffset() == timedelta(0), f"`now` gave {now!r}, which is not in UTC"

    def test_the_monotonic_clock_never_goes_back(self, maker: ClockMaker) -> None:
        """Seconds that do not depend on the wall clock: time budgets are measured with them."""
        clock = maker.clock()
        readings = [clock.monotonic() for _ in range(1000)]
        assert all(math.isfinite(reading) for reading in readings)
        assert readings == sorted(readings), "a later reading is less than an earlier one"


class IdsMaker(Maker):
    """Makes sources of names. `random`: names are random, so that two sources never give the same one."""

    random: bool = True

    def ids(self) -> Ids:
        """Return a new source of names."""
        raise NotImplementedError


@documented(page="howto/extend/conformance.md#capabilities-secrets-embedders-clocks-names", port="Ids")
class IdsContract:
    """All that `Ids` promise. A subclass gives the fixture `maker`."""

    def test_a_token_has_the_length_and_the_letters_that_were_asked_for(self, maker: IdsMaker) -> None:
        """`token(n)` has n characters of a to z and 0 to 9, because it becomes part of run ids, file names and URLs."""
        ids = maker.ids()
        for length in (4, 6, 8, 16, 22, 300, 5000):
            token = ids.token(length)
            assert len(token) == length, f"token({length}) has {len(token)} characters"
            assert set(token) <= set("abcdefghijklmnopqrstuvwxyz0123456789"), f"token({length}) gave {token[:80]!r}"

    def test_no_token_comes_twice(self, maker: IdsMaker) -> None:
        """Names of one source differ, and so do those of two random sources."""
        ids, other = maker.ids(), maker.ids()
        tokens = [ids.token(16) for _ in range(5000)]
        tokens += [other.token(16) for _ in range(5000)] if maker.random else []
        assert len(set(tokens)) == len(tokens), f"{len(tokens) - len(set(tokens))} of {len(tokens)} tokens came before"


class EmbedderMaker(Maker):
    """Makes embedders.

    asks_models   they ask a model, through the gateway if they get one
    asked()       how many requests have reached it
    """

    asks_models: bool = False

    def embedder(self) -> Embedder:
        """Return a new embedder."""
        raise NotImplementedError

    def broken(self) -> Embedder | None:
        """Return an embedder whose model cannot be reached; None if that is not possible."""
        return None

    def asked(self) -> int:
        """Return how many requests have reached the model."""
        return 0


TEXTS = ("the cat sat on the mat", "", "Preis: 5 €", "a cat on a mat", "\U0001f600 \x00", "quarterly revenue of the company " * 30)


def _vectors(found: object, embedder: Embedder, count: int) -> Embeddings:
    """Return the embeddings; fail if they are malformed."""
    assert isinstance(found, Embeddings), f"`embed` gave a {type(found).__name__}; it gives detent.ports.Embeddings"
    assert len(found.vectors) == count, f"{count} texts gave {len(found.vectors)} vectors"
    lengths = {len(vector) for vector in found.vectors}
    assert len(lengths) <= 1, f"the vectors have different lengths: {sorted(lengths)}"
    assert 0 not in lengths, "the vectors are empty"
    assert all(math.isfinite(number) for vector in found.vectors for number in vector), "a vector has a value that is not a number"
    assert found.model == embedder.model, f"the vectors name {found.model!r} made them, the embedder is {embedder.model!r}"
    return found


def _close(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6) for a, b in zip(one, other, strict=True))


@documented(page="howto/models/on-device.md#embeddings", port="Embedder")
class EmbedderContract:
    """All that an `Embedder` promises. A subclass gives the fixture `maker`."""

    async def test_each_text_has_its_vector_in_order(self, maker: EmbedderMaker) -> None:
        """As many vectors as texts, in their order, of one length, finite, and from the model that `model` names."""
        embedder = maker.embedder()
        together = _vectors(await embedder.embed(TEXTS), embedder, len(TEXTS))
        for text, vector in zip(TEXTS, together.vectors, strict=True):
            (alone,) = _vectors(await embedder.embed((text,)), embedder, 1).vectors
            assert _close(vector, alone), f"{text[:30]!r} has one vector alone and another among others"
        assert not _close(together.vectors[0], together.vectors[5]), "two texts that share no word have the same vector"

    async def test_no_texts_are_no_vectors(self, maker: EmbedderMaker) -> None:
        """No texts give no vectors, without a request."""
        before = maker.asked()
        found = await maker.embedder().embed(())
        assert found.vectors == ()
        assert maker.asked() == before, "a request was made for nothing"

    async def test_queries_and_documents_can_be_compared(self, maker: EmbedderMaker) -> None:
        """Vectors of both purposes have the same length and name the same model."""
        embedder = maker.embedder()
        document = _vectors(await embedder.embed(TEXTS[:1], purpose="document"), embedder, 1)
        query = _vectors(await embedder.embed(TEXTS[:1], purpose="query"), embedder, 1)
        assert len(document.vectors[0]) == len(query.vectors[0])

    async def test_a_run_is_charged_once(self, maker: EmbedderMaker) -> None:
        """With the gateway of a run, each request passes it, and the embeddings report `NOTHING` as usage: the log already has it."""
        gateway, before = Gateway(), maker.asked()
        embedder = maker.embedder()
        found = _vectors(await embedder.embed(TEXTS[:2], models=gateway), embedder, 2)
        assert found.usage == NOTHING, f"the gateway has charged the call, and {found.usage!r} would be charged once more"
        assert maker.asked() - before == gateway.sent, f"{maker.asked() - before} requests were made, {gateway.sent} passed the gateway"
        assert not maker.asks_models or gateway.sent >= 1, "nothing passed the gateway"

    async def test_a_refusal_of_the_gateway_goes_through(self, maker: EmbedderMaker) -> None:
        """If the run's budget is used up, there is no request."""
        if not maker.asks_models:
            pytest.skip("this embedder asks no model")
        before = maker.asked()
        with pytest.raises(Refused):
            await maker.embedder().embed(TEXTS[:2], models=Gateway(refuses=True))
        assert maker.asked() == before, "the gateway refused, and the model was asked all the same"

    async def test_a_model_that_cannot_be_reached_is_a_model_call_failure(self, maker: EmbedderMaker) -> None:
        """The error has a message and is never that of a library."""
        embedder = made(maker.broken(), "fails")
        with pytest.raises(ModelCallFailure) as caught:
            await embedder.embed(TEXTS[:1])
        assert str(caught.value).strip()
