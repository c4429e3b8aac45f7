"""What a kernel brings holds in the passes that run with it, and what the engine's kernel brings in every pass. DESIGN 6."""

from __future__ import annotations

from typing import Any

import pytest

from detent import ToolCall, tool
from detent.core.errors import UnknownName
from detent.extend import Answer, Block, MetaTool, ToolSpec, act, make_kernel, think
from kernel.runs import END, Desk, call, ran


def no_writes(call: Any, state: Any, run: Any) -> Block | None:
    """Refuse what does not only read."""
    return None if call.tool.read_only else Block("no writes here")


def no_wiping(call: Any, state: Any, run: Any) -> Block | None:
    """Refuse one tool."""
    return Block("nothing is wiped") if call.tool.name == "wipe" else None


def meta(says: str, name: str = "where") -> MetaTool:
    """Return a meta-tool that says something."""

    async def answer(args: dict[str, Any], state: Any, context: Any) -> Answer:
        return Answer(content=says)

    return MetaTool(spec=ToolSpec(name=name, side_effect="none"), handler=answer)


async def chosen(run: Any) -> Any:
    """Work with another kernel, then with the run's own."""
    await run.kernel("looking", kernel="reading")
    return await run.kernel("main")


def scripted(*calls: ToolCall, times: int = 2) -> list[Any]:
    """Return the entries of passes that make these calls and answer."""
    return [*calls, END] * times


def in_pass(done: Any, scope: str) -> list[tuple[str, Any]]:
    """Return what the calls of a pass came to: an error code, or the content."""
    return [(i.tool, i.error.code if i.error else i.content) for i in done.state.passes[scope].results]


def test_the_guards_of_the_kernel_that_a_strategy_chooses_hold_in_that_pass_and_in_no_other() -> None:
    """A pass that was to read only would write."""
    desk = Desk()
    done = ran(
        scripted(call("put", n=1)), *desk.all, strategies={"chosen": chosen}, agent={"strategy": "chosen"},
        kernels={"reading": make_kernel(guards=(no_writes,), name="reading")},
    )  # fmt: skip
    assert in_pass(done, "looking") == [("put", "guard_blocked")] and in_pass(done, "main") == [("put", "put 1")]
    assert desk.ran == [("put", 1)]


@pytest.mark.parametrize("agent", [{"kernel": "free"}, {"strategy": "chosen"}, {"kernel": "free", "strategy": "chosen"}, {}])
def test_the_guards_of_the_engines_kernel_hold_in_every_kernel_of_every_run(agent: dict[str, Any]) -> None:
    """Who names a kernel of its own, or chooses one for a pass, would do without the guards of the house."""
    desk = Desk()
    kernels = {"reading": make_kernel(name="reading"), "free": make_kernel(guards=(), name="free")}
    done = ran(
        scripted(call("wipe", n=1)), *desk.all, kernel=make_kernel(guards=(no_wiping,)), kernels=kernels,
        strategies={"chosen": chosen}, agent=agent,
    )  # fmt: skip
    assert set(done.codes) == {"guard_blocked"} and desk.ran == []


def test_the_guards_of_the_agents_kernel_hold_in_a_pass_with_another_kernel() -> None:
    """Guards add up: a strategy's choice takes none of them away."""
    desk = Desk()
    kernels = {"reading": make_kernel(name="reading"), "careful": make_kernel(guards=(no_wiping,), name="careful")}
    agent = {"kernel": "careful", "strategy": "chosen"}
    done = ran(scripted(call("wipe", n=1)), *desk.all, kernels=kernels, strategies={"chosen": chosen}, agent=agent)
    assert set(done.codes) == {"guard_blocked"} and desk.ran == []


