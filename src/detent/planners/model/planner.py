"""`ModelPlanner`: a language model proposes the next action, through pydantic-ai's model classes.

A plan is one answer of the model: its tool calls as a batch, or one control action, or the final answer. Only what the provider marked as a
call becomes a call. Text is text, except for models that call no tools (`without_tools`). Every request passes the run's gateway, which
retries, counts and prices it. A repeated request of `turn` (for an empty answer, a cut one, a typed answer that does not fit) passes it, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError
from detent.core.state import Item
from detent.planners.model.attachments import not_taken
from detent.planners.model.exchange import Exchange
from detent.planners.model.messages import Renderer, Rendering
from detent.planners.model.output_modes import mode_for, refuse_mode, refuse_mode_of_text
from detent.planners.model.prompt import Head, make_head
from detent.planners.model.taken import refuse_unknown, taken
from detent.planners.model.turn import Turn
from detent.planners.model.without_tools import check_text, draws, make_writer, text_limits, writes_text
from detent.planners.providers import ModelRef, address_hint, key_hint_at, keys_in_use, make_model
from detent.planners.raw_text.planner import OnDevicePlanner
from detent.planners.settings import ModelSettings, for_provider, read_settings
from detent.planners.trimming import compression_of, schema_detail_of, temperature_of
from detent.ports import Plan, View
from detent.ports.processes import keep, renew_in_children

log = logging.getLogger("detent")

_TEXT_ALONE = {f"supports_{kind}_input": False for kind in ("image", "audio_file", "video", "document")}
_KEPT = 256
"""The number of passes whose renderings and heads are cached."""


class ModelPlanner:
    """Plans with its own model if it has one, else with the model of the run's agent.

    `model`: "provider:name", or a model object of pydantic-ai. `settings`: like `Agent.model_settings`, which override these.
    Clients are kept for each event loop; `close` closes them.
    """

    def __init__(self, model: Any = None, *, settings: dict[str, Any] | None = None) -> None:
        self._given = model
        self._settings = dict(settings or {})
        read_settings(self._settings)
        self._exchanges: WeakKeyDictionary[Any, dict[Any, Exchange]] = WeakKeyDictionary()
        self._heads: OrderedDict[tuple[str, str], tuple[tuple[Any, ...], Head]] = OrderedDict()
        self._renderings: OrderedDict[tuple[str, str, str, str], Rendering] = OrderedDict()
        self._limits: dict[tuple[str, str], int] = {}
        self._named: set[tuple[str, str]] = set()
        self._known: dict[tuple[Any, bytes], tuple[int, Callable[[Item], int] | None]] = {}
        self._writers: WeakKeyDictionary[Exchange, dict[int, OnDevicePlanner]] = WeakKeyDictionary()
        renew_in_children(self)

    def forked(self) -> None:
        """Drop all clients: in a forked child the connections belong to the parent, and must not be closed here."""
        keep(self._exchanges)
        self._exchanges = WeakKeyDictionary()

    @property
    def asks_only_its_own(self) -> bool:
        """Whether it has its own model and calls no other; see `ports.asks_only_its_own`."""
        return self._given is not None

    def begin_run(self, run_id: str) -> None:
        """Forget the cached parts of a run: an engine starts or resumes it."""
        for kept in (self._heads, self._renderings, self._limits):
            for key in [key for key in kept if key[0] == run_id]:
                del kept[key]  # type: ignore[arg-type]

    def check(self, agent: AgentSpec) -> None:
        """Raise `ConfigError` if the agent's models cannot be called from here: a wrong name, a missing key or client, wrong settings."""
        settings = read_settings({**self._settings, **agent.model_settings})
        models: list[Any] = []
        for named in (agent.model, agent.small_model or agent.model) if self._given is None else (self._given,):
            model = make_model(_ref(named, settings)) if isinstance(named, str) else named
            models.append(model)
            shown = named if isinstance(named, str) else f"{getattr(model, 'system', '')}:{getattr(model, 'model_name', model)}"
            if isinstance(named, str) and writes_text(model, settings):
                check_text(settings)
                refuse_mode_of_text(agent.output_mode, shown)
            elif hasattr(model, "profile"):
                refuse_mode(agent.output_mode, model, shown, offers=bool(agent.tools or agent.actions))
        refuse_unknown(settings.extra, [model for model in models if hasattr(model, "profile")])

    def not_taken(self, agent: AgentSpec, attachment: dict[str, Any]) -> str:
        """Return the kind of an attachment that the agent's model does not take, "" if it takes it. Raises as `check`."""
        settings = read_settings({**self._settings, **agent.model_settings})
        model: Any = make_model(_ref(agent.model, settings)) if self._given is None else self._given
        model = make_model(_ref(model, settings)) if isinstance(model, str) else model
        return not_taken(attachment, _TEXT_ALONE if writes_text(model, settings) else model.profile)

    def models_asked(self, agent: AgentSpec) -> list[tuple[str, str]]:
        """Return the models that are called for the agent, each with the provider of its price; see `ports.models_asked`."""
        given: Any = agent.model if self._given is None else self._given
        base_url = read_settings({**self._settings, **agent.model_settings}).base_url
        named = [name for name in (given, agent.small_model) if isinstance(name, str) and name]
        objects = [(f"{given.system}:{given.model_name}", given.system)] if hasattr(given, "system") else []
        return [*objects, *((name, ModelRef(name=name, base_url=base_url).billed_by) for name in named)]

    def prompt_limits(self, agent: AgentSpec) -> tuple[int, Callable[[Item], int] | None]:
        """Return the context window that pydantic-ai knows of the agent's model; see `ports.prompt_limits`. Text is counted by `OnDevicePlanner`."""
        settings = read_settings({**self._settings, **agent.model_settings})
        given: Any = agent.model if self._given is None else self._given
        key = given if isinstance(given, str) else id(given), msgspec.json.encode({**self._settings, **agent.model_settings})
        if key not in self._known:
            try:
                model: Any = make_model(_ref(given, settings)) if isinstance(given, str) else given
            except ConfigError:  # its call says so
                return 0, None
            if not hasattr(model, "profile"):
                return 0, None
            if writes_text(model, settings):
                self._known[key] = text_limits(settings, agent)
            else:
                self._known[key] = int(model.profile.get("context_window") or 0), None
        return self._known[key]

    async def close(self) -> None:
        """Close the clients that this event loop opened."""
        for exchange in self._exchanges.pop(asyncio.get_running_loop(), {}).values():
            await exchange.close()

    async def plan(self, view: View) -> Plan:
        """Return the model's next plan.

        Raise `MalformedPlan` for an answer that is not a plan, `ModelCallFailure` without an answer, `PlannerFailed` with reason
        `output_schema_failed` for a typed answer that does not fit after two more tries.
        """
        exchange = await self._exchange(view)
        if exchange.text is not None and not draws(exchange.model, view):
            return await self._writer(exchange, exchange.text, view.profile.window_tokens).plan(view)
        key = (view.run_id, view.scope)
        head = self._head(view, exchange)
        turn = Turn(
            exchange,
            view,
            head,
            await self._rendered(view, exchange, head),
            raised=self._limits.get(key),
        )
        try:
            return await turn.plan()
        finally:
            if turn.raised is not None and view.run_id:
                self._limits[key] = turn.raised

    def _writer(self, exchange: Exchange, settings: ModelSettings, window_tokens: int) -> OnDevicePlanner:
        """Return the planner of a model that calls no tools."""
        kept = self._writers.setdefault(exchange, {})
        if window_tokens not in kept:
            kept[window_tokens] = make_writer(exchange, settings, window_tokens=window_tokens)
        return kept[window_tokens]

    # What is kept ---------------------------------------------------------------------------------------------------------------

    async def _rendered(self, view: View, exchange: Exchange, head: Head) -> Rendering:
        """Return the transcript as messages; rendered messages are reused."""
        key = (view.run_id, view.scope, exchange.system, exchange.model_name)
        done = self._renderings.pop(key, None) if view.run_id else None
        if done is None or not done.covers(view.transcript):
            done = Rendering()
        renderer = Renderer(
            system=exchange.system,
            model=exchange.model_name,
            compression=compression_of(view),
            names=head.names,
            profile=exchange.model.profile,
        )
        await renderer.extend(done, view)
        if view.run_id:
            _keep(self._renderings, key, done)
        return done

    def _head(self, view: View, exchange: Exchange) -> Head:
        """Return the stable part of the prompt: the same object as long as its inputs are the same."""
        wanted, offers = view.agent.output_mode, bool(view.tools or view.agent.actions)
        mode = "tool" if view.output_schema is None else mode_for(wanted, exchange.model, view.output_schema, offers=offers)
        key, made_of = (view.run_id, view.scope), (view.agent, view.tools, view.output_schema, mode)
        kept = self._heads.get(key) if view.run_id else None
        if kept is not None and _same(kept[0], made_of):
            return kept[1]
        head = make_head(view, detail=schema_detail_of(view), mode=mode)
        if view.run_id:
            _keep(self._heads, key, (made_of, head))
        return head

    async def _exchange(self, view: View) -> Exchange:
        """Return the model for a view on this event loop, opened at first use. Raise `ConfigError`.

        If a small model is enough for the pass, that is the agent's `small_model`, if it has one.
        """
        agent = view.agent
        said = {**self._settings, **agent.model_settings}
        named: Any = self._given if self._given is not None else agent.model
        if view.small and agent.small_model:
            named = agent.small_model
        kept = self._exchanges.setdefault(asyncio.get_running_loop(), {})
        temperature = temperature_of(view)
        key = (named if isinstance(named, str) else id(named), msgspec.json.encode(said), temperature)
        if key not in kept:
            settings = read_settings(said)
            if settings.extra:  # a pass may have its own settings, which were not checked when the run began
                self.check(agent)
            made = await opened(named, settings, temperature, self._named)
            if kept.setdefault(key, made) is not made:  # another run opened it meanwhile
                await made.close()
        return kept[key]


