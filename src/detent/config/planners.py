"""Chooses the planner of an agent: its rules, else the engine's planner, else its model. Each planner is created once, when needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from detent.config.adapters import is_attachment
from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError, PlannerFailed
from detent.ports import Plan, Planner, View, asks_only_its_own


class Planners:
    """The planner of each agent: its rules, else the engine's own planner, else its model. Model planners are created once, when needed.

    `around` gets each planner and returns its replacement. A planner with `check(spec)` says before a run begins that it cannot plan for an agent.
    """

    def __init__(self, own: Planner | None) -> None:
        self.own = own
        self.around: Callable[[Planner], Planner] | None = None
        self._models: dict[str, Any] = {}

    def of(self, spec: AgentSpec, *, check: bool = True) -> Planner:
        """Return the planner. Raise `ConfigError`; with `check` also if this process cannot call the agent's model."""
        found = self._of(spec, check=check)
        return found if self.around is None else self.around(found)

    def model_of(self, spec: AgentSpec, *, check: bool = True) -> Planner:
        """Return the planner for the model of `spec`, even if another planner is configured. Raise `ConfigError` as `of`."""
        found = self._model_of(spec, check=check)
        return found if self.around is None else self.around(found)

    def needed(self, spec: AgentSpec, *, check: bool = True) -> Planner:
        """Return the planner. Raise `ConfigError` also if this process has none: a worker then leaves the run to others."""
        if not (spec.rules or spec.model) and self.own is None and self.around is None:
            raise ConfigError(
                f"agent {spec.name!r} has neither rules nor a model, and the engine has no planner; give Agent(model=...), "
                "Agent(rules=...), Engine(planner=...), or planner in detent.toml"
            )
        return self.of(spec, check=check)

    def of_pass(self, spec: AgentSpec, *, check: bool = True) -> Planner:
        """Return the planner of a pass with its own model, which `spec` names. Raise `ConfigError` as `of`.

        This is the engine's planner, unless that planner calls only its own model; then the model is called by its name.
        """
        own = self.own
        found = own if own is not None and not asks_only_its_own(own) else self._model_of(spec, check=check)
        return found if self.around is None else self.around(found)

    def _of(self, spec: AgentSpec, *, check: bool) -> Planner:
        if spec.rules:
            from detent.planners.rules.planner import RulePlanner

            return RulePlanner.from_rules(list(spec.rules), source=f"the rules of agent {spec.name!r}")
        if self.own is not None or not spec.model:
            if check and (own_check := getattr(self.own, "check", None)) is not None:
                own_check(spec)
            return self.own or NoPlanner(spec)
        return self._model_of(spec, check=check)

    def _model_of(self, spec: AgentSpec, *, check: bool) -> Planner:
        if spec.planner not in self._models:
            self._models[spec.planner] = _raw_text_models() if spec.planner else _model_planner()
        if check:
            self._models[spec.planner].check(spec)
        return self._models[spec.planner]

    def refuse_attachments(self, spec: AgentSpec, attachments: Sequence[Any]) -> None:
        """Raise `ConfigError` for an attachment that the agent's model does not accept. A recording may be for the tool `transcribe`."""
        planner: Any = self._of(spec, check=False)
        if not hasattr(planner, "not_taken"):
            return
        for number, attachment in enumerate(attachments, 1):
            if not is_attachment(attachment) or (attachment["type"] == "audio" and "transcribe" in spec.tools):
                continue
            if what := planner.not_taken(spec, attachment):
                name = attachment.get("name") or f"number {number}"
                hint = ", or list the tool 'transcribe'" if attachment["type"] == "audio" else ""
                raise ConfigError(
                    f"attachment {name!r}: the model of agent {spec.name!r}{f' ({spec.model})' if spec.model else ''} does not accept {what}; "
                    f"nothing was recorded. Leave it out, name a model that accepts it{hint}"
                )

    async def close(self) -> None:
        """Close the connections to models."""
        if "" in self._models:
            await self._models[""].close()


def check_settings(settings: dict[str, Any], where: str) -> None:
    """Raise `ConfigError` for model settings that are unknown or do not fit."""
    from detent.planners.settings import read_settings

    read_settings(settings, where)


def _model_planner() -> Any:
    from detent.planners.model.planner import ModelPlanner

    return ModelPlanner()


def _raw_text_models() -> Any:
    from detent.planners.raw_text.by_name import RawTextModels

    return RawTextModels()


class NoPlanner:
    """Used if no planner was given. It reports this when it is called."""

    def __init__(self, spec: AgentSpec) -> None:
        self._spec = spec

    async def plan(self, view: View) -> Plan:
        """Raise `PlannerFailed`."""
        raise PlannerFailed(f"agent {self._spec.name!r} has neither rules nor a planner: give it rules or a model, or Engine(planner=...)")
