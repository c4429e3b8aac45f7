"""A strategy of your own: ask several times, side by side, and let one call pick the best answer (self-consistency).

It is an async function over `StrategyRun`. After a crash it starts from the top, and what is on the log returns at once: each label with its
occurrence is a key. So it reads no clock and no random source but `run.now()` and `run.random()`.

It prints:

    completed: 42, picked from 3 answers with 4 model calls
    passes: try, try#2, try#3, pick
    replay identical: True
    agent 'oracle': strategy_options: time: unknown key; did you mean 'times'?
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from detent import Agent, DetentError, Engine, FinalAnswer, Plan, Usage, View
from detent.extend import Branch, StrategyRun, strategy


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What agents may set in `strategy_options`; names and types are checked before a run starts."""

    times: int = 3


@strategy(options=Options)
async def consistent(run: StrategyRun) -> Any:
    """Answer the goal `times` times and pick the answer that most agree on."""
    tries = await run.parallel(*(Branch(label="try") for _ in range(run.options(Options).times)))
    answers = [passed.output for passed in tries if passed.status == "done"]
    listed = "\n".join(f"- {answer}" for answer in answers)
    return await run.ask("pick", f"{run.goal}\n\nThese are several answers. Give the one that most of them agree on:\n{listed}")


class Model:
    """Stands where a model would be: it errs at times."""

    async def plan(self, view: View) -> Plan:
        """Answer by the pass that asks."""
        said = {"try": "42", "try#2": "41", "try#3": "42", "pick": "42"}[view.scope]
        return Plan(actions=(FinalAnswer(content=said),), model="tiny", usage=Usage(input_tokens=20, output_tokens=1))


async def main():
    """Run, replay, and make a mistake."""
    async with Engine(planner=Model(), strategies={"consistent": consistent}) as engine:
        result = await engine.run(Agent(name="oracle", strategy="consistent"), "What is six times seven?")
        print(f"{result.status}: {result.output}, picked from 3 answers with {result.usage.model_calls} model calls")
        print("passes:", ", ".join(result.state.passes))
        print("replay identical:", (await engine.replay(result.run_id)).identical)
        try:
            await engine.run(Agent(name="oracle", strategy="consistent", strategy_options={"time": 5}), "What is six times seven?")
        except DetentError as error:
            print(error)


if __name__ == "__main__":
    asyncio.run(main())
