"""Your own kernel: one model call and done. It is a tuple of phases under a name; agents choose it with `kernel = "one-shot"`.

Without the act phase no tool can be called; if the planner fails, the pass ends.

It prints:

    ['react', 'one-shot']
    completed: Paris, after 1 call
    failed: planner_error
"""

from __future__ import annotations

from detent import Agent, Engine, FinalAnswer, Plan, Usage, View
from detent.extend import PlannerFailed, make_kernel, think

ONE_SHOT = make_kernel(phases=(think,), name="one-shot")


class Model:
    """Stands where a model would be."""

    async def plan(self, view: View) -> Plan:
        """Know one capital."""
        if "France" not in view.task:
            raise PlannerFailed("no idea")
        return Plan(actions=(FinalAnswer(content="Paris"),), model="tiny", usage=Usage(input_tokens=8, output_tokens=1))


if __name__ == "__main__":
    engine = Engine(planner=Model(), kernels={"one-shot": ONE_SHOT})
    print(engine.kernels.names())
    agent = Agent(name="quiz", kernel="one-shot")
    result = engine.run_sync(agent, "What is the capital of France?")
    print(f"{result.status}: {result.output}, after {result.usage.model_calls} call")
    result = engine.run_sync(agent, "What is the capital of Atlantis?")
    print(f"{result.status}: {result.reason}")
