"""Lists of names that are given as text, and words that there are not: every constructor refuses them where they are written."""

from __future__ import annotations

import asyncio
import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

import detent
from cli.desk import Desk
from detent import Agent, Budget, Engine, Host, McpServer, WorkspaceConfig, extend, tool
from detent.core.errors import ConfigError
from detent.policies import PermissionPolicy, Rule, RulePolicy, TieredPolicy
from detent.policies.basic import BasicPolicy
from detent.ports import options
from detent.ports.options import checked_options
from detent.tools.workspace.sandbox import Sandbox

ROOMS = ("capabilities", "embedders", "meta_tools", "observers", "planners", "policies", "strategies", "tools", "workers")
"""The rooms of ready-made adapters, whose public names a program uses too."""
MADE_BY_DETENT = {
    *(
        "Block",
        "Call",
        "KernelInput",
        "PhaseContext",
        "Request",
        "CallState",
        "Chunk",
        "Denied",
        "Item",
        "KernelState",
        "ModelCallFailed",
        "Passed",
        "Record",
        "Resolution",
        "RunHead",
    ),
    *(
        "RunState",
        "ToolOutcome",
        "View",
        "AnswerView",
        "Result",
        "Receipt",
        "Diff",
        "Parting",
        "Upgrade",
        "Upgraded",
        "Usage",
        "CapabilityView",
    ),
    *(
        "Answered",
        "Approval",
        "Backtest",
        "Doubt",
        "Erasure",
        "Fleet",
        "LoadedRun",
        "Replay",
        "Retained",
        "Tree",
        "SessionHead",
        "ToolContext",
        "Verification",
        "Wait",
    ),
    *("Dropped", "Explanation", "Found", "Measured", "Origin"),
}
"""Data that the kernel makes for others to read, on every call: nobody gives options with it."""
CHECKED_ON_USE = {
    "Verdict": "`verdict_on` denies a verdict that cannot be used; one is made for every call",
    "Plan": "`think` refuses a plan that is none; one is made in every turn",
    "fold": "reads records, as they are stored",
    "refuse_failed": "reads what branches gave",
    "refuse_behind_cancel": "reads what a store has in an inbox; it is called in an append",
    "refuse_overfull": "the same, in a post",
    "refuse_erased": "reads the listing entry that a store has, in a post",
    "DueRuns": "what a store answers, each time that a worker looks",
    "due_among": "reads the listing entries that a store has, each time that a worker looks",
    "Work": "what an engine gives a host of workers, each time that it looks",
    "ProgramMove": "what an interpreter answers",
    "Embeddings": "what an embedder answers",
    "Generation": "what a generator answers",
    "Transcript": "what a transcriber answers",
    "Kernel": "it holds functions, not names: a letter is no guard, and one that cannot be called blocks every call",
    "make_kernel": "the same",
}


def public() -> Iterator[tuple[str, Any]]:
    """Yield what a program can make, by name: classes and functions of the public doors and rooms."""
    seen: set[int] = set()
    doors: list[tuple[str, Any]] = [(name, getattr(module, name)) for module in (detent, extend) for name in module.__all__]
    for room in ROOMS:
        module = importlib.import_module(f"detent.{room}")
        doors += [(name, getattr(module, name)) for name in getattr(module, "__all__", ())]
        for info in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
            inner = importlib.import_module(info.name)
            doors += [
                (name, value)
                for name, value in vars(inner).items()
                if not name.startswith("_") and inspect.isclass(value) and value.__module__ == info.name and name.endswith(SUFFIXES)
            ]
    for name, value in doors:
        actions_or_events = inspect.isclass(value) and issubclass(value, (extend.events.Event, detent.ToolCall.__mro__[1], BaseException))
        if id(value) in seen or actions_or_events or name in MADE_BY_DETENT or name in CHECKED_ON_USE:
            continue
        seen.add(id(value))
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, value


SUFFIXES = (
    "Policy",
    "Observer",
    "Options",
    "Settings",
    "Planner",
    "Secrets",
    "Limits",
    "Config",
    "Server",
    "Pins",
    "Sandbox",
    "Rule",
    "Grant",
)


