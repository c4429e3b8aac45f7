"""Code as action: the model writes a Python program with the agent's tools as functions, and sees what it printed or how it failed.

A program runs in a sandbox (`StrategyRun.program`) and waits at each call of a tool. A call is a pass of one call (`Branch.calls`) on the single path:
it has guards, a policy, an approval, a budget, an intent and an outcome like any other. A run that waits at one is rows in a store.
"""  # section 16 of the catalogue

from __future__ import annotations

from typing import Any

import msgspec

from detent.core.actions import ToolCall, is_blank
from detent.core.agent import AgentSpec
from detent.core.codec import digest_of
from detent.core.state import Item
from detent.expressions.json_schema import misfit
from detent.ports import Passed, StrategyRun, json_problem, strategy
from detent.ports.interpreting import ProgramAnswer, ProgramLimits, ProgramMove, refuse_without_interpreter
from detent.ports.options import check_fields
from detent.strategies.programs import RULES, Function, arguments, functions_of, program_in
from detent.strategies.showing import observed, part, room, shown
from detent.strategies.wording import at_least, concluded, required, section

SHOWN = 2
"""How many of the last programs the model is shown."""


class CodeActionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`programs`: how many the model may write. The rest bounds each of them.

    - `steps`: how often it may ask for something outside
    - `seconds`: how long it may compute, without the time of its calls
    - `memory_mb`: how much memory it may use
    - `output`: how many characters of its output are kept
    - `snapshot_s`: after how many seconds of computing a snapshot is made at the next call
    """

    programs: int = 4
    steps: int = 200
    seconds: float = 10.0
    memory_mb: int = 64
    output: int = 4_000
    snapshot_s: float = 0.5

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(0, output=self.output, snapshot_s=self.snapshot_s)
        at_least(0.1, seconds=self.seconds)
        at_least(1, programs=self.programs, steps=self.steps, memory_mb=self.memory_mb)

    def check(self, agent: AgentSpec) -> None:
        """Raise `ConfigError` if programs cannot run here."""
        refuse_without_interpreter()


@strategy(options=CodeActionOptions)
async def code_action(run: StrategyRun) -> Passed:
    """Let the model write programs until one has the answer."""
    return await Programs(run, functions_of(await run.offered())).answer()


class Programs:
    """The programs of one run. `effects` are the calls so far that changed something, each with its result."""

    def __init__(self, run: StrategyRun, functions: dict[str, Function]) -> None:
        self.run, self.functions, self.options = run, functions, run.options(CodeActionOptions)
        self.results: list[Item] = []
        self.tried: list[str] = []
        self.effects: list[tuple[str, Any]] = []

    async def answer(self) -> Passed:
        """Return the answer of the first program that has one. If none has, one call answers from what they found, or ReAct works on the goal."""
        run = self.run
        for number in range(1, self.options.programs + 1):
            reply = shown(await run.ask("program", self._prompt(), small=False))
            program, problem = program_in(reply, self.functions)
            if not program and not problem and not (problem := self._lacking()):
                return await self._said(reply)
            if problem:
                self.tried.append(section(f"Your reply {number}", self._part(reply)) + section("What is wrong with it", problem))
                continue
            end = await self._carried_out(number, program)
            if not (problem := self._unfit(end)):
                return self._passed(end.value)
            self.tried.append(section(f"Your program {number}", self._part(program)) + _outcome(end) + section("Therefore", problem))
        if self.results:
            return await concluded(run, self._found(), self.results)
        return await run.kernel("main", task=f"{run.goal}{self._found()}", guards=("side_effect_once",))

    async def _carried_out(self, number: int, program: str) -> ProgramMove:
        """Run a program to its end. A call that an earlier program made, and that changed something, is not made again: each answers one equal call."""
        limits = ProgramLimits(
            steps=self.options.steps,
            seconds=self.options.seconds,
            memory_bytes=self.options.memory_mb * 2**20,
            output=self.options.output,
            snapshot_s=self.options.snapshot_s,
        )
        earlier = list(self.effects)

        async def made(moved: ProgramMove) -> ProgramAnswer:
            function = self.functions[moved.call]
            args, problem = arguments(function, moved.args, moved.kwargs)
            if problem := moved.refused or problem or json_problem(args, escaping=True):
                return ProgramAnswer(error=f"{moved.call}: {problem}")
            key = digest_of([function.tool.name, args])
            for done in earlier:
                if done[0] == key:
                    earlier.remove(done)
                    return ProgramAnswer(value=done[1])
            call = ToolCall(tool=function.tool.name, args=args, reason=f"line {moved.line}: {moved.source}")
            return await self._called(function, call, key, f"line {moved.line} of program {number}")

        return await self.run.program("step", program, tuple(self.functions), made, limits)

    async def _called(self, function: Function, call: ToolCall, key: str, task: str) -> ProgramAnswer:
        """Make one call on the single path, and return what the program gets."""
        passed = await self.run.kernel("call", task=task, calls=(call,), provenance="program", output_schema={})
        self.results += passed.results
        for item in passed.results:
            if item.error is not None:
                code, message = item.error.code, item.error.message
                return ProgramAnswer(error=f"{function.name}: {message if message.startswith(code) else f'{code}: {message}'}")
            value = await self.run.full(item)
            if not (function.tool.read_only or function.tool.volatile):
                self.effects.append((key, value))
            return ProgramAnswer(value=value)
        return ProgramAnswer(error=f"{function.name}: {passed.error or passed.reason}")

    # What the model is told -------------------------------------------------------------------------------------------------------

    def _prompt(self) -> str:
        told = "\n".join(function.told for function in self.functions.values())
        again = "A call of an earlier program that changed something is not made again: the same call gives the same result."
        return (
            f"{RULES}{section('Functions', told or 'none')}{section('Goal', self.run.goal)}{self._found()}"
            f"{section('Note', again) if self.effects else ''}"
        )

    def _found(self) -> str:
        """Return the last programs with their outcomes, and what the functions gave."""
        return "".join(self.tried[-SHOWN:]) + section("What the functions gave so far", observed(self.run, self.results))

    def _part(self, text: str) -> str:
        return part(self.run, text, most=room(self.run) // SHOWN)

    def _lacking(self) -> str:
        lacking = required(self.run.agent.required_tools, self.results)
        return f"these tools must succeed before there is an answer: {lacking}" if lacking else ""

    def _unfit(self, end: ProgramMove) -> str:
        """Return why the end of a program is not the answer, "" if it is."""
        if end.error:
            return "write a program that does not fail"
        if is_blank(end.value):
            return "there is no answer yet: write the next program, or answer without writing code"
        if problem := json_problem(end.value, escaping=True):
            return f"the value of the last line cannot be the answer: {problem}"
        schema = self.run.output_schema
        if schema is not None and (problem := misfit(end.value, schema)):
            return f"the value of the last line does not fit {shown(schema)}: {problem}"
        return self._lacking()

    async def _said(self, reply: str) -> Passed:
        """Return an answer in words; with an output schema, one more call gives it its form."""
        if self.run.output_schema is None:
            return self._passed(reply)
        return await concluded(self.run, section("The answer in words", self._part(reply)) + self._found(), self.results)

    def _passed(self, answer: Any) -> Passed:
        results = tuple(self.results)
        return Passed(label="program", scope="program", status="done", reason="final_answer", output=answer, results=results)


def _outcome(end: ProgramMove) -> str:
    """Return what a program printed and how it failed, as sections of a prompt."""
    more = f"\n[{end.cut} more characters are left out]" if end.cut else ""
    where = f"line {end.line}{f', `{end.source}`' if end.source else ''}: " if end.line else ""
    return section("It printed", end.printed + more) + section("It failed", f"{where}{end.error}" if end.error else "")
