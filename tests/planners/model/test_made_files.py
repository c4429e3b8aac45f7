"""Files that a model makes: in the result whatever stands beside them, as long as the run is kept, and in its forks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent, FilePart, ModelResponse, TextPart

from cli.desk import Desk
from detent import Agent, Engine, tool
from detent.core.actions import FinalAnswer
from detent.core.agent import Host
from detent.core.errors import RunNotFound, UnknownName
from detent.extend import MadeFile, Plan
from detent.planners.model.planner import ModelPlanner
from planners.model.function_models import Asked, calls

PNG = b"\x89PNG\r\n\x1a\n" + b"dot" * 50
PICTURE = FilePart(BinaryContent(PNG, media_type="image/png"))
SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"], "additionalProperties": False}


def drew(answer: ModelResponse | str = "") -> ModelResponse:
    """Return an answer with a picture before it."""
    parts = [TextPart(answer)] if isinstance(answer, str) and answer else [] if isinstance(answer, str) else answer.parts
    return ModelResponse(parts=[PICTURE, *parts])


@tool(side_effect="none")
def look(x: int) -> int:
    """Look at x."""
    return x


def answers(name: str, answer: Any) -> Any:
    """Return what gives a typed answer."""

    def give(messages: Any, info: Any) -> ModelResponse:
        (offered,) = info.output_tools
        return drew(calls((offered.name, answer)))

    return give


CASES: dict[str, tuple[list[Any], dict[str, Any], Any]] = {
    "alone": ([drew()], {}, {"text": ""}),
    "beside a text": ([drew("Here it is.")], {}, {"text": "Here it is."}),
    "beside a typed answer": ([answers("a", {"title": "dot"})], {"output_schema": SCHEMA}, {"title": "dot"}),
    "beside a typed answer in text": ([drew('{"title": "dot"}')], {"output_schema": SCHEMA}, {"title": "dot"}),
    "in a try that does not fit": ([drew("dot"), '{"title": "dot"}'], {"output_schema": SCHEMA}, {"title": "dot"}),
    "beside a call": ([drew(calls(("look", {"x": 1}))), "done"], {}, "done"),
    "beside a call in text": ([drew('look({"x": 1})')], {}, 1),
    "written, alone": ([drew()], {"tool_calls": "text"}, {"text": ""}),
    "written, beside a text": ([drew("Here it is.")], {"tool_calls": "text"}, {"text": "Here it is."}),
    "written, typed": (
        [drew('{"type": "final_answer", "content": {"title": "dot"}}')],
        {"tool_calls": "text", "output_schema": SCHEMA},
        {"title": "dot"},
    ),
    "written, beside a call": ([drew('{"type": "tool_call", "tool": "look", "args": {"x": 1}}'), "done"], {"tool_calls": "text"}, "done"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_that_a_model_makes_is_in_the_result_whatever_stands_beside_it(case: str) -> None:
    """Beside a typed answer or a call it lay in the store, and nothing in the result named it; of a model that writes text it was lost."""
    script, options, expected = CASES[case]
    output = dict(expected) if isinstance(expected, dict) else expected
    settings = {"stream": False, **({"tool_calls": "text"} if "tool_calls" in options else {})}
    schema = options.get("output_schema")

    async def go() -> None:
        planner = ModelPlanner(Asked(script).model, settings=settings)
        async with Engine(store="ram:", planner=planner) as engine:
            result = await engine.run(Agent(name="a", tools=[look]), "Draw a dot.", output_schema=schema)
            (made,) = result.artifacts
            assert (result.status, made.media_type, made.size_bytes) == ("completed", "image/png", len(PNG))
            if isinstance(output, dict) and "text" in output:
                kept = {"key": made.key, "size_bytes": len(PNG)}
                output["attachments"] = [{"type": "image", "media_type": "image/png", "artifact": kept}]
            assert result.output == output
            await engine.gc()
            assert await engine.artifact(result.run_id, made.key) == PNG
            assert (await engine.replay(result.run_id)).identical and (await engine.verify(result.run_id)).ok

    asyncio.run(go())


def within(work: Any) -> Any:
    """Run `work` with an engine whose model draws beside a call, and the run that it came to."""

    async def go() -> Any:
        planner = ModelPlanner(Asked([drew(calls(("look", {"x": 1}))), "done"]).model, settings={"stream": False})
        async with Engine(store="ram:", planner=planner) as engine:
            return await work(engine, await engine.run(Agent(name="a", tools=[look]), "g", host=Host(tenant="t")))

    return asyncio.run(go())


def test_a_fork_has_the_files_of_what_it_goes_on_from_and_keeps_them() -> None:
    """They lie with its parent, so asking the store for them by the id of the fork found nothing."""

    async def work(engine: Engine, result: Any) -> None:
        fork = await engine.fork(result.run_id, at=len(await engine.records(result.run_id)) - 2)
        assert (fork.status, fork.artifacts) == ("completed", result.artifacts)
        assert await engine.artifact(fork.run_id, fork.artifacts[0].key) == PNG
        await engine.delete(result.run_id)
        await engine.gc()
        assert await engine.artifact(fork.run_id, fork.artifacts[0].key) == PNG
        assert (await engine.verify(fork.run_id)).ok and (await engine.replay(fork.run_id)).identical

    within(work)


def test_a_file_that_is_gone_or_altered_is_named() -> None:
    """A run whose picture is another one would verify as sound."""

    async def work(engine: Engine, result: Any) -> None:
        store: Any = engine.store
        await store.delete_blob(result.run_id, result.artifacts[0].key)
        found = await engine.verify(result.run_id)
        assert not found.ok and result.artifacts[0].key in found.problem

    within(work)


def test_only_what_the_log_names_is_read_and_only_by_its_tenant() -> None:
    """Hidden values lie beside the artifacts: whoever asked by their key would read them."""

    async def work(engine: Engine, result: Any) -> None:
        await engine.store.put_blob(result.run_id, "secret-1", b"pw")
        with pytest.raises(UnknownName, match="artifact 'secret-1'"):
            await engine.artifact(result.run_id, "secret-1")
        with pytest.raises(RunNotFound):
            await engine.artifact(result.run_id, result.artifacts[0].key, host=Host(tenant="other"))

    within(work)


class Draws:
    """A planner of somebody's own that makes files."""

    def __init__(self, *files: Any) -> None:
        self._files = files

    async def plan(self, view: Any) -> Plan:
        return Plan(actions=(FinalAnswer(content="done"),), files=self._files)


