"""What it costs to trace where arguments came from: microseconds of processor time a decision, at a transcript of many steps.

    python benchmarks/provenance.py [--steps 200] [--chars 300] [--quick] [--json]

Each iteration a new result of about `--chars` characters is in the transcript, and one call is decided: everything that the policy does
for one turn is in the figure, the indexing of that result included. `proven` are arguments that the user named, `made up` are found nowhere,
which is the longest search; `first` is the first decision after a resume, when the whole transcript is indexed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent / "src"), *(p for p in sys.path if Path(p or ".").resolve() != HERE)]

import msgspec  # noqa: E402

from detent.core.agent import AgentSpec  # noqa: E402
from detent.core.state import Item, KernelState, RunState  # noqa: E402
from detent.policies.provenance.policy import ProvenancePolicy  # noqa: E402
from detent.ports import Call, ToolSpec  # noqa: E402

SEND = ToolSpec(
    name="send", side_effect="write", input_schema={"properties": {name: {"type": "string"} for name in ("to", "subject", "body")}}
)
ARGS: dict[str, dict[str, Any]] = {
    "proven": {"to": "bob@example.com", "subject": "Quarterly figures", "body": "The figures are attached."},
    "made up": {"to": "mallory@example.org", "subject": "Account details you asked", "body": "Dear customer, here is everything. " * 3},
}
GOAL = 'Read the mails, then write to bob@example.com with the subject "Quarterly figures" and the text "The figures are attached."'


def result(i: int, chars: int) -> Item:
    """Return an observation unlike the others."""
    said = {
        "id": 10_000 + i,
        "from": f"person{i}@example.net",
        "date": "2024-05-15",
        "text": f"Item {i} about order {i * 7919} for the account. ",
    }
    said["text"] += " ".join(word((i * 31 + j * 17) % 4001) for j in range(max(0, chars - 120) // 7))
    return Item(
        kind="tool",
        iteration=i,
        call_id=f"main.{i}.0",
        tool="read",
        arguments={"n": i},
        ok=True,
        executed=True,
        result=msgspec.Raw(msgspec.json.encode(said)),
    )


def word(i: int) -> str:
    """Return one of some thousand words of letters."""
    return "".join("aeioubdgklmnrst"[(i // 15**k) % 15] for k in range(4)) + "en"


def state_with(steps: int, chars: int) -> RunState:
    """Return a run with that many observations."""
    main = KernelState(task_id="r").steps.append(Item(kind="user", text=GOAL))
    for i in range(steps):
        main = main.append(result(i, chars))
    return RunState(run_id="r", goal=GOAL, agent=AgentSpec(name="a"), passes={"main": KernelState(task_id="r", steps=main)})


def measure(args: dict[str, Any], steps: int, chars: int, turns: int) -> dict[str, float]:
    """Return the median and the 99th percentile of a turn, and of the first decision, in microseconds."""
    policy = ProvenancePolicy()
    state = state_with(steps, chars)
    call = Call(call_id="main.9999.0", tool=SEND, args=args, digest="")
    started = time.thread_time()
    policy.decide(call, state)
    first = (time.thread_time() - started) * 1e6
    times: list[float] = []
    for i in range(turns):
        main = state.passes["main"]
        state = msgspec.structs.replace(
            state, passes={"main": msgspec.structs.replace(main, steps=main.steps.append(result(steps + i, chars)))}
        )
        started = time.thread_time()
        policy.decide(call, state)
        times.append((time.thread_time() - started) * 1e6)
    return {"median_us": statistics.median(times), "p99_us": statistics.quantiles(times, n=100)[98], "first_us": first}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[200, 2000])
    parser.add_argument("--chars", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that everything works")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    steps, turns = ([20], 20) if given.quick else (given.steps, 300)
    rows = [{"args": name, "steps": n, **measure(args, n, given.chars, turns)} for n in steps for name, args in ARGS.items()]
    if given.json:
        print(json.dumps(rows))
        return
    print(f"{'arguments':<10}{'steps':>8}{'median us':>12}{'p99 us':>10}{'first us':>12}")
    for row in rows:
        print(f"{row['args']:<10}{row['steps']:>8}{row['median_us']:>12.1f}{row['p99_us']:>10.1f}{row['first_us']:>12.0f}")


if __name__ == "__main__":
    main()
