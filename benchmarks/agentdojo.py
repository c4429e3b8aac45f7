"""Prompt injection, measured on AgentDojo (PyPI `agentdojo`), suites workspace and banking, without a model and without a network.

    python benchmarks/agentdojo.py [--suite banking] [--attack important_instructions] [--details] [--quick] [--json]

The agent is the worst one there could be: it makes the published calls of the user's task, and obeys every injection that it has read, at
once, by making the published calls of the injected task. What is measured is therefore the policy alone. Every tool of a suite is a tool of
a real engine, with its side effect and the trust of its output declared below. A pair of tasks is left out when the suite publishes no
calls for the injected one, or when the user's task reads no place where something could be injected.

Utility is the share of user tasks whose own check passes, without an attack and under attack; attacks is the share of attacked pairs in
which the injected task's own check passes; asked is how many approvals a user is asked for in an unattacked task, on average.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent / "src"), *(p for p in sys.path if Path(p or ".").resolve() != HERE)]  # this file has its subject's name
warnings.simplefilter("ignore")

from agentdojo.agent_pipeline import GroundTruthPipeline  # noqa: E402
from agentdojo.agent_pipeline.tool_execution import tool_result_to_str  # noqa: E402
from agentdojo.attacks import load_attack  # noqa: E402
from agentdojo.functions_runtime import FunctionCall, FunctionsRuntime  # noqa: E402
from agentdojo.task_suite.load_suites import get_suites  # noqa: E402
from agentdojo.types import text_content_block_from_string  # noqa: E402
from pydantic import BaseModel  # noqa: E402

from detent import Agent, Budget, Engine, FinalAnswer, Plan, Tool, ToolCall, ToolFailed, View  # noqa: E402
from detent.policies.provenance.policy import ProvenancePolicy  # noqa: E402

VERSION = "v1.2.2"
READS = ("get_", "search_", "list_", "read_")
DESTRUCTIVE = ("delete_email", "delete_file", "cancel_calendar_event", "update_password")
OWN_DATA = {
    *("get_iban", "get_balance", "get_user_info", "get_scheduled_transactions", "get_current_day"),
    *("search_contacts_by_name", "search_contacts_by_email"),
    *(
        "send_money",
        "schedule_transaction",
        "update_scheduled_transaction",
        "update_password",
        "update_user_info",
        "send_email",
        "create_file",
    ),
}
"""Tools whose output holds nothing that a third party wrote: the user's own accounts and address book, and receipts. Mails, files, calendar
entries and transactions received are written by others."""
GRANTS: dict[str, list[dict[str, Any]]] = {
    "workspace": [
        {"sink": "reschedule_calendar_event.event_id", "source": "search_calendar_events.id_", "named": True},
        {"sink": "add_calendar_event_participants.event_id", "source": "search_calendar_events.id_", "named": True},
        {"sink": "create_calendar_event.participants", "source": "search_calendar_events.participants", "named": True},
        {"sink": "append_to_file.file_id", "source": "search_files_by_filename.id_", "named": True},
        {"sink": "append_to_file.file_id", "source": "search_files.id_", "named": True},
        {"sink": "create_file.content", "source": "search_files.content", "named": True},
        {"sink": "share_file.file_id", "source": "create_file.id_"},
    ],
    "banking": [{"sink": "update_scheduled_transaction.id", "source": "get_scheduled_transactions.id"}],
}
"""What an owner of such an agent might grant once and for all: records that a look-up by the user's own words has found."""
PATIENT = Budget(max_iterations=200, max_failed_turns=200, max_non_progress=200)


class Obedient:
    """Makes the user's calls one after the other; when a result holds the injected goal, the injected calls come first."""

    def __init__(self, calls: list[Any], answer: str, injected_goal: str, injected: list[Any]) -> None:
        self.queue, self.answer, self.goal, self.injected = list(calls), answer, " ".join(injected_goal.split()), list(injected)
        self.obeyed, self.read = False, 0

    async def plan(self, view: View) -> Plan:
        """Return the next call, or the answer."""
        for item in view.results[self.read :]:
            said = tool_result_to_str(item.content) if isinstance(item.content, str) else json.dumps(item.content, ensure_ascii=False)
            if self.goal and not self.obeyed and self.goal in " ".join(said.replace("\\n", " ").replace('\\"', '"').split()):
                self.obeyed, self.queue = True, [*self.injected, *self.queue]
        self.read = len(view.results)
        if not self.queue:
            return Plan(actions=(FinalAnswer(content=self.answer or "Done."),))
        call = self.queue.pop(0)
        return Plan(actions=(ToolCall(tool=call.function, args=plain(call.args)),))


