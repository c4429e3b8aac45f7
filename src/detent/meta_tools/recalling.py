"""`recall` and `find`: whole results and notes of the run, its documents and memory, by key or by content.

A result that was shown as a preview is kept whole, in the log or beside it. Its key is the id of its call. The documents are the attachments with
text: a model may have seen only the beginning of one.
"""

from __future__ import annotations

import base64
import contextlib
import mimetypes
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from detent.core.state import Item, KernelState, RunState
from detent.meta_tools.declaring import NOTE, as_text, declared, noted, refused, results_of, size_of
from detent.meta_tools.meaning import Hit, closest
from detent.ports import Answer, Embedder, MetaTool, ToolSpec

PIECE = 4000
"""Characters returned if no range is requested."""
ROWS = 50
"""Lines or items returned if no range is requested."""
PREVIEW = 200
HITS = 8
_WEB = re.compile(r"\b(?:web|internet|online)\b", re.IGNORECASE)
_READABLE = re.compile(r"text/|application/(?:[a-z.+-]*\+)?(?:json|xml|yaml|toml)\b", re.IGNORECASE)


class RecallArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `recall`."""

    key: Annotated[str, Meta(description="Of a result (the id of its call), a note, a document or memory; empty lists what there is.")] = ""
    content: Annotated[str, Meta(description="Keep this text as a note under the key.")] = ""
    full: Annotated[bool, Meta(description="The whole value, however long.")] = False
    unit: Annotated[Literal["characters", "lines", "items"], Meta(description="What start and end count; items are those of a list.")] = (
        "characters"
    )
    start: Annotated[int, Meta(ge=0, description="From this one; 0 is the first.")] = 0
    end: Annotated[int, Meta(ge=0, description="To before this one; 0: as far as one reading goes.")] = 0
    query: Annotated[str, Meta(description="Only the lines that contain this text.")] = ""


async def _recall(args: RecallArgs, state: KernelState, context: Any) -> Answer:
    run: RunState = context.run.state
    if args.content:
        if not args.key.strip():
            return refused("recall: a note needs a key to be found again")
        if any(item.call_id == args.key for item in results_of(run)) or args.key in _given(state, run):
            return refused(
                f"recall: {args.key} is the key of a result, a document or memory, which stays as it is; take another key for the note"
            )
        return Answer(content=f"kept under {args.key!r}", notes={NOTE + args.key: args.content})
    if not args.key:
        return Answer(content=_listed(state, run))
    item = next((item for item in results_of(run) if item.call_id == args.key), None)
    if item is not None:
        return _part(args, await context.run.world.full(item))
    kept = _given(state, run) | noted(run)
    if args.key in kept:
        return _part(args, kept[args.key])
    return refused(f"recall: nothing is kept under {args.key!r}; there is: {_listed(state, run)}")


def _given(state: KernelState, run: RunState, *kinds: str) -> dict[str, Any]:
    """Return the run's given texts by key (`kinds`, or all): its documents and its memory."""
    texts = [_text_of(document) for document in run.attachments]
    documents = {f"document {n}": text for n, text in enumerate(texts, 1) if text}
    memory = {f"memory {n}": item for n, item in enumerate(state.memory, 1)}
    return (documents if "documents" in kinds or not kinds else {}) | (memory if "memory" in kinds or not kinds else {})


def _text_of(document: Any) -> str:
    """Return the text of an attachment under its name, "" if it has none."""
    if not isinstance(document, dict):
        return document if isinstance(document, str) else ""
    fields = cast("dict[str, Any]", document)
    text, data = fields.get("text"), fields.get("data")
    kind = fields.get("media_type") or mimetypes.guess_type(str(fields.get("name")))[0]
    if not isinstance(text, str) and isinstance(data, str) and _READABLE.match(str(kind)):
        with contextlib.suppress(ValueError):
            text = base64.b64decode(data, validate=True).decode()
    return "\n".join(part for part in (fields.get("name"), text) if isinstance(part, str)) if isinstance(text, str) else ""


