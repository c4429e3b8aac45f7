"""Results over a tool's cap: stored whole as an artifact, shown as a preview, in full for every other reader. Rows K83, L10."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from detent import Agent, tool
from kernel.runs import END, Script, call, engine_for, look, run_async


def sized(length: int, *, cap: int) -> Any:
    """Return a tool whose result is a text of `length` characters: length + 2 bytes of JSON."""

    @tool(side_effect="read", max_result_bytes=cap)
    async def dump() -> str:
        """Give a long text."""
        return "x" * length

    return dump


@pytest.mark.parametrize(("length", "spilled"), [(98, False), (99, True)])
def test_the_cap_is_exact(length: int, spilled: bool) -> None:
    """100 bytes fit a cap of 100; 101 do not."""

    async def main() -> None:
        planner = Script([call("dump"), END])
        engine = engine_for(planner, sized(length, cap=100))
        done = await look(engine, await engine.run(Agent(name="w", tools=["dump"]), "go"), planner)
        (item,) = done.items
        assert (item.artifact is not None) == spilled and item.ok
        if not spilled:
            assert item.content == "x" * length

    run_async(main)


def test_a_large_result_is_a_preview_for_the_model_and_whole_for_everybody_else() -> None:
    """The log names it by digest and size; `view.full` gives the value; a rule planner and a person read the same."""

    async def main() -> None:
        rows = [{"n": n, "text": f"row {n}"} for n in range(500)]

        @tool(side_effect="read", max_result_bytes=1000)
        async def table() -> list[dict[str, Any]]:
            """Give rows."""
            return rows

        seen: list[Any] = []

        async def read(view: Any) -> Any:
            (item,) = view.results
            seen.append((await view.full(item), item.content))
            return END

        planner = Script([call("table"), read])
        engine = engine_for(planner, table)
        done = await look(engine, await engine.run(Agent(name="w", tools=["table"]), "go"), planner)
        (item,) = done.items
        full, preview = seen[0]
        assert full == rows and preview != rows and len(msgspec.json.encode(preview)) < 3000
        assert item.artifact is not None and item.artifact.size_bytes == len(msgspec.json.encode(rows)) and len(item.artifact.key) == 64
        blob = await engine.store.get_blob(done.result.run_id, item.artifact.key)
        assert blob is not None and msgspec.json.decode(blob) == rows and max(map(len, done.lines)) < 4000

    run_async(main)


def test_two_equal_large_results_are_one_artifact_and_no_progress() -> None:
    """Keyed by content."""

    async def main() -> None:
        planner = Script([call("dump"), call("dump"), END])
        engine = engine_for(planner, sized(5000, cap=100))
        done = await look(engine, await engine.run(Agent(name="w", tools=["dump"]), "go"), planner)
        assert len({i.artifact.key for i in done.items if i.artifact}) == 1 and len(await engine.store.list_blobs(done.result.run_id)) == 1
        assert done.main.since_progress == 1

    run_async(main)


def test_large_results_that_differ_only_beyond_the_preview_are_progress() -> None:
    """Progress is decided by the whole value, not by what is shown (L10)."""

    async def main() -> None:
        count: list[int] = []

        @tool(side_effect="read", max_result_bytes=300)
        async def grow() -> list[str]:
            """Give a long list whose middle changes."""
            count.append(1)
            return [f"row {n}" if n != 250 else f"now {len(count):03}" for n in range(500)]

        planner = Script([*[call("grow")] * 14, END])
        engine = engine_for(planner, grow)
        done = await look(engine, await engine.run(Agent(name="w", tools=["grow"]), "go"), planner)
        assert len({i.artifact.key for i in done.items if i.artifact}) == 14 and done.why == ("completed", "final_answer")

    run_async(main)


def test_a_failed_result_over_the_cap_keeps_its_code() -> None:
    """A large error is no reason to lose what went wrong."""

    async def main() -> None:
        @tool(side_effect="read", max_result_bytes=200)
        async def wide() -> dict[str, Any]:
            """Report a failure at length."""
            return {"success": False, "error": "too_wide", "message": "y" * 5000}

        planner = Script([call("wide"), END])
        engine = engine_for(planner, wide)
        done = await look(engine, await engine.run(Agent(name="w", tools=["wide"]), "go"), planner)
        assert done.codes == ["too_wide"]

    run_async(main)
