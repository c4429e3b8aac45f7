"""The contract of a `Tool`, as tests.

A project with another kind of tool (such as one over its own protocol) writes a `ToolMaker`, which creates tools for each test, and
a class with one fixture:

    class TestMyTools(ToolContract):
        @pytest.fixture
        def maker(self):
            return MyToolMaker()

Its tools take `{"text": str}`, or what its `args` makes of a text.
"""

# ruff: noqa: S101, PT017 - these are tests; an error that is looked at may also be missing

from __future__ import annotations

import asyncio
import re
from copy import deepcopy
from typing import Any, Literal, cast

import msgspec
import pytest

from detent.core.agent import Host
from detent.core.errors import InvalidArguments, UnknownName
from detent.expressions.json_schema import errors_of
from detent.ports import Tool, Toolbox, ToolContext, ToolOutcome, ToolSpec
from detent.testing.conformance.promises import Maker, documented, made, soon, until

__all__ = ["ToolContract", "ToolMaker", "ToolWish", "ToolboxContract", "ToolboxMaker"]

ToolWish = Literal["echo", "fails", "breaks", "hangs", "hangs_writing", "large", "once", "reconciles"]
ALL: tuple[ToolWish, ...] = ("echo", "fails", "breaks", "hangs", "hangs_writing", "large", "once", "reconciles")
KINDS = ("ok", "failed", "not_executed", "fatal", "in_doubt")
ODD: tuple[dict[str, Any], ...] = (
    {},
    {"text": None},
    {"text": 5},
    {"text": ["a"]},
    {"text": {"a": 1}},
    {"text": "a", "more": 1},
    {"text": "a\x00\u202e\U0001f600"},
    {"": ""},
    {"text": "a", "\x00": None},
)


class ToolMaker(Maker):
    """Makes tools with a given behaviour.

    effects()   how many effects the tools of this maker have had
    one_loop    its tools belong to the event loop on which they were made
    limit_s     the time until the deadline of an attempt that hangs
    """

    one_loop: bool = False
    limit_s: float = 0.3

    def tool(self, wish: ToolWish) -> Tool | None:
        """Return a tool whose arguments `args` creates, None if there is none with this behaviour. Called on the test's event loop.

        echo           only reads; its result contains the text
        fails          fails in a known way
        breaks         neither only reads nor is idempotent; ends without reporting the outcome of its effect
        hangs          only reads; never ends by itself
        hangs_writing  neither only reads nor is idempotent; never ends by itself
        large          its result contains the text, and is larger than the tool's `max_result_bytes`
        once           idempotent; has one effect for each idempotency key
        reconciles     has one effect; its `settle` knows from the key whether it happened
        """
        raise NotImplementedError

    def args(self, wish: ToolWish, text: str) -> dict[str, Any]:
        """Return the arguments for a text."""
        return {"text": text}

    def effects(self) -> int:
        """Return how many effects there were."""
        return 0


def context_of(tool: Tool, *, key: str = "key-1", call_id: str = "main.1.0", limit_s: float | None = None, attempt: int = 1) -> ToolContext:
    """Return the context of a call; `limit_s` is the time until its deadline."""
    deadline = None if limit_s is None else asyncio.get_running_loop().time() + limit_s
    return ToolContext(run_id="run", call_id=call_id, tool=tool.spec, host=Host(), idempotency_key=key, deadline=deadline, attempt=attempt)


async def _ran(maker: ToolMaker, wish: ToolWish, tool: Tool, text: str = "a", **options: Any) -> ToolOutcome:
    """Run the tool with checked arguments and return its outcome; fail if it is malformed."""
    context = context_of(tool, **options)
    try:
        outcome = await soon(tool.run(tool.check(maker.args(wish, text)), context), maker, f"one attempt of {tool.spec.name}")
    except Exception as error:  # noqa: BLE001 - what a tool raises is what is looked at
        pytest.fail(f"`run` raised {type(error).__name__}: {error}; whatever a tool does becomes a ToolOutcome")
    return _in_form(outcome)


def _in_form(outcome: Any) -> ToolOutcome:
    assert isinstance(outcome, ToolOutcome), f"the outcome is a {type(outcome).__name__}; it is a detent.ports.ToolOutcome"
    assert outcome.kind in KINDS, f"the outcome is of the kind {outcome.kind!r}"
    if outcome.kind == "ok":
        assert type(outcome.result) is bytes, f"the result is {outcome.result!r}; it is JSON in bytes"
        msgspec.json.decode(outcome.result)
    else:
        assert outcome.error_code, "what did not go well has an error code"
        assert outcome.message.strip(), "what did not go well says why"
    assert outcome.latency_ms >= 0
    return outcome


def _harmless(spec: ToolSpec) -> bool:
    return spec.read_only or spec.idempotent


