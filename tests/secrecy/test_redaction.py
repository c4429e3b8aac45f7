"""Redaction (DESIGN 4): what is sensitive is nowhere in the stored bytes of the log, tools get the values, replay is the same."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, AskUser, Engine, FinalAnswer, Plan, Thought, ToolCall, ToolFailed, tool
from detent.core import events as e
from detent.core.errors import ConfigError, MalformedPlan
from detent.kernel.kernel import make_kernel
from detent.ports import Answer, Call, MetaTool, ToolSpec
from detent.secrecy.redact import Redactor, rejected
from detent.testing import ScriptedPlanner
from kernel.runs import END, Decide, Desk, Ran, Script, call, engine_for, look, ran, run_async

SECRET = "hunter2-s3cret"
CARD = "4111-1111-1111-1111"
CARDS = r"\d{4}-\d{4}-\d{4}-\d{4}"
HIDDEN = re.compile(r"<secret:[0-9a-f]{24}>")
GRANT = {"sink": "charge.card", "source": "card_of.cards"}


class Bank:
    """Tools that take secrets, and keep what they really got."""

    def __init__(self) -> None:
        self.got: list[Any] = []

        @tool(side_effect="write", sensitive=("password", "pin"))
        async def login(user: str, password: str, pin: str = "") -> str:
            """Log in."""
            self.got.append((user, password, pin))
            return f"hello {user}"

        @tool(side_effect="read")
        async def card_of(user: str) -> dict[str, Any]:
            """Give the card of a user."""
            self.got.append(user)
            return {"user": user, "cards": [CARD], "note": f"card {CARD} is valid"}

        @tool(side_effect="write", sensitive=("card",))
        async def charge(card: str) -> str:
            """Charge a card."""
            self.got.append(card)
            if card != CARD:
                raise ToolFailed(f"unknown card {card}")
            return "charged"

        @tool(side_effect="read", sensitive=("card",))
        async def trip(card: str) -> str:
            """Fail, and tell."""
            raise ToolFailed(f"card {CARD} is blocked", details={"card": CARD})

        self.all = (login, card_of, charge, trip)


def hidden(done: Ran, *values: str) -> bool:
    """Say whether none of the values stands in any stored byte of the log."""
    return not any(value.encode() in line for value in values for line in done.lines)


def test_a_sensitive_field_reaches_the_tool_and_stands_nowhere_in_the_log() -> None:
    """Per-tool fields: the whole value; other fields stay readable; replay is identical."""
    bank = Bank()
    args = {"user": "ann", "password": SECRET, "pin": "pin-9876"}
    done = ran([ToolCall(tool="login", args=args), END], *bank.all)
    assert bank.got == [("ann", SECRET, "pin-9876")] and done.why == ("completed", "final_answer")
    assert hidden(done, SECRET, "pin-9876")
    shown = done.items[0].args
    assert shown["user"] == "ann" and HIDDEN.fullmatch(shown["password"]) and HIDDEN.fullmatch(shown["pin"])
    assert done.views[1].results[0].args == shown


def test_a_sensitive_field_in_text_arguments_is_hidden_too() -> None:
    """Arguments that came as JSON text, good or bad."""
    bank = Bank()
    good, bad = f'{{"user": "ann", "password": "{SECRET}"}}', f'{{"password": "{SECRET}"'
    done = ran([(ToolCall(tool="login", args=good), ToolCall(tool="login", args=bad)), END], *bank.all)
    assert bank.got == [("ann", SECRET, "")] and done.codes == ["", "schema_validation_failed"] and hidden(done, SECRET)


def test_a_pattern_hides_values_wherever_they_come_from() -> None:
    """Goal, variables, arguments, texts, results, error messages and details, answers; the tool gets the real one."""
    bank = Bank()
    script = [
        Plan(actions=(call("card_of", user="ann"),), text=f"looking for {CARD}", thinking=f"it may be {CARD}"),
        call("charge", card=CARD),
        call("trip", card=CARD),
        Thought(content=f"remember {CARD}"),
        lambda view: FinalAnswer(content=f"charged {CARD}, seen {view.results[0].content['cards'][0]}"),
    ]
    done = ran(script, *bank.all, goal=f"charge {CARD}", run={"variables": {"card": [CARD]}}, redact=[CARDS])
    assert bank.got == ["ann", CARD] and done.codes == ["", "", "handler_error"] and hidden(done, CARD)
    shown = [
        done.state.goal,
        done.state.variables,
        done.items[1].arguments,
        done.result.output,
        done.items[0].content["note"],
        done.items[2].error,
    ]
    names = [HIDDEN.search(str(value))[0] for value in shown]  # type: ignore[index]
    assert names[0] == names[1] and names[2] == names[3], "equal values of one giver have equal placeholders"
    assert len(set(names)) == 4, "those of others have others"
    assert done.views[0].variables == {"card": [next(iter(names))]}


def test_the_planner_can_hand_a_placeholder_on_and_the_tool_gets_the_value() -> None:
    """What a result hid can be used in the next call, where the operator granted it."""
    bank = Bank()
    script = [call("card_of", user="ann"), lambda view: call("charge", card=view.results[0].content["cards"][0]), END]
    done = ran(script, *bank.all, redact=[CARDS], grants=[GRANT])
    assert bank.got == ["ann", CARD] and done.codes == ["", ""] and hidden(done, CARD)


def test_an_agent_may_bring_patterns_of_its_own() -> None:
    """`Agent(redact=...)` beside the engine's."""
    bank = Bank()
    done = ran([call("charge", card=CARD), Thought(content="token-77"), END], *bank.all, redact=["token-[0-9]+"], agent={"redact": [CARDS]})
    assert bank.got == [CARD] and hidden(done, CARD, "token-77")