def parameters(made: Any) -> Iterator[tuple[str, Any]]:
    """Yield each parameter with what it may be."""
    if inspect.isclass(made) and issubclass(made, msgspec.Struct):
        yield from ((field.name, field.type) for field in msgspec.structs.fields(made))
        return
    if inspect.isclass(made) and getattr(made, "_is_protocol", False):
        return
    function: Any = made.__init__ if inspect.isclass(made) else made
    function = inspect.unwrap(function)
    if not inspect.isfunction(function):
        return
    hints = get_type_hints(function, localns=options._Known(function.__globals__))
    named = inspect.signature(function).parameters
    yield from ((n, h) for n, h in hints.items() if n in named and named[n].kind in (named[n].KEYWORD_ONLY, named[n].POSITIONAL_OR_KEYWORD))


def wrong() -> Iterator[tuple[str, Callable[[], Any], str]]:
    """Yield what is given, how, and the word that the refusal must name."""
    for name, made in public():
        for parameter, hint in parameters(made):
            kinds = get_args(hint) if get_origin(hint) in (Union, type(int | str)) else (hint,)
            if str in kinds or Any in kinds:
                continue
            words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind) if isinstance(word, str) and word]
            lists = [kind for kind in kinds if get_origin(kind) in options._LISTS]
            if words:
                value = f"{words[0]}x"
                near = difflib.get_close_matches(repr(value), [repr(w) for w in words], n=1)[0]
                yield f"{name}({parameter}={value!r})", given(made, parameter, value), near
            elif lists:
                yield f"{name}({parameter}='wipe')", given(made, parameter, "wipe"), f"{parameter} must be a "