async def _times_out(maker: ToolMaker, wish: ToolWish, kind: str) -> None:
    tool = made(maker.tool(wish), wish)
    context = context_of(tool, limit_s=maker.limit_s)
    what = f"an attempt whose deadline was {maker.limit_s:g} s ahead"
    outcome = _in_form(await soon(tool.run(tool.check(maker.args(wish, "a")), context), maker, what))
    said = (outcome.kind, outcome.error_code)
    assert said == (kind, "timeout"), f"its time is up, and the outcome is {said[0]} with the code {said[1]!r}"
    assert context.cancelled, "`context.cancelled` was not set, so that the tool could not know"


@documented(page="howto/tools/write-a-tool.md", port="Tool")
class ToolContract:
    """The promises of a `Tool`. A subclass gives the fixture `maker`."""

    # The declaration ------------------------------------------------------------------------------------------------------------

    async def test_the_declaration_is_constant_data(self, maker: ToolMaker) -> None:
        """`spec` is constant JSON data with a name that models accept and a JSON Schema of an object: its digest is recorded."""
        for wish in ALL:
            tool = maker.tool(wish)
            if tool is None:
                continue
            spec = tool.spec
            assert isinstance(spec, ToolSpec), f"`spec` is a {type(spec).__name__}; it is a detent.ports.ToolSpec"
            assert re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", spec.name), f"the name {spec.name!r}: 1 to 64 letters, digits, _, - and dots"
            assert spec.input_schema.get("type") == "object", f"the schema of {spec.name} is not that of an object: {spec.input_schema!r}"
            before = msgspec.json.encode(spec)
            tool.check(maker.args(wish, "a"))
            assert msgspec.json.encode(tool.spec) == before, f"the declaration of {spec.name} changed"

    # Arguments ------------------------------------------------------------------------------------------------------------------

    async def test_checked_arguments_are_new_plain_data_that_passes_again(self, maker: ToolMaker) -> None:
        """`check` returns its own JSON data. Checking that again changes nothing, as happens when a call continues after an approval."""
        tool = made(maker.tool("echo"), "echo")
        given, same = (maker.args("echo", "ñ \U0001f600") for _ in range(2))
        checked = tool.check(given)
        assert type(checked) is dict, f"`check` returned a {type(checked).__name__}; it returns a dict"
        assert checked is not given, "`check` returned the very dict that it was given"
        assert given == same, "`check` changed what it was given"
        assert msgspec.json.decode(msgspec.json.encode(checked)) == checked, "the arguments are not plain JSON data"
        assert tool.check(deepcopy(checked)) == checked, "checked a second time, the arguments are others"

    async def test_arguments_are_refused_in_one_way(self, maker: ToolMaker) -> None:
        """Wrong arguments raise `InvalidArguments` with a code and a reason, and nothing else; accepted ones satisfy the declared schema."""
        tool = made(maker.tool("echo"), "echo")
        errors = errors_of(tool.spec.input_schema)
        for odd in ODD:
            try:
                checked = tool.check(deepcopy(odd))
            except InvalidArguments as error:
                assert error.error_code, f"{odd!r} was refused without a code"
                assert str(error).strip(), f"{odd!r} was refused without a reason"
            except Exception as error:  # noqa: BLE001 - what a tool raises is what is looked at
                pytest.fail(f"{odd!r} gave {type(error).__name__}: {error}; raise InvalidArguments")
            else:
                wrong = next(errors(checked), None)
                assert wrong is None, f"{odd!r} passed as {checked!r}, which the declared schema refuses: {wrong.message if wrong else ''}"

    async def test_checking_does_nothing_else(self, maker: ToolMaker) -> None:
        """A check has no effect: a call is checked before anyone has allowed it, and may be checked often."""
        tool = made(maker.tool("once"), "once")
        for _ in range(3):
            tool.check(maker.args("once", "a"))
        await asyncio.sleep(0)
        assert maker.effects() == 0, f"checking alone had {maker.effects()} effects"

    # Outcomes -------------------------------------------------------------------------------------------------------------------

    async def test_what_went_well_is_ok_with_the_result_as_json(self, maker: ToolMaker) -> None:
        """One attempt returns the outcome `ok`, whose `result` is JSON in bytes; the arguments are left as they were."""
        tool = made(maker.tool("echo"), "echo")
        args = tool.check(maker.args("echo", 'said "ñ"'))
        before = deepcopy(args)
        outcome = _in_form(await tool.run(args, context_of(tool)))
        assert outcome.kind == "ok", f"it went well, and the outcome is {outcome.kind}: {outcome.message}"
        assert 'said "ñ"' in _texts(outcome.result), f"the result does not hold the text: {outcome.result!r}"
        assert args == before, "the tool changed its arguments, which are those that were decided on"

    async def test_a_known_failure_is_failed_with_a_code(self, maker: ToolMaker) -> None:
        """The outcome is `failed`, with a code and a message for the planner; it never counts as a success."""
        tool = made(maker.tool("fails"), "fails")
        outcome = await _ran(maker, "fails", tool)
        assert outcome.kind == "failed", f"it failed in a known way, and the outcome is {outcome.kind}"

    async def test_an_effect_that_nobody_saw_end_is_in_doubt(self, maker: ToolMaker) -> None:
        """If a tool that changes something and is not idempotent ends without a report, the outcome is `in_doubt`: it may have happened."""
        tool = made(maker.tool("breaks"), "breaks")
        assert not _harmless(tool.spec), "the maker's tool only reads or is idempotent"
        outcome = await _ran(maker, "breaks", tool)
        assert outcome.kind == "in_doubt", (
            f"it is unknown whether the effect happened, and the outcome is {outcome.kind}: {outcome.message}"
        )

    async def test_an_attempt_ends_when_its_time_is_up(self, maker: ToolMaker) -> None:
        """At `context.deadline` a read-only tool has the outcome `failed` with the code `timeout`, and `context.cancelled` is set."""
        await _times_out(maker, "hangs", "failed")

    async def test_a_change_whose_time_is_up_is_in_doubt(self, maker: ToolMaker) -> None:
        """At `context.deadline` a tool that changes something and is not idempotent has the outcome `in_doubt` with the code `timeout`."""
        await _times_out(maker, "hangs_writing", "in_doubt")

    async def test_an_attempt_that_is_cancelled_ends(self, maker: ToolMaker) -> None:
        """`asyncio.CancelledError` reaches the kernel, which decides what it means for the call."""
        tool = made(maker.tool("hangs"), "hangs")
        args, context = tool.check(maker.args("hangs", "a")), context_of(tool)
        task = asyncio.ensure_future(tool.run(args, context))
        await until(lambda: True, maker)
        task.cancel()
        await asyncio.wait((task,), timeout=maker.patience_s)
        assert task.done(), f"it runs on for {maker.patience_s:g} s after it was cancelled"
        assert task.cancelled(), f"cancelled, it gave {task.exception() or task.result()!r}; let CancelledError through"

    async def test_a_result_over_the_cap_has_a_preview_and_is_there_whole(self, maker: ToolMaker) -> None:
        """`result` is JSON of at most `max_result_bytes`, `full` is the whole result: it is kept, and the model sees the preview."""
        tool = made(maker.tool("large"), "large")
        outcome = await _ran(maker, "large", tool, "needle")
        assert outcome.kind == "ok", f"the outcome is {outcome.kind}: {outcome.message}"
        cap = tool.spec.max_result_bytes
        assert len(outcome.result) <= cap, f"the result has {len(outcome.result)} bytes, the cap is {cap}"
        assert outcome.full is not None, "the whole result is lost: `full` is None"
        assert len(outcome.full) > cap, "the maker's result is not over the cap"
        assert "needle" in _texts(outcome.full), "`full` is not the result"

    async def test_attempts_at_once_do_not_mix(self, maker: ToolMaker) -> None:
        """Calls of one tool run side by side, in one run and in several, and each gets its own result."""
        tool = made(maker.tool("echo"), "echo")
        texts = [f"text-{n}-of-8" for n in range(8)]
        outcomes = await asyncio.gather(
            *(_ran(maker, "echo", tool, text, call_id=f"main.1.{n}", key=f"key-{n}") for n, text in enumerate(texts))
        )
        for text, outcome in zip(texts, outcomes, strict=True):
            assert outcome.kind == "ok", f"the outcome is {outcome.kind}: {outcome.message}"
            assert text in _texts(outcome.result), f"the call with {text!r} got {outcome.result!r}"

    def test_one_event_loop_after_another_is_served(self, maker: ToolMaker) -> None:
        """A tool is kept between runs, and each `run_sync` has an event loop of its own."""
        if maker.one_loop:
            pytest.skip("these tools belong to one event loop")
        kept: list[Tool] = []

        async def once(text: str) -> str:
            await maker.open()
            try:
                if not kept:
                    kept.append(made(maker.tool("echo"), "echo"))
                outcome = await _ran(maker, "echo", kept[0], text)
                assert outcome.kind == "ok", f"the outcome is {outcome.kind}: {outcome.message}"
                return _texts(outcome.result)
            finally:
                await maker.close()

        for text in ("first", "second"):
            assert text in asyncio.run(once(text))

    # Once -----------------------------------------------------------------------------------------------------------------------

    async def test_the_same_key_has_its_effect_once(self, maker: ToolMaker) -> None:
        """An idempotent tool is run again with the same key after a crash or a timeout, without a second effect; another key is another effect."""
        tool = made(maker.tool("once"), "once")
        assert tool.spec.idempotent, "the maker's tool is not declared idempotent"
        for attempt in (1, 2, 3):
            outcome = await _ran(maker, "once", tool, key="key-1", attempt=attempt)
            assert outcome.kind == "ok", f"attempt {attempt} gave {outcome.kind}: {outcome.message}"
        assert maker.effects() == 1, f"three attempts with one key had {maker.effects()} effects"
        await _ran(maker, "once", tool, key="key-2", call_id="main.2.0")
        assert maker.effects() == 2, f"a call with another key left the number of effects at {maker.effects()}"

    async def test_settling_says_what_became_of_an_attempt(self, maker: ToolMaker) -> None:
        """`settle` uses the key: `ok` with the result if the effect happened, `not_executed` if not; it has no effect itself."""
        tool = made(maker.tool("reconciles"), "reconciles")
        assert (await _ran(maker, "reconciles", tool, "settled", key="key-1")).kind == "ok"
        before = maker.effects()
        known = await tool.settle(context_of(tool, key="key-1"))
        assert known is not None and known.kind == "ok", f"the effect happened, and `settle` says {known!r}"
        assert "settled" in _texts(_in_form(known).result), f"`settle` gives another result: {known.result!r}"
        other = await tool.settle(context_of(tool, key="key-of-nothing"))
        assert other is None or other.kind == "not_executed", f"nothing happened under this key, and `settle` says {other!r}"
        assert maker.effects() == before, "asking for the outcome of an attempt had an effect"

    async def test_settling_without_knowledge_is_none(self, maker: ToolMaker) -> None:
        """A tool that cannot tell returns None and raises nothing; a person then settles the call."""
        tool = made(maker.tool("breaks"), "breaks")
        await _ran(maker, "breaks", tool)
        try:
            known = await soon(tool.settle(context_of(tool)), maker, "settling")
        except Exception as error:  # noqa: BLE001 - what a tool raises is what is looked at
            pytest.fail(f"`settle` raised {type(error).__name__}: {error}")
        assert known is None or known.kind in ("ok", "failed", "not_executed"), f"`settle` gave {known!r}"


