"""What governance costs: policy, guards, provenance and budgets an iteration, and how fast a backtest goes.

    python benchmarks/governance.py [--steps 200] [--times 7] [--decisions 20000] [--quick] [--json]

One run has as many iterations as `--steps`; each asks for one tool. It is measured without anything (no policy, no bounds but the
defaults), and then with 50 rules in CEL of which two name the tool, all guards of use, rules that read provenance, and every bound set.
Runs with and without take turns in one process, and the median of the differences counts. Nothing is asserted; see README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from detent import Agent, Budget, Engine, FinalAnswer, Plan, ToolCall, tool
from detent.core.budget import FIELDS
from detent.policies.guards import GUARDS
from detent.policies.rules import Rule, RulePolicy
from detent.stores.ram import RamStore

RULES = 50
TARGET_US, TARGET_RATE = 150.0, 2000.0


def rules(*, provenance: bool) -> list[Rule]:
    """Return 50 rules, two of which name the tool of the benchmark."""
    others = [
        Rule(id=f"other-{i}", tool=(f"tool_{i}", f"group_{i}_*"), decision="deny", when=f'args.n > {i} && host.tenant == "t{i}"')
        for i in range(RULES - 2)
    ]
    seen = ' && provenance.args.to != "memory"' if provenance else ""
    return [
        *others,
        Rule(id="small", tool=("transfer",), decision="allow", when=f"args.amount <= 1000000 && usage.tool_calls < 100000{seen}"),
        Rule(id="large", tool=("trans*",), decision="deny", when='args.amount > 1000000 || (host.tenant == "closed" && args.to != "")'),
    ]


@tool(side_effect="write")
async def transfer(amount: int, to: str) -> dict[str, Any]:
    """Transfer an amount."""
    return {"transferred": amount, "to": to, "reference": f"ref-{amount:06}"}


class Counting:
    """A planner that asks for another transfer at each turn."""

    def __init__(self, n: int) -> None:
        self.n = n

    async def plan(self, view: Any) -> Plan:
        """Return the next call, and the answer after the last."""
        if view.iteration > self.n:
            return Plan(actions=(FinalAnswer(content="done"),))
        args = {"amount": view.iteration, "to": f"account-{view.iteration % 7}@example.org"}
        return Plan(actions=(ToolCall(tool="transfer", args=args),))


PARTS = ("nothing", "budgets", "guards", "rules", "rules and guards", "everything")


def options(part: str, steps: int) -> tuple[dict[str, Any], dict[str, Any], Budget]:
    """Return what a part gives to engine, agent and run."""
    bounds = Budget(max_iterations=steps + 5, max_tool_calls=steps + 5)
    engine: dict[str, Any] = {}
    agent: dict[str, Any] = {}
    if part in ("rules", "rules and guards", "everything"):
        engine["policy"] = RulePolicy(rules(provenance=part == "everything"))
    if part in ("guards", "rules and guards", "everything"):
        agent["guards"] = list(GUARDS)
    if part in ("budgets", "everything"):
        large: dict[str, Any] = {field: 10_000_000 for field in FIELDS if field not in ("max_iterations", "max_tool_calls", "max_cost_usd")}
        bounds = Budget(max_iterations=steps + 5, max_tool_calls=steps + 5, **large)
    return engine, agent, bounds


async def run_once(part: str, steps: int, number: int) -> float:
    """Return the microseconds of processor time an iteration."""
    engine_options, agent_options, bounds = options(part, steps)
    async with Engine(store="ram:", planner=Counting(steps), tools=[transfer], ceiling=steps + 5, **engine_options) as engine:
        agent = Agent(name="bench", tools=["transfer"], **agent_options)
        begin = time.process_time()
        result = await engine.run(agent, "move money to account-1@example.org", budget=bounds, run_id=f"{part.replace(' ', '-')}-{number}")
        spent = time.process_time() - begin
    well = sum(bool(item.ok) for item in result.tool_calls)
    assert (result.status, well) == ("completed", steps), (result.reason, result.error, result.tool_calls[-1].error)
    return spent / steps * 1e6


async def iterations(steps: int, times: int) -> dict[str, list[float]]:
    """Return, for each part, the cost of an iteration in each round; parts take turns, so that a slow moment hits them all."""
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    for part in PARTS:
        await run_once(part, steps, 0)
    for number in range(1, times + 1):
        for part in PARTS:
            found[part].append(await run_once(part, steps, number))
    return found


async def backtest_rate(decisions: int, steps: int) -> tuple[float, int]:
    """Return the decisions a second of a backtest over runs of `steps` calls, on one core, and how many there were."""
    store = RamStore()
    engine = Engine(store=store, planner=Counting(steps), tools=[transfer], ceiling=steps + 5)
    bounds = Budget(max_iterations=steps + 5, max_tool_calls=steps + 5)
    for number in range(max(1, decisions // steps)):
        await engine.run(Agent(name="bench", tools=["transfer"]), "move money", budget=bounds, run_id=f"run-{number}")
    begin = time.process_time()
    found = await engine.backtest(RulePolicy(rules(provenance=False)), budget=Budget(max_tool_calls=steps // 2))
    spent = time.process_time() - begin
    await engine.close()
    assert (found.decisions, len(found.changes)) == (max(1, decisions // steps) * steps, found.decisions // 2), found
    return found.decisions / spent, found.decisions


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=200, help="iterations of one run")
    parser.add_argument("--times", type=int, default=7, help="how often each is run; the median counts")
    parser.add_argument("--decisions", type=int, default=20_000, help="decisions of the backtest")
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that everything works")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    given = parser.parse_args()
    if given.quick:
        given.steps, given.times, given.decisions = 20, 2, 100
    costs = asyncio.run(iterations(given.steps, given.times))
    rate, decisions = asyncio.run(backtest_rate(given.decisions, given.steps))
    bare = costs["nothing"]
    rows: list[dict[str, Any]] = []
    for part, spent in costs.items():
        more = statistics.median(b - a for a, b in zip(bare, spent, strict=True))
        target = TARGET_US if part == "everything" else None
        ok = None if target is None else more <= target
        rows.append({"what": part, "us": statistics.median(spent), "more_us": more, "target": target, "ok": ok})
    rows.append({"what": f"backtest of {decisions} decisions", "per_s": rate, "target": TARGET_RATE, "ok": rate >= TARGET_RATE})
    if given.json:
        print(json.dumps({"python": platform.python_version(), "steps": given.steps, "rows": rows}, indent=1))
        return
    print(f"Python {platform.python_version()}, runs of {given.steps} iterations, median of {given.times}\n")
    for row in rows[:-1]:
        verdict = "" if row["ok"] is None else f"  target <= {row['target']:g}  {'ok' if row['ok'] else 'miss'}"
        print(f"{row['what']:<28} {row['us']:8.1f} us an iteration   {row['more_us']:+7.1f}{verdict}")
    print(f"{rows[-1]['what']:<28} {rate:8,.0f} a second   target >= {TARGET_RATE:g}  {'ok' if rate >= TARGET_RATE else 'miss'}")


if __name__ == "__main__":
    main()
