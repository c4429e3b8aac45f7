"""Groups of plain settings that `Engine` takes together. Each pluggable part has its own parameter instead."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from detent.config.protocols import EmbedderSettings, TranscriberSettings
from detent.config.retention import Retention
from detent.core.budget import Budget
from detent.core.durations import Seconds, usually
from detent.core.errors import ConfigError, Explained
from detent.metering.provider_limits import ModelLimits, ModelRetries, ProviderLimits
from detent.ports import Embedder, Transcriber
from detent.ports.options import check_fields

GRACE_S = 5.0
DRAIN_S = 25.0
"""Less than the 30 s that supervisors leave between SIGTERM and SIGKILL."""


class Models(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """How an engine calls models.

    `limits`: how many calls and tokens a provider gets (an object that engines share, or limits by provider). `retries`: how failed calls are
    retried. `titles`: whether one call to the agent's small model gives each run a title for lists. `embedder` and `transcriber`: the models for
    `embed`, `transcribe` and the tools `find` and `transcribe`, as a name ("openai:text-embedding-3-small", "openai:whisper-1"), settings or
    an object.
    """

    limits: Mapping[str, ModelLimits] | ProviderLimits | None = None
    retries: ModelRetries | None = None
    titles: bool = False
    embedder: str | EmbedderSettings | Embedder | None = None
    transcriber: str | TranscriberSettings | Transcriber | None = None

    __post_init__ = check_fields


class ChildBounds(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """Limits of teams: how many levels below its root a run may be (`depth`), how many children a run may start, and how many advance `at_once`."""

    depth: int = 8
    per_run: int = 64
    at_once: int = 8

    def __post_init__(self) -> None:
        check_fields(self)
        for name, least in (("depth", 0), ("per_run", 0), ("at_once", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"children.{name} is {getattr(self, name)}; give at least {least}")


class Bounds(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """Settings for every run of an engine.

    `budget`: the budget of a run if neither its start nor its agent sets one. `max_concurrent_runs`: how many runs advance at once (None: all).
    `max_active_per_key`: how many runs of one key (`Engine.submit`) all workers of the store advance at once (None: no limit). `max_versions`: on how
    many versions of the code there may be unfinished runs at once: a worker with one more does not start, and one more is neither rolled out nor
    submitted (None: no limit). `grace_s`: how long a running call may take to stop after its run is cancelled. `drain_s`: how long calls with an
    effect may take to finish when the engine stops (0: they are cancelled at once). `goal_words_in_ids`: whether generated run ids contain words of
    the goal; ids stay when a run is erased. `retention`: how long runs are kept. `children`: how large teams may become.
    """

    budget: Budget = Budget()
    max_concurrent_runs: int | None = None
    max_active_per_key: int | None = None
    grace_s: Seconds[float] = usually(GRACE_S)
    drain_s: Seconds[float] = usually(DRAIN_S)
    goal_words_in_ids: bool = True
    retention: Retention = Retention()
    children: ChildBounds = ChildBounds()
    max_versions: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("max_concurrent_runs", "max_active_per_key", "max_versions"):
            if (most := getattr(self, name)) is not None and most < 1:
                raise ConfigError(f"{name} is {most}; give at least 1, or leave it out")
        if not 0 <= self.drain_s < math.inf:
            raise ConfigError(f"drain_s is {self.drain_s}; give a number of seconds, or 0 to cancel calls at once")
