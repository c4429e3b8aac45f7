"""The options that several commands share. Each is declared once; options that belong together form a set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from detent.cli.option_sets import Options, Without

COMPLETED: dict[str, Callable[[dict[str, Any], str], list[str]]] = {}
"""The functions that complete a value, by its kind. `completion` sets them when a shell asks; no other command needs them."""


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the runs that a shell may offer."""
    return COMPLETED["runs"](ctx.params, incomplete) if COMPLETED else []


def complete_agent(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the agents that a shell may offer."""
    return COMPLETED["agents"](ctx.params, incomplete) if COMPLETED else []


def complete_session(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the sessions that a shell may offer."""
    return COMPLETED["sessions"](ctx.params, incomplete) if COMPLETED else []


SESSION_HELP = "its id, a unique prefix, `last`, or `last-1` for the one before"
RUN_HELP = "A run: its id, a unique prefix or the last word of the id, `last`, or `last-1` for the one before."
Goal = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="GOAL...",
        help="What the agent should achieve; several words are joined. `-`, or no goal in a pipe: read it from stdin.",
        show_default=False,
    ),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP, show_default=False, autocompletion=complete_run)]
CallArgument = Annotated[str, typer.Argument(metavar="CALL", help="The id of a call, such as main.3.0.", show_default=False)]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="ram:, file:DIR, sqlite:///PATH or postgresql://HOST/DATABASE. Default: the store of this directory, see `detent where`.",
    ),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Read FILE instead of ./detent.toml.")]
Workspace = Annotated[Path | None, typer.Option("--workspace", metavar="DIR", help="The directory that workspace tools are confined to.")]
AgentFile = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="FILE",
        help="An agent file, or the name of an agent in detent.toml. Default: ./agent.toml",
        autocompletion=complete_agent,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]
Verbose = Annotated[int, typer.Option("--verbose", "-v", count=True, help="Show input and output of calls; -vv shows every record.")]
Bounds = Annotated[list[str] | None, typer.Option("--budget", metavar="K=V", help="Set a limit, such as max_tool_calls=20. Repeatable.")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Your name for the log. Default: the login name.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, for the log.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; required without a terminal.")]


Trust = Annotated[
    bool,
    typer.Option("--trust", help="Trust the directories of the files in use, for this command only; see `detent trust`."),
]


class Place(Options, frozen=True, kw_only=True):
    """Which store, workspace and configuration a command works with."""

    store: Store = None
    workspace: Workspace = None
    config: ConfigFile = None
    trust: Trust = False


class Setup(Place, frozen=True, kw_only=True):
    """The options for a command's `Invocation`."""

    json_wanted: Json = False
    verbose: Verbose = 0


Quiet = Annotated[Setup, Without("verbose")]
"""For a command that shows no run in progress."""
Looking = Annotated[Setup, Without("workspace", "verbose")]
"""For a command that also executes nothing."""


class Answering(Options, frozen=True, kw_only=True):
    """The options of every command that answers a waiting run."""

    by: By = None
    no_resume: Annotated[bool, typer.Option("--no-resume", help="Only record the answer; do not continue the run here.")] = False
    setup: Setup = Setup()
