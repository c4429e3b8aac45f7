"""Decides what counts here of what a log says about imports, skills, a workspace, an agent file, a sandbox, and the variable of a key.

A log may be forged, or come from another machine. So an import counts only from a trusted directory, or if a trusted file here names it. A sandbox
is off only if such a file turns it off. A worker takes all of this from its own configuration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detent.config.demands import Demand, imported_file
from detent.config.engines import Config
from detent.config.loading import AGENT_FILE, IMPORTS, path_of_agent, recorded
from detent.config.tables import place_of
from detent.config.trust import Trust
from detent.core.errors import ConfigError
from detent.core.state import RunState


def own_agents(config: Config) -> list[Path]:
    """Return the agent files that a configuration names, and the one in the working directory."""
    agents = config.agents or {}
    named = [*agents.values(), *([config.agent] if config.agent and config.agent not in agents else []), AGENT_FILE]
    return list(dict.fromkeys(path.resolve() for path in map(path_of_agent, named) if place_of(path)[0].is_file()))


class Word:
    """What one run's log says, for one command. `own`: only the configuration here counts, as for a worker."""

    def __init__(self, state: RunState, config: Config, trust: Trust, *, own: bool = False) -> None:
        self._run, self._agent, self._own = f"run {state.run_id}", state.agent, own
        self._config, self._trust = config, trust
        self._meta: dict[str, Any] = state.agent.meta
        self._here = Path.cwd()

    def counts(self) -> dict[str, Any]:
        """Return what counts, by the keys of `AgentSpec.meta`; ask for missing trust. Raise `ConfigError`."""
        self.check_key()
        file, filed = self._agent_file()
        found: dict[str, Any] = {"agent_file": str(file) if file is not None else ""}
        for key in IMPORTS.values():
            found[key] = self._imports(key, filed.get(key, ()))
        self.need_commands(filed.get("verify_commands", ()))
        found["skills"] = self._skills(filed.get("skills", ()))
        found["workspace"] = self._workspace(filed.get("workspace", ""), file)
        sandbox = self._meta.get("sandbox")
        found["sandbox"] = filed.get("sandbox") if sandbox == "off" else sandbox
        return found

    def check_key(self) -> None:
        """Raise `ConfigError` if the log asks to send a key that the operator has not named."""
        settings = self._agent.model_settings
        if not self._agent.rules and settings.get("base_url") and (name := settings.get("api_key_env")):
            self._trust.need_variable(str(name), f"{self._run}: model_settings.api_key_env", self._here)

    def _agent_file(self) -> tuple[Path | None, dict[str, Any]]:
        """Return the agent file that counts for the run, and those of its values that logs record."""
        said, own = self._meta.get("agent_file"), own_agents(self._config)
        file = Path(said).resolve() if isinstance(said, str) and said else None
        if self._own and file not in own:
            file = next((one for one in own if name_in(one) == self._agent.name), None)
        if file is None or not place_of(file)[0].is_file():
            return None, {}
        self._trust.need_agent(file, logged=file not in own and file.parent != self._here)
        with contextlib.suppress(ConfigError):  # starting a run from the file reports what is wrong in it
            return file, recorded(file)
        return file, {}

    def _imports(self, key: str, filed: Sequence[str]) -> Sequence[str]:
        if self._own:
            return filed
        said = [str(path) for path in self._meta.get(key, ())]
        for path in said:
            if ":" in path and path not in filed and path not in (self._config.tools or ()):
                self._need_import(path)
        return said

    def need_commands(self, filed: Sequence[list[str]]) -> None:
        """Raise `ConfigError` if the log asks to check answers with a command that no agent file which counts here names."""
        for entry in self._agent.verify:
            words = [str(word) for word in entry.get("command", ())]
            if words and words not in filed:
                raise ConfigError(
                    f"{self._run}: its log checks answers with the command {' '.join(words)!r}, but no agent file that counts here does; "
                    "name its agent file with --agent, or resume it from the program that started it"
                )

    def _need_import(self, path: str) -> None:
        file = imported_file(path, self._here)
        if file is None:
            raise ConfigError(
                f"{self._run}: its log names the import path {path!r}, but no agent file or configuration that is trusted here does; "
                "name its agent file with --agent, or add the path to tools in the configuration"
            )
        logged = file.parent != self._here
        attribute = path.rpartition(":")[2]
        demand = Demand(file=file, key=attribute, does="import", what=f"as the log of {self._run} says")
        self._trust.need(file.parent, (demand,), logged=logged)

    def _skills(self, filed: Sequence[str]) -> Sequence[str]:
        if self._own:
            return filed
        said = [str(place) for place in self._meta.get("skills", ())]
        for place in map(Path, said):
            if str(place) not in filed and not self._within(place) and not self._trust.trusts(place.parent, logged=True):
                raise ConfigError(
                    f"{self._run}: its log names skills in {str(place)!r}, but no agent file here does; "
                    f"name its agent file with --agent, or trust them: detent trust {place.parent}"
                )
        return said

    def _workspace(self, filed: str, file: Path | None) -> str:
        said = self._meta.get("workspace")
        if not isinstance(said, str) or not said:
            return ""
        root, beside = Path(said).resolve(), file is not None and Path(said).resolve().is_relative_to(file.parent)
        if (
            self._within(root)
            or (said == filed and (self._own or self._known(file)))
            or (beside and (self._own or self._known(file)))
            or self._trust.trusts(root, logged=True)
        ):
            return said
        if self._own:
            raise ConfigError(f"{self._run} works in {said!r}, as its log says; if it may, start the worker there or with --workspace DIR")
        demand = Demand(file=root, key=self._run, does="open", what="its tools work here, as its log says (or name --workspace DIR)")
        self._trust.need(root, (demand,), logged=True)
        return said

    def _known(self, file: Path | None) -> bool:
        return file is not None and (file in own_agents(self._config) or self._trust.trusts(file.parent, logged=True))

    def _within(self, place: Path) -> bool:
        """Whether a place is inside the working directory or the configured workspace."""
        roots = [self._here, *([Path(self._config.workspace.root).expanduser()] if self._config.workspace.root else [])]
        return any(place.resolve().is_relative_to(root.resolve()) for root in roots)


def name_in(file: Path) -> str:
    """Return the name of the agent in a file, "" if it cannot be read."""
    try:
        return recorded(file).get("name", "")
    except ConfigError:
        return ""