def test_guards_policy_digest_and_key_see_the_placeholder() -> None:
    """Live and in replay alike: replay is identical though it has no secrets."""
    seen: list[Any] = []

    def guard(call: Call, state: Any, run: Any) -> None:
        seen.append(call.args["password"])

    def decide(call: Call) -> str:
        seen.append(call.args["password"])
        return "allow"

    args = {"user": "ann", "password": SECRET}
    done = ran([ToolCall(tool="login", args=args)] * 2 + [END], *Bank().all, kernel=make_kernel(guards=(guard,)), policy=Decide(decide))
    assert len(set(seen)) == 1 and HIDDEN.fullmatch(seen[0]) and len({s.digest for s in done.all(e.ToolStarted)}) == 1


def test_other_values_have_other_placeholders_and_other_runs_too() -> None:
    """A keyed hash: nothing can be guessed from it, nor told apart over runs."""

    def name(password: str) -> str:
        done = ran([ToolCall(tool="login", args={"user": "a", "password": password}), END], *Bank().all)
        return str(done.items[0].args["password"])

    assert len({name("a"), name("a"), name("b")}) == 3


def test_a_reply_and_edited_arguments_are_redacted_before_the_log() -> None:
    """What people send takes the same way."""

    async def main() -> None:
        bank = Bank()
        planner = Script([AskUser(question="card?"), ToolCall(tool="login", args={"user": "ann", "password": "old-pass"}), END])
        policy = Decide(lambda c: "require_approval" if c.tool.name == "login" else "allow")
        engine = engine_for(planner, *bank.all, policy=policy, redact=[CARDS])
        first = await engine.run(Agent(name="w", tools=["login", "charge"]), "go")
        second = await engine.reply(first.run_id, {"card": CARD}, by="ann")
        assert second.status == "waiting_for_approval"
        edited = await engine.approve(first.run_id, "main.2.0", by="ann", args={"user": "ann", "password": SECRET})
        done = await look(engine, edited, planner)
        assert done.why == ("completed", "final_answer") and bank.got == [("ann", SECRET, "")] and hidden(done, CARD, SECRET, "old-pass")

    run_async(main)


def test_what_a_planner_said_badly_is_redacted_too() -> None:
    """Problem and raw text of a rejected plan, the error of a failed planner."""

    def bad(view: Any) -> Any:
        raise MalformedPlan(f"no JSON near {CARD}", raw=f"charge {CARD}")

    def breaks(view: Any) -> Any:
        raise RuntimeError(f"cannot send {CARD}")

    done = ran([bad, breaks], redact=[CARDS])
    assert done.why == ("failed", "planner_error") and hidden(done, CARD) and len(done.all(e.PlanRejected)) == 1


@pytest.mark.parametrize(
    "said",
    [
        'So: log_in("ann", "{}") now.',
        'So: log.in("ann", "{}") now.',
        'So: log_in({{"user": "ann", "password": "{}"}}) now.',
        "So: log_in(user='ann', password='{}') now.",
        "<function=log_in><parameter=password>{}</parameter></function>",
        '<invoke name="log_in"><parameter name="password">{}</parameter></invoke>',
        "<tool_call>log_in\n<arg_key>password</arg_key>\n<arg_value>{}</arg_value></tool_call>",
        "Action: log_in\nAction Input: {}",
        "log.in:\n  password: {}",
        'log_in({{"password": "x"}}) or log_in("ann", "{}")',
        '[TOOL_CALLS]log_in[ARGS]{{"password": "{}"',
    ],
)
def test_a_call_that_is_no_plan_shows_no_sensitive_value_however_it_is_written(said: str) -> None:
    """Only JSON was looked through: what was rejected because it was written otherwise stood in the log as it came."""

    @tool(side_effect="write", sensitive=("password",), name="log.in")
    async def login(user: str, password: str) -> str:
        """Log in."""
        return "hello"

    def bad(view: Any) -> Any:
        raise MalformedPlan("a call of 'log.in' that was not made: write it alone", raw=said.format(SECRET))

    done = ran([bad, END], login)
    (rejected,) = done.all(e.PlanRejected)
    assert hidden(done, SECRET) and rejected.problem.endswith("write it alone") and "<secret>" in rejected.raw


