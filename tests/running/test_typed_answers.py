"""`Agent(output_type=City)`: the answer is checked against the type, corrected, kept as JSON, and given back as an instance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypedDict, TypeVar, get_args

import msgspec
import pydantic
import pytest

from amounts import thinned
from detent import Agent, Engine, FinalAnswer, Plan, ToolCall, View, tool
from detent.core import events as e
from detent.core.errors import ConfigError
from detent.core.settle import REASONS
from detent.extend import StrategyRun, strategy
from detent.running.results import Reason
from detent.stores.ram import RamStore
from detent.testing import FakeModel, calls
from kernel.runs import run_async

pytestmark = thinned

GIVEN = [calls(("final_result", {"name": "Ulm", "people": -1})), calls(("final_result", {"name": "Ulm", "people": 2}))]


class City(pydantic.BaseModel):
    """A model with a rule that no schema can say."""

    name: str
    people: int

    @pydantic.field_validator("people")
    @classmethod
    def _people(cls, value: int) -> int:
        if value < 0:
            raise ValueError("nobody is less than nobody")
        return value


@dataclass
class Town:
    name: str
    people: int = 1


class Village(msgspec.Struct):
    name: str
    people: int = 1


class Place(TypedDict):
    name: str


T = TypeVar("T")


class Box(msgspec.Struct, Generic[T]):
    item: T


class Land(msgspec.Struct):
    """A struct of msgspec with a model of pydantic in it."""

    city: City


def named_city(of: int) -> type[msgspec.Struct]:
    """Return another type that is called City."""
    return msgspec.defstruct("City", [("mayor" * of, str)])


class Says:
    """Answers these in order, and keeps what it was told."""

    def __init__(self, *answers: Any) -> None:
        self._answers: Iterator[Any] = iter(answers)
        self.told: list[str] = []
        self.schema: Any = None

    async def plan(self, view: View) -> Any:
        self.told.extend(item.text for item in view.transcript if item.text)
        self.schema = view.output_schema
        return FinalAnswer(content=next(self._answers))


KINDS: dict[str, tuple[Any, Any, Any]] = {
    "pydantic": (City, {"name": "Ulm", "people": 2}, City(name="Ulm", people=2)),
    "dataclass": (Town, {"name": "Ulm"}, Town("Ulm")),
    "struct": (Village, {"name": "Ulm"}, Village("Ulm")),
    "typed dict": (Place, {"name": "Ulm"}, {"name": "Ulm"}),
    "union": (City | Town, {"name": "Ulm"}, Town("Ulm")),
    "list": (list[Village], [{"name": "Ulm"}], [Village("Ulm")]),
    "plain": (int, 5, 5),
    "words": (Literal["yes", "no"], "yes", "yes"),
    "generic": (Box[int], {"item": 5}, Box(5)),
    "generic of a struct": (Box[Village], {"item": {"name": "Ulm"}}, Box(Village("Ulm"))),
    "model or struct": (City | Village, {"name": "Ulm"}, Village("Ulm")),
    "struct or model": (Village | City, {"name": "Ulm", "people": 2}, Village("Ulm", 2)),
    "both in a list": (list[City | Box[Village]], [{"item": {"name": "Ulm"}}], [Box(Village("Ulm"))]),
    "both in a tuple": (
        tuple[City, Village],
        [{"name": "Ulm", "people": 2}, {"name": "Ulm"}],
        (City(name="Ulm", people=2), Village("Ulm")),
    ),
    "model in a struct": (Land, {"city": {"name": "Ulm", "people": 2}}, Land(City(name="Ulm", people=2))),
    "model, or a struct with one": (City | Land, {"city": {"name": "Ulm", "people": 2}}, Land(City(name="Ulm", people=2))),
    "model or typed dict": (City | Place, {"name": "Ulm"}, {"name": "Ulm"}),
    "json in text": (City, '{"name": "Ulm", "people": 2}', City(name="Ulm", people=2)),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_output_is_an_instance_and_the_log_keeps_json(kind: str) -> None:
    """Every kind of type; a program would else convert by hand, and differently each time."""
    wanted, said, made = KINDS[kind]

    async def main() -> None:
        planner = Says(said)
        async with Engine(store="ram:", planner=planner) as engine:
            result = await engine.run(Agent(name="a", output_type=wanted), "go", run_id="r")
            assert (result.status, result.output) == ("completed", made) and type(result.output) is type(made)
            end = next(r.event for r in await engine.records("r") if isinstance(r.event, e.RunFinished))
            assert end.output == said and result.state.output == said and planner.schema == result.state.output_schema
            assert (await engine.replay("r")).identical

    run_async(main)


def test_an_answer_that_is_none_is_corrected_with_the_reasons_of_the_type() -> None:
    """What the schema says, and what only the type's own validator knows."""

    async def main() -> None:
        planner = Says("Ulm", {"name": "Ulm", "people": -1}, {"name": "Ulm", "people": 2})
        async with Engine(store="ram:", planner=planner) as engine:
            result = await engine.run(Agent(name="a", output_type=City), "go")
            assert result.output == City(name="Ulm", people=2)
            told = "\n".join(planner.told)
            assert "it is no City: the answer: 'Ulm' is not of type 'object'" in told and "nobody is less than nobody" in told
            stubborn = Engine(store="ram:", planner=Says(*["Ulm"] * 9))
            refused = await stubborn.run(Agent(name="a", output_type=City), "go")
            assert (refused.status, refused.reason, refused.output) == ("failed", "answer_refused", None)

    run_async(main)


