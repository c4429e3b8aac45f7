"""Tasks that tests/evals/test_inspect.py runs with `inspect eval`: scripted models, agents of Detent."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes

from detent import Agent, tool
from detent.evals.inspect_bridge import detent_agent

_PAGE: Any = import_module("cities")  # what the page shows
analyst, cities, population = _PAGE.analyst, _PAGE.cities, _PAGE.population
STORE = "sqlite:///runs.db"


@tool(side_effect="destructive")
def wipe() -> str:
    """Wipe everything."""
    return "wiped"


def scripted(*calls: tuple[str, dict[str, Any]], answer: str = "2103000 people.") -> Any:
    """Return a model that makes these calls, one a turn, and answers; each answer uses 110 tokens."""
    script = [ModelOutput.for_tool_call("mockllm", name, args, tool_call_id=f"id-{name}") for name, args in calls]
    script.append(ModelOutput.from_content("mockllm", answer))
    for one in script:
        one.usage = ModelUsage(input_tokens=100, output_tokens=10, total_tokens=110)
    return get_model("mockllm/model", custom_outputs=script)


def made(agent: Agent[Any], model: Any, sample: Any = "How many people live in Paris?", options: Any = None, **more: Any) -> Task:
    """Return a task of one sample."""
    solver = detent_agent(agent, store=STORE, **(options or {}))
    return Task(model=model, dataset=[Sample(id="one", input=sample, target="2103000")], solver=solver, scorer=includes(), **more)


@task
def answers() -> Task:
    """The task of the page, with a scripted model, and with messages before the user's."""
    asked = [ChatMessageSystem(content="Be brief."), ChatMessageUser(content="How many people live in Paris?")]
    return made(analyst, scripted(("population", {"city": "Paris"})), asked)


@task
def limited() -> Task:
    """Two calls of the model use more than is allowed."""
    return made(analyst, scripted(("population", {"city": "Paris"})), token_limit=150)


@task
def refused() -> Task:
    """A call that needs an approval waits, and is no wrong answer."""
    return made(Agent(name="wiper", tools=[wipe, population]), scripted(("wipe", {})))


@task
def approved() -> Task:
    """It is approved."""
    return made(Agent(name="wiper", tools=[wipe]), scripted(("wipe", {})), options={"approver": lambda _: True})


@task
def by_rules() -> Task:
    """No model is called."""
    return made(Agent(name="ruled", tools=(), rules=[{"name": "r", "answer": "2103000"}]), scripted())


__all__ = ["cities"]