def _ref(named: str, settings: ModelSettings) -> ModelRef:
    return ModelRef(name=named, base_url=settings.base_url, api_key_env=settings.api_key_env, timeout_s=settings.timeout_s)


async def opened(named: Any, settings: ModelSettings, temperature: float | None, told: set[tuple[str, str]]) -> Exchange:
    """Return a model that is ready to be called, from its name or the given object. Raise `ConfigError`.

    `told` are the settings that were already logged as ignored by a model.
    """
    name, provider, key, address = "", "", "", ""
    if isinstance(named, str):
        ref = _ref(named, settings)
        model, name, provider, key, address = make_model(ref), named, ref.billed_by, key_hint_at(ref), address_hint(ref)
    elif hasattr(named, "request") and hasattr(named, "profile"):
        model = named
    else:
        raise ConfigError(f"model: {named!r} is neither a name nor a model of pydantic-ai")
    asked, idle = taken(model, for_provider(settings, temperature=temperature))
    shown = name or f"{model.system}:{model.model_name}"
    chosen = {
        (shown, setting) for setting in idle if setting != "temperature" or settings.temperature is not None
    }  # a profile may ask for one
    if fresh := sorted(setting for _, setting in chosen - told):
        told |= chosen
        log.warning("model %r does not support %s: not sent", shown, ", ".join(fresh))
    exchange = Exchange(
        model,
        name=name,
        provider=provider,
        settings=asked,
        stream=settings.stream,
        max_tokens=settings.max_tokens,
        key=key,
        keys=keys_in_use(model, settings.api_key_env),
        address=address,
        text=settings if writes_text(model, settings) else None,
        timeout_s=settings.timeout_s,
    )
    await exchange.open()
    return exchange


def _keep(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > _KEPT:
        kept.popitem(last=False)


def _same(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Whether the stable part of the prompt has the same inputs. Tools are compared by identity first, because their schemas are long."""
    if before[0] != now[0] or before[2:] != now[2:] or len(before[1]) != len(now[1]):
        return False
    return all(mine is theirs or mine == theirs for mine, theirs in zip(before[1], now[1], strict=True))