def test_a_resume_elsewhere_gives_an_instance_where_the_type_is_known_and_else_json() -> None:
    """The log has no type: the caller names it, or the engine was given the agent."""

    @tool(side_effect="destructive")
    def wipe() -> str:
        """Wipes."""
        return "wiped"

    class Wipes(Says):
        async def plan(self, view: View) -> Any:
            return Plan(actions=(ToolCall(tool="wipe"),)) if view.iteration == 1 else await super().plan(view)

    async def main() -> None:
        store, answer = RamStore(), {"name": "Ulm", "people": 2}
        agent = Agent(name="a", tools=["wipe"], output_type=City)
        async with Engine(store=store, planner=Wipes(), tools=[wipe], approver="caller") as engine:
            for run_id in ("named", "known", "unknown"):
                assert (await engine.run(agent, "go", run_id=run_id)).status == "waiting_for_approval"
        async with Engine(store=store, planner=Wipes(answer, answer), tools=[wipe], approver="caller") as elsewhere:
            await elsewhere.approve("unknown", "main.1.0", by="ann")
            assert (await elsewhere.resume("unknown")).output == answer
            await elsewhere.approve("named", "main.1.0", by="ann", resume=False)
            assert (await elsewhere.resume("named", output_type=City)).output == City(name="Ulm", people=2)
        async with Engine(store=store, planner=Wipes(answer), tools=[wipe], approver="caller") as again:
            await again.run(agent, "another", run_id="other")
            assert (await again.approve("known", "main.1.0", by="ann")).output == City(name="Ulm", people=2)

    run_async(main)


@pytest.mark.parametrize("name", ["reactive", "direct"])
def test_a_model_answers_with_the_type_in_every_strategy(name: str) -> None:
    """It is offered the schema, and what it gives first does not fit."""

    async def main() -> None:
        model = FakeModel(GIVEN)
        async with Engine(store="ram:", planner=model) as engine:
            result = await engine.run(Agent(name="a", strategy=name, output_type=City), "go", run_id="r")
            output: City = result.output  # a type checker knows it
            assert output.people == 2 and (await engine.replay("r")).identical

    run_async(main)


