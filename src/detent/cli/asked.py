"""The model options of `detent run`. They override an agent file, or make an agent without one.

They become part of the agent and are recorded with it, so `detent resume RUN` does not need them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from detent.cli.option_sets import Options
from detent.config.agents import Agent
from detent.config.imports import absolute_import, load_object, load_tool
from detent.core.errors import ConfigError

IMPLICIT = "assistant"
"""The name of an agent that is made from options alone."""


class Asked(Options, frozen=True, kw_only=True):
    """The options as given; None means not given."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="PROVIDER:NAME", help="The model that plans, such as openai:gpt-5, anthropic:..., ollama:qwen3."
        ),
    ] = None
    small_model: Annotated[
        str | None, typer.Option("--small-model", metavar="PROVIDER:NAME", help="The model for titles, critiques and classifications.")
    ] = None
    temperature: Annotated[float | None, typer.Option("--temperature", metavar="T", help="Sampling temperature.", min=0.0)] = None
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", metavar="URL", help="Call the model at this OpenAI-compatible URL, such as http://127.0.0.1:8080/v1."),
    ] = None
    api_key_env: Annotated[
        str | None,
        typer.Option(
            "--api-key-env", metavar="NAME", help="The environment variable that holds the key for --base-url. No other key is sent there."
        ),
    ] = None
    planner: Annotated[
        Literal["model", "on-device"] | None,
        typer.Option("--planner", help="on-device: read actions from the text that the model writes; for small models on your own server."),
    ] = None
    tool_calls: Annotated[
        Literal["native", "text"] | None,
        typer.Option(
            "--tool-calls",
            help="text: for a model that cannot call tools. The prompt describes the tools, and calls are read from the answer.",
        ),
    ] = None
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Do not stream answers.")] = False
    tools: Annotated[
        list[str] | None,
        typer.Option("--tools", metavar="LIST", help="The tools, separated by commas: names, or ./file.py:name,name. Repeatable."),
    ] = None

    def over(self, agent: Agent) -> Agent:
        """Return the agent, overridden by these options; a model replaces rules. Raise `ConfigError`."""
        changes: dict[str, Any] = {}
        if self.model is not None:
            if not self.model.strip():
                raise ConfigError("--model is empty; name one as PROVIDER:NAME, such as --model openai:gpt-5")
            changes |= {"model": self.model, "rules": ()}
        if self.small_model is not None:
            changes["small_model"] = self.small_model
        if self.planner is not None:
            changes["planner"] = "" if self.planner == "model" else self.planner
        said = {
            "temperature": self.temperature,
            "base_url": self.base_url,
            "api_key_env": self.api_key_env,
            "tool_calls": self.tool_calls,
        }
        settings = {name: value for name, value in said.items() if value is not None} | ({"stream": False} if self.no_stream else {})
        if settings:
            changes["model_settings"] = {**agent.model_settings, **settings}
        if self.tools is not None:
            changes |= _tools(self.tools, agent)
        if any(name not in ("tools", "meta") for name in changes) and agent.rules and self.model is None:
            raise ConfigError(f"agent {agent.name!r} plans by rules, so model options have no effect; add --model to let a model plan")
        return msgspec.structs.replace(agent, **changes)

    def agent(self, workspace: str | None) -> Agent:
        """Return an agent made from these options alone. If a `workspace` was named, it has all workspace tools unless `--tools` is given."""
        from detent.tools.workspace.tools import workspace_tools

        names = tuple(tool.name for tool in workspace_tools(".")) if workspace is not None else ()
        return self.over(Agent(name=IMPLICIT, tools=names))


def _tools(said: Sequence[str], agent: Agent) -> dict[str, Any]:
    """Return the tools that `--tools` lists, names and import paths, and what a later process needs to import them.

    A bare name after an import path belongs to the same file if the file defines it: "./file.py:first,second" names two of its tools.
    """
    imports: list[str] = []
    tools: list[Any] = []
    for text in said:
        place = ""
        for entry in filter(None, (part.strip() for part in text.split(","))):
            path = absolute_import(entry, Path.cwd()) if ":" in entry else f"{place}:{entry}" if place and _holds(place, entry) else ""
            if path:
                imports.append(path)
                place = path.rpartition(":")[0]
            tools.append(load_tool(path, "--tools") if path else entry)
    meta = {name: value for name, value in agent.meta.items() if name != "tool_imports"}
    return {"tools": tuple(tools), "meta": {**meta, **({"tool_imports": imports} if imports else {})}}


def _holds(module: str, name: str) -> bool:
    """Whether an imported module or file defines this name."""
    try:
        load_object(f"{module}:{name}", "--tools")
    except ConfigError:
        return False
    return True