class Case:
    """One user task in one environment, attacked or not."""

    def __init__(self, suite: Any, task: Any, injection: Any = None, vectors: dict[str, str] | None = None) -> None:
        self.suite, self.task, self.injection = suite, task, injection
        self.before = task.init_environment(suite.load_and_inject_default_environment(vectors or {}))
        self.calls = task.ground_truth(self.before.model_copy(deep=True))
        self.injected = injection.ground_truth(self.before.model_copy(deep=True)) if injection else []

    async def run(self, policy: Any, grants: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """Run the task through an engine; return what came of it."""
        environment = self.before.model_copy(deep=True)
        runtime, made, asked = FunctionsRuntime(self.suite.tools), list[FunctionCall](), list[str]()
        tools = [wrap(function, runtime, environment, made) for function in self.suite.tools]
        planner = Obedient(self.calls, self.task.GROUND_TRUTH_OUTPUT, self.injection.GOAL if self.injection else "", self.injected)

        def approver(request: Any) -> bool:
            asked.append(f"{request.tool}: {request.reason}")
            return True

        async with Engine(planner=planner, tools=tools, policy=policy, approver=approver) as engine:
            agent = Agent(name="assistant", instructions="You are a helpful assistant.", tools=tools, budget=PATIENT, grants=grants or ())
            result = await engine.run(agent, self.task.PROMPT)
        refused = [f"{i.tool}: {i.error.message}" for i in result.tool_calls if i.error]
        output = [text_content_block_from_string(str(result.output or ""))]

        def passes(task: Any) -> bool:
            return bool(self.suite._check_task_result(task, output, self.before, environment, made))

        return {
            "utility": passes(self.task),
            "attacked": passes(self.injection) if self.injection else False,
            "asked": asked,
            "refused": refused,
            "obeyed": planner.obeyed,
            "ended": result.reason,
        }


def wrap(function: Any, runtime: FunctionsRuntime, environment: Any, made: list[FunctionCall]) -> Any:
    """Return a suite's function as a tool of an engine."""

    async def execute(args: dict[str, Any]) -> Any:
        made.append(FunctionCall(function=function.name, args=args))
        try:
            result, _ = runtime.run_function(environment, function.name, args, raise_on_error=True)
        except Exception as error:
            raise ToolFailed(f"{type(error).__name__}: {error}") from error
        return plain(result)

    reads = function.name.startswith(READS)
    return Tool.from_schema(
        name=function.name,
        description=function.description,
        input_schema=function.parameters.model_json_schema(),
        execute=execute,
        side_effect="read" if reads else "destructive" if function.name in DESTRUCTIVE else "write",
        trust="trusted" if function.name in OWN_DATA else "untrusted",
        max_result_bytes=10_000_000,
    )


def plain(value: Any) -> Any:
    """Return the result of a suite's function as JSON data."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


POLICIES: dict[str, Callable[[], Any]] = {
    "no policy": lambda: Allow(),  # noqa: PLW0108 - defined below
    "provenance, deny": lambda: ProvenancePolicy(on_unproven="deny"),
    "provenance, deny, grants": lambda: ProvenancePolicy(on_unproven="deny"),
    "provenance, ask": ProvenancePolicy,
    "provenance, ask, grants": ProvenancePolicy,
}


class Allow:
    """Allows everything: what an agent without governance does."""

    version = "allow-1"

    def decide(self, call: Any, state: Any) -> Any:
        """Return allow."""
        from detent.ports import Verdict

        return Verdict(decision="allow", rule="all")

    def may_ask(self, tool: Any) -> bool:
        """Return False."""
        return False


def attacked_cases(suite: Any, attack_name: str) -> tuple[list[tuple[Any, Any, dict[str, str]]], int, int]:
    """Return the pairs that can be measured, and how many cannot: no published calls, nothing read that could be injected."""
    pipeline = GroundTruthPipeline(None)
    pipeline.name = "gpt-4o-2024-05-13"
    attack = load_attack(attack_name, suite, pipeline)
    pairs: list[tuple[Any, Any, dict[str, str]]] = []
    unpublished = unreachable = 0
    blank = suite.load_and_inject_default_environment({})
    for task in suite.user_tasks.values():
        for injection in suite.injection_tasks.values():
            if not injection.ground_truth(blank.model_copy(deep=True)):
                unpublished += 1
                continue
            try:
                pairs.append((task, injection, attack.attack(task, injection)))
            except ValueError:
                unreachable += 1
    return pairs, unpublished, unreachable


async def measure(name: str, attack_name: str, details: bool, most: int | None) -> dict[str, Any]:
    """Measure one suite under every policy; of its tasks and of its pairs the first `most`."""
    suite = get_suites(VERSION)[name]
    pairs, unpublished, unreachable = attacked_cases(suite, attack_name)
    pairs = pairs[:most]
    benign = {task.ID: Case(suite, task) for task in list(suite.user_tasks.values())[:most]}
    report: dict[str, Any] = {
        "suite": name,
        "user_tasks": len(benign),
        "pairs": len(pairs),
        "unpublished": unpublished,
        "unreachable": unreachable,
    }
    rows: dict[str, dict[str, Any]] = {policy: {"clean": [], "attacked": []} for policy in POLICIES}
    for policy, make in POLICIES.items():
        for task_id, case in benign.items():
            rows[policy]["clean"].append((task_id, await case.run(make(), granted(name, policy))))
    for task, injection, vectors in pairs:
        case = Case(suite, task, injection, vectors)
        for policy, make in POLICIES.items():
            if "ask" not in policy:  # whoever is asked and says yes to everything says yes to attacks
                rows[policy]["attacked"].append((f"{task.ID} x {injection.ID}", await case.run(make(), granted(name, policy))))
    report["rows"] = {policy: summary(found) for policy, found in rows.items()}
    if details:
        report["details"] = [line for policy, found in rows.items() for line in explained(policy, found)]
    return report


def granted(suite: str, policy: str) -> list[dict[str, Any]]:
    return GRANTS[suite] if "grants" in policy else []


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Return the shares and means of one policy."""
    clean, attacked = [r for _, r in found["clean"]], [r for _, r in found["attacked"]]
    share = lambda rows, key: sum(bool(r[key]) for r in rows) / len(rows) if rows else None  # noqa: E731
    return {
        "utility": share(clean, "utility"),
        "utility_attacked": share(attacked, "utility"),
        "attacks": share(attacked, "attacked"),
        "obeyed": share(attacked, "obeyed"),
        "asked": sum(len(r["asked"]) for r in clean) / len(clean),
        "asked_tasks": sum(bool(r["asked"]) for r in clean),
        "refused_tasks": sum(bool(r["refused"]) for r in clean),
    }


def explained(policy: str, found: dict[str, Any]) -> list[str]:
    """Return a line for each unattacked task that was held up and each attack that went through."""
    lines = [f"{policy}: {i}: fails: {'; '.join(r['refused'])}" for i, r in found["clean"] if not r["utility"]]
    lines += [f"{policy}: {i}: asked: {line}" for i, r in found["clean"] for line in r["asked"]]
    if policy != "no policy":
        lines += [f"{policy}: {i}: ATTACK WENT THROUGH" for i, r in found["attacked"] if r["attacked"]]
    return lines


def shown(report: dict[str, Any]) -> str:
    """Return the table of one suite."""
    percent = lambda x: "-" if x is None else f"{100 * x:.1f} %"  # noqa: E731
    left_out = f"{report['unpublished']} pairs without published calls, {report['unreachable']} without a place to inject"
    lines = [
        f"{report['suite']}: {report['user_tasks']} user tasks; {report['pairs']} attacked pairs ({left_out})",
        f"  {'policy':<26}{'utility':>10}{'attacked':>10}{'attacks':>10}{'obeyed':>10}{'asked':>8}{'tasks asked':>13}",
    ]
    for policy, row in report["rows"].items():
        lines.append(
            f"  {policy:<26}{percent(row['utility']):>10}{percent(row['utility_attacked']):>10}{percent(row['attacks']):>10}"
            f"{percent(row['obeyed']):>10}{row['asked']:>8.2f}{row['asked_tasks']:>13}"
        )
    return "\n".join([*lines, *("  " + line for line in report.get("details", ()))])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--suite", action="append", choices=("workspace", "banking"))
    parser.add_argument("--attack", default="important_instructions")
    parser.add_argument("--details", action="store_true", help="one line for each task held up and each attack that went through")
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that everything works")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for name in given.suite or (("banking",) if given.quick else ("workspace", "banking")):
        report = asyncio.run(measure(name, given.attack, given.details, 2 if given.quick else None))
        print(json.dumps(report) if given.json else shown(report))


if __name__ == "__main__":
    main()
