"""`detent help`: a group of commands, one command, or the settings; without a topic, the first screen."""

from __future__ import annotations

from typing import Annotated

import typer

from detent.cli.commands import EVERY, GROUPS, first_screen, group_lines
from detent.cli.output import Output
from detent.core.errors import UnknownName

SETTINGS = "settings"


def _topics() -> list[str]:
    return [*(group.lower() for group in GROUPS), SETTINGS, *EVERY]


def _topics_like(incomplete: str) -> list[str]:
    return [name for name in _topics() if name.startswith(incomplete)]


def help_on(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]",
            help="A group, a command, or `settings`. Default: the first screen.",
            autocompletion=_topics_like,
        ),
    ] = None,
) -> int:
    """Explain a group of commands, one command, or the settings: precedence, environment variables and exit codes."""
    output = Output()
    named = (topic or "").strip().lower()
    groups = {group.lower(): group for group in GROUPS}
    if not named:
        lines = first_screen()
    elif named in groups:
        lines = group_lines(groups[named])
    elif named == SETTINGS:
        lines = _settings()
    else:
        raise UnknownName("topic of `detent help`", named, _topics())
    for line in lines:
        output.show(line)
    return 0


def _settings() -> list[str]:
    from detent.config.environment import ENVIRONMENT, OTHERS

    bounds = [name for name, key in ENVIRONMENT.items() if key[0] == "budget"]
    named = [name for name in (*ENVIRONMENT, *OTHERS) if name not in bounds]
    return [
        "Settings, later ones override earlier ones: built-in, detent.toml, agent file, environment, options.",
        "`detent where` shows the files in use. `detent init` writes a detent.toml.",
        "",
        "Environment variables:",
        *(f"  {name}" for name in named),
        f"  {bounds[0]}, ... : one for each bound of a budget",
        "",
        "Exit codes: 0 completed, 1 failed, 2 usage, 3 waiting, 4 stopped, 5 suspended.",
    ]
