"""The tables `[models.*]` and `[tenants.*]` of `detent.toml`: limits by provider, prices by model, retries of failed calls, and the limits
of all runs of a tenant.

    [models.limits.openai]
    concurrent = 8
    tokens_per_minute = 400_000

    [models.prices."ollama:llama3.2"]
    input_usd = 0
    output_usd = 0

    [models.retries]
    retries = 2

    [tenants.acme]
    window = "month"
    max_cost_usd = 100

Every mistake is a `ConfigError` that names the file and the key.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec

from detent.config.engines import ModelsConfig
from detent.config.protocols import EmbedderSettings, TranscriberSettings
from detent.config.tables import take
from detent.core.errors import ConfigError
from detent.metering.pricing import ModelPrice
from detent.metering.provider_limits import ModelLimits, ModelRetries
from detent.metering.tenants import TenantBudget, checked_tenants

T = TypeVar("T", bound=msgspec.Struct)


class ModelTables(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of `[models]`."""

    limits: dict[str, Any] = {}
    prices: dict[str, Any] = {}
    retries: dict[str, Any] | None = None
    titles: bool | None = None
    embedder: Any = None
    transcriber: Any = None


def take_models(said: Any, where: str) -> ModelsConfig:
    """Return the settings of the tables. Raise `ConfigError`, beginning with `where`."""
    tables = take(_table(said, f"{where}: models"), ModelTables, where, "models.")
    limits = {name: _one(table, ModelLimits, where, f"models.limits.{name}") for name, table in tables.limits.items()}
    prices = {name: _one(table, ModelPrice, where, f"models.prices.{name}") for name, table in tables.prices.items()}
    retries = None if tables.retries is None else _one(tables.retries, ModelRetries, where, "models.retries")
    kinds = {"embedder": EmbedderSettings, "transcriber": TranscriberSettings}
    asked = {name: _named(getattr(tables, name), kind, where, f"models.{name}") for name, kind in kinds.items()}
    return ModelsConfig(limits=limits or None, prices=prices or None, retries=retries, titles=tables.titles, **asked)


def take_tenants(said: Any, where: str) -> dict[str, TenantBudget]:
    """Return the tables `[tenants.NAME]`. Raise `ConfigError`, beginning with `where`."""
    budgets = {name: _one(table, TenantBudget, where, f"tenants.{name}") for name, table in _table(said, f"{where}: tenants").items()}
    try:
        return checked_tenants(budgets)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _named(said: Any, kind: type[T], where: str, key: str) -> Any:
    """Return the name of a model, or its settings."""
    return said if said is None or isinstance(said, str) else _one(said, kind, where, key)


def _one(said: Any, kind: type[T], where: str, key: str) -> T:
    table = _table(said, f"{where}: {key}")
    required = [field.encode_name for field in msgspec.structs.fields(kind) if field.required and field.encode_name not in table]
    if required:
        raise ConfigError(f"{where}: {key}.{required[0]}: missing; every such table needs it")
    return take(table, kind, where, f"{key}.")


def _table(said: Any, where: str) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise ConfigError(f"{where}: expected a table, found {type(said).__name__}")
    return cast("dict[str, Any]", said)
