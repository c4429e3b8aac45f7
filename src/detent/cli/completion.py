"""Completion of commands, options, run ids and agents in bash, zsh and fish: the scripts, and the answers to each Tab.

typer makes the scripts and reads the words. A shell evaluates what it is offered, so only plain names are offered: no goals, no titles, and no
agents whose name has anything but letters, digits and `._@/-`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from detent.cli import options as o
from detent.cli.commands import EVERY
from detent.cli.output import Output
from detent.core.errors import ConfigError, DetentError
from detent.core.records import RunHead
from detent.ports import RunQuery

if TYPE_CHECKING:  # completing the name of a command must not wait for these
    from detent.cli.invocation import Invocation
    from detent.engine import Engine

VARIABLE = "_DETENT_COMPLETE"
NEWEST = 50
"""How many runs are offered."""
PLAIN = re.compile(r"[\w.@/-]+", re.ASCII)
SHELLS = ("bash", "zsh", "fish")


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"] | None, typer.Argument(metavar="[SHELL]", help="bash, zsh or fish. Default: from $SHELL.")
    ] = None,
) -> int:
    """Print the script that completes commands, options, run ids and agents in your shell.

    bash: add `eval "$(detent completion bash)"` to ~/.bashrc. zsh: add `eval "$(detent completion zsh)"` to ~/.zshrc, after compinit. fish: add
    `detent completion fish | source` to ~/.config/fish/config.fish.
    """
    named = shell or Path(os.environ.get("SHELL", "")).name
    if named not in SHELLS:
        raise ConfigError(
            f"cannot tell which shell you use ($SHELL is {os.environ.get('SHELL', '')!r}); name it: detent completion bash, zsh or fish"
        )
    Output().show(_of_typer().get_completion_script(prog_name="detent", complete_var=VARIABLE, shell=named))
    return 0


def complete(make_app: Callable[..., typer.Typer]) -> int:
    """Print the completions of the words that a shell's script has put into the environment, and return the exit code."""
    words = (os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")).split()
    named = next((word for word in words[1:] if word in EVERY), "")
    o.COMPLETED.update(runs=runs, agents=agents, sessions=sessions)
    shells = _of_typer()
    shells.completion_init()
    app = make_app(named, stubs=not named)
    return shells.shell_complete(typer.main.get_command(app), {}, "detent", VARIABLE, os.environ[VARIABLE])


def _of_typer() -> Any:
    """Return typer's module for shells, whose functions have no types."""
    return importlib.import_module("typer.completion")


def runs(options: dict[str, Any], begun: str) -> list[str]:
    """Return the newest runs that begin with this, by short name where that fits, and the words for a run such as `last`."""
    query = RunQuery(limit=NEWEST, starts_with=(begun,) if begun else ())
    heads, short = _looked_up(options, query)
    names = [name if (name := short.get(head.run_id, head.run_id)).startswith(begun) else head.run_id for head in heads]
    return _plain([*(word for word in ("last", "last-1") if word.startswith(begun)), *names])


def sessions(options: dict[str, Any], begun: str) -> list[str]:
    """Return the newest sessions that begin with this, and the words for a session such as `last`."""
    invocation = _invocation(options)
    words = [word for word in ("last", "last-1") if word.startswith(begun)]
    if invocation is None:
        return words

    async def work(engine: Engine) -> list[str]:
        return [one.id for one in await engine.sessions(starts_with=begun, limit=NEWEST)]

    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(DetentError, OSError):
        return _plain([*words, *invocation.drive(work, missing=[])])
    return words


def agents(options: dict[str, Any], begun: str) -> list[str]:
    """Return the names that begin with this among the agents of detent.toml, the agents of the newest runs, and agent files."""
    heads, _ = _looked_up(options, RunQuery(limit=NEWEST))
    named = _invocation(options)
    found = [*((named.config.agents or {}) if named else ()), *(head.agent for head in heads), *map(str, Path().glob("*.toml"))]
    return [name for name in _plain(dict.fromkeys(found)) if name.startswith(begun) and name != "detent.toml"]


def _looked_up(options: dict[str, Any], query: RunQuery) -> tuple[list[RunHead], dict[str, str]]:
    """Return the matching runs and their short names; none if the store cannot be read. Prints nothing."""
    invocation = _invocation(options)
    if invocation is None:
        return [], {}

    async def work(_: Engine) -> tuple[list[RunHead], dict[str, str]]:
        heads = await invocation.heads(query)
        await invocation.name(*(head.run_id for head in heads))
        return heads, {head.run_id: invocation.short(head.run_id) for head in heads}

    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(DetentError, OSError):
        return invocation.drive(work, missing=([], {}))
    return [], {}


def _invocation(options: dict[str, Any]) -> Invocation | None:
    from detent.cli.invocation import Invocation

    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(DetentError, OSError):
        return Invocation(o.Setup(store=options.get("store"), config=options.get("config")), bare=True, asks=False)
    return None


def _plain(names: Iterable[str]) -> list[str]:
    return [name for name in names if PLAIN.fullmatch(name)]
