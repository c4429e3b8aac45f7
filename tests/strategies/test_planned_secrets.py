"""Plans that a strategy asks for hold arguments of calls to come: what is sensitive in them is no more in the log than in a call itself."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from detent import Agent, FinalAnswer, Plan, tool
from detent.secrecy.redact import Redactor
from detent.stores.ram import RamStore
from kernel.runs import Script, engine_for, look, ran

SECRET, PIN = "hunter2-s3cret", "pin-9876-x"
STEPS = {
    "steps": [
        {"id": "who", "kind": "tool", "tool": "who", "args": {}},
        {"id": "in", "kind": "tool", "tool": "login", "args": {"user": "ann", "password": SECRET}},
        {"id": "again", "kind": "tool", "tool": "login", "args": {"user": "{{who.name}}", "password": "{{who.name}}"}, "after": ["in"]},
        {
            "id": "mixed",
            "kind": "tool",
            "tool": "login",
            "args": {"user": "eve", "password": f"{PIN}-{{{{who.name}}}}"},
            "after": ["again"],
        },
    ]
}
TEXT = json.dumps(STEPS)
PLANS = {
    "data": Plan(actions=(FinalAnswer(content=STEPS),)),
    "text": Plan(actions=(FinalAnswer(content=TEXT),), text=TEXT),
    "fenced": Plan(actions=(FinalAnswer(content=f"```json\n{TEXT}\n```"),), text=f"```json\n{TEXT}\n```"),
    "native": Plan(actions=(FinalAnswer(content=STEPS),), provider_data={"v": 1, "parts": [["control", "final_answer", STEPS, "id", {}]]}),
}
GOOD = FinalAnswer(content='{"satisfied": true}')


class Door:
    """Tools that take a secret, and keep what they really got."""

    def __init__(self) -> None:
        self.got: list[Any] = []

        @tool(side_effect="write", sensitive=("password",))
        async def login(user: str, password: str) -> str:
            """Log in."""
            self.got.append((user, password))
            return f"hello {user}"

        @tool(side_effect="read")
        async def who() -> dict[str, str]:
            """Say who."""
            return {"name": "bob"}

        self.tools = (login, who)


def entries(plan: Plan) -> list[Any]:
    return [plan, *[FinalAnswer(content="fine")] * 4]


EXPECTED = [("ann", SECRET), ("bob", "bob"), ("eve", f"{PIN}-bob")]


@pytest.mark.parametrize("form", PLANS)
def test_a_planned_secret_reaches_the_tool_and_stands_nowhere_in_the_log(form: str) -> None:
    """In whatever form the plan came; references to other steps are resolved; replay is the same."""
    door = Door()
    done = ran(entries(PLANS[form]), *door.tools, agent={"strategy": "plan-execute"})
    assert done.result.status == "completed", done.state.error
    assert sorted(door.got) == EXPECTED
    log = b"\n".join(done.lines).decode()
    assert SECRET not in log and PIN not in log
    assert "{{who.name}}" in log and "<secret:" in log


def test_a_fresh_process_carries_out_a_plan_whose_secrets_it_never_saw() -> None:
    """The plan is made by one engine; another, on another store object, finds the values beside the log."""

    async def main() -> None:
        store, door, agent = RamStore(), Door(), Agent(name="w", tools=["login", "who"], strategy="plan-execute")
        first = engine_for(Script(entries(PLANS["data"])), *door.tools, store=store)
        await first.run(agent, "go", run_id="r", turns=1)
        assert door.got == []
        script = Script(entries(PLANS["data"])[1:])
        async with engine_for(script, *door.tools, store=store.sibling()) as second:
            done = await look(second, await second.resume("r"), script)
        assert sorted(door.got) == EXPECTED and not any(SECRET.encode() in line for line in done.lines)

    asyncio.run(main())


def test_a_call_that_is_written_into_a_step_in_words_is_hidden_where_it_can_be_read() -> None:
    """A list of steps in words (for small models) holds what a step says; a step that is nothing but a call hides its fields."""
    door = Door()
    steps = {"steps": [f'login({{"user": "ann", "password": "{SECRET}"}})', "say so"]}
    script = [FinalAnswer(content=steps), *[FinalAnswer(content="fine")] * 3]
    done = ran(script, *door.tools, agent={"strategy": "plan-then-execute"})
    assert done.result.status == "completed" and not any(SECRET.encode() in line for line in done.lines)


def test_only_objects_that_plan_a_call_of_such_a_tool_are_touched() -> None:
    """A field of the same name elsewhere is nobody's secret; a placeholder stays; what nests is found."""
    door = Door()
    specs = {t.name: t.spec for t in door.tools}
    redactor = Redactor((), b"k" * 32)
    for plain in ({"password": "x"}, {"tool": "who", "args": {"password": "x"}}, '{"password": "x"}', "login", 7, None, "{no json"):
        assert redactor.planned(plain, specs) == plain
    once = redactor.planned([{"deep": [{"name": "login", "arguments": '{"user": "a", "password": "x"}'}]}], specs)
    assert re.fullmatch(r"<secret:[0-9a-f]{24}>", once[0]["deep"][0]["arguments"]["password"])
    assert redactor.planned(once, specs) == once