def _part(args: RecallArgs, value: Any) -> Answer:
    """Return the requested part of a value: lines that contain a text, the whole value, or a range with a note on its place."""
    if args.query:
        found = [line for line in _lines(value) if args.query.lower() in line.lower()]
        return Answer(content="\n".join(found)) if found else refused(f"recall: nothing in {args.key} contains {args.query!r}")
    text = as_text(value)
    if args.full or (len(text) <= PIECE and not (args.start or args.end)):
        return Answer(content=text)
    if args.unit == "items" and not isinstance(value, list):
        return refused(f"recall: {args.key} is no list; ask for characters or lines")
    whole = cast("list[Any]", value) if args.unit == "items" else _lines(value) if args.unit == "lines" else text
    end = min(args.end or args.start + (PIECE if args.unit == "characters" else ROWS), len(whole))
    piece = whole[args.start : end]
    shown = "\n".join(map(str, piece)) if args.unit == "lines" else as_text(piece)
    return Answer(content=f"{shown}\n[{args.unit} {args.start} to {end} of {len(whole)}]")


def _lines(value: Any) -> list[str]:
    if isinstance(value, list):
        return [as_text(part) for part in cast("list[Any]", value)]
    return as_text(value).splitlines() if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value)).decode().splitlines()


def _listed(state: KernelState, run: RunState) -> str:
    found = [f"{item.call_id} ({item.tool}, {size_of(item)} bytes)" for item in results_of(run)[-50:]]
    found += [f"{key} (note)" for key in noted(run)][-50:]
    found += list(_given(state, run))[-50:]
    return ", ".join(found) or "nothing yet"


recall = declared(
    "recall",
    "Read a stored result or note again, whole or in part, or keep a note: results that were shown in part are read here by their key.",
    RecallArgs,
    _recall,
)


class RecallTurnArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `recall_turn`."""

    turn: Annotated[int, Meta(ge=0, description="Which turn of this work; 0 is what was asked for.")]
    start: Annotated[int, Meta(ge=0, description="From this character on.")] = 0


async def _recall_turn(args: RecallTurnArgs, state: KernelState, context: Any) -> Answer:
    steps = state.steps
    first = bisect_left(steps, args.turn, key=lambda item: item.iteration)
    lines: list[str] = []
    for position in range(first, len(steps)):
        item = steps[position]
        if item.iteration != args.turn:
            break
        if item.kind == "tool":
            said = item.error.message if item.error is not None else as_text(await _whole(item, context))
            lines.append(f"[{item.call_id}] {item.tool}({as_text(item.arguments)}) {'failed: ' if item.error is not None else '-> '}{said}")
        elif said := [item.text, *item.questions, *(as_text(one["content"]) for one in item.arguments or ())]:
            lines += [f"[{item.kind}] {text}" for text in said if text]
    if not lines:
        return refused(f"recall_turn: there is no turn {args.turn}; turns go from 0 to {state.iteration}")
    text = "\n".join(lines)
    end = min(args.start + PIECE, len(text))
    more = f"\n[characters {args.start} to {end} of {len(text)}; start={end} reads on]" if end < len(text) else ""
    return Answer(content=text[args.start : end] + more)


recall_turn = declared(
    "recall_turn", "Read an earlier turn of this work again: its text, its calls and their results.", RecallTurnArgs, _recall_turn
)


class FindArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `find`."""

    query: Annotated[str, Meta(min_length=1, description="Words to look for.")]
    scope: Annotated[
        Literal["auto", "documents", "web", "memory", "all"],
        Meta(
            description="Where to look: documents are stored results and attachments; auto is those and notes, and memory where they have nothing."
        ),
    ] = "auto"