def _texts(raw: bytes) -> str:
    """Return all text in a JSON value, in reading order."""
    found: list[str] = []
    todo: list[Any] = [msgspec.json.decode(raw)]
    while todo:
        part = todo.pop()
        if isinstance(part, str):
            found.append(part)
        elif isinstance(part, dict):
            todo += cast("dict[str, Any]", part).values()
        elif isinstance(part, list):
            todo += cast("list[Any]", part)
    return "\n".join(found)


class ToolboxMaker(Maker):
    """Makes toolboxes."""

    def toolbox(self, tools: list[Tool]) -> Toolbox:
        """Return a toolbox with these tools, in this order."""
        raise NotImplementedError


class _Plain:
    """A tool for toolboxes."""

    def __init__(self, name: str) -> None:
        self.spec = ToolSpec(name=name, input_schema={"type": "object"}, side_effect="read")

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        return dict(args)

    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        return ToolOutcome(kind="ok", result=msgspec.json.encode(self.spec.name))

    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        return None


@documented(page="howto/tools/write-a-tool.md", port="Toolbox")
class ToolboxContract:
    """The promises of a `Toolbox`. A subclass gives the fixture `maker`."""

    async def test_every_tool_is_found_by_its_name(self, maker: ToolboxMaker) -> None:
        """`get` gives the tool of that name, which runs; `names` lists each once, in order."""
        box = maker.toolbox([_Plain(name) for name in ("c", "a", "b")])
        assert list(box.names()) == ["c", "a", "b"]
        for name in ("a", "b", "c"):
            tool = box.get(name)
            assert tool.spec.name == name
            outcome = await tool.run(tool.check({}), context_of(tool))
            assert outcome.result == msgspec.json.encode(name)

    async def test_an_unknown_name_is_named(self, maker: ToolboxMaker) -> None:
        """`UnknownName`, with the name in its message; never None, and never a tool of a similar name."""
        box = maker.toolbox([_Plain("look")])
        for name in ("Look", "lok", "", "look "):
            with pytest.raises(UnknownName) as caught:
                box.get(name)
            assert name.strip() in str(caught.value)

    async def test_toolboxes_share_nothing(self, maker: ToolboxMaker) -> None:
        """Each engine has its own tools."""
        first, second = maker.toolbox([_Plain("a")]), maker.toolbox([_Plain("b")])
        assert (list(first.names()), list(second.names())) == (["a"], ["b"])
        with pytest.raises(UnknownName):
            second.get("a")
