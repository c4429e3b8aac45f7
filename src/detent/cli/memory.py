"""`detent memory`: what agents remember, for people: list, search, show, add, correct, forget, review, export, import.

Rule: what is remembered is data that anybody may have written. It is shown behind bars or on one cleaned line, with where it came from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
import typer

from detent.cli import options as o
from detent.cli.approving import BAR
from detent.cli.invocation import Invocation, operator
from detent.cli.looking import written
from detent.cli.memory_options import READS, Action, Which
from detent.cli.orders import given_goal
from detent.cli.output import Output, broken, clean, room_of
from detent.cli.removing import confirm
from detent.cli.trusting import attended
from detent.core.agent import Host
from detent.core.codec import encode
from detent.core.errors import ConfigError
from detent.core.events import Origin
from detent.engine import Engine
from detent.expressions.display import counted, shortened
from detent.history.memory import Forgetting
from detent.history.selecting import since_of
from detent.ports.remembering import Explanation, Found, Kind, MemoryItem, Standing, key_of, standing_of
from detent.running.remembering import FORGETS

MOST_BYTES = 100_000_000
"""The limit of an imported file's size."""
STYLES = {
    "current": "",
    "upcoming": "cyan",
    "proposed": "magenta",
    "superseded": "dim",
    "expired": "dim",
    "tombstoned": "dim",
    "refused": "yellow",
}


def memory(
    action: Annotated[
        Action,
        typer.Argument(metavar="ACTION", help="list, search, show, add, correct, forget, review, export or import.", show_default=False),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORDS]...",
            help="search: the words. show, forget, review: ids. add: the text. correct: an id and the text. import: a file.",
            show_default=False,
        ),
    ] = None,
    *,
    which: Which,
    name: Annotated[str, typer.Option("--memory", metavar="NAME", help="Which memory, if detent.toml names several.")] = "",
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only the items of this tenant.")] = None,
    setup: o.Looking,
) -> int:
    """List, search, show, add, correct, forget, review, export or import what agents remember.

    The memory is that of the table `memory` in detent.toml. `forget` first shows everything that goes: the items, what was made from them, and the runs whose
    logs still have them. `review` shows each proposal and asks; with an id and --accept or --refuse it does not ask. `correct` keeps both items, with
    the times at which each held.
    """
    which.only(action)
    invocation = Invocation(setup, changes=action not in READS, bare=True)
    host = Host(tenant=tenant) if tenant else None
    asked: dict[str, Any] = {"name": name, "host": host}
    return DO[action](invocation, list(words or ()), which, asked)


# Look ---------------------------------------------------------------------------------------------------------------------------


def _list(invocation: Invocation, words: list[str], which: Which, asked: dict[str, Any]) -> int:
    _none(words, "list")
    limit, standings, kinds = which.limit or 50, _standings(which.status), _kinds(which.kind)

    async def work(engine: Engine) -> list[MemoryItem]:
        found, after = list[MemoryItem](), ""
        while len(found) < limit and (
            page := await engine.memory.list(which.scope or "", standings=standings, limit=limit, after=after, **asked)
        ):
            found += [one for one in page if not kinds or one.kind in kinds]
            after = key_of(page[-1])
        return found[:limit]

    items = invocation.drive(work)
    invocation.output.document(items)
    if not items:
        invocation.output.say("nothing is remembered" if not (which.status or which.kind or which.scope) else "no item fits")
        return 0
    item_table(invocation.output, [(item, "") for item in items])
    if len(items) == limit:
        invocation.output.say(f"the first {limit}; --limit N shows more")
    return 0


def _search(invocation: Invocation, words: list[str], which: Which, asked: dict[str, Any]) -> int:
    if not words:
        raise ConfigError("search needs words: detent memory search WORDS")
    as_of = since_of(which.as_of, option="--as-of") if which.as_of else None

    async def work(engine: Engine) -> Sequence[Found]:
        query = " ".join(words)
        return await engine.memory.search(
            query, scope=which.scope or "", kinds=_kinds(which.kind), limit=which.limit or 10, as_of=as_of, **asked
        )

    found = invocation.drive(work)
    invocation.output.document(found)
    if not found:
        invocation.output.say("nothing was found")
        return 0
    item_table(invocation.output, [(one.item, "; ".join(one.reasons)) for one in found])
    return 0


