"""`todo`: a planner's checklist, kept in the log of its run. It survives compaction, crashes and other passes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from detent.core.state import KernelState
from detent.meta_tools.declaring import declared, notes_of, refused
from detent.ports import Answer

LIST = "todo"
MOST = 200
"""Most entries of a list."""
LONGEST = 400
"""Most characters of an entry."""


class TodoArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `todo`."""

    action: Annotated[Literal["add", "start", "done", "list"], Meta(description="What to do.")]
    items: Annotated[tuple[str, ...], Meta(description="With add: the entries, in order.")] = ()
    number: Annotated[int, Meta(description="With start and done: which entry; 1 is the first.")] = 0


async def _todo(args: TodoArgs, state: KernelState, context: Any) -> Answer:
    kept: list[dict[str, str]] = [dict(entry) for entry in notes_of(context.run.state).get(LIST, ())]
    if args.action == "list":
        return Answer(content=_rendered(kept))
    if args.action == "add":
        new = [" ".join(text.split()) for text in args.items if text.strip()]
        if any(len(text) > LONGEST for text in new):
            return refused(f"todo: an entry has at most {LONGEST} characters; keep what is longer with recall")
        if not new or len(kept) + len(new) > MOST:
            return refused(f"todo: add needs entries in items, and a list has at most {MOST}")
        kept += [{"text": text, "state": "open"} for text in new]
    elif not 1 <= args.number <= len(kept):
        return refused(f"todo: there is no entry {args.number}; {_rendered(kept)}")
    else:
        kept[args.number - 1]["state"] = "started" if args.action == "start" else "done"
    return Answer(content=_rendered(kept), notes={LIST: kept})


def _rendered(entries: list[dict[str, str]]) -> str:
    marks = {"open": "[ ]", "started": "[>]", "done": "[x]"}
    return "\n".join(f"{n}. {marks[entry['state']]} {entry['text']}" for n, entry in enumerate(entries, 1)) or "the list is empty"


todo = declared("todo", "A checklist for this work: add entries, mark them started or done, look at the list.", TodoArgs, _todo)
