"""Tree of Thoughts: explore paths breadth-first, keep those that score well, then work on the best one with ReAct.

Model calls: two for each expanded thought (one proposes, one scores all proposals), by default at most 2·(1 + 3 + 9), then the turns of the last
pass. Exploring stops early if the scores do not improve, if its time is up, or if it would use the budget that the work itself needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from detent.core.budget import Budget
from detent.core.durations import Seconds, usually
from detent.ports import OwnModel, Passed, StrategyRun, strategy
from detent.ports.options import check_fields
from detent.strategies.thoughts import SCORES, THOUGHTS, Thought, judge, label, propose, pruned, scores_of, texts_of
from detent.strategies.wording import asking, at_least, section, trivial

DEPTH = {"local": 2}
TURNS = {"local": 6, "mid": 8, "large": 10, "frontier": 12}
WINDOW, RISE = 2, 0.05
"""The number of levels, and by how much the best score must rise over them."""
FLOORED = ("max_iterations", "max_model_calls", "max_running_s", "max_total_s", "max_total_tokens", "max_cost_usd")


class TreeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`breadth`: thoughts from each thought. `depth`: levels (3; 2 for the tier `local`). `prune`: thoughts with a lower score are dropped.

    `max_explore_s`: how long exploring may take. `floor`: the share of every bound that is kept for the work itself. `turns`: the maximum of the last
    pass (6 to 12 by tier). `skip_trivial`: a short goal is worked on at once. `judge`: the model that scores thoughts, instead of the small one.
    """

    breadth: int = 3
    depth: int | None = None
    prune: float = 0.5
    max_explore_s: Seconds[float] = usually(120.0)
    floor: float = 0.4
    turns: int | None = None
    skip_trivial: bool = True
    judge: OwnModel = OwnModel()

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(1, breadth=self.breadth, depth=self.depth, turns=self.turns)
        at_least(0, prune=self.prune, max_explore_s=self.max_explore_s, floor=self.floor)


@strategy(options=TreeOptions)
async def tree_of_thought(run: StrategyRun) -> Passed:
    """Explore, then act on the best path."""
    return await explore(run, run.options(TreeOptions))


async def explore(run: StrategyRun, options: TreeOptions) -> Passed:
    """Work with these options."""
    tier = run.profile.tier
    best = Thought() if options.skip_trivial and trivial(run.goal) else await _best(run, options, options.depth or DEPTH.get(tier, 3))
    way = "\n".join(f"{i}. {text}" for i, text in enumerate(best.way, 1))
    task = f"{run.goal}{section('A way that looked best when several were compared; leave it where it proves wrong', way)}" if way else ""
    return await run.kernel("main", task=task, limits=Budget(max_iterations=options.turns or TURNS[tier]))


async def _best(run: StrategyRun, options: TreeOptions, depth: int) -> Thought:
    began, whole = await run.now(), await _left(run)
    best, level, risen = Thought(), [Thought()], list[float]()
    for _ in range(depth):
        left = await _left(run)
        calls = 2 * len(level)
        short = any(left[b] - (calls if b in FLOORED[:2] else 0) < options.floor * whole[b] for b in whole)
        if short or await run.now() - began > options.max_explore_s:
            break
        found = await _expanded(run, options, level)
        level = pruned(found, options.prune)
        if not level:
            break
        best = max([best, *level], key=lambda thought: (thought.score, len(thought.way)))
        risen.append(best.score)
        if len(risen) > WINDOW and risen[-1] - risen[-1 - WINDOW] < RISE - 1e-9:
            break
    return best


async def _left(run: StrategyRun) -> dict[str, float]:
    """Return what was left of each set bound at the first call of this."""
    now = run.budget_remaining

    async def read() -> Any:
        return {bound: value for bound in FLOORED if (value := getattr(now, bound)) is not None}

    return await run.effect("left", read)


async def _expanded(run: StrategyRun, options: TreeOptions, level: Sequence[Thought]) -> list[Thought]:
    """Return the scored thoughts after those of a level. For each of them, concurrently, one call proposes and one scores."""
    grown = await run.parallel(*(asking(label("expand", at), propose(run.goal, at, options.breadth), THOUGHTS) for at in level))
    proposals = [(at, texts) for at, one in zip(level, grown, strict=True) if (texts := texts_of(one, options.breadth))]
    if not proposals:
        return []
    how: dict[str, Any] = {"small": True, **options.judge.said()}
    scored = await run.parallel(*(asking(label("score", at), judge(run.goal, at, texts), SCORES, **how) for at, texts in proposals))
    found: list[Thought] = []
    for (at, texts), one in zip(proposals, scored, strict=True):
        scores = scores_of(one)
        if len(scores) != len(texts):  # each separately
            single = [asking(f"{label('score', at)}-{i}", judge(run.goal, at, [text]), SCORES, **how) for i, text in enumerate(texts, 1)]
            scores = [next(iter(scores_of(alone)), 0.0) for alone in await run.parallel(*single)]
        found += [Thought((*at.way, text), (*at.place, i), score) for i, (text, score) in enumerate(zip(texts, scores, strict=True), 1)]
    return found
