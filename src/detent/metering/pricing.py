"""What model calls cost: prices from genai-prices (extra `models`), and a program's prices for its own models.

Without a price the cost is unknown (None), never zero. This is logged once per model and process. Prices are those of the day of the call.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any

import msgspec

from detent.core.budget import Usage
from detent.core.errors import ConfigError, Explained

log = logging.getLogger("detent")

_PROVIDERS = {
    "openai-chat": "openai",
    "openai-responses": "openai",
    "google-gla": "google",
    "google-vertex": "google",
    "google-cloud": "google",
    "gemini": "google",
    "bedrock": "aws",
    "xai": "x-ai",
    "grok": "x-ai",
}
"""Provider names that the price list spells differently."""

_REGION = ("us.", "eu.", "apac.", "global.")
"""The prefix of a model name that Bedrock serves from several regions."""


WARNED: set[str] = set()
"""Models whose missing price this process has already logged: one warning per model, however many engines there are."""


class ModelPrice(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price of a model, in USD per million tokens. `cached_usd` is for cached input, and defaults to `input_usd`.

    `minute_usd`: per minute of transcribed audio.
    """

    input_usd: float
    output_usd: float
    cached_usd: float | None = None
    minute_usd: float = 0.0

    def __post_init__(self) -> None:
        for name in ("input_usd", "output_usd", "cached_usd", "minute_usd"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                of = "a minute of audio" if name == "minute_usd" else "a million tokens"
                raise ConfigError(f"{name} is {value}; a price is 0 or more, in USD for {of}")

    def of(self, usage: Usage, audio_s: float = 0.0) -> float:
        """Return the cost of `usage` and of this many seconds of audio."""
        cached = min(usage.cached_tokens, usage.input_tokens)
        cheap = self.input_usd if self.cached_usd is None else self.cached_usd
        tokens = (usage.input_tokens - cached) * self.input_usd + cached * cheap + usage.output_tokens * self.output_usd
        return tokens / 1e6 + audio_s / 60 * self.minute_usd


class Prices:
    """Computes what model calls cost. `own` prices, by "provider:model" or by the model's name alone, override the price list."""

    def __init__(self, own: Mapping[str, ModelPrice] | None = None) -> None:
        self._own = dict(own or {})
        self._found: dict[tuple[str, str], Any] = {}

    @property
    def listed(self) -> bool:
        """Whether the price list is installed."""
        return find_spec("genai_prices") is not None

    def knows(self, model: str, provider: str = "") -> bool:
        """Whether there is a price for the model; `model` may be "provider:name"."""
        return self.cost(model, provider, Usage(input_tokens=1, output_tokens=1), quiet=True) is not None

    def cost(self, model: str, provider: str, usage: Usage, *, audio_s: float = 0.0, quiet: bool = False) -> float | None:
        """Return the cost of `usage` of the model in USD, or None without a price (logged once per process unless `quiet`).

        `audio_s` are the seconds of audio that the model transcribed.
        """
        key = (model, provider)
        if key not in self._found:
            self._found[key] = self._find(model, provider)
        price = self._found[key]
        if isinstance(price, ModelPrice):
            return price.of(usage, audio_s)
        cost = None if price is None else _listed(price, usage)
        if cost is None and not quiet and model not in WARNED:
            WARNED.add(model)
            log.warning("no price for model %r: counting its tokens, not its cost", model)
        return cost

    def _find(self, model: str, provider: str) -> Any:
        """Return one of our own prices, or provider and model as the price list spells them. None if neither knows the model."""
        prefixed = ":" in model and (not provider or model.startswith(f"{provider}:"))
        named, _, bare = model.partition(":") if prefixed else (provider, "", model)
        for name in (model, f"{named}:{bare}", bare):
            if name in self._own:
                return self._own[name]
        if not named:
            return None  # who bills it is unknown
        try:
            from genai_prices.data_snapshot import get_snapshot
        except ImportError:
            return None
        found = _PROVIDERS.get(named, named)
        regional = [bare.removeprefix(region) for region in _REGION if found == "aws" and bare.startswith(region)]
        for name in (bare, *regional):
            with contextlib.suppress(LookupError):
                provider_info, model_info = get_snapshot().find_provider_model(name, None, found, None)
                return model_info, provider_info
        return None


def _listed(price: tuple[Any, Any], usage: Usage) -> float | None:
    """Return the cost of `usage` by the price list. None if the list has no price that fits.

    Most prices are rates by token, which this computes itself. The library computes the rest (by request, by second).
    """
    model, provider = price
    now = datetime.now(UTC)
    prices: object = model.get_prices(now)
    named: dict[str, Any] = vars(prices)
    rates = [named.get(key) for key in ("input_mtok", "output_mtok", "cache_read_mtok")]
    into, out, cached = (rate if rate is None else _rate(rate, usage.input_tokens) for rate in rates)
    if into is None or out is None or named.get("requests_kcount") is not None:
        return _by_library(model, provider, usage, now)
    return ModelPrice(input_usd=into, output_usd=out, cached_usd=cached).of(usage)


def _rate(price: Any, input_tokens: int) -> float:
    """Return a price for a million tokens. The price of a long prompt applies to all tokens of the call."""
    tiers: list[Any] = getattr(price, "tiers", [])
    base = getattr(price, "base", price)
    return float(next((tier.price for tier in reversed(tiers) if input_tokens > tier.start), base))


def _by_library(model: Any, provider: Any, usage: Usage, now: datetime) -> float | None:
    from genai_prices import Usage as Counted

    cached = min(usage.cached_tokens, usage.input_tokens) or None
    counted = Counted(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cache_read_tokens=cached)
    try:
        found = model.calc_price(counted, provider, genai_request_timestamp=now, auto_update_timestamp=None, price_context=None)
    except (LookupError, ValueError):
        return None
    return float(found.total_price)