def item_table(output: Output, rows: Sequence[tuple[MemoryItem, str]]) -> None:
    """Write a line for each item, with why it was found."""
    because = any(why for _, why in rows)
    cells = [(one.id, one.kind, _standing(one), one.scope, *([why] if because else []), _said(one)) for one, why in rows]
    head = ("ID", "KIND", "STATUS", "SCOPE", *(["BECAUSE OF"] if because else []), "CONTENT")
    styles = [STYLES[_standing(one)] for one, _ in rows]
    output.table(head, cells, styles, spare=("SCOPE", *(["BECAUSE OF"] if because else []), "KIND", "STATUS"))


def _said(item: MemoryItem) -> str:
    return shortened(item.content, 200) or f"(forgotten{f': {clean(item.why)}' if item.why else ''})"


def _standing(item: MemoryItem) -> Standing:
    return standing_of(item, datetime.now(UTC))


def _show(invocation: Invocation, words: list[str], which: Which, asked: dict[str, Any]) -> int:
    if not words:
        raise ConfigError("show needs the id of an item; `detent memory list` lists them")

    async def work(engine: Engine) -> list[Explanation]:
        return [await engine.memory.explain(word, **asked) for word in words]

    found = invocation.drive(work)
    invocation.output.document(found)
    for number, one in enumerate(found):
        for line in [*([""] if number else []), *item_lines(one.item, one.standing)]:
            invocation.output.show(line)
        for before in one.chain:
            invocation.output.show(f"  {'before' if before.superseded_at else 'made from':<10}{key_of(before)}: {_said(before)}")
    return 0


def item_lines(item: MemoryItem, standing: Standing) -> list[str]:
    """Return an item for a person: what it says behind bars, and the facts about it."""
    columns = room_of(sys.stdout)
    text = clean(item.content, lines=True).expandtabs().split("\n") if item.content else ["(forgotten)"]
    rows = [f"{BAR}{row}" for line in text for row in (broken(line, columns - len(BAR)) if columns else [line])]
    return [f"{clean(key_of(item))}  {item.kind}, {standing}", *rows, *(f"  {name:<10}{said}" for name, said in _facts(item))]


def _facts(item: MemoryItem) -> Iterator[tuple[str, str]]:
    """Yield the facts about an item: a name of at most nine characters, and a text."""
    if item.created_at:
        yield "learnt", _at(item.created_at)
    if item.held_from or item.held_until:
        yield "held", f"{_at(item.held_from) if item.held_from else '...'} to {_at(item.held_until) if item.held_until else 'now'}"
    yield "from", _from(item.origin)
    for source in item.origin.sources:
        call = f"{source.tool} {source.said}" if source.tool else source.origin
        yield "", shortened(f"{source.label}: {call} of run {source.run_id}" if source.run_id else f"{source.label}: {call}", 200)
    if item.proposed and FORGETS in item.metadata:
        yield "forgets", clean(str(item.metadata[FORGETS]))
    if item.supersedes:
        yield "replaces", clean(", ".join(item.supersedes))
    if item.superseded_by:
        yield "replaced", f"by {clean(item.superseded_by)}" + (f", {_at(item.superseded_at)}" if item.superseded_at else "")
    if item.refused:
        yield "refused", clean(item.refused)
    if item.why:
        yield "why", shortened(item.why, 200)


def _from(origin: Origin) -> str:
    who = f"run {origin.run_id}, call {origin.call_id}" if origin.call_id else f"run {origin.run_id}" if origin.run_id else "no run"
    person = f", {clean(origin.person)}" if origin.person else ""
    return f"{clean(who)}{person}; {'trusted' if origin.trusted else 'untrusted'}" + (
        f" ({clean(', '.join(origin.labels))})" if origin.labels else ""
    )


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


# Write --------------------------------------------------------------------------------------------------------------------------


def _add(invocation: Invocation, words: list[str], which: Which, asked: dict[str, Any]) -> int:
    text = given_goal(words).strip()
    if not text:
        raise ConfigError("add needs a text: detent memory add --scope SCOPE TEXT, or `-` to read it from stdin")
    kinds = _kinds(which.kind)
    if len(kinds) > 1:
        raise ConfigError("an item has one kind; give --kind once")
    more: dict[str, Any] = {"scope": which.scope or "", "trusted": bool(which.vouch), **_held(which), **asked}

    async def work(engine: Engine) -> MemoryItem:
        return await engine.memory.add(text, kind=kinds[0] if kinds else "fact", by=which.by or operator(), **more)

    return _kept(invocation, invocation.drive(work), "remembered")


