"""The transcript as messages, in whole turns.

A block is an action and all its results. A prompt over its token budget is refused, and compaction then decides what is left out.
Rendered blocks are cached, which saves time and changes nothing: the same view gives the same messages in a fresh process.
"""  # row K122

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from detent.core.actions import FinalAnswer
from detent.core.errors import PlannerFailed
from detent.core.state import Item
from detent.planners.earlier import spoken
from detent.planners.raw_text.compact_prompt import action_text, outcome_text, plan_text
from detent.planners.raw_text.generation import Message
from detent.planners.text.surrogates import whole_text
from detent.planners.trimming import CountTokens, compression_of
from detent.ports import ResultCompression, View

MOST_RUNS = 32
"""The number of passes whose rendering is cached."""

_How = tuple[ResultCompression, bool]
"""How much of a result is shown, and whether the agent has `recall`."""


class Block(msgspec.Struct, frozen=True, gc=False):
    """One turn: the model's action, and the results that it was told."""

    action: str
    outcome: str


class Rendered:
    """The blocks of one pass, and their `tokens`."""

    __slots__ = ("done", "first", "head", "last", "messages", "tokens")

    def __init__(self, first: Item | None) -> None:
        self.first = first
        self.last: Item | None = None
        self.done = 0
        self.head: list[str] = []
        self.messages: list[Message] = []
        self.tokens = 0


class Renderer:
    """Renders transcripts into blocks: at most `longest` characters of a result, and no more than the agent's profile allows."""

    def __init__(self, *, count: CountTokens, longest: int) -> None:
        self._count, self.longest = count, longest
        self._known: OrderedDict[tuple[str, str, _How], Rendered] = OrderedDict()

    def render(self, view: View) -> tuple[Rendered, Block | None]:
        """Return the finished blocks, and the last one, which may still grow."""
        items = view.transcript
        shown = compression_of(view)
        if shown.budget_chars > self.longest:
            shown = msgspec.structs.replace(shown, budget_chars=self.longest)
        how = shown, "recall" in view.agent.tools
        known = self._remembered(view, how)
        start = _last_plan(items, known.done)
        if start < 0:
            known.head = _outcomes(_opening(items, len(items)), how) if known.done == 0 else known.head
            return known, None
        if start > known.done:
            self._close(known, items[known.done : start], how, opening=known.done == 0)
            known.done, known.last = start, items[start - 1]
        return known, _block(items[start:], how)

    def tokens_of(self, item: Item) -> int:
        """Return the tokens of an item, without what the agent's profile cuts."""
        shown = ResultCompression(budget_chars=self.longest)
        return self._count(plan_text(item) if item.kind == "model" else outcome_text(item, shown, recalls=False))

    def _remembered(self, view: View, how: _How) -> Rendered:
        """Return the cached rendering of this pass; an empty one if the transcript is not the rendered one with additions at its end."""
        key, items = (view.run_id, view.scope, how), view.transcript
        first = items[0] if items else None
        known = self._known.get(key)
        if known is None or known.first != first or len(items) < known.done or (known.done and items[known.done - 1] is not known.last):
            known = self._known[key] = Rendered(first)
        self._known.move_to_end(key)
        while len(self._known) > MOST_RUNS:
            self._known.popitem(last=False)
        return known

    def _close(self, known: Rendered, items: Sequence[Item], how: _How, *, opening: bool) -> None:
        starts = [i for i, item in enumerate(items) if item.kind == "model"]
        if opening:
            known.head = _outcomes(_opening(items, starts[0] if starts else len(items)), how)
        for start, end in pairwise([*starts, len(items)]):
            block = _block(items[start:end], how)
            known.messages += _messages(block)
            known.tokens += self._count(block.action) + self._count(block.outcome)


def _block(items: Sequence[Item], how: _How) -> Block:
    return Block(whole_text(plan_text(items[0])), "\n".join(_outcomes(items[1:], how)) or "Go on.")


def _outcomes(items: Sequence[Item], how: _How) -> list[str]:
    return [whole_text(outcome_text(item, how[0], recalls=how[1])) for item in items]


def _opening(items: Sequence[Item], end: int) -> Sequence[Item]:
    """Return the items before the first plan, without the goal, which has its own place."""
    return items[1 if items and items[0].kind == "user" else 0 : end]


def _last_plan(items: Sequence[Item], floor: int) -> int:
    """Return the index of the last item of kind `model`, -1 if there is none from `floor` on."""
    for index in range(len(items) - 1, floor - 1, -1):
        if items[index].kind == "model":
            return index
    return -1


def _messages(block: Block) -> tuple[Message, Message]:
    return Message("assistant", block.action), Message("user", block.outcome)


def earlier_messages(view: View, longest: int) -> list[Message]:
    """Return the earlier messages of the run's session; answers have the form of the model's own actions."""
    shown = compression_of(view)
    shown = msgspec.structs.replace(shown, budget_chars=min(shown.budget_chars, longest))
    return [
        Message("assistant", whole_text("\n".join(action_text(FinalAnswer(content=text)) for text in texts)))
        if side == "model"
        else Message("user", whole_text("\n".join(f"User: {text}" for text in texts)))
        for side, texts in spoken(view.conversation, shown)
    ]


def whole(
    system: str,
    head: str,
    rendered: Rendered,
    last: Block | None,
    tail: str,
    *,
    budget: int,
    count: CountTokens,
    system_tokens: int,
    earlier: Sequence[Message] = (),
) -> tuple[tuple[Message, ...], int]:
    """Return the messages, and their number of tokens: system, the earlier ones of the session, goal, turns, tail.

    Raises `PlannerFailed` (`context_overflow`) if they have more than `budget` tokens. Nothing is left out here: compaction decides what is.
    """
    head = "\n".join([head, *rendered.head])
    used = system_tokens + count(head) + count(tail) + rendered.tokens + sum(count(message.content) for message in earlier)
    if last is not None:
        used += count(last.action) + count(last.outcome)
    if used > budget:
        raise PlannerFailed(
            f"the prompt has {used} tokens, more than max_prompt_tokens={budget} allows; shorten instructions, goal or examples, offer fewer tools, "
            "or raise max_prompt_tokens to what the model's context holds",
            reason="context_overflow",
            tokens=used,
            window=budget,
        )
    if earlier and earlier[-1].role == "user":  # two messages of the user in a row would be refused by some chat templates
        earlier, head = earlier[:-1], f"{earlier[-1].content}\n{head}"
    opening = (Message("system", system), *earlier)
    if last is None:
        return (*opening, Message("user", _joined(head, tail))), used
    turns = (*rendered.messages, Message("assistant", last.action), Message("user", _joined(last.outcome, tail)))
    return (*opening, Message("user", head), *turns), used


def _joined(text: str, tail: str) -> str:
    return f"{text}\n\n{tail}" if tail else text
