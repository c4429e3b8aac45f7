"""Memory over HTTP, for people: search, look, add, correct, review, forget. A caller sees its own tenant's items only."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Sequence
from hashlib import sha256

import msgspec

from detent.core.errors import ItemConflict, ItemNotFound
from detent.ports.remembering import Explanation, Found, MemoryItem, Standing
from detent.ports.stores import RESERVED
from detent.server.keys import alone, another, id_of, mark, marks, request_id
from detent.server.operations import Call, Operation
from detent.server.shapes import Strict


class SearchMemory(Strict, frozen=True, kw_only=True):
    """What fits `q` best; without it, the items at or below `scope`. `standing` as in an explanation, such as `proposed`."""

    q: str = ""
    scope: str = ""
    standing: tuple[Standing, ...] = ()
    limit: int = 20
    after: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= 1000:
            raise ValueError("limit is 1 to 1000")


class Items(msgspec.Struct, frozen=True, kw_only=True):
    """Items; `score` and `reasons` are 0 and empty where nothing was searched for."""

    items: Sequence[Found]


class AddItem(Strict, frozen=True, kw_only=True):
    """A new item; `scope` is below the caller's tenant."""

    content: str
    scope: str = ""


class CorrectItem(Strict, frozen=True, kw_only=True):
    """What holds instead."""

    content: str
    why: str = ""


class ReviewItem(Strict, frozen=True, kw_only=True):
    """Whether a proposal is accepted."""

    accept: bool
    why: str = ""


class ForgetItem(Strict, frozen=True, kw_only=True):
    """Why an item, and what was made from it, loses its content."""

    why: str = ""


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of what was forgotten."""

    removed: Sequence[str]


async def search(call: Call) -> Items:
    """Search, or list."""
    query: SearchMemory = call.query
    memory, host = call.served.engine.memory, call.caller.host
    if query.q:
        return Items(items=await memory.search(query.q, scope=query.scope, limit=query.limit, host=host))
    found = await memory.list(query.scope, standings=query.standing, limit=query.limit, after=query.after, host=host)
    return Items(items=[Found(item=item, score=0.0) for item in found])


async def explain(call: Call) -> Explanation:
    """Return what is known of an item."""
    return await call.served.engine.memory.explain(call.path["item_id"], host=call.caller.host)


async def add(call: Call) -> MemoryItem:
    """Write an item."""
    body: AddItem = call.body
    memory, host = call.served.engine.memory, call.caller.host
    item_id = f"m{id_of(call.caller, call.key, 'memory')}" if call.key else ""
    if (there := await _written(call, item_id)) is not None and not there.scope.endswith(body.scope):
        raise another(call.key)
    return await _once(call, memory.add(body.content, scope=body.scope, item_id=item_id, by=call.caller.principal, host=host))


async def correct(call: Call) -> MemoryItem:
    """Replace an item."""
    body: CorrectItem = call.body
    memory, host = call.served.engine.memory, call.caller.host
    new_id = f"m{id_of(call.caller, call.key, 'memory', call.path['item_id'])}" if call.key else ""
    if (there := await _written(call, new_id)) is not None:
        if there.tombstoned_at is None and (there.content != body.content or (there.superseded_at is None and there.why != body.why)):
            raise another(call.key)
        return there
    return await _once(
        call, memory.correct(call.path["item_id"], body.content, why=body.why, new_id=new_id, by=call.caller.principal, host=host)
    )


async def _written(call: Call, item_id: str) -> MemoryItem | None:
    """Return the item that an earlier request with this key has written."""
    with contextlib.suppress(ItemNotFound):
        return await call.served.engine.memory.get(item_id, host=call.caller.host) if item_id else None
    return None


async def _once(call: Call, writing: Awaitable[MemoryItem]) -> MemoryItem:
    try:
        return await writing
    except ItemConflict:
        if not call.key:
            raise
        raise another(call.key) from None


async def review(call: Call) -> MemoryItem:
    """Accept or refuse a proposal."""
    body: ReviewItem = call.body
    memory = call.served.engine.memory
    async with _marked(call, "review"):
        if call.key and not (item := await memory.get(call.path["item_id"], host=call.caller.host)).proposed:
            if body.accept == bool(item.refused):
                raise another(call.key)
            return item  # the same request has decided it
        return await memory.review(call.path["item_id"], accept=body.accept, why=body.why, by=call.caller.principal, host=call.caller.host)


async def forget(call: Call) -> Forgotten:
    """Remove the content of an item and of what was made from it."""
    memory = call.served.engine.memory
    async with _marked(call, "forget"):
        gone = await memory.forget(call.path["item_id"], why=call.body.why, by=call.caller.principal, host=call.caller.host)
    return Forgotten(removed=gone.removed)


@contextlib.asynccontextmanager
async def _marked(call: Call, doing: str) -> AsyncGenerator[None]:
    """Do something with an item, and mark the request, whose key the item does not keep. Raise `Refused` for a key of another body."""
    store, item_id, request = call.served.engine.store, call.path["item_id"], ""
    place = f"{RESERVED}item-{sha256(f'{call.caller.tenant} {item_id}'.encode()).hexdigest()[:32]}"
    async with alone(call, doing, item_id):
        if call.key:
            request, _ = request_id(call.caller, call.key, call.body, doing, item_id, known=await marks(store, place))
        yield
        await mark(store, place, request)


OPERATIONS = (
    Operation(
        name="searchMemory", method="GET", path="/memory", role="see", summary="Search or list memory", handle=search, query=SearchMemory,
        answer=Items,
    ),
    Operation(name="addMemory", method="POST", path="/memory", role="run", summary="Write an item", handle=add, body=AddItem, answer=MemoryItem, status=201),
    Operation(
        name="explainMemory", method="GET", path="/memory/{item_id}", role="see", summary="Where an item came from", handle=explain,
        answer=Explanation,
    ),
    Operation(
        name="correctMemory", method="POST", path="/memory/{item_id}/correct", role="run", summary="Replace an item", handle=correct,
        body=CorrectItem, answer=MemoryItem,
    ),
    Operation(
        name="reviewMemory", method="POST", path="/memory/{item_id}/review", role="approve", summary="Accept or refuse a proposal",
        handle=review, body=ReviewItem, answer=MemoryItem,
    ),
    Operation(
        name="forgetMemory", method="POST", path="/memory/{item_id}/forget", role="operate", summary="Forget an item and what was made from it",
        handle=forget, body=ForgetItem, answer=Forgotten,
    ),
)  # fmt: skip