def test_a_planner_of_your_own_gives_files_and_names_none_that_it_does_not_give() -> None:
    """One that could name any artifact would hand out what belongs to nobody."""

    async def go(*files: Any) -> Any:
        async with Engine(store="ram:", planner=Draws(*files)) as engine:
            result = await engine.run(Agent(name="a"), "g")
            return result, [await engine.artifact(result.run_id, made.key) for made in result.artifacts]

    twice = MadeFile(data=b"x", media_type="audio/wav")
    result, found = asyncio.run(go(twice, twice, MadeFile(data=b"y")))
    assert found == [b"x", b"y"] and [made.media_type for made in result.artifacts] == ["audio/wav", "application/octet-stream"]
    named, _ = asyncio.run(go(result.artifacts[0]))
    assert (named.status, named.artifacts) == ("failed", ()) and "MadeFile(data=..., media_type=...)" in named.error


def test_the_command_line_shows_files_and_writes_them(tmp_path: Path) -> None:
    """Who has no program had no way to the picture that was paid for."""
    desk = Desk(tmp_path)
    planner = ModelPlanner(Asked([drew(calls(("look", {"x": 1}))), "done"]).model, settings={"stream": False})

    async def go() -> Any:
        async with Engine(store=f"file:{tmp_path}/runs", planner=planner) as engine:
            return await engine.run(Agent(name="a", tools=[look]), "g")

    (made,) = asyncio.run(go()).artifacts
    store = ("--store", f"file:{tmp_path}/runs")
    shown = desk.detent("show", "last", *store).out
    assert f"made image/png, {len(PNG)} bytes: artifact {made.key}" in shown
    assert f"made      image/png, {len(PNG)} bytes: detent export" in shown and f"--artifact {made.key} -o FILE" in shown
    trace = json.loads(desk.detent("show", "last", "--json", *store).out)
    assert trace["artifacts"] == [{"key": made.key, "size_bytes": len(PNG), "media_type": "image/png"}]
    desk.detent("export", "last", "--artifact", made.key, "-o", "dot.png", *store)
    assert (tmp_path / "dot.png").read_bytes() == PNG
    assert "unknown artifact 'beef'" in desk.detent("export", "last", "--artifact", "beef", *store).err
