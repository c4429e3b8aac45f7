"""`detent doctor --store URL`: reads everything in a store, reports faults, and repairs them with `--repair`."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from detent.cli import options as o
from detent.cli.invocation import Invocation
from detent.cli.output import FAILED, Output, clean, room_of
from detent.cli.removing import confirm
from detent.core.errors import ConfigError
from detent.engine import Engine
from detent.history.examining import GRACE_S, Mended, Report, examine, mend, planned
from detent.ports.examining import Fault

SHOWN = 50
"""How many faults are shown; `--json` has all of them."""


class Repaired(msgspec.Struct, frozen=True, kw_only=True):
    """What `--repair` planned, did and left, with the reports from before and after."""

    before: Report
    planned: tuple[str, ...]
    done: tuple[str, ...]
    left: tuple[str, ...]
    after: Report


def examine_store(*, store: str, config: Path | None, repair: bool, yes: bool, json_wanted: bool) -> int:
    """Examine a whole store and report the findings; return 0 if nothing is damaged, else 1."""
    setup = o.Setup(store=store, config=config, json_wanted=json_wanted)
    invocation = Invocation(setup, bare=True, asks=False)
    output, seen_at = invocation.output, time.time()
    found = invocation.drive(lambda engine: examine(engine.runtime), missing=None)
    if found is None:
        raise ConfigError(f"{invocation.engine.store.url}: there is no store, and none was created; is the URL right?")
    steps = planned(found.faults)
    if not repair or not steps:
        output.document(found)
        _show(found, output)
        if steps:
            output.show()
            output.show(f"next: {invocation.command('doctor', '--repair')} would")
            _lines(output, [f"  - {step}" for step in steps])
        elif repair:
            output.say("--repair found nothing to repair")
        return _code(found)
    _show(found, output)
    output.say(f"--repair will, in {found.url}:")
    _lines(output, [f"  - {step}" for step in steps], said=True)
    confirm("Do that?", yes=yes, undone="nothing was changed")
    if any(fault.mend == "delete" for fault in found.faults):
        output.say(f"leftovers are removed only if they do not change for {GRACE_S:g} s", "dim")

    async def work(engine: Engine) -> tuple[Mended, Report]:
        return await mend(engine.runtime, found.faults, examined_at=seen_at, grace_s=GRACE_S), await examine(engine.runtime)

    mended, after = Invocation(setup, changes=True, bare=True, asks=False).drive(work)
    output.document(Repaired(before=found, planned=tuple(steps), done=mended.done, left=mended.left, after=after))
    for line in mended.done:
        output.say(f"done: {line}", "green")
    for line in mended.left:
        output.say(f"left: {line}", "yellow")
    output.show()
    output.show("Afterwards", "bold")
    _show(after, output)
    return 1 if mended.left else _code(after)


def _code(found: Report) -> int:
    return 0 if found.ok else FAILED


def _show(found: Report, output: Output) -> None:
    damage, left = ([fault for fault in found.faults if fault.damage is bad] for bad in (True, False))
    output.show(clean(found.url), "bold")
    rows = [
        ("runs", f"{found.runs}, {found.sound} sound" + (f", {found.runs - found.sound} not" if found.sound < found.runs else "")),
        ("records", f"{found.records} sound, every digest"),
        ("artifacts", f"{found.artifacts} read, every byte" if found.artifacts else "none"),
        ("store", f"{found.looked_at} checked" if found.looked_at else "has no checks of its own"),
    ]
    for name, said in rows:
        output.show(f"  {name:<10} {said}", "yellow" if "not" in said.split() else "")
    if not found.faults:
        output.show("  nothing is wrong", "green")
    for title, faults, style in ((f"Damage: {len(damage)}", damage, "red"), (f"Left over, harmless: {len(left)}", left, "")):
        if faults:
            output.show()
            output.show(title, "bold")
            _lines(output, [line for fault in faults[:SHOWN] for line in _said(fault)], style=style)
            if len(faults) > SHOWN:
                output.show(f"  and {len(faults) - SHOWN} more; --json has all of them")


def _said(fault: Fault) -> Iterator[str]:
    yield f"  {clean(fault.what)}"
    if fault.advice:
        yield f"    -> {clean(fault.advice)}"


def _lines(output: Output, lines: list[str], *, said: bool = False, style: str = "") -> None:
    """Write lines, wrapped between words at the width of the terminal."""
    room = room_of(sys.stderr if said else sys.stdout)
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip(" -")) + (1 if "->" in line[:8] else 0))
        for part in textwrap.wrap(line, room, subsequent_indent=indent, break_on_hyphens=False) if room else [line]:
            (output.say if said else output.show)(part, style)
