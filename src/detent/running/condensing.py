"""Compaction between two runs of a session: a summary takes the place of the messages that no longer fit.

Theory of operation. A run of a session is stored with all messages that are to leave (`Conversation.leaving`) and the summary so far. Before its first
plan, the agent's compactor makes the next summary of both. So a model that writes it is called through the run's gateway and counted in its usage.
The new conversation is an artifact, and `ConversationCompacted` names it: a run that is killed before that begins again here, and one that is
killed after it does not. If a run never plans, its messages are still there for the next run.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec

from detent.config.adapters import origin_of
from detent.config.compaction import make_compaction, profile_of
from detent.core.events import ConversationCompacted, ToolError
from detent.core.state import Item
from detent.kernel.context import KernelContext
from detent.ports import EventStore
from detent.ports.compacting import Dropped
from detent.ports.conversing import Conversation, Message
from detent.running.compacting import Compacting
from detent.running.conversing import BYTES_PER_TOKEN, OF_SUMMARY, SHARE, encoded, known, shown

replace = msgspec.structs.replace


class Condensing:
    """The compaction of the conversation of one run."""

    __slots__ = ("_earlier", "_lock", "_store")

    def __init__(self, store: EventStore, earlier: Conversation) -> None:
        self._store, self._earlier, self._lock = store, earlier, asyncio.Lock()

    async def condense(self, context: KernelContext, compacting: Compacting) -> None:
        """Record `ConversationCompacted`, once for all passes of the run, and show the planner the new conversation."""
        async with self._lock:  # passes that run side by side see the same conversation
            earlier, run = self._earlier, context.run
            if not earlier.leaving:
                return
            gone = earlier.messages[: earlier.leaving]
            window = profile_of(run.state.agent).window_tokens * BYTES_PER_TOKEN
            dropped = Dropped(
                items=[*map(item_of, gone)],
                before=earlier.summary.text if earlier.summary is not None else "",
                max_bytes=max(200, min(make_compaction(run.state.agent.compaction).max_summary_bytes, window // SHARE // OF_SUMMARY)),
                goal=run.state.goal,
                ask_bytes=window // 2,
            )
            text, failed, by = await compacting.written(context, dropped)
            made_of = known(replace(earlier, messages=gone))
            place = run.state.session
            summary = Message(
                kind="note",
                text=text,
                number=place.number if place is not None else 0,
                run_id=run.state.run_id,
                origin=replace(origin_of(run.state, "", text, made_of), seal=""),
            )
            kept = earlier.messages[len(gone) :]
            now = replace(earlier, messages=kept, size=0, dropped=earlier.dropped + len(gone), summary=summary, leaving=0)
            data, ref = encoded(now)
            await self._store.put_blob(run.state.run_id, ref.key, data)
            run.record(context.scope, ConversationCompacted(kept=ref, messages=len(gone), compactor=by, failed=failed))
            await context.commit()  # it was paid for
            self._earlier, run.world.conversation = now, shown(now)  # pyright: ignore[reportAttributeAccessIssue] - the live world's own


def item_of(message: Message) -> Item:
    """Return a message as an item of a transcript. Its turn is the number of the message."""
    if message.kind != "tool":
        files = f" [attachments] {msgspec.json.encode(message.attachments).decode()}" if message.attachments else ""
        return Item(kind=message.kind, iteration=message.number, text=message.text + files)
    result = msgspec.json.encode(message.content)
    error = None
    if not message.ok:
        said: Any = message.content  # as `conversing` keeps a failure, unless it was too long
        code, _, why = str(cast("dict[str, Any]", said).get("error") if isinstance(said, dict) else said).partition(": ")
        error = ToolError(code=code, message=why)
    return Item(
        kind="tool",
        iteration=message.number,
        call_id=message.run_id,
        tool=message.tool,
        arguments=message.args,
        ok=message.ok,
        result=msgspec.Raw(result if message.ok else b""),
        error=error,
    )