@strategy()
async def computed(run: StrategyRun) -> Any:
    return {"name": run.goal, "people": 2}


def test_what_a_strategy_computes_is_typed_too() -> None:
    """No planner is asked for it."""

    async def main() -> None:
        async with Engine(store="ram:", strategies={"computed": computed}) as engine:
            result = await engine.run(Agent(name="a", strategy="computed", output_type=City), "Ulm")
            assert result.output == City(name="Ulm", people=2)

    run_async(main)


def test_rules_give_typed_answers_too() -> None:
    """The planner without a model."""
    rules = [{"name": "tell", "answer": {"name": "Ulm", "people": 2}}]
    result = Engine(store="ram:").run_sync(Agent(name="a", rules=rules, output_type=City), "go")
    assert result.output == City(name="Ulm", people=2)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no schema": (lambda: Agent(name="a", output_type=open), "agent 'a': output_type: open has no JSON Schema"),
    "a remote reference": (
        lambda: Agent(name="a", output_schema={"properties": {"x": {"$ref": "http://127.0.0.1:1/s.json"}}}),
        r"agent 'a': output_schema refers to 'http://127.0.0.1:1/s.json', which is not in it; schemas are never fetched",
    ),
    "a reference to nothing": (lambda: Agent(name="a", output_schema={"$ref": "#/$defs/gone"}), r"refers to '#/\$defs/gone'"),
    "no JSON Schema": (lambda: Agent(name="a", output_schema={"type": "strin"}), "agent 'a': output_schema is not a JSON Schema"),
    "two of one name": (lambda: Agent(name="a", output_type=list[City | Land | named_city(1)]), "two of its types have the name City"),
    "two": (lambda: Agent(name="a", output_type=City, output_schema={}), "leave output_schema out"),
}


@pytest.mark.parametrize("mistake", list(REFUSED))
def test_a_type_that_cannot_be_an_answer_is_refused_when_the_agent_is_made(mistake: str) -> None:
    """Not in the middle of the first run."""
    make, said = REFUSED[mistake]
    with pytest.raises(ConfigError, match=said):
        make()


def test_the_reasons_of_a_result_are_the_reasons_there_are() -> None:
    """Type checkers go by the list of words."""
    assert set(get_args(Reason)) == {"", *REASONS}


def test_a_reason_of_a_model_in_a_struct_is_told() -> None:
    """Both libraries check what is theirs, and the planner is told in their words."""

    async def main() -> None:
        planner = Says({"city": {"name": "Ulm", "people": -1}}, {"city": {"name": "Ulm", "people": 2}})
        async with Engine(store="ram:", planner=planner) as engine:
            result = await engine.run(Agent(name="a", output_type=Land), "go")
            assert result.output == Land(City(name="Ulm", people=2))
            assert "nobody is less than nobody" in "\n".join(planner.told)

    run_async(main)


def test_a_schema_for_one_run_is_checked_before_it_begins() -> None:
    """As that of an agent; nothing is recorded."""

    async def main() -> None:
        async with Engine(store="ram:", planner=Says("x")) as engine:
            with pytest.raises(ConfigError, match=r"output_schema refers to 'other\.json'"):
                await engine.run(Agent(name="a"), "go", output_schema={"$ref": "other.json"})
            assert await engine.list_runs() == []

    run_async(main)


def test_a_type_that_changed_since_the_run_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The agent says `output_type=City`, and the loaded output was a dict without a word."""

    async def main() -> None:
        store = RamStore()
        async with Engine(store=store, planner=Says({"mayor": "x"})) as engine:
            await engine.run(Agent(name="a", output_type=named_city(1)), "go", run_id="r")
        async with Engine(store=store, planner=Says(), agents=[Agent(name="a", output_type=named_city(2))]) as engine:
            assert (await engine.load("r")).output == {"mayor": "x"}

    run_async(main)
    assert "returned as JSON: its output type City has another schema now" in caplog.text
