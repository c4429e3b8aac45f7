"""What `Engine` takes together: plain settings that belong to one thing. What is plugged in has a parameter of its own."""

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
"""Less than the 30 s that supervisors give a process between SIGTERM and SIGKILL."""


class Models(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """How the models of an engine are asked.

    `limits`: how many calls and tokens a provider gets (an object shared by engines, or limits by provider); `retries`: how failed calls are
    tried again; `titles`: whether an agent's small model is asked once what its run is called in lists. `embedder` and `transcriber`: what `embed`,
    `transcribe` and the tools `find` and `transcribe` ask, by name ("openai:text-embedding-3-small", "openai:whisper-1"), with settings, or as
    objects.
    """

    limits: Mapping[str, ModelLimits] | ProviderLimits | None = None
    retries: ModelRetries | None = None
    titles: bool = False
    embedder: str | EmbedderSettings | Embedder | None = None
    transcriber: str | TranscriberSettings | Transcriber | None = None

    __post_init__ = check_fields


class Bounds(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What holds for every run of an engine.

    `budget`: what a run may use where neither its start nor its agent says; `max_concurrent_runs`: how many are advanced at once (None: as many
    as there are); `grace_s`: how long a running call may take to stop once its run is cancelled; `drain_s`: how long calls with an effect may
    take to finish once the engine stops (0: they are cut off at once); `goal_words_in_ids`: whether the ids that are made for runs hold words of
    their goals, which stay when a run is erased; `retention`: how long runs are kept.
    """

    budget: Budget = Budget()
    max_concurrent_runs: int | None = None
    grace_s: Seconds[float] = usually(GRACE_S)
    drain_s: Seconds[float] = usually(DRAIN_S)
    goal_words_in_ids: bool = True
    retention: Retention = Retention()

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_concurrent_runs is not None and self.max_concurrent_runs < 1:
            raise ConfigError(f"max_concurrent_runs is {self.max_concurrent_runs}; give at least 1, or leave it out")
        if not 0 <= self.drain_s < math.inf:
            raise ConfigError(f"drain_s is {self.drain_s}; give a number of seconds, 0 to cut calls off at once")