def test_a_text_that_is_no_plan_and_calls_nothing_sensitive_stays_readable() -> None:
    """Hidden as a whole, nobody could tell what a model does wrong."""
    specs = [ToolSpec(name="log_in", sensitive=("password",)), ToolSpec(name="look")]
    for text in ('look("x") and log_in later', "blog_in(1)", 'log_in({"user": "ann", "password":"<secret>"})'):
        assert rejected(text, specs) == text


def test_an_artifact_is_redacted_like_its_preview() -> None:
    """A large result is stored whole, without the secret."""

    async def main() -> None:
        @tool(side_effect="read", max_result_bytes=200)
        async def dump() -> list[str]:
            """Give a lot."""
            return [f"row {n} {CARD}" for n in range(100)]

        planner = Script([call("dump"), END])
        engine = engine_for(planner, dump, redact=[CARDS])
        done = await look(engine, await engine.run(Agent(name="w", tools=["dump"]), "go"), planner)
        (item,) = done.items
        assert item.artifact is not None and hidden(done, CARD)
        whole = await engine.store.get_blob(done.result.run_id, item.artifact.key)
        assert whole is not None and CARD.encode() not in whole and b"row 99" in whole

    run_async(main)


def test_values_survive_a_restart_and_are_erased_with_the_run(tmp_path: Path) -> None:
    """They are kept with the run, apart from the log; erasing removes them from the store's bytes."""

    async def main() -> None:
        url = f"sqlite:///{tmp_path / 'runs.db'}"
        bank = Bank()
        agent = Agent(name="w", tools=["login"])
        policy = Decide(lambda c: "require_approval")
        async with Engine(
            store=url, planner=Script([ToolCall(tool="login", args={"user": "ann", "password": SECRET})]), tools=bank.all, policy=policy
        ) as first:
            result = await first.run(agent, "go")
        async with Engine(store=url, planner=Script([END]), tools=bank.all, policy=policy) as second:
            done = await second.approve(result.run_id, "main.1.0", by="ann")
            assert (done.status, bank.got) == ("completed", [("ann", SECRET, "")])
            assert all(SECRET.encode() not in line for line in await second.store.read(result.run_id))
            await second.erase(result.run_id)
        stored = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
        assert SECRET.encode() not in stored

    run_async(main)


def test_a_pattern_that_is_none_is_refused_at_once() -> None:
    """By name, when the engine is made."""
    with pytest.raises(ConfigError, match=r"redact pattern '\(' is not a regular expression"):
        Engine(redact=["("])


def test_a_pattern_never_hides_a_placeholder_again() -> None:
    """Redacting twice changes nothing, whatever the pattern."""
    redactor = Redactor([r"\S+"], b"key")
    once = redactor.text("one two")
    assert redactor.text(once) == once and HIDDEN.fullmatch(once.split()[0])


def test_a_sensitive_argument_that_is_no_text_is_refused() -> None:
    """Only text can be replaced by a placeholder: said before a run starts, by the argument's name."""
    got: list[int] = []

    @tool(side_effect="write", sensitive=("pin",))
    async def unlock(pin: int) -> str:
        """Unlock."""
        got.append(pin)
        return "open"

    with pytest.raises(ConfigError, match="pin"):
        ran([call("unlock", pin=731_946), END], unlock, *Desk().all)
    assert got == []


def test_a_call_in_the_text_of_an_answer_hides_its_sensitive_fields_too() -> None:
    """The placeholder stands in the answer, in the plan's text and in the call; the tool gets the value."""
    got: list[str] = []

    @tool(side_effect="read", sensitive=("pw",))
    async def login(pw: str) -> str:
        """Log in."""
        got.append(pw)
        return "in"

    async def main() -> None:
        said = 'Here it is:\nlogin({"pw": "hunter2secret"})'
        planner = ScriptedPlanner([Plan(actions=(FinalAnswer(content=said),), text=said)])
        async with Engine(planner=planner, tools=[login]) as engine:
            result = await engine.run(Agent(name="a", tools=["login"]), "go")
            assert (result.status, result.output, got) == ("completed", "in", ["hunter2secret"])
            assert b"hunter2secret" not in b"".join(await engine.store.read(result.run_id))
            assert (await engine.replay(result.run_id)).identical

    asyncio.run(main())


FIELDS = {"user": "ann", "password": SECRET}
JSON = json.dumps(FIELDS)
PLANNED = json.dumps({"tool": "login", "args": FIELDS})


