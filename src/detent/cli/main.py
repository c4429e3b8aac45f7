"""The entry point: runs the named command, and turns its errors into a message and an exit code.

A command returns its exit code. Every `DetentError` becomes one or two lines on stderr, or `{"error": ...}` with `--json`; tracebacks
appear only with `--debug`. Only the module of the named command is imported, and none for `--help`.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from detent.cli.commands import EVERY, GROUPS, first_screen
from detent.cli.import_path import leave_out_the_working_directory
from detent.cli.logs import LEVELS, Shown, log_to_stderr
from detent.cli.output import FAILED, SUSPENDED, USAGE, Output, code_of_error, mended_streams, unwritten
from detent.core.errors import ConfigError, DetentError, Suspended

if TYPE_CHECKING:
    import typer

_LIBRARIES = r"(pydantic|pydantic_ai|genai_prices)(\.|$)"
"""Warnings of these libraries are not printed; the log has what they warn about, such as unreadable usage."""

_INTERRUPTED = 130
"""What typer returns if Ctrl-C ended a command; no command of Detent returns it."""


def make_app(named: str = "", *, stubs: bool = False) -> typer.Typer:
    """Return the command line with all commands, or only with the one of this name: creating all of them takes longer than most commands run.

    With `stubs`, commands have the right names but do nothing, which is enough to complete names.
    """
    import typer

    from detent.cli.option_sets import expanded

    app = typer.Typer(
        name="detent",
        help="Durable agents. `detent help` lists the commands.",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            Output().show(_version())
            raise typer.Exit(0)

    def everywhere(
        debug: bool = typer.Option(False, "--debug", help="Show tracebacks."),
        log_level: str = typer.Option(
            "", "--log-level", metavar="LEVEL", help=f"Write the log to stderr, with tracebacks: {', '.join(LEVELS)}."
        ),
        log_json: bool = typer.Option(False, "--log-json", help="Write the log as JSON, one object per line; the default level is info."),
        version: bool = typer.Option(False, "--version", help="Show the version and exit.", is_eager=True, callback=show_version),
    ) -> None:
        """Declare these options for their help; `run` handles them, because they may come before or after the command."""

    app.callback()(everywhere)
    for group, commands in GROUPS.items():
        for name in commands if not named else [named] if named in commands else ():
            if stubs:
                app.command(name, help=commands[name].summary)(lambda: 0)
                continue
            command = _loaded(commands[name].where)
            app.command(name, help=_flowing(command.__doc__ or ""), rich_help_panel=group)(expanded(command))
    return app


def _loaded(where: str) -> Callable[..., int]:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(f"detent.cli.{module}"), name)


def _flowing(text: str) -> str:
    """Return `text` with each paragraph on one line, so that help wraps at the terminal's width and not like the source."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _version() -> str:
    from detent import __version__

    return f"detent {__version__}"


def run(arguments: Sequence[str] | None = None, *, loaded: Callable[[], None] = lambda: None) -> int:
    """Run the command line and return its exit code. `loaded` is called before the command is looked for: from there on, Ctrl-C is heard here."""
    leave_out_the_working_directory()  # again, for programs that call `run`
    args = list(sys.argv[1:] if arguments is None else arguments)
    own = args.index("--") if "--" in args else len(args)
    mended_streams()
    output = Output(json_wanted="--json" in args[:own])
    everywhere = Everywhere(args[:own])
    code = _ran([*everywhere.rest, *args[own:]], everywhere, output, loaded)
    if problem := unwritten():
        output.say(f"error: cannot write to stdout ({problem}); the command did its work, but its output is lost", "red")
        return code or FAILED
    return code


class Everywhere:
    """The options that every command takes, before or after its name; `rest` has the other arguments."""

    def __init__(self, args: Sequence[str]) -> None:
        self.debug = bool(os.environ.get("DETENT_DEBUG"))
        self.log_json, self.log_level = False, ""
        self.rest: list[str] = []
        left = iter(args)
        for word in left:
            name, equals, value = word.partition("=")
            if word == "--debug":
                self.debug = True
            elif word == "--log-json":
                self.log_json = True
            elif name == "--log-level":
                self.log_level = (value if equals else next(left, "")) or "(empty)"
            else:
                self.rest.append(word)


