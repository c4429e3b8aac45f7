"""`detent trust`, and the question to the person at a terminal before files of a directory may start or send anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from detent.cli import options as o
from detent.cli.output import USAGE, Output, clean
from detent.config import trust as trusted
from detent.config.demands import Listing, listing
from detent.core.errors import ConfigError


def attended(output: Output) -> bool:
    """Whether a person can be asked. A closed stdin is None."""
    return not output.json and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def ask(output: Output, question: trusted.Question, *, pin: bool = False) -> bool:
    """Show what a directory's files ask for, ask the person, and return the answer; with `pin`, trust is for the files as they are now."""
    first, *rest = question.lines()
    output.say(first, "bold")
    for line in rest:
        output.say(line, _style(line))
    kept = "as its files are now" if pin or question.pinned else "until `detent trust --revoke`"
    kept = "with this, for this command" if question.beyond else kept
    sys.stderr.write(f"Trust this directory, {kept}? [y/N]: ")
    sys.stderr.flush()
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        output.say()
        return False


def _style(line: str) -> str:
    return {"+": "green", "-": "red"}.get(line.removeprefix("  ")[:1], "")


def trust(
    directory: Annotated[Path, typer.Argument(metavar="[DIRECTORY]", help="The directory that holds the files.")] = Path(),
    *,
    pin: Annotated[bool, typer.Option("--pin", help="Trust the files only as they are now, and print their digest.")] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Stop trusting the directory.")] = False,
    everything: Annotated[bool, typer.Option("--list", help="List the trusted directories and exit.")] = False,
    yes: o.Yes = False,
    json_wanted: o.Json = False,
) -> int:
    """Show what the files of a directory import, start, send or open, ask you, and trust the directory.

    Trust covers the directory that holds the files (detent.toml, agent files), but no directory inside or above it. It is remembered in the
    state directory. Without a terminal, use --trust for one command, or set DETENT_TRUST=DIRECTORY or DETENT_TRUST=DIRECTORY=DIGEST. Separate
    several entries as in PATH.
    """
    output = Output(json_wanted=json_wanted)
    if everything:
        return _list(output)
    if not directory.is_dir():
        raise ConfigError(f"{directory} is not a directory; trust is given to the directory that holds the files")
    home = directory.resolve()
    if not revoke:
        return _trust(output, home, pin=pin, yes=yes)
    known = trusted.revoke(home)
    output.document({"directory": str(home), "revoked": known})
    output.say(f"{clean(str(home))} {'is trusted no longer' if known else 'was not trusted'}")
    return 0


def _trust(output: Output, home: Path, *, pin: bool, yes: bool) -> int:
    """Show what the files ask for, ask the person, and remember the answer."""
    found, kept = listing(home), trusted.remembered(home)
    changed = trusted.difference(kept, found) if kept is not None and kept.digest not in ("", found.digest) else ()
    if kept is not None and not (changed or pin or yes):
        _show(output, found)
        output.document(_document(found, kept))
        output.say(f"trusted{', as the files are now' if kept.digest else ''}; `detent trust --revoke` ends that")
        return 0
    bound = pin or bool(changed)
    if yes or not attended(output):
        _show(output, found, changed)
    if not yes and not attended(output):
        output.document(_document(found, None))
        output.say("not trusted: there is no terminal to ask; check the list, then add --yes", "yellow")
        return USAGE
    if not yes and not ask(output, trusted.Question(listing=found, difference=changed), pin=pin):
        output.say("not trusted; nothing was changed")
        return USAGE
    trusted.remember(found, pin=bound)
    output.document(_document(found, trusted.remembered(home)))
    output.say(f"{clean(str(home))} is trusted{', as its files are now; elsewhere set this:' if bound else ''}", "green")
    if bound:
        output.show(f"{trusted.VARIABLE}={clean(str(home))}={found.digest}")
    return 0


def _show(output: Output, found: Listing, changed: tuple[str, ...] = ()) -> None:
    where = clean(str(found.directory))
    output.show(f"{where}: its files ask for this:" if found.demands else f"{where}: its files ask for nothing that needs trust", "bold")
    for line in found.lines():
        output.show(line)
    if changed:
        output.show("changed since it was trusted:", "bold")
        for line in changed:
            output.show(f"  {line}", _style(line))


def _document(found: Listing, kept: trusted.Remembered | None) -> dict[str, object]:
    asks = [
        {"file": str(one.file), "key": one.key, "does": one.does, "what": one.what, "variables": one.variables} for one in found.demands
    ]
    return {"directory": str(found.directory), "trusted": kept is not None, "pinned": bool(kept and kept.digest), "digest": found.digest,
            "asks": asks, "files": sorted(found.files)}  # fmt: skip


def _list(output: Output) -> int:
    found = list(trusted.all_remembered())
    output.document([{"directory": one.directory, "digest": one.digest} for one in found])
    output.table(("DIRECTORY", "BOUND TO"), [(one.directory, one.digest or "nothing: files may change") for one in found])
    return 0
