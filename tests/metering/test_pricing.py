"""What a call costs: by the price list, by one's own prices, and unknown where neither has the model."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from typing import Any

import pytest

from amounts import in_check
from detent import Usage
from detent.core import events as e
from detent.core.errors import ConfigError
from detent.metering.pricing import ModelPrice, Prices
from metering.providers import Caller, Provider, answer, of, run, used

MILLION = used(1_000_000, 1_000_000)


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("openai:gpt-5", ""),
        ("gpt-5", "openai"),
        ("openai-responses:gpt-5", ""),
        ("gpt-5", "openai-chat"),
        ("anthropic:claude-sonnet-4-5", ""),
        ("google:gemini-2.5-pro", ""),
        ("gemini-2.5-pro", "google-gla"),
        ("groq:llama-3.3-70b-versatile", ""),
        ("mistral:mistral-large-latest", ""),
        ("openrouter:openai/gpt-5", ""),
        ("bedrock:anthropic.claude-sonnet-4-5-20250929-v1:0", ""),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "bedrock"),
    ],
)
def test_the_price_list_knows_the_models_of_the_providers(model: str, provider: str) -> None:
    """By "provider:name" or by name and provider, also under the names that providers have here."""
    prices = Prices()
    assert prices.knows(model, provider)
    cost = prices.cost(model, provider, MILLION)
    assert cost is not None and 0.1 < cost < 200


def test_a_cost_is_that_of_the_price_list() -> None:
    """Cached input is cheaper, reasoning is output."""
    from genai_prices import Usage as Counted
    from genai_prices import calc_price

    usage = used(1000, 100, cached_tokens=200, reasoning_tokens=50)
    expected = calc_price(Counted(input_tokens=1000, output_tokens=100, cache_read_tokens=200), "gpt-5", provider_id="openai").total_price
    assert Prices().cost("openai:gpt-5", "", usage) == pytest.approx(float(expected))


@in_check
def test_every_price_of_the_list_comes_out_as_the_library_has_it() -> None:
    """Also where a long prompt costs more a token than a short one, where prices depend on the day, and where each request costs."""
    from genai_prices import Usage as Counted
    from genai_prices.data_snapshot import get_snapshot

    short, long = used(1000, 50), used(300_000, 500, cached_tokens=1000)
    compared = 0
    for provider in get_snapshot().providers:
        for model in provider.models:
            for usage in (short, long):
                counted = Counted(
                    input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cache_read_tokens=usage.cached_tokens or None
                )
                expected = float(model.calc_price(counted, provider).total_price)
                found = Prices().cost(model.id, provider.id, usage)
                compared += found is not None
                assert found is None or found == pytest.approx(expected), (provider.id, model.id)
    assert compared > 2000


@pytest.mark.parametrize(
    ("model", "provider"), [("ollama:llama3.2", ""), ("gpt-5", ""), ("openai:no-such-model", ""), ("x", "nobody"), ("", "")]
)
def test_an_unknown_model_has_no_cost(model: str, provider: str) -> None:
    """Nor has one whose provider is not named: who bills it is not known."""
    assert not Prices().knows(model, provider)
    assert Prices().cost(model, provider, MILLION) is None


def test_own_prices_go_first() -> None:
    """By full name or by the model's name alone; cached input costs as input unless said otherwise."""
    prices = Prices({"openai:gpt-5": ModelPrice(input_usd=1, output_usd=2), "mine": ModelPrice(input_usd=4, output_usd=8, cached_usd=1)})
    assert prices.cost("openai:gpt-5", "", MILLION) == prices.cost("gpt-5", "openai", MILLION) == 3.0
    assert prices.cost("mine", "http", used(1_000_000, 0, cached_tokens=500_000)) == 2.5
    assert prices.cost("openai:gpt-5", "", used(1_000_000, 0, cached_tokens=500_000)) == 1.0


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_a_price_that_makes_no_sense_is_refused(value: float) -> None:
    """The field is named."""
    with pytest.raises(ConfigError, match="output_usd is"):
        ModelPrice(input_usd=1, output_usd=value)


def test_a_missing_price_is_said_once(caplog: Any) -> None:
    """A run without a bound on cost goes on; its usage has no cost."""
    with caplog.at_level(logging.WARNING, logger="detent"):
        result, events = asyncio.run(run(Caller(Provider(answer(value=None), answer()), "strange:model")))
    assert [r.message for r in caplog.records if "no price" in r.message] == [
        "no price for model 'strange:model': counting its tokens, not its cost"
    ]
    assert result.usage.cost_usd is None and [f.usage.cost_usd for f in of(events, e.ModelCallFinished)] == [None, None]
    with caplog.at_level(logging.WARNING, logger="detent"):
        asyncio.run(run(Caller(Provider(answer(value=None)), "strange:model")))  # another engine
    assert len([r for r in caplog.records if "no price" in r.message]) == 1


def test_the_model_that_the_provider_names_is_the_one_that_is_billed() -> None:
    """An alias may stand for several models; where the list does not know the name, the price is that of the one asked for."""
    prices = {"fake:one": ModelPrice(input_usd=1e6, output_usd=0), "one-large": ModelPrice(input_usd=3e6, output_usd=0)}
    provider = Provider(answer(value=None, model="one-large", usage=used(1, 0)), answer(model="one-strange", usage=used(1, 0)))
    _, events = asyncio.run(run(Caller(provider), model_prices=prices))
    assert [f.usage.cost_usd for f in of(events, e.ModelCallFinished)] == [3.0, 1.0]


def test_what_an_adapter_knows_of_the_cost_counts() -> None:
    """Some providers tell what they charge."""
    result, _ = asyncio.run(run(Caller(Provider(answer(usage=used(10, 5, cost_usd=0.75))))))
    assert result.usage.cost_usd == 0.75


def test_the_price_list_is_loaded_when_it_is_needed() -> None:
    """`import detent` does without it, and without it there is just no price."""
    code = (
        "import sys; sys.modules['genai_prices'] = None\n"
        "from detent import Usage; from detent.metering.pricing import Prices\n"
        "assert Prices().cost('openai:gpt-5', '', Usage(input_tokens=1), quiet=True) is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    light = "import sys, detent, detent.metering.gateway; assert 'genai_prices' not in sys.modules"
    subprocess.run([sys.executable, "-c", light], check=True, timeout=60)
    assert Usage().cost_usd is None
