"""Sets of options: a command takes one as one parameter, and its help and its arguments are those of each option."""

from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from detent.cli.main import GROUPS, make_app
from detent.cli.option_sets import Options, Without, expanded


class Inner(Options, frozen=True, kw_only=True):
    """A set in a set."""

    depth: Annotated[int, typer.Option("--depth", help="How deep.")] = 3


class Outer(Options, frozen=True, kw_only=True):
    """A set with one."""

    first: Annotated[str | None, typer.Option("--first", help="The first.")] = None
    inner: Inner = Inner()
    last: Annotated[bool, typer.Option("--last", help="The last.")] = False


def options_of(name: str) -> list[str]:
    """Return the options of a command, in the order of its help."""
    command: Any = typer.main.get_command(make_app())
    return [parameter.opts[0] for parameter in command.commands[name].params]


def test_a_set_is_spelled_out_where_it_stands_and_filled_with_what_was_given() -> None:
    """In the order of its fields, inner sets included; an option that the command leaves out is none, and keeps its default."""
    told: list[Any] = []

    def every(before: str = "b", *, what: Outer, after: int = 1) -> int:
        told.append((before, what, after))
        return 0

    def some(*, what: Annotated[Outer, Without("first", "depth")]) -> int:
        told.append(what)
        return 0

    app = typer.Typer()
    for command in (every, some):
        app.command()(expanded(command))
    run = CliRunner().invoke
    assert run(app, ["every", "--last", "--depth", "5", "--first", "x", "--after", "2"]).exit_code == 0
    assert run(app, ["some", "--last"]).exit_code == 0
    assert told == [("b", Outer(first="x", inner=Inner(depth=5), last=True), 2), Outer(last=True)]
    assert run(app, ["some", "--depth", "5"]).exit_code == 2
    shown = run(app, ["every", "--help"]).output
    places = [shown.index(option) for option in ("--before", "--first", "--depth", "--last", "--after")]
    assert places == sorted(places)


def test_run_takes_every_option_that_submit_takes() -> None:
    """A run that is submitted can be described as one that is started here; its place in the queue, and what is shown of its progress, are not."""
    queue = ["--priority", "--fair-key", "--weight", "--dedupe-key", "--on-same", "--debounce"]
    assert options_of("run") == [*(option for option in options_of("submit") if option not in queue), "--verbose"]
    assert set(queue) <= set(options_of("submit"))


def test_every_command_that_answers_takes_the_same_options_at_the_end() -> None:
    """Who answers, whether the run continues here, where, and how it is reported."""
    ends = {tuple(options_of(name)[-8:]) for name in GROUPS["Answers"] if name != "approvals"}
    assert ends == {("--by", "--no-resume", "--store", "--workspace", "--config", "--trust", "--json", "--verbose")}


def test_a_command_is_called_without_making_the_others() -> None:
    """Each process would make them all, which takes longer than most commands take to run. Options alone need none; without a word they are all there."""
    every = {name for names in GROUPS.values() for name in names}
    for named, there in (("list", {"list"}), ("lsit", set()), ("--help", set()), ("", every)):
        app: Any = typer.main.get_command(make_app(named))
        assert set(app.commands) == there
    alone, among = (CliRunner().invoke(make_app(named), ["list", "--help"]).output for named in ("list", ""))
    assert alone == among