def given(made: Any, parameter: str, value: Any) -> Callable[[], Any]:
    """Return a call of `made` with this value, and with anything for what else it needs."""

    def call() -> Any:
        needed = {
            field.name: "x"
            for field in (msgspec.structs.fields(made) if inspect.isclass(made) and issubclass(made, msgspec.Struct) else ())
            if field.required
        }
        if not needed and not (inspect.isclass(made) and issubclass(made, msgspec.Struct)):
            named = list(inspect.signature(made).parameters.values())
            needed = {p.name: "x" for p in named if p.default is p.empty and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
        return made(**{**{name: SAMPLE.get(name, said) for name, said in needed.items()}, parameter: value})

    return call


SAMPLE: dict[str, Any] = {
    "decision": "allow",
    "action": "cancel",
    "side_effect": "read",
    "kind": "reply",
    "payload": {},
    "allow": ("example.org",),
}
"""What else a constructor needs."""
CASES = {said: (call, word) for said, call, word in wrong()}


@pytest.mark.parametrize("said", CASES)
def test_every_constructor_refuses_it(said: str) -> None:
    """A list of names that is one text, or a word that there is not, is given to a constructor."""
    call, word = CASES[said]
    with pytest.raises(ConfigError) as refused:
        call()
    assert word in str(refused.value)


def test_there_are_constructors_to_try() -> None:
    """The constructors that matter are not tried at all."""
    for said in (
        "PermissionPolicy(denied_tools=",
        "Agent(tools=",
        "Rule(decision=",
        "Rule(tool=",
        "Host(scopes=",
        "Engine(approver=",
        "Engine(redact=",
    ):
        assert any(case.startswith(said) for case in CASES), said
    assert len(CASES) > 60


@pytest.mark.parametrize(
    "made",
    [
        lambda: Engine(ceiling=0),
        lambda: Engine(ceiling=-5),
        lambda: Engine(ceiling="no"),  # type: ignore[arg-type]
        lambda: Engine(store=42),  # type: ignore[arg-type]
        lambda: Engine(store=""),
        lambda: Engine(approver=42),  # type: ignore[arg-type]
        lambda: Engine(policy=42),  # type: ignore[arg-type]
        lambda: Engine(planner=42),  # type: ignore[arg-type]
        lambda: Agent(name="a", guards=("duplicat",)).spec() and Engine().run_sync(Agent(name="a", guards=("duplicat",)), "x"),
        lambda: BasicPolicy(allowed_tools={"wipe": False}),  # type: ignore[arg-type]
        lambda: BasicPolicy(allowed_tools=None),  # type: ignore[arg-type]
        lambda: BasicPolicy(require_approval_for=[42]),  # type: ignore[list-item]
        lambda: BasicPolicy(max_steps=-1),
        lambda: PermissionPolicy(prompt_available="no"),  # type: ignore[arg-type]
        lambda: Sandbox(network="off"),  # type: ignore[arg-type]
        lambda: WorkspaceConfig(root=".", sandbox="of"),  # type: ignore[arg-type]
        lambda: Rule(id="a", decision="denny"),  # type: ignore[arg-type]
        lambda: RulePolicy([Rule(id="a", decision="require_approval", approvers=0)]),
        lambda: tool(side_effect="wrte")(print),  # type: ignore[arg-type]
        lambda: tool(side_effect="read", retries=-1)(print),
        lambda: Engine().run_sync(Agent(name="a"), "x", budget=Budget(max_iterations=-1)),
        lambda: Host(scopes=b"admin"),  # type: ignore[arg-type]
        lambda: Host(tenant=5),  # type: ignore[arg-type]
        *(
            partial(Budget, **{field: value})
            for field, value in (
                *(("max_iterations", value) for value in (-1, "5", True, 1.5)),
                ("max_cost_usd", float("nan")),
                ("max_calls_of", {"wipe": -1}),
            )
        ),
        *(
            partial(Engine, **{field: value})
            for field, value in (
                ("secrets", {"a": "b"}),
                ("model_prices", {"x": 5}),
                ("workspace", 5),
                ("tenant_budgets", "x"),
                ("tenant_budgets", {"*": 5}),
                ("mcp", [McpServer(command="x")]),
            )
        ),
        lambda: tool(side_effect="write", writes_in=5)(print),  # type: ignore[arg-type]
        lambda: TieredPolicy(tiers="x"),  # type: ignore[arg-type]
        lambda: TieredPolicy(tools="x"),  # type: ignore[arg-type]
        lambda: Agent(name="a", tools=[5]),
        lambda: Agent(name="a", budget={"max_tool_calls": 1}),  # type: ignore[arg-type]
        *(
            partial(Engine().run_sync, Agent(name="a", rules=[{"name": "end", "answer": "x"}]), "x", **{field: value})
            for field, value in (
                ("turns", -1),
                ("turns", True),
                ("budget", {"max_tool_calls": 1}),
                ("host", "acme"),
                ("host", {"tenant": "acme"}),
                ("variables", "x"),
            )
        ),
        lambda: asyncio.run(Engine().list_runs(host="acme")),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_meant_is_refused(made: Callable[[], Any]) -> None:
    """An option is given a value that no option has."""
    with pytest.raises(ConfigError):
        made()


def test_a_denied_tool_that_is_given_as_text_is_not_allowed() -> None:
    """`denied_tools="wipe"` allows wipe."""
    with pytest.raises(ConfigError, match=r"denied_tools must be a list, not the text 'wipe'; write denied_tools=\['wipe'\]"):
        PermissionPolicy(denied_tools="wipe")


def test_the_command_line_names_the_nearest(tmp_path: Path) -> None:
    """A misspelt option of a file falls back to what allows more."""
    desk = Desk(tmp_path)
    agent = (tmp_path / "agent.toml").read_text()
    for key, value, near in (
        ("tools", '"wipe"', "a list"),
        ("on_deny", '"fial"', "'fail'"),
        ("guards", '"duplicate"', "a list"),
        ("sandbox", '"requir"', "'require'"),
    ):
        rest = [line for line in agent.splitlines() if not line.startswith(f"{key} ")]
        desk.write("agent.toml", "\n".join([*rest, f"{key} = {value}\n"]))
        done = desk.detent("run", "x")
        assert (done.code, near in done.err) == (2, True), done


def test_an_unknown_key_does_not_hide_the_state_directory(tmp_path: Path) -> None:
    """A clone has one unknown key in its `detent.toml`, so that `detent where` does not say where the operator's file is."""
    desk = Desk(tmp_path)
    desk.write("detent.toml", "nobody_knows = 1\n")
    done = desk.detent("where")
    assert (done.code, "operator  " in done.out, "nobody_knows" in done.err) == (2, True, True), done


def test_functions_are_checked_by_their_annotations() -> None:
    """A new constructor forgets to check."""

    @checked_options
    def made(names: tuple[str, ...] = (), *, mode: Literal["a", "b"] = "a", plain: str = "", flag: bool = False) -> Any:
        return names, mode, plain, flag

    assert made(("x",), mode="b", plain="text", flag=True) == (("x",), "b", "text", True)
    for call in (lambda: made("x"), lambda: made(mode="c"), lambda: made(flag="no"), lambda: made((1,))):  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            call()
