"""Memory: find items, see what is known of one and which records it came from, review proposals, and forget.

A visitor sees and touches the items of their own tenant. Forgetting shows first what it takes along, and then says what is left where.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from starlette.responses import Response

from detent.ports.remembering import Found, MemoryItem, Standing, key_of, standing_of, told
from detent.server.pages.rendering import at_run
from detent.server.pages.visits import Page, Visit
from detent.server.problems import Refused

ITEMS = 50
"""So many items are shown at once."""
VIEWS: tuple[tuple[str, str, tuple[Standing, ...]], ...] = (
    ("", "Current", ("current",)),
    ("proposed", "Proposals", ("proposed",)),
    ("all", "All", ()),
)
"""The ready filters: the name in the address, the label, and which items they show."""
TONES: dict[Standing, str] = {"current": "good", "proposed": "waits", "upcoming": "live", "refused": "bad"}


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an item came from, in words, and the address of the record or run that shows it, "" without one."""

    said: str
    at: str = ""


async def memory_page(visit: Visit) -> Response:
    """Show what fits a search best, or the items by key."""
    if not (memory := visit.served.engine.memory):
        return visit.page(
            "memory.html", there=False, names=(), name="", found=(), views=VIEWS, view="", standings={}, tones=TONES, address="", more=""
        )
    name, wanted, scope = _name(visit), visit.asked.get("find", "").strip(), visit.asked.get("scope", "").strip()
    view, _, standings = next((one for one in VIEWS if one[0] == visit.asked.get("view", "")), VIEWS[0])
    host, more = visit.caller.host, ""
    if wanted:
        found: Sequence[Found] = await memory.search(wanted, scope=scope, limit=ITEMS, name=name, host=host)
    else:
        after = visit.asked.get("after", "")
        items = await memory.list(scope, standings=standings, limit=ITEMS + 1, after=after, name=name, host=host)
        found = [Found(item=one, score=0.0) for one in items[:ITEMS]]
        more = key_of(items[ITEMS - 1]) if len(items) > ITEMS else ""
    now = visit.served.engine.runtime.parts.clock.now()
    return visit.page(
        "memory.html",
        there=True,
        names=memory.names(),
        name=name,
        found=found,
        views=VIEWS,
        view=view,
        standings={key_of(one.item): standing_of(one.item, now) for one in found},
        tones=TONES,
        address=partial(at_item, name=name),
        more=f"/ui/memory?{urlencode({'memory': name, 'view': view, 'scope': scope, 'after': more})}" if more else "",
    )


async def item_page(visit: Visit) -> Response:
    """Show an item: what it says, what it is now, what it replaced, and where it came from."""
    name = _name(visit)
    found = await visit.served.engine.memory.explain(visit.path["key"], name=name, host=visit.caller.host)
    now = visit.served.engine.runtime.parts.clock.now()
    return visit.page(
        "memory_item.html",
        item=found.item,
        standing=found.standing,
        chain=[(one, standing_of(one, now)) for one in found.chain],
        key=key_of(found.item),
        places=places_of(found.item),
        name=name,
        tones=TONES,
        roles=visit.caller.roles,
        address=partial(at_item, name=name),
        at_key=partial(_at_key, name=name, scope=found.item.scope),
    )


async def review(visit: Visit) -> Response:
    """Accept or refuse a proposal."""
    form = await visit.form()
    if (verdict := form.get("verdict", "")) not in ("accept", "refuse"):
        raise Refused(422, "bad_form", f"the verdict is {verdict[:40]!r}; give accept or refuse")
    item = await visit.served.engine.memory.review(
        form.get("item", ""),
        accept=verdict == "accept",
        why=form.get("why", ""),
        by=visit.caller.principal,
        name=_name(visit, form),
        host=visit.caller.host,
    )
    return visit.go(at_item(item, _name(visit, form)))


async def preview(visit: Visit) -> Response:
    """Show what would be forgotten with an item, and where its words would remain."""
    return await _forgotten(visit, visit.asked, preview=True)


async def forget(visit: Visit) -> Response:
    """Forget an item and what was made from it, and show the receipt."""
    return await _forgotten(visit, await visit.form(), preview=False)


async def _forgotten(visit: Visit, given: dict[str, str], *, preview: bool) -> Response:
    name = _name(visit, given)
    done = await visit.served.engine.memory.forget(
        given.get("item", ""), preview=preview, why=given.get("why", ""), by=visit.caller.principal, name=name, host=visit.caller.host
    )
    return visit.page(
        "memory_forget.html",
        done=done,
        item=given.get("item", ""),
        name=name,
        address=partial(at_item, name=name),
        at_key=partial(_at_key, name=name),
    )


def places_of(item: MemoryItem) -> Sequence[Place]:
    """Return where an item came from: the record that wrote it, and for each of its sources how it came there."""
    origin, found = item.origin, list[Place]()
    if origin.run_id:
        what = f"written in run {origin.run_id}" + (f" by call {origin.call_id}" if origin.call_id else "")
        found.append(_place(what, origin.run_id, origin.sequence))
    elif origin.person:
        found.append(Place(said=f"written by {origin.person}"))
    for source in origin.sources:
        *hops, last = told(source)
        found += [_place(said, hop.run_id, hop.sequence) for said, hop in zip(hops, source.via, strict=True)]
        found.append(_place(last, source.run_id, 0, call=source.origin if source.tool else ""))
    return found


def _place(said: str, run_id: str, sequence: int, *, call: str = "") -> Place:
    where = f"/records/{sequence}" if sequence else f"/calls/{quote(call, safe='')}" if call else ""
    return Place(said=said, at=at_run(run_id, where) if run_id else "")


def at_item(item: MemoryItem, name: str = "") -> str:
    """Return the address of an item's page."""
    return _at_key(key_of(item), name)


def _at_key(key: str, name: str, scope: str = "") -> str:
    """Return the address of an item by its key, or by its id in a scope."""
    key = key if "/" in key or not scope else f"{scope}/{key}"
    return f"/ui/memory/items/{quote(key, safe='/')}" + (f"?{urlencode({'memory': name})}" if name else "")


def _name(visit: Visit, given: dict[str, Any] | None = None) -> str:
    """Return which of the engine's memories is meant, "" for the only one. Raise `Refused`."""
    memory = visit.served.engine.memory
    if not memory:
        raise Refused(404, "no_memory", "this engine has no memory; give Engine(memory=...), or `memory` in detent.toml")
    names = memory.names()
    name = (visit.asked if given is None else given).get("memory", "") or (names[0] if len(names) > 1 else "")
    if name and name not in names:
        raise Refused(404, "no_memory", f"there is no memory {name[:40]!r}; there are: {', '.join(names)}")
    return name


PAGES = (
    Page(path="/ui/memory", handle=memory_page),
    Page(path="/ui/memory/items/{key:path}", handle=item_page),
    Page(path="/ui/memory/review", handle=review, role="approve", method="POST"),
    Page(path="/ui/memory/forget", handle=preview, role="operate"),
    Page(path="/ui/memory/forget", handle=forget, role="operate", method="POST"),
)