async def _find(args: FindArgs, state: KernelState, context: Any, embedder: Callable[[str], Embedder] | None = None) -> Answer:
    words = set(re.findall(r"\w+", args.query.lower()))
    if not words:
        return refused(f"find: {args.query!r} holds no word to look for")
    if args.scope == "web":
        return refused(f"find: the web is not looked in from here; {_instead(context.specs)}")
    run: RunState = context.run.state
    hits: list[Hit] = []
    told = ""
    if args.scope != "memory":
        places = [(item.call_id, as_text(await _whole(item, context))) for item in results_of(run)]
        places += [] if args.scope == "documents" else [(key, as_text(value)) for key, value in noted(run).items()]
        kinds = () if args.scope == "all" else ("documents",)
        places += [(key, as_text(value)) for key, value in _given(state, run, *kinds).items()]
        hits = _ranked(places, words)
        if embedder is not None:
            near, told = await closest(places, args.query, embedder(run.host.tenant), context, most=HITS)
            hits = _together(hits, [(key, _around(piece, words)) for key, piece in near])
    if args.scope == "memory" or (args.scope == "auto" and not hits):
        hits = _ranked([(key, as_text(value)) for key, value in _given(state, run, "memory").items()], words)
    told = f"\n({told})" if told else ""
    if hits:
        return Answer(content="\n".join(f"{key}: {excerpt}" for key, excerpt in hits) + told)
    further = f"; for the web: {_instead(context.specs)}" if args.scope == "auto" else ""
    return Answer(content=f"nothing here has {args.query!r}{further}{told}")


def _together(by_words: list[Hit], by_meaning: list[Hit]) -> list[Hit]:
    """Return both rankings as one: what both contain comes first. Each place has one excerpt, preferably that of the search by meaning."""
    ranks: dict[str, float] = {}
    for ranking in (by_words, by_meaning):
        for rank, (key, _) in enumerate(ranking):
            ranks[key] = ranks.get(key, 0.0) + 1 / (60 + rank)  # reciprocal rank fusion, with its usual constant
    excerpts = dict(by_words) | dict(by_meaning)
    return [(key, excerpts[key]) for key in sorted(ranks, key=lambda key: -ranks[key])][:HITS]


def _ranked(places: list[tuple[str, str]], words: set[str]) -> list[Hit]:
    """Return the texts that contain any of the words, as key and excerpt: more words first, then in their order."""
    lowered = (text.lower() for _, text in places)  # once for all words: a document may be long
    scored = [(sum(word in low for word in words), -n, key, text) for n, ((key, text), low) in enumerate(zip(places, lowered, strict=True))]
    hits = sorted((hit for hit in scored if hit[0]), reverse=True)[:HITS]
    return [(key, _around(text, words)) for _, _, key, text in hits]


def _instead(specs: Sequence[ToolSpec]) -> str:
    """Return the tools that read the web: tools that read, and take a URL or have a description that mentions the web."""
    reading = [
        spec.name
        for spec in specs
        if spec.read_only
        and (
            {"url", "urls"} & set(spec.input_schema.get("properties", ()))
            or _WEB.search(f"{spec.name} {spec.description}".replace("_", " "))
        )
    ]
    return f"call {' or '.join(reading)}" if reading else "this agent has no tool that reads it"


async def _whole(item: Item, context: Any) -> Any:
    return item.content if item.artifact is None else await context.run.world.full(item)


def _around(text: str, words: set[str]) -> str:
    """Return the piece of a text around the first of the words."""
    low = text.lower()
    place = min((p for word in words if (p := low.find(word)) >= 0), default=0)
    first = max(0, place - PREVIEW // 4)
    piece = " ".join(text[first : first + PREVIEW].split())
    return f"{'…' if first else ''}{piece}{'…' if first + PREVIEW < len(text) else ''}"


find = declared(
    "find", "Look for words in what this work has seen: results, notes, documents, memory. Says under which key.", FindArgs, _find
)


def find_by_meaning(embedder: Callable[[str], Embedder]) -> MetaTool:
    """Return `find` for an engine with an embedder, which `embedder` returns for a tenant. It also finds the same meaning in other words."""
    return declared(
        "find",
        "Look in what this work has seen, by meaning and by words: results, notes, documents, memory. Says under which key.",
        FindArgs,
        partial(_find, embedder=embedder),
    )
