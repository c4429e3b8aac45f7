"""`Agent(verify=)` and `[[verify]]`: the entries, and the verifier for each.

An entry is one table with one kind of check (`KINDS`) and its options. The log holds functions by name only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from detent.config.output_types import OutputType
from detent.config.planners import Planners
from detent.config.tables import check_json, take
from detent.core.agent import AgentSpec
from detent.core.codec import digest_of
from detent.core.durations import Seconds, seconds, usually
from detent.core.errors import ConfigError
from detent.ports import Cancellation, Toolbox, ToolContext
from detent.ports.options import check_function
from detent.ports.verifying import AnswerView, Stated, Verifier

EXEC = "exec"
"""The workspace tool that runs the command of a check, in its sandbox."""
DEFAULT_TIMEOUT_S = 60.0
SHOWN = 1500
"""How much of the end of a command's output the planner sees."""
_OPTIONS = {"expression": ("says",), "function": (), "command": ("says", "timeout_s"), "rubric": ("model",)}


class Check(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of `verify`: exactly one kind of check, and its options."""

    grounded: bool = False
    """Every number in the answer occurs in an observation, the goal, a reply or the variables."""
    require_tool_used: Sequence[str] | None = None
    """Each of these tools succeeded at least once; an empty list: any tool did."""
    answer_equals_tool_result: str = ""
    """The answer is the latest result of this tool."""
    answer_is_integer: bool = False
    """The answer is a whole number and nothing else."""
    answer_matches: str = ""
    """The whole answer matches this regular expression."""
    calls_required: dict[str, int] = {}
    """How often each tool must have succeeded in the run: `{search = 2}`."""
    schema: dict[str, Any] = {}
    """JSON Schema of the answer, or of the JSON in its text."""
    expression: str = ""
    """A CEL expression over `answer`, `results`, `usage`, `goal` and `variables` that must be true."""
    function: str = ""
    """A function of the answer and the view, as `module:function` or `./file.py:function`; it returns the problem, or nothing."""
    command: Sequence[str] = ()
    """A program with its arguments, run in the workspace sandbox. Its input is the answer as JSON. An exit code other than 0 rejects the answer."""
    rubric: str = ""
    """What a model must check, in words."""
    says: str = ""
    """The message for the planner if the expression is false or the command rejects the answer."""
    timeout_s: Seconds[float] = usually(DEFAULT_TIMEOUT_S)
    """How long the command may take."""
    model: str = ""
    """The model that judges by the rubric, as `provider:name`; default: the agent's small model, or its model."""
    name: str = ""
    """The name of the check in the log."""


KINDS = ("grounded", "require_tool_used", "answer_equals_tool_result", "answer_is_integer", "answer_matches", "calls_required",
         "schema", "expression", "function", "command", "rubric")  # fmt: skip


def entries_of(said: Sequence[Any], where: str) -> tuple[list[dict[str, Any]], dict[str, Verifier]]:
    """Return `verify` as data, and its functions by name. Raise `ConfigError`, which names the wrong entry."""
    if isinstance(said, (str, Mapping)) or callable(said) or not isinstance(said, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{where}: verify must be a list of checks, not {type(said).__name__}; write verify=[...]")
    entries: list[dict[str, Any]] = []
    functions: dict[str, Verifier] = {}
    for number, one in enumerate(said, 1):
        place = f"{where}: verify {number}"
        for entry in _written(one, place, functions):
            if "timeout_s" in entry:
                entry["timeout_s"] = seconds(entry["timeout_s"], f"{place}: timeout_s")
            _check(entry, place)
            entries.append(entry)
    return entries, functions


def _written(one: Any, place: str, functions: dict[str, Verifier]) -> list[dict[str, Any]]:
    """Return an entry as tables; `all_verifiers` becomes several. Its functions are added to `functions`."""
    if isinstance(one, Stated) and "all" in one.entry:
        return [entry for inner in one.entry["all"] for entry in _written(inner, place, functions)]
    return [_table(one, place, functions)]


def _table(one: Any, place: str, functions: dict[str, Verifier]) -> dict[str, Any]:
    if isinstance(one, Stated):
        if "function" in one.entry:
            functions[one.entry["function"]] = one
        return dict(one.entry)
    if isinstance(one, Mapping):
        table: dict[str, Any] = dict(cast("Mapping[str, Any]", one))
        if callable(function := table.get("function")):
            table["function"] = _named(function, place)
            functions[table["function"]] = function
        return table
    if callable(one):
        name = _named(one, place)
        functions[name] = cast("Verifier", one)
        return {"function": name}
    raise ConfigError(f"{place}: {one!r} is not a check; give a function of (answer, view), or a table with one of {', '.join(KINDS)}")


def tools_in(entry: Mapping[str, Any]) -> list[str]:
    """Return the tools that this entry requires for an answer."""
    result = entry.get("answer_equals_tool_result")
    return [*entry.get("calls_required", ()), *entry.get("require_tool_used", ()), *([result] if result else [])]


def _named(function: Callable[..., Any], place: str) -> str:
    check_function("verifier", place, function)
    name = getattr(function, "__name__", type(function).__name__)
    if not name.isidentifier():
        raise ConfigError(f"{place}: the log records a function by its name, but this one is {name}; write a `def`")
    return name


def _check(entry: Mapping[str, Any], place: str) -> None:
    """Raise `ConfigError` for an entry that is not exactly one check with its own options."""
    take(entry, Check, place)
    check_json(dict(entry), place)
    said = [kind for kind in KINDS if kind in entry]
    if len(said) != 1:
        what = f"it says {' and '.join(said)}" if said else "it says no check"
        raise ConfigError(f"{place}: {what}; give exactly one of {', '.join(KINDS)}")
    kind = said[0]
    if entry[kind] in ("", False, {}, ()) or (entry[kind] == [] and kind != "require_tool_used"):
        raise ConfigError(f"{place}: {kind} is {entry[kind]!r}, which checks nothing; leave the entry out")
    for option in ("says", "timeout_s", "model"):
        if option in entry and option not in _OPTIONS.get(kind, ()):
            takers = ", ".join(taker for taker, options in _OPTIONS.items() if option in options)
            raise ConfigError(f"{place}: {option} has no effect beside {kind}; it is an option of {takers}")
    if entry.get("timeout_s", DEFAULT_TIMEOUT_S) <= 0:
        raise ConfigError(f"{place}: timeout_s is {entry['timeout_s']}; give seconds above 0")


def _plain(kind: str, entry: Mapping[str, Any]) -> Verifier:
    """Return the verifier of an entry that needs nothing from the engine. Raise `ConfigError`."""
    from detent.planners import verifiers

    make = getattr(verifiers, kind)
    said = entry[kind]
    if said is True:
        return make()
    if kind == "require_tool_used":
        return make(*said)
    return make(said, says=entry.get("says", "")) if kind == "expression" else make(said)


def names_in_workspace(tools: Sequence[str], entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the tools that an agent needs: those that it lists, and the tool that runs the commands of its checks."""
    return [*tools, *([EXEC] if EXEC not in tools and any("command" in entry for entry in entries) else [])]


log = logging.getLogger("detent")


class Verifiers:
    """The verifiers of an engine's agents. `functions` are those from programs and agent files, by name."""

    def __init__(self, planners: Planners, tools: Toolbox) -> None:
        self._planners, self._tools = planners, tools
        self._functions: dict[str, Verifier] = {}
        self._types: dict[tuple[str, str], OutputType[Any]] = {}

    def add_type(self, kind: OutputType[Any] | None) -> None:
        """Register the type of an agent's answers. Answers are checked by it and converted to it."""
        if kind is not None:
            self._types[kind.entry["name"], kind.digest] = kind

    def _type_of(self, entry: dict[str, Any]) -> OutputType[Any] | None:
        """Return the type of an entry of `verify`, or None if this engine does not know it."""
        return self._types.get((entry.get("name", ""), digest_of(entry["schema"]))) if self._types and "schema" in entry else None

    def made(self, output: Any, agent: AgentSpec) -> Any:
        """Return an output as an instance of the agent's answer type. If no type is known or it does not fit, return it unchanged."""
        for entry in agent.verify if output is not None else ():
            if (kind := self._type_of(entry)) is not None:
                try:
                    return kind.made(output)
                except Exception as error:  # noqa: BLE001 - foreign code: validators of the type, which the answer has passed once
                    log.warning(
                        "the output of agent %r is told as JSON: it is no %s any more: %s", agent.name, kind.name, type(error).__name__
                    )
        for name in self.changed(agent) if output is not None else ():
            log.warning("the output of agent %r is returned as JSON: its %s has another schema now than in the run", agent.name, name)
        return output

    def changed(self, agent: AgentSpec) -> tuple[str, ...]:
        """Return the types of an agent's answers, such as `output type City`, that have another schema here than in its run."""
        named = {name for name, _ in self._types}
        return tuple(
            entry["name"] for entry in agent.verify if "schema" in entry and entry.get("name") in named and not self._type_of(entry)
        )

    def add(self, functions: Mapping[str, Verifier]) -> None:
        """Register functions. Raise `ConfigError` if another function already has the name."""
        for name, function in functions.items():
            known = self._functions.setdefault(name, function)
            if known is not function and not (isinstance(known, Stated) and isinstance(function, Stated)):
                raise ConfigError(f"verify: another function in this engine has the name {name!r}; rename one of them")

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    def check(self, agent: AgentSpec, *, models: bool = True) -> None:
        """Raise `ConfigError` for an agent with a check that cannot work here. `models`: also check that the judges can be called from here."""
        for entry in agent.verify:
            self.of(agent, entry, models=models)

    def of(self, agent: AgentSpec, entry: dict[str, Any], *, models: bool = True) -> Verifier:
        """Return the verifier of an entry. Raise `ConfigError` if it cannot work here."""
        kind = next((kind for kind in KINDS if kind in entry), "")
        if kind == "function":
            return self._function(entry[kind], agent)
        if kind == "command":
            return self._command(entry, entry[kind])
        if kind == "rubric":
            return self._rubric(entry[kind], agent, entry.get("model", ""), check=models)
        if (typed := self._type_of(entry)) is not None:
            return Stated(entry, typed.check)
        if kind:
            return _plain(kind, entry)
        raise ConfigError(f"agent {agent.name!r}: verify: this version does not know the check {entry!r}; it may be from a later version")

    def _function(self, name: str, agent: AgentSpec) -> Verifier:
        if name not in self._functions:
            raise ConfigError(
                f"agent {agent.name!r}: verify: the function {name!r} is not loaded; pass it again with Engine(verifiers={{...}}), or name the agent's file"
            )
        return self._functions[name]

    def _rubric(self, wanted: str, agent: AgentSpec, model: str, *, check: bool) -> Verifier:
        from detent.planners.verdicts import rubric

        if not model and (agent.rules or not agent.model) and (agent.rules or self._planners.own is None):
            raise ConfigError(f'agent {agent.name!r}: verify: a rubric needs a model as judge; give the entry model = "provider:name"')
        named = msgspec.structs.replace(agent, model=model, small_model="", planner="", rules=(), model_settings={}) if model else agent
        planner = self._planners.model_of(named, check=check) if model else self._planners.of(agent, check=check)
        return rubric(wanted, planner, agent, model=model)

    def _command(self, entry: dict[str, Any], words: Sequence[str]) -> Verifier:
        """Return the verifier that runs a command with the workspace's tool. Raise `ConfigError` if there is no such tool or no sandbox."""
        where = f"verify: command {words[0]!r}"
        if EXEC not in self._tools.names():
            raise ConfigError(f"{where} needs a workspace to run in; give Engine(workspace=...), or `workspace` in the agent file")
        tool = self._tools.get(EXEC)
        if not tool.spec.sandboxed:
            raise ConfigError(
                f"{where} runs only in a sandbox, because nobody approves its calls. `detent doctor` shows what the sandbox needs here"
            )
        # called as a plain function: a check is not a call of the agent, so it has no approval, guard or policy
        run: Any = getattr(tool, "tool", tool)
        says, timeout_s = entry.get("says", ""), entry.get("timeout_s", DEFAULT_TIMEOUT_S)

        async def check(answer: Any, view: AnswerView) -> str:
            left = view.budget_remaining.max_running_s
            limit = timeout_s if left is None else max(0.1, min(timeout_s, left))
            given = msgspec.json.encode({"answer": answer, "goal": view.goal, "run_id": view.run_id}).decode()
            context = ToolContext(
                run_id=view.run_id,
                call_id=f"{view.scope}.{view.iteration}.verify",
                tool=tool.spec,
                host=view.host,
                idempotency_key="",
                cancelled=Cancellation(),
            )
            ended = await run(words[0], context=context, args=tuple(words[1:]), timeout_s=limit, stdin=given)
            return _objection(ended, says, limit)

        return Stated(entry, check)


def _objection(ended: Mapping[str, Any], says: str, limit: float) -> str:
    """Return the objection of a command to an answer, or "" if it ended with code 0."""
    if ended["success"]:
        return ""
    printed = "\n".join(text.strip() for text in (ended["stdout"], ended["stderr"]) if text.strip())[-SHOWN:]
    how = f"it did not end within {limit:g} s" if ended["timed_out"] else ended.get("killed_for") or f"code {ended['code']}"
    return ": ".join(part for part in (says or f"the check failed ({how})", printed) if part)
