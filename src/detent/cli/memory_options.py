"""The actions of `detent memory`, and the options that each of them takes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from detent.cli import options as o
from detent.cli.option_sets import Options
from detent.core.errors import ConfigError


class Action(StrEnum):
    """What to do with the memory."""

    LIST = "list"
    SEARCH = "search"
    SHOW = "show"
    ADD = "add"
    CORRECT = "correct"
    FORGET = "forget"
    REVIEW = "review"
    EXPORT = "export"
    IMPORT = "import"


READS = (Action.LIST, Action.SEARCH, Action.SHOW, Action.EXPORT)


TAKES: dict[Action, tuple[str, ...]] = {
    Action.LIST: ("kind", "status", "limit", "scope"),
    Action.SEARCH: ("kind", "limit", "scope", "as_of"),
    Action.SHOW: (),
    Action.ADD: ("kind", "scope", "since", "until", "vouch", "by"),
    Action.CORRECT: ("since", "vouch", "why", "by"),
    Action.FORGET: ("source", "run", "person", "keep_corrections", "why", "by", "yes"),
    Action.REVIEW: ("accept", "refuse", "scope", "by"),
    Action.EXPORT: ("scope", "file"),
    Action.IMPORT: ("vouch",),
}
"""The options of each action, beside those that every action has."""


class Which(Options, frozen=True, kw_only=True):
    """The options of the actions. None: not given."""

    scope: Annotated[
        str | None, typer.Option("--scope", metavar="SCOPE", help="Only items at or below this scope; for add, the scope.")
    ] = None
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind", metavar="KIND", help="preference, fact, summary, lesson, artifact or transient. Repeatable, but not for add."
        ),
    ] = None
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status", metavar="STATUS", help="current, upcoming, proposed, superseded, expired, tombstoned or refused. Repeatable."
        ),
    ] = None
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", help="At most N items. Default: 50, for search 10.", min=1)] = None
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="WHEN", help="Search what held at this time: a date, or 7d for seven days ago.")
    ] = None
    since: Annotated[str | None, typer.Option("--held-from", metavar="WHEN", help="Since when the fact holds.")] = None
    until: Annotated[str | None, typer.Option("--held-until", metavar="WHEN", help="Until when it holds.")] = None
    source: Annotated[str | None, typer.Option("--source", metavar="SOURCE", help="Forget what came from this tool, label or address.")] = (
        None
    )
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Forget what this run wrote.", autocompletion=o.complete_run)] = (
        None
    )
    person: Annotated[str | None, typer.Option("--person", metavar="NAME", help="Forget what came from this person.")] = None
    keep_corrections: Annotated[
        bool | None, typer.Option("--keep-corrections", help="Keep what a person wrote to replace a forgotten item.")
    ] = None
    accept: Annotated[bool | None, typer.Option("--accept", help="Accept the proposal.")] = None
    refuse: Annotated[str | None, typer.Option("--refuse", metavar="WHY", help="Refuse the proposal.")] = None
    vouch: Annotated[bool | None, typer.Option("--vouch", help="You vouch for the content: it counts as trusted. Default: untrusted.")] = (
        None
    )
    file: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE instead of stdout.")] = None
    why: Annotated[str | None, typer.Option("--why", metavar="TEXT", help="The reason, for the record.")] = None
    by: o.By = None
    yes: Annotated[bool | None, typer.Option("--yes", "-y", help="Do not ask; required without a terminal.")] = None

    def only(self, action: Action) -> None:
        """Raise `ConfigError` for an option that the action does not take."""
        for field in self.__struct_fields__:
            if getattr(self, field) is not None and field not in TAKES[action]:
                where = ", ".join(one for one, fields in TAKES.items() if field in fields)
                raise ConfigError(f"detent memory {action.value} takes no {NAMES.get(field, f'--{field}')}; that is an option of {where}")


NAMES = {"as_of": "--as-of", "keep_corrections": "--keep-corrections", "since": "--held-from", "until": "--held-until", "file": "--output"}
"""The options that have another name than their field."""