def test_a_guard_of_several_kernels_is_asked_once_and_those_of_calls_that_a_strategy_makes_hold_too() -> None:
    """The engine's guards come first, then the pass's, those that the strategy names last."""
    asked: list[str] = []

    def first(call: Any, state: Any, run: Any) -> None:
        asked.append("first")

    def second(call: Any, state: Any, run: Any) -> None:
        asked.append("second")

    def third(call: Any, state: Any, run: Any) -> None:
        asked.append("third")

    async def own(run: Any) -> Any:
        await run.kernel("made", calls=(call("look"),))
        asked.append("|")
        return await run.kernel("main", kernel="reading", guards=("third",))

    desk = Desk()
    ran(
        [call("look"), END], *desk.all, kernel=make_kernel(guards=(first,)), kernels={"reading": make_kernel(guards=(second, first), name="reading")},
        guards={"third": third}, strategies={"own": own}, agent={"strategy": "own"}, replays=False,
    )  # fmt: skip
    assert asked == ["first", "|", "first", "second", "third"]


def test_the_kernel_that_a_strategy_chooses_for_calls_of_its_own_holds_in_that_pass() -> None:
    """Its phases are not asked, but its guards would be left out without a word, and its meta-tools would be unknown."""

    async def own(run: Any) -> Any:
        await run.kernel("made", calls=(call("put", n=1), call("where")), kernel="reading")
        return await run.kernel("main")

    desk = Desk()
    reading = make_kernel(guards=(no_writes,), meta_tools=(meta("in the library"),), name="reading")
    agent = {"strategy": "own", "tools": [*(one.name for one in desk.all), "where"]}
    done = ran([END], *desk.all, kernels={"reading": reading}, strategies={"own": own}, agent=agent)
    assert in_pass(done, "made") == [("put", "guard_blocked"), ("where", "in the library")] and desk.ran == []


def test_the_meta_tools_of_the_kernel_that_a_strategy_chooses_are_answered_in_that_pass_alone() -> None:
    """The agent lists the name; a pass without that kernel has no such tool."""
    done = ran(
        scripted(call("where")), *Desk().all, strategies={"chosen": chosen}, agent={"strategy": "chosen", "tools": ["look", "where"]},
        kernels={"reading": make_kernel(meta_tools=(meta("in the library"),), name="reading")},
    )  # fmt: skip
    assert in_pass(done, "looking") == [("where", "in the library")] and in_pass(done, "main") == [("where", "tool_not_found")]
    offered = [[spec.name for spec in view.tools] for view in done.views]
    assert offered == [["look", "where"]] * 2 + [["look"]] * 2


def test_the_meta_tool_of_a_passs_kernel_goes_before_a_tool_of_its_name() -> None:
    """As with the kernel of the engine: what answers from state is not run as a tool."""

    @tool(side_effect="read")
    async def where() -> str:
        """Say where."""
        return "outside"

    done = ran(
        scripted(call("where")), where, strategies={"chosen": chosen}, agent={"strategy": "chosen"},
        kernels={"reading": make_kernel(meta_tools=(meta("in the library"),), name="reading")},
    )  # fmt: skip
    assert in_pass(done, "looking") == [("where", "in the library")] and in_pass(done, "main") == [("where", "outside")]


def test_a_strategy_may_name_a_meta_tool_of_the_kernel_that_it_chooses() -> None:
    """Nobody else is offered it; a name that nothing has is still refused."""

    async def own(run: Any) -> Any:
        await run.kernel("looking", kernel="reading", tools=("where",))
        return await run.kernel("main")

    reading = make_kernel(meta_tools=(meta("in the library"),), name="reading")
    done = ran(
        scripted(call("where")), *Desk().all, strategies={"own": own}, agent={"strategy": "own"}, kernels={"reading": reading}
    )  # fmt: skip
    assert in_pass(done, "looking") == [("where", "in the library")] and in_pass(done, "main") == [("where", "tool_not_found")]
    with pytest.raises(UnknownName, match="wheer"):
        ran([END], *Desk().all, kernels={"reading": reading}, agent={"tools": ["wheer"]})


def test_what_is_for_reading_in_a_run_is_for_reading_in_its_replay() -> None:
    """A phase that writes to the agent fails a run; its replay went on, and was told to be another run."""

    async def writes(state: Any, context: Any) -> Any:
        context.agent.model_settings["temperature"] = 0
        return context.state

    done = ran([call("look"), END], *Desk().all, kernel=make_kernel((think, act, writes)))
    assert done.result.reason == "kernel_error" and "read-only" in done.result.error