def _correct(invocation: Invocation, words: list[str], which: Which, asked: dict[str, Any]) -> int:
    if len(words) < 2:
        raise ConfigError("correct needs the id of an item and the new text: detent memory correct ID TEXT")
    more: dict[str, Any] = {"why": which.why or "", "trusted": bool(which.vouch), **_held(which), **asked}

    async def work(engine: Engine) -> MemoryItem:
        return await engine.memory.correct(words[0], " ".join(words[1:]), by=which.by or operator(), **more)

    return _kept(invocation, invocation.drive(work), "corrected")


def _kept(invocation: Invocation, item: MemoryItem, how: str) -> int:
    invocation.output.document(item)
    invocation.output.say(f"{how}: {key_of(item)}, {'trusted' if item.origin.trusted else 'untrusted'}")
    return 0


def _held(which: Which) -> dict[str, Any]:
    since = {"held_from": since_of(which.since, option="--held-from")} if which.since else {}
    return since | ({"held_until": since_of(which.until, option="--held-until")} if which.until else {})


def _review(invocation: Invocation, words: list[str], which: Which, asked: dict[str, Any]) -> int:
    if which.accept and which.refuse is not None:
        raise ConfigError("give --accept or --refuse, not both")
    decides = which.accept or which.refuse is not None
    if decides and not words:
        raise ConfigError("name the proposals: detent memory review ID --accept")

    async def waiting(engine: Engine) -> list[MemoryItem]:
        if words:
            return [await engine.memory.get(word, **asked) for word in words]
        return list(await engine.memory.proposals(scope=which.scope or "", **asked))

    items = invocation.drive(waiting)
    decided = list[MemoryItem]()
    for item in items:
        said = ((True, "") if which.accept else (False, which.refuse or "")) if decides else _asked(invocation, item)
        if said is not None:
            accept, why = said

            async def review(engine: Engine, item: MemoryItem = item, accept: bool = accept, why: str = why) -> MemoryItem:
                return await engine.memory.review(key_of(item), accept=accept, why=why, by=which.by or operator(), **asked)

            decided.append(invocation.drive(review))
            invocation.output.say(f"{'accepted' if accept else 'refused'}: {key_of(item)}")
    invocation.output.document(decided if decides else items)
    if not items:
        invocation.output.say("no proposal waits")
    return 0


def _asked(invocation: Invocation, item: MemoryItem) -> tuple[bool, str] | None:
    """Show a proposal, and return the decision of the person at the terminal; None for later, or without a terminal."""
    for line in item_lines(item, _standing(item)):
        invocation.output.show(line)
    if not item.proposed or not attended(invocation.output):
        invocation.output.show(f"  next: {invocation.command('memory', 'review', item.id, '--accept')}")
        return None
    while True:
        line = invocation.output.ask("remember this? [y]es / [n]o / [l]ater: ").strip().lower()
        if line in ("y", "yes"):
            return True, ""
        if line in ("n", "no"):
            return False, ""
        if line in ("", "l", "later"):
            return None
        invocation.output.say("  y, n or l")


# Forget -------------------------------------------------------------------------------------------------------------------------


def _forget(invocation: Invocation, words: list[str], which: Which, asked: dict[str, Any]) -> int:
    given: dict[str, Any] = {"source": which.source or "", "person": which.person or "", "why": which.why or "", **asked}
    given["keep_corrections"] = bool(which.keep_corrections)

    async def forget(engine: Engine, *, preview: bool) -> Forgetting:
        run = await invocation.find(which.run) if which.run else ""
        return await engine.memory.forget(*words, run=run, preview=preview, by=which.by or operator(), **given)

    found = invocation.drive(partial(forget, preview=True))
    _shown(invocation, found)
    if not found.items:
        invocation.output.document(found)
        invocation.output.say("nothing was found to forget")
        return 0
    confirm(f"Forget {counted(len(found.items), 'item')}?", yes=bool(which.yes), undone="nothing was forgotten")
    receipt = invocation.drive(partial(forget, preview=False))
    invocation.output.document(receipt)
    for key in receipt.left:
        invocation.output.say(f"  left: {clean(key)}", "red")
    invocation.output.say(f"forgot {counted(len(receipt.removed), 'item')}: content, index entries and vectors are removed")
    for one in receipt.runs:
        how = f"delete {clean(one.archive)}" if one.archive else invocation.command("erase", one.run_id)
        invocation.output.say(f"  remains in {'an archive' if one.archive else 'the log'} of run {one.run_id}: {how}", "yellow")
    for run_id in receipt.elsewhere:
        invocation.output.say(f"  run {run_id} was not found: an archive of it keeps the words", "yellow")
    invocation.output.say(f"  searched: {clean(', '.join(receipt.searched))}\n  not searched: {clean(', '.join(receipt.not_searched))}")
    return 1 if receipt.left else 0


