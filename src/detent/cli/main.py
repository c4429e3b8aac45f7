"""The entry point: the commands by name, and what becomes of their errors.

A command returns its exit code. Every `DetentError` becomes one or two lines on stderr, or `{"error": ...}` with `--json`; a traceback
is shown with `--debug` only.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from detent.cli import doctor, forking, governance, looking, mcp, moving, removing, running, starting, trusting, where, working
from detent.cli.import_path import leave_out_the_working_directory
from detent.cli.option_sets import expanded
from detent.cli.output import SUSPENDED, USAGE, Output, clean, code_of_error
from detent.config.environment import ENVIRONMENT
from detent.core.errors import DetentError, Suspended

GROUPS: dict[str, dict[str, Callable[..., int]]] = {
    "Run": {
        "run": running.run,
        "submit": working.submit,
        "worker": working.worker,
        "resume": running.resume,
        "reopen": running.reopen,
        "cancel": running.cancel,
    },
    "Answer": {
        "approvals": looking.approvals,
        "approve": running.approve,
        "deny": running.deny,
        "reply": running.reply,
        "reconcile": running.reconcile,
    },
    "Look": {
        "list": looking.list_runs,
        "show": looking.show,
        "tail": looking.tail,
        "verify": looking.verify,
        "replay": looking.replay,
        "export": looking.export,
        "tools": looking.tools,
    },
    "Govern": {"explain": governance.explain, "backtest": governance.backtest, "trust": trusting.trust},
    "Compare": {"fork": forking.fork, "diff": forking.diff, "bisect": forking.bisect, "check-upgrade": forking.check_upgrade},
    "Move": {"copy": moving.copy, "archive": moving.archive, "import": moving.bring_back},
    "Remove": {"erase": removing.erase, "delete": removing.delete, "gc": removing.gc},
    "Begin": {"init": starting.init, "demo": starting.demo, "doctor": doctor.doctor, "where": where.where, "mcp": mcp.mcp},
}
_LIBRARIES = r"(pydantic|pydantic_ai|genai_prices)(\.|$)"
"""What these warn of, such as usage that no reader can read, is on the log, and is no line of a terminal."""
_CLICK_ERROR: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

_INTERRUPTED = 130
"""What typer returns where Ctrl-C ended a command; no command of Detent's returns it."""


def make_app(named: str = "") -> typer.Typer:
    """Return the command line with all its commands, or with the one of this name alone: making them all takes longer than most take to run."""
    app = typer.Typer(
        name="detent",
        help="Durable agents: every step in a log, no side effect twice, bounded, auditable. Exit codes: 0 completed, 1 failed, 2 usage, "
        "3 waiting, 4 stopped, 5 suspended.",
        epilog="Settings: built-in < detent.toml < agent file < environment < options. Variables: "
        f"{', '.join(name for name, key in ENVIRONMENT.items() if key[0] != 'budget')}, DETENT_CONFIG, DETENT_TRUST, DETENT_DEBUG, and every bound "
        "(DETENT_MAX_ITERATIONS, ...). `detent init` writes a detent.toml to begin with.",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_everywhere)
    every = {name for commands in GROUPS.values() for name in commands}
    for group, commands in GROUPS.items():
        for name, command in commands.items():
            if named in every and named != name:
                continue
            app.command(name, help=_flowing(command.__doc__ or ""), rich_help_panel=group)(expanded(command))
    return app


def _flowing(text: str) -> str:
    """Return `text` with each paragraph on one line: help is broken where the terminal ends, not where the source does."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _show_version(wanted: bool) -> None:
    if wanted:
        from detent import __version__

        sys.stdout.write(f"detent {__version__}\n")
        raise typer.Exit(0)


def _everywhere(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks. May stand after the command too.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)] = False,
) -> None:
    """Options that are taken care of elsewhere: `run` looks for --debug itself, --version ends the process."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    leave_out_the_working_directory()  # again, for programs that call it
    args = list(sys.argv[1:] if arguments is None else arguments)
    own = args[: args.index("--")] if "--" in args else args
    debug = "--debug" in own or bool(os.environ.get("DETENT_DEBUG"))
    args = [a for i, a in enumerate(args) if not (a == "--debug" and i < len(own))]
    output = Output(json_wanted="--json" in own)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Shown(debug))
        logging.lastResort.addFilter(_not_counted_down)
    if not debug and not sys.warnoptions:
        warnings.filterwarnings("ignore", module=_LIBRARIES)
    try:
        code: Any = make_app(args[0] if args else "")(args, prog_name="detent", standalone_mode=False)
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        return int(code or 0)
    except (DetentError, OSError) as error:
        return _failed(error, output, debug=debug)
    except _CLICK_ERROR as error:
        return _misused(error, output)
    except (KeyboardInterrupt, typer.Abort):
        output.say("interrupted; what was recorded stays, a run that was begun can be resumed")
        return SUSPENDED
    except Exception as error:  # noqa: BLE001 - the last resort: whatever is wrong, people get a line and not a traceback
        return _failed(error, output, debug=debug, hint="this should not happen; --debug shows where it comes from")


def _not_counted_down(record: logging.LogRecord) -> bool:
    """Leave out what a command that was stopped shows by itself (`Session.finishing`)."""
    return not hasattr(record, "drain_s")


class _Shown(logging.Formatter):
    """What goes to stderr because no program has asked for the log: warnings quote what runs say. Tracebacks are for --debug and `show`."""

    def __init__(self, debug: bool) -> None:
        super().__init__()
        self._debug = debug

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, cleaned; with --debug, all lines."""
        said = clean(super().format(record), lines=True)
        return said if self._debug else said.partition("\nTraceback (most recent call last):")[0]


def _failed(error: BaseException, output: Output, *, debug: bool, hint: str = "") -> int:
    """Say what went wrong, in one or two lines or as the one document, and return the exit code."""
    if debug:
        output.say("".join(traceback.format_exception(error)).rstrip("\n"))
    said = str(error) if isinstance(error, DetentError) else f"{type(error).__name__}: {error}"
    if isinstance(error, Suspended):
        command = next(iter(getattr(error, "__notes__", ())), "")
        said = (
            f"suspended ({error.why}): run {error.run_id} is kept as it is; `{command}` goes on"
            if command
            else f"interrupted ({error.why})"
        )
    if output.json:
        code = error.code if isinstance(error, DetentError) else "internal_error"
        data: dict[str, Any] = {"code": code, "message": said.encode("utf-8", "backslashreplace").decode()}
        if getattr(error, "run_id", ""):
            data["run_id"] = getattr(error, "run_id", "")
        output.document({"error": data}, indent=None)
    else:
        output.say(said if isinstance(error, Suspended) else f"error: {said}", "red")
    if hint:
        output.say(hint)
    return code_of_error(error)


def _misused(error: Any, output: Output) -> int:
    command = getattr(getattr(error, "ctx", None), "command_path", "detent")
    said = error.format_message()
    if output.json:
        output.document({"error": {"code": "usage", "message": said.encode("utf-8", "backslashreplace").decode()}}, indent=None)
    elif said:
        output.say(f"error: {said}", "red")
        output.say(f"`{command} --help` shows how it is used")
    return USAGE