def _ran(args: list[str], everywhere: Everywhere, output: Output, loaded: Callable[[], None]) -> int:
    """Run the command and return its exit code; report an error and return the code of that."""
    debug = everywhere.debug
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Shown(debug))
        logging.lastResort.addFilter(_not_counted_down)
    if not debug and not sys.warnoptions:
        warnings.filterwarnings("ignore", module=_LIBRARIES)
    completing = "_DETENT_COMPLETE" in os.environ
    if not completing and args[:1] in ([], ["--help"], ["-h"]):
        for line in first_screen():
            output.show(line)
        return 0 if args else USAGE
    import typer

    try:
        loaded()
        if everywhere.log_level or everywhere.log_json:
            log_to_stderr(everywhere.log_level or "info", as_json=everywhere.log_json)
        if completing:
            from detent.cli.completion import complete

            return complete(make_app)
        if args[0] == "help" and args[1:] and args[1] in EVERY:
            args = [args[1], "--help"]
        if not args[0].startswith("-") and args[0] not in EVERY:
            near = difflib.get_close_matches(args[0], EVERY, n=1)
            raise ConfigError(
                f"unknown command {args[0]!r}; {f'did you mean {near[0]!r}?' if near else '`detent --help` lists the commands'}"
            )
        code: Any = make_app(args[0])(args, prog_name="detent", standalone_mode=False)
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        return int(code or 0)
    except (DetentError, OSError) as error:
        return _failed(error, output, debug=debug)
    except (KeyboardInterrupt, typer.Abort):
        output.say("interrupted; everything recorded is kept, and a started run can be resumed")
        return SUSPENDED
    except Exception as error:  # noqa: BLE001 - the last resort: users get a line instead of a traceback
        if any(kind.__name__ == "ClickException" for kind in type(error).__mro__):  # typer keeps it in a private module
            return _misused(error, output)
        return _failed(error, output, debug=debug, hint="this should not happen; --debug shows the traceback")


def _not_counted_down(record: logging.LogRecord) -> bool:
    """Leave out messages that a stopped command shows by itself (`Invocation.finishing`)."""
    return not hasattr(record, "drain_s")


def _failed(error: BaseException, output: Output, *, debug: bool, hint: str = "") -> int:
    """Report the error, in one or two lines or as the one document, and return the exit code."""
    if debug:
        output.say("".join(traceback.format_exception(error)).rstrip("\n"))
    said = (
        str(error)
        if isinstance(error, DetentError)
        else _of_system(error)
        if isinstance(error, OSError)
        else f"{type(error).__name__}: {error}"
    )
    if isinstance(error, Suspended):
        command = next(iter(getattr(error, "__notes__", ())), "")
        said = f"suspended ({error.why}): run {error.run_id} is kept" if command else f"interrupted ({error.why})"
        if output.json and command:
            said += f"; `{command}` continues it"
        elif command:
            hint = f"  next: {command}"  # a line of its own, which a terminal breaks with a backslash
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


def _of_system(error: OSError) -> str:
    """Return the system's error, with the file and a hint."""
    where = f"{os.fsdecode(error.filename)!r}: " if isinstance(error.filename, (str, bytes)) else ""
    hint = {errno.EACCES: _MAY, errno.EPERM: _MAY, errno.EROFS: _MAY, errno.ENOSPC: "; make room and try again"}.get(error.errno or 0, "")
    return f"{where}{error.strerror or error}{hint}"


_MAY = "; check its permissions, or work in a directory that you can write to"


def _misused(error: Any, output: Output) -> int:
    command = getattr(getattr(error, "ctx", None), "command_path", "detent")
    said = error.format_message().replace(": Value error, ", ": ")  # what a library of typer's puts before our own words
    if output.json:
        output.document({"error": {"code": "usage", "message": said.encode("utf-8", "backslashreplace").decode()}}, indent=None)
    elif said:
        output.say(f"error: {said}", "red")
        output.say(f"`{command} --help` shows the usage")
    return USAGE
