"""Self-consistent: independent episodes work on the same goal, and the most frequent answer wins.

An episode is a pass of its own. It sees nothing of the others, and is never run twice. The first answer with the winning key is the run's answer.
Only as many episodes begin at a time as a decision needs at least, and none begins once the rest can change nothing. Model calls: k for each episode.
"""  # row K127

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from detent.core.agent import AgentSpec
from detent.core.budget import Budget
from detent.core.errors import ConfigError
from detent.expressions.agreeing import plain, plurality
from detent.ports import Branch, Passed, StrategyRun, shared, strategy
from detent.ports.options import check_fields
from detent.strategies.wording import at_least


class SelfConsistentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`samples`: the maximum of episodes. `min_samples`: there is no result with fewer answers. `concurrency`: episodes at a time.

    `agreement`: the share of the episodes that must give the same answer; with less, the run abstains. `accept_first`: the first answer that the
    agent's checks (`verify`) accept is the answer. `field`: the field of a structured answer that is compared, instead of all of it. `turns`: the
    maximum of one episode. `effects`: whether episodes may use tools that change something; then each of them does.
    """

    samples: int = 5
    min_samples: int = 2
    concurrency: int = 4
    agreement: float = 0.0
    accept_first: bool = False
    field: str = ""
    turns: int | None = None
    effects: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(1, samples=self.samples, min_samples=self.min_samples, concurrency=self.concurrency, turns=self.turns)
        at_least(0, agreement=self.agreement)
        if self.agreement > 1:
            raise ConfigError(f"strategy_options: agreement is {self.agreement}; it is a share, so give at most 1")
        if self.min_samples > self.samples:
            raise ConfigError(f"strategy_options: min_samples is {self.min_samples}, and there are only {self.samples} samples")

    def check(self, agent: AgentSpec) -> None:
        """Raise `ConfigError` if the first answer is to be accepted, and nothing checks it."""
        if self.accept_first and not agent.verify:
            raise ConfigError(f"strategy_options: accept_first needs checks, and agent {agent.name!r} has none; give it `verify`")


@strategy(options=SelfConsistentOptions)
async def self_consistent(run: StrategyRun) -> Passed:
    """Let episodes answer until the result is certain."""
    options = run.options(SelfConsistentOptions)
    ended: list[Passed] = []
    keys: list[str | None] = []
    for _ in range(options.samples):
        if not (wanted := fewest(keys, options)):
            break
        first = options.accept_first and not ended
        wave = await _episodes(run, options, len(ended), 1 if first else min(wanted, options.concurrency))
        if first and wave[0].status == "done":
            return wave[0]
        ended += wave
        keys += [_key(one, options.field) for one in wave]
    place, most = plurality(keys)
    share = most / len(keys)

    async def found() -> float:
        return share

    await run.effect("agreement", found)
    answers = sum(key is not None for key in keys)
    if place is None:
        return ended[-1]
    if answers < options.min_samples:
        return _abstained(f"{answers} of {len(keys)} episodes have an answer; min_samples is {options.min_samples}", ended)
    if share < options.agreement:
        return _abstained(f"the most frequent answer has {most} of {len(keys)} episodes; agreement is {options.agreement:g}", ended)
    return msgspec.structs.replace(ended[place], results=_results(ended))


async def _episodes(run: StrategyRun, options: SelfConsistentOptions, before: int, count: int) -> tuple[Passed, ...]:
    """Run the next episodes: `count`, or fewer if there is not a turn left for each. Each has an equal part of what is left for all that may follow."""
    left = run.budget_remaining

    async def read() -> Any:
        turns = [count, *(most for most in (left.max_iterations, left.max_model_calls) if most is not None)]
        return [max(1, min(turns)), msgspec.to_builtins(shared(left, options.samples - before))]

    count, said = await run.effect("share", read)
    share = msgspec.convert(said, Budget)
    turns = [most for most in (options.turns, share.max_iterations) if most is not None]
    limits = msgspec.structs.replace(share, max_iterations=min(turns, default=None))
    changing = [] if options.effects else sorted(spec.name for spec in run.tools if not (spec.read_only or spec.ends_turn))
    refused: dict[str, Any] = {"guards": ("blocked",), "meta": {"blocked_tools": changing}} if changing else {}
    numbers = range(before + 1, before + count + 1)
    return await run.parallel(*(Branch(label=f"episode-{number}", limits=limits, **refused) for number in numbers))


def fewest(keys: Sequence[str | None], options: SelfConsistentOptions) -> int:
    """Return after how many further episodes the result can be certain at the earliest; 0 if it is, or if none may follow."""
    most = [count for _, count in Counter(key for key in keys if key is not None).most_common(2)]
    first, second = (*most, 0, 0)[:2]
    answers, left = sum(key is not None for key in keys), options.samples - len(keys)
    if answers + left >= options.min_samples and (first + left) / options.samples >= options.agreement:
        for more in range(left):
            certain = first + more - second > left - more and (first + more) / options.samples >= options.agreement
            if certain and answers + more >= options.min_samples:
                return more
        return left
    return 0


def _key(passed: Passed, field: str) -> str | None:
    """Return the key of an episode's answer, None if it has none, or not the field that is compared."""
    if passed.status != "done":
        return None
    answer: Any = passed.output
    if field:
        answer = cast("dict[str, Any]", answer).get(field) if isinstance(answer, dict) else None
    return None if field and answer is None else plain(answer)


def _results(ended: Sequence[Passed]) -> tuple[Any, ...]:
    return tuple(item for one in ended for item in one.results)


def _abstained(why: str, ended: Sequence[Passed]) -> Passed:
    return Passed(
        label="agreement",
        scope="agreement",
        status="failed",
        reason="abstained",
        error=f"too little agreement: {why}",
        results=_results(ended),
    )
