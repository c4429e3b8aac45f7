"""The options that several commands share, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Goal = Annotated[
    list[str] | None, typer.Argument(metavar="GOAL...", help="What is to be achieved; the words are joined.", show_default=False)
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run id, a unique beginning of one, or `last`.", show_default=False)]
CallArgument = Annotated[str, typer.Argument(metavar="CALL", help="The id of a call, such as main.3.0.", show_default=False)]
Store = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", help="ram:, file:DIR, sqlite:///PATH or postgresql://HOST/DATABASE. Default: sqlite:///.detent/runs.db"
    ),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Read FILE instead of ./detent.toml.")]
Workspace = Annotated[Path | None, typer.Option("--workspace", metavar="DIR", help="The directory that workspace tools are confined to.")]
AgentFile = Annotated[
    str | None, typer.Option("--agent", metavar="FILE", help="An agent file, or a name that detent.toml gives one. Default: ./agent.toml")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]
Verbose = Annotated[int, typer.Option("--verbose", "-v", count=True, help="Show input and output of calls; twice: every record.")]
Bounds = Annotated[list[str] | None, typer.Option("--budget", metavar="K=V", help="A bound, such as max_tool_calls=20. Repeatable.")]
MaxIterations = Annotated[int | None, typer.Option("--max-iterations", metavar="N", help="The same as --budget max_iterations=N.")]
Variables = Annotated[list[str] | None, typer.Option("--var", metavar="K=V", help="A variable of the agent. Repeatable.")]
OwnRunId = Annotated[str | None, typer.Option("--run-id", metavar="ID", help="An id of your own; an existing run of that id is taken on.")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decides, for the log. Default: the user of this machine.")]
NoResume = Annotated[bool, typer.Option("--no-resume", help="Only record the answer; do not take the run on here.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, for the log.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Without a terminal nothing is asked.")]

Model = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="PROVIDER:NAME", help="The model that plans, such as openai:gpt-5, anthropic:..., ollama:qwen3."),
]
SmallModel = Annotated[
    str | None, typer.Option("--small-model", metavar="PROVIDER:NAME", help="The model for titles, critiques and classifications.")
]
Temperature = Annotated[float | None, typer.Option("--temperature", metavar="T", help="How much chance there is in answers.", min=0.0)]
BaseUrl = Annotated[
    str | None,
    typer.Option("--base-url", metavar="URL", help="Ask the model at this OpenAI-compatible URL, such as http://127.0.0.1:8080/v1."),
]
KeyVariable = Annotated[
    str | None,
    typer.Option("--api-key-env", metavar="NAME", help="The environment variable with the key for --base-url; no other key is sent there."),
]
PlannerKind = Annotated[
    Literal["model", "on-device"] | None,
    typer.Option(
        "--planner", help="on-device: the model writes text, of which actions are read; for small models on a server of your own."
    ),
]
ToolCalls = Annotated[
    Literal["native", "text"] | None,
    typer.Option(
        "--tool-calls", help="text: for a model that cannot call tools; it is shown them in words, and its calls are read from its text."
    ),
]
NoStream = Annotated[bool, typer.Option("--no-stream", help="Take answers whole instead of in pieces.")]
Tools = Annotated[
    list[str] | None, typer.Option("--tools", metavar="LIST", help="The tools, by name or ./file.py:name, with commas between. Repeatable.")
]

ForTenant = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="For whom the run is: what it uses is charged to this tenant.")
]
ForPrincipal = Annotated[str | None, typer.Option("--principal", metavar="NAME", help="Who of the tenant asks, for policies and the log.")]
Scopes = Annotated[
    list[str] | None, typer.Option("--scope", metavar="NAME", help="A scope that the run has, for tools that need one. Repeatable.")
]
Credentials = Annotated[
    list[str] | None,
    typer.Option(
        "--credential",
        metavar="NAME",
        help="A secret that the run's tools may have. Repeatable. Default: all; none as soon as --tenant, --principal or --scope is given.",
    ),
]