def _shown(invocation: Invocation, found: Forgetting) -> None:
    """Show everything that is about to be forgotten, and what may have come from there too."""
    say = invocation.output.say
    if found.items:
        say(f"this is forgotten from memory {clean(found.memory)}:", "bold")
    for item in found.items:
        derived = f" (made from {clean(', '.join(item.origin.items))})" if item.origin.items else ""
        say(f"  {clean(key_of(item))}  {item.kind}, {_standing(item)}{derived}: {_said(item)}")
    if found.unsure:
        say("these perhaps came from there too, not all of their sources are known; to forget one, name it:", "yellow")
    for item in found.unsure:
        say(f"  {clean(key_of(item))}  {item.kind}, {_standing(item)}: {_said(item)}")
    if found.runs:
        say(f"the logs of {counted(len(found.runs), 'run')} keep it until they are erased:")
    for one in found.runs:
        say(f"  {one.run_id}: {counted(one.records, 'record')}" + (f", {counted(one.artifacts, 'artifact')}" if one.artifacts else ""))


# Move ---------------------------------------------------------------------------------------------------------------------------


def _export(invocation: Invocation, words: list[str], which: Which, asked: dict[str, Any]) -> int:
    _none(words, "export")

    async def work(engine: Engine) -> Sequence[MemoryItem]:
        return await engine.memory.export(scope=which.scope or "", **asked)

    items = invocation.drive(work)
    written(invocation, which.file, b"".join(encode(item) + b"\n" for item in items), counted(len(items), "item"))
    return 0


def _import(invocation: Invocation, words: list[str], which: Which, asked: dict[str, Any]) -> int:
    if len(words) != 1:
        raise ConfigError("import needs one file: detent memory import FILE")
    items = _read(Path(words[0]))

    async def work(engine: Engine) -> int:
        return await engine.memory.import_(items, vouched=bool(which.vouch), **asked)

    new = invocation.drive(work)
    invocation.output.document({"items": len(items), "new": new})
    invocation.output.say(f"imported {counted(new, 'new item')} of {len(items)}" + ("" if which.vouch else "; their content is untrusted"))
    return 0


def _read(file: Path) -> list[MemoryItem]:
    """Return the items of an exported file. Raise `ConfigError` that names the line, `OSError`."""
    with file.open("rb") as source:
        data = source.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{file} has more than {MOST_BYTES:,} bytes; import it in parts")
    items = list[MemoryItem]()
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            items.append(msgspec.json.decode(line, type=MemoryItem))
        except (msgspec.DecodeError, ConfigError) as error:
            raise ConfigError(f"{file}, line {number} is not an exported item: {error}") from None
    return items


# Values -------------------------------------------------------------------------------------------------------------------------


def _none(words: list[str], action: str) -> None:
    if words:
        raise ConfigError(f"detent memory {action} takes no words, but has {shortened(' '.join(words), 40)!r}; search has")


def _kinds(said: list[str] | None) -> tuple[Kind, ...]:
    return _of("--kind", said, Kind)


def _standings(said: list[str] | None) -> tuple[Standing, ...]:
    return _of("--status", said, Standing)


def _of(option: str, said: list[str] | None, known: Any) -> tuple[Any, ...]:
    for one in said or ():
        if one not in get_args(known):
            raise ConfigError(f"{option} {one!r} is not known; choose from {', '.join(get_args(known))}")
    return tuple(said or ())


DO: dict[Action, Callable[[Invocation, list[str], Which, dict[str, Any]], int]] = {
    Action.LIST: _list,
    Action.SEARCH: _search,
    Action.SHOW: _show,
    Action.ADD: _add,
    Action.CORRECT: _correct,
    Action.FORGET: _forget,
    Action.REVIEW: _review,
    Action.EXPORT: _export,
    Action.IMPORT: _import,
}
