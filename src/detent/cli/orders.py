"""The options of `run` and `submit`: which agent, with which tools, within which bounds, and for whom."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from detent.cli import options as o
from detent.cli.asked import Asked
from detent.cli.invocation import Invocation
from detent.cli.option_sets import Options
from detent.cli.output import Output
from detent.cli.values import parse_variables
from detent.clock import RandomIds, SystemClock
from detent.config.environment import parse_budget
from detent.core.agent import Host
from detent.core.errors import ConfigError
from detent.running.admission import new_run_id, tenants_id
from detent.secrecy.redact import Redactor

MOST_GOAL_BYTES = 1_000_000
"""The limit of a goal's size, because it becomes part of every prompt."""


class ForWhom(Options, frozen=True, kw_only=True):
    """For whom a run is; without these options it belongs to the operator."""

    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="The tenant that the run belongs to and is charged to.")
    ] = None
    principal: Annotated[
        str | None,
        typer.Option(
            "--principal", metavar="NAME", help="The user within the tenant, for policies and the log. All users share its memory."
        ),
    ] = None
    scope: Annotated[
        list[str] | None, typer.Option("--scope", metavar="NAME", help="Give the run this scope, for tools that need one. Repeatable.")
    ] = None
    credential: Annotated[
        list[str] | None,
        typer.Option(
            "--credential",
            metavar="NAME",
            help="Allow the run's tools this secret. Repeatable. Default: all secrets; none if --tenant, --principal or --scope is given.",
        ),
    ] = None

    def host(self) -> Host | None:
        """Return the host of the run, None for the operator. Raise `ConfigError` for an empty name.

        An empty name can come from an unset shell variable. Without this check, a tenant's run would become the operator's, with all secrets.
        """
        for option, name in (("--tenant", self.tenant), ("--principal", self.principal)):
            if name is not None and not name.strip():
                raise ConfigError(f"{option} is empty; name one, or leave the option out to be the operator")
        if not (self.tenant or self.principal or self.scope or self.credential):
            return None
        scopes, secrets = tuple(self.scope or ()), tuple(self.credential or ())
        return Host(tenant=self.tenant or "", principal=self.principal or "", scopes=scopes, credential_refs=secrets)


def given_goal(words: Sequence[str]) -> str:
    """Return the goal: the joined words, or for `-`, or no words in a pipe, the text on stdin. Raise `ConfigError`."""
    if (words and list(words) != ["-"]) or sys.stdin is None or (not words and sys.stdin.isatty()):  # None: it was closed
        return "" if list(words) == ["-"] else " ".join(words)
    if sys.stdin.isatty():
        Output().say("type the goal, then Ctrl-D on a line of its own:")
    read = sys.stdin.buffer.read(MOST_GOAL_BYTES + 1)
    if len(read) > MOST_GOAL_BYTES:
        raise ConfigError(
            f"the goal on stdin has more than {MOST_GOAL_BYTES:,} bytes; put the text in a file and name the file in the goal"
        )
    try:
        return read.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"the goal on stdin is not UTF-8 text (byte {error.start}); convert it first: iconv -t UTF-8") from None


class Order(Options, frozen=True, kw_only=True):
    """The options of `submit`, and all options of `run` but one."""

    agent: o.AgentFile = None
    asked: Asked = Asked()
    place: o.Place = o.Place()
    max_iterations: Annotated[int | None, typer.Option("--max-iterations", metavar="N", help="The same as --budget max_iterations=N.")] = (
        None
    )
    budget: o.Bounds = None
    var: Annotated[list[str] | None, typer.Option("--var", metavar="K=V", help="Set a variable of the agent. Repeatable.")] = None
    attach: Annotated[
        list[Path] | None,
        typer.Option("--attach", metavar="FILE", help="Send an image, a recording or a document with the goal. Repeatable."),
    ] = None
    run_id: Annotated[
        str | None, typer.Option("--run-id", metavar="ID", help="Use this id. If a run with this id exists, continue it.")
    ] = None
    whom: ForWhom = ForWhom()
    json_wanted: o.Json = False

    def invocation(self, *, verbose: int = 0) -> Invocation:
        """Return the invocation in which the run starts."""
        setup = o.Setup(**msgspec.structs.asdict(self.place), json_wanted=self.json_wanted, verbose=verbose)
        return Invocation(setup, agent=self.agent)

    def arguments(self, invocation: Invocation, goal: list[str] | None) -> dict[str, Any]:
        """Prepare the invocation for the run and return the arguments for `Engine.run` and `Engine.submit`. Raise `ConfigError`."""
        host, text = self.whom.host(), given_goal(goal or ()).strip()
        if not text:
            raise ConfigError(
                'no goal was given\ngive it after the options, "Count the text files here", or pipe it in: detent run - < goal.md'
            )
        if self.run_id is not None and not self.run_id.strip():
            raise ConfigError("--run-id is empty; leave it out to get an id from time and goal")
        bounds = parse_budget(self.budget or ()).over(invocation.budget)
        if self.max_iterations is not None:
            bounds = parse_budget([f"max_iterations={self.max_iterations}"], "--max-iterations").over(bounds)
        agent = invocation.agent(self.asked)
        variables = parse_variables(self.var or [], agent)
        hidden = (*agent.redact, *(invocation.config.redact or ()))
        public = Redactor(hidden, b"").without(text)  # the run id contains words of it, and ids are visible everywhere
        spoken = public if invocation.config.goal_words_in_ids is not False else None
        run_id = self.run_id or new_run_id(spoken, SystemClock().now(), RandomIds().token(6))
        invocation.run_id = tenants_id(run_id, host.tenant) if host is not None and host.tenant and "@" not in run_id else run_id
        invocation.begins = True
        given = {"goal": text, "run_id": run_id, "host": host, "budget": bounds, "variables": variables}
        return {"agent": agent, **given, "attachments": self.attach or ()}
