"""The transcript as messages, in whole turns, and which of them fit into a token budget.

A block is an action and all its results. Blocks are kept or dropped whole, the newest are kept first, the last one always.
Rendered blocks are cached, which saves time and changes nothing: the same view gives the same messages in a fresh process.
"""  # row K122

from __future__ import annotations

from bisect import bisect_left
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
from detent.planners.trimming import CountTokens, clipped, compression_of
from detent.ports import ResultCompression, View

MOST_RUNS = 32
"""The number of passes whose rendering is cached."""

MOST_KEYS = 8
"""How many keys of results are named if the last turn does not fit. They are the last keys, because those are cut first."""

_How = tuple[ResultCompression, bool]
"""How much of a result is shown, and whether the agent has `recall`."""


class Block(msgspec.Struct, frozen=True, gc=False):
    """One turn: the model's action, the results that it was told, and how to read what was not shown (`rest`)."""

    action: str
    outcome: str
    rest: str = ""


class Rendered:
    """The blocks of one pass. `ends[i]` is the total of tokens up to block `i`."""

    __slots__ = ("done", "ends", "first", "head", "last", "messages")

    def __init__(self, first: Item | None) -> None:
        self.first = first
        self.last: Item | None = None
        self.done = 0
        self.head: list[str] = []
        self.messages: list[Message] = []
        self.ends: list[int] = []


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
            known.ends.append((known.ends[-1] if known.ends else 0) + self.tokens(block))

    def tokens(self, block: Block) -> int:
        """Return the tokens of a block."""
        return self._count(block.action) + self._count(block.outcome)


def _block(items: Sequence[Item], how: _How) -> Block:
    keys = [f'"{item.call_id}"' for item in items[1:] if how[1] and item.kind == "tool" and item.ok and not item.meta]
    rest = f"\n[recall with key {' or '.join(keys[-MOST_KEYS:])} gives the rest]" if keys else ""
    return Block(whole_text(plan_text(items[0])), "\n".join(_outcomes(items[1:], how)) or "Go on.", rest)


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


def _newest(messages: Sequence[Message], left: int, count: CountTokens) -> list[Message]:
    """Return as many of the newest messages as fit into `left` tokens. The first is not an answer whose message is missing."""
    first = len(messages)
    while first and (left := left - count(messages[first - 1].content)) >= 0:
        first -= 1
    while first < len(messages) and messages[first].role == "assistant":
        first += 1
    return list(messages[first:])


def fit(
    system: str,
    head: str,
    rendered: Rendered,
    last: Block | None,
    tail: str,
    *,
    budget: int,
    count: CountTokens,
    system_tokens: int,
    reserved: int = 0,
    earlier: Sequence[Message] = (),
    whole: bool = False,
) -> tuple[tuple[Message, ...], int]:
    """Return the messages that fit, and their number of tokens, as `fit_run` does, with the newest of the `earlier` ones before them that still fit."""
    messages, used = fit_run(
        system, head, rendered, last, tail, budget=budget, count=count, system_tokens=system_tokens, reserved=reserved, whole=whole
    )
    kept = _newest(earlier, budget - reserved - used, count)
    if not kept:
        return messages, used
    used += sum(count(message.content) for message in kept)
    if kept[-1].role == "user":  # two messages of the user in a row would be refused by some chat templates
        return (messages[0], *kept[:-1], Message("user", f"{kept[-1].content}\n{messages[1].content}"), *messages[2:]), used
    return (messages[0], *kept, *messages[1:]), used


def fit_run(
    system: str,
    head: str,
    rendered: Rendered,
    last: Block | None,
    tail: str,
    *,
    budget: int,
    count: CountTokens,
    system_tokens: int,
    reserved: int = 0,
    whole: bool = False,
) -> tuple[tuple[Message, ...], int]:
    """Return the messages that fit into `budget` tokens, and their number of tokens: always system, goal, tail and the last block, which may be
    clipped.

    `reserved` tokens are kept free for later messages, as far as history can be dropped.
    Raises `PlannerFailed` (`context_overflow`) if system, goal and tail alone do not fit; with `whole` also where a block would be left out, because
    the run is compacted then.
    """
    head = "\n".join([head, *rendered.head])
    left = budget - system_tokens - count(head) - count(tail)
    if left < 0:
        raise PlannerFailed(
            f"the prompt without any history has {budget - left} tokens, more than max_prompt_tokens={budget} allows; "
            "shorten instructions, goal or examples, offer fewer tools, or raise max_prompt_tokens to what the model's context holds",
            reason="context_overflow",
        )
    used, left = budget - left, max(0, left - reserved)
    if last is None:
        return (Message("system", system), Message("user", _joined(head, tail))), used
    last, size = _clip(last, left, count)
    used, left = used + size, left - size
    total = rendered.ends[-1] if rendered.ends else 0
    kept = bisect_left(rendered.ends, total - left) if total > left else -1
    if whole and kept >= 0:
        raise PlannerFailed(f"the prompt has {used + total} tokens, more than max_prompt_tokens={budget} allows", reason="context_overflow")
    messages = (
        Message("system", system),
        Message("user", head),
        *rendered.messages[2 * (kept + 1) :],
        Message("assistant", last.action),
        Message("user", _joined(last.outcome, tail)),
    )
    return messages, used + total - (rendered.ends[kept] if kept >= 0 else 0)


def _joined(text: str, tail: str) -> str:
    return f"{text}\n\n{tail}" if tail else text


def _clip(block: Block, left: int, count: CountTokens) -> tuple[Block, int]:
    """Return the last block with as much of its outcome as fits into `left` tokens, and its size."""
    action = count(block.action)
    size = action + count(block.outcome)
    if size <= left:
        return block, size
    if action > left // 2:
        block = Block(clipped(block.action, max(40, left)), block.outcome, block.rest)
        action = count(block.action)
    length, outcome = len(block.outcome), block.outcome
    while length > 40 and action + count(outcome) > left:
        length = length * 3 // 4
        outcome = clipped(block.outcome, length) + block.rest
    return Block(block.action, outcome), action + count(outcome)