@pytest.mark.parametrize(
    "args", [json.dumps(JSON), [FIELDS], f"[{JSON}]", {"args": FIELDS}, {"input": JSON}, {"Password": SECRET, "user": "ann"}]
)
def test_arguments_of_another_shape_show_no_sensitive_field(args: Any) -> None:
    """Text of a text, lists, wrappers, other names of a field: the call is refused, and nothing of it stands in the log."""
    bank = Bank()
    done = ran([ToolCall(tool="login", args=args), END], *bank.all)
    assert bank.got == [] and done.codes == ["schema_validation_failed"] and hidden(done, SECRET)


def test_a_call_of_a_tool_that_there_is_not_shows_no_field_that_others_declare() -> None:
    """It may be meant for one of them; also in a plan that is text."""
    calls = (ToolCall(tool="Login", args=FIELDS), ToolCall(tool="sign_in", args=JSON))
    stray = FinalAnswer(content=json.dumps({"steps": [{"tool": "Login", "args": FIELDS}]}))
    done = ran([calls, stray], *Bank().all)
    assert done.codes == ["tool_not_found"] * 2 and hidden(done, SECRET)
    assert done.items[0].args["user"] == "ann"


@pytest.mark.parametrize(
    "said", [f"I plan {PLANNED} now.", f"```json\n{PLANNED}\n```\nthat is it", f"{PLANNED}\n{PLANNED}", f"I send {JSON[:-1]}", f"[{{{JSON}"]
)
def test_what_is_said_beside_a_call_hides_sensitive_fields_wherever_their_json_stands(said: str) -> None:
    """Text, thinking, reasons, other actions, errors; whole JSON, several pieces of it, what is cut off."""

    def breaks(view: Any) -> Any:
        raise RuntimeError(said)

    call_ = ToolCall(tool="login", args=FIELDS, reason=said)
    bank = Bank()
    script = [Plan(actions=(call_,), text=said, thinking=said), Thought(content=f"I do {PLANNED}"), breaks]
    done = ran(script, *bank.all)
    assert bank.got == [("ann", SECRET, "")] and done.why == ("failed", "planner_error") and hidden(done, SECRET)
    assert "ann" in done.all(e.Planned)[0].text


# What one's own code says, which a replay lets it say again ---------------------------------------------------------------------


def test_what_a_meta_tool_of_ones_own_says_is_hidden_and_comes_out_again() -> None:
    """Text, notes, question and answer of it alike; another text than then is still a divergence."""
    says = [f"pay with {CARD}, not with {CARD[::-1]}"]

    async def tell(args: dict[str, Any], state: Any, context: Any) -> Answer:
        ends = {"ask": AskUser(question=f"use {CARD}?"), "end": FinalAnswer(content=f"used {CARD}")}
        return Answer(content=says[0], notes={"card": CARD}, action=ends.get(args.get("then", "")))

    async def main() -> None:
        spec = ToolSpec(name="tell", description="Tell.", side_effect="none")
        script = Script([ToolCall(tool="tell"), ToolCall(tool="tell", args={"then": "ask"}), ToolCall(tool="tell", args={"then": "end"})])
        kernel = make_kernel(meta_tools=(MetaTool(spec=spec, handler=tell),))
        async with engine_for(script, kernel=kernel, redact=(CARDS,)) as engine:
            result = await engine.run(Agent(name="a", tools=["tell"]), "go")
            result = await engine.reply(result.run_id, "yes", by="ann")
            assert result.status == "completed" and HIDDEN.search(result.output)
            log = b"".join(await engine.store.read(result.run_id))
            assert CARD.encode() not in log and log.count(b"<secret:") > 6
            again = await engine.replay(result.run_id)
            assert again.identical, again.divergence
            says[0] = f"do not pay with {CARD}"
            assert not (await engine.replay(result.run_id)).identical

    run_async(main)


@pytest.mark.parametrize("where", ["phase", "strategy"])
def test_an_error_of_ones_own_code_is_hidden_and_comes_out_again(where: str) -> None:
    """It ends the run; the log has no card, and the replay raises the same."""

    async def broken(*_: Any) -> Any:
        raise ValueError(f"card {CARD} is blocked")

    async def main() -> None:
        options: dict[str, Any] = {"kernel": make_kernel((broken,))} if where == "phase" else {"strategies": {"mine": broken}}
        async with engine_for(Script([END]), redact=(CARDS,), **options) as engine:
            result = await engine.run(Agent(name="a", strategy="mine" if where == "strategy" else "reactive"), "go")
            assert result.reason == "kernel_error" and HIDDEN.search(result.error or "")
            again = await engine.replay(result.run_id)
            assert again.identical, again.divergence

    run_async(main)
