"""What the PostgreSQL store costs, next to the raw floor measured side by side on the same server.

    python benchmarks/postgres.py [--url postgresql://...] [--n 1000] [--rounds 5] [--runs 200] [--resume 5000] [--quick] [--json]

Without `--url` a server of its own is started, with its data on the disk of /tmp and fsync on. One iteration is one turn: a scripted planner
that costs nothing asks for one trivial async tool that reads, and the turn is one commit. Floors: one row with as many bytes as a turn writes,
committed by itself; the same rows and bytes as the runs write, one transaction for one turn of every run. That is done in three ways: an INSERT
a row (the floor that the goal of 60 % is of), a pipeline of them (`executemany`) and one statement over arrays. For the last two it is shown what
the loop itself reaches of them without any store: no store can get it further. With `--quick` everything is done in one process. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "src"), str(HERE.parent.parent / "tests")]

from overhead import EVENTS, Counting, Row, agent_for, engine_for, iterations, prepare_resume, ready, warm_up  # noqa: E402 - from this folder

TURNS = 50
"""Iterations of each of the concurrent runs."""


async def bare_rows(url: str, n: int, size: int) -> float:
    """Commit n rows of `size` bytes, one by one; return microseconds a commit."""
    import psycopg

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        await db.execute("CREATE TABLE IF NOT EXISTS bare (run bigint, seq bigint, data bytea, PRIMARY KEY (run, seq))")
        await db.execute("TRUNCATE bare")
        await db.execute("SET synchronous_commit = on")
        data = os.urandom(size)
        begun = time.perf_counter()
        for seq in range(n):
            await db.execute("INSERT INTO bare VALUES (1, %s, %b)", (seq, data), prepare=True)
        return (time.perf_counter() - begun) / n * 1e6


async def bare_groups(url: str, runs: int, size: int, *, how: str) -> float:
    """Insert what `runs` runs write, one transaction for each of their turns together; return iterations a second."""
    import psycopg

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        await db.execute("CREATE TABLE IF NOT EXISTS bare (run bigint, seq bigint, data bytea, PRIMARY KEY (run, seq))")
        await db.execute("TRUNCATE bare")
        await db.execute("SET synchronous_commit = on")
        data = os.urandom(size // EVENTS)
        begun = time.perf_counter()
        for turn in range(TURNS):
            rows = [(run, turn * EVENTS + k, data) for run in range(runs) for k in range(EVENTS)]
            async with db.transaction(), db.cursor() as cursor:
                if how == "inserts":
                    for row in rows:
                        await cursor.execute("INSERT INTO bare VALUES (%s, %s, %b)", row, prepare=True)
                elif how == "arrays":
                    columns: list[Any] = [list(column) for column in zip(*rows, strict=True)]
                    await cursor.execute("INSERT INTO bare SELECT * FROM unnest(%s::int[], %s::int[], %b::bytea[])", columns)
                else:
                    await cursor.executemany("INSERT INTO bare VALUES (%s, %s, %b)", rows)
        return runs * TURNS / (time.perf_counter() - begun)


async def concurrent(url: str, runs: int) -> float:
    """Do `runs` runs of ten iterations at once; return iterations a second, with starting and ending them."""
    token = time.time_ns()
    async with engine_for(url, Counting("read", TURNS - 1)) as engine:
        await engine.run(agent_for("read"), "warm up", run_id=f"warm-{token}")
        agent, begun = agent_for("read"), time.perf_counter()
        results = await asyncio.gather(*(engine.run(agent, "count", run_id=f"run-{token}-{i}") for i in range(runs)))
        seconds = time.perf_counter() - begun
        assert all(result.status == "completed" for result in results)
    return runs * TURNS / seconds


async def log_bytes(n: int) -> int:
    """Return how many bytes an iteration writes."""
    return round((await iterations("ram:", "read", n))["log_bytes"])


def here(name: str, *values: Any) -> Any:
    """Measure in this process."""
    return one(name, [str(value) for value in values])


def apart(name: str, *values: Any) -> Any:
    """Measure in a process of its own: nothing is loaded, cached or allocated that would not be there in a program."""
    done = subprocess.run([sys.executable, str(HERE), "--one", name, *map(str, values)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def one(name: str, values: list[str]) -> Any:
    """Do one measurement; in the child."""

    async def main() -> Any:
        await warm_up()
        match name:
            case "row":
                return await bare_rows(values[0], int(values[1]), int(values[2]))
            case "alone":
                return (await iterations_of(values[0], int(values[1])))["wall_us"]
            case "inserts" | "pipeline" | "arrays":
                return await bare_groups(values[0], int(values[1]), int(values[2]), how=name)
            case "together":
                return await concurrent(values[0], int(values[1]))
            case "prepare":
                return await prepare_resume(values[0], int(values[1]))
            case _:
                import detent.stores.postgres.store  # noqa: F401 - loaded by a worker long before

                return (await ready(values[0], int(values[1])))["ms"]

    return asyncio.run(main())


async def iterations_of(url: str, n: int) -> Row:
    """Run n iterations in a schema of their own."""
    return await iterations(f"{url}{'&' if '?' in url else '?'}schema=alone_{time.time_ns()}", "read", n)


def measure(url: str, asked: argparse.Namespace) -> Row:
    """Measure floors and store by turns, so that both see the same machine; return medians, and of the ratios of each round."""
    measured = here if asked.quick else apart
    size = asyncio.run(log_bytes(asked.n if asked.quick else 200))
    rounds: list[Row] = []
    for number in range(asked.rounds):
        one_round = {"row": measured("row", url, asked.n, size), "alone": measured("alone", url, asked.n)}
        for how in ("inserts", "pipeline", "arrays"):
            one_round[how] = measured(how, url, asked.runs, size)
        one_round |= {"together": measured("together", url, asked.runs), "loop": measured("together", "ram:", asked.runs)}
        where = f"{url}{'&' if '?' in url else '?'}schema=resume_{number}_{time.time_ns()}"
        measured("prepare", where, asked.resume)
        one_round["ready"] = measured("ready", where, asked.resume)
        one_round["alone_of_row"] = one_round["alone"] / one_round["row"]
        one_round |= {f"of_{how}": one_round["together"] / one_round[how] for how in ("inserts", "pipeline", "arrays", "loop")}
        one_round |= {f"loop_of_{how}": one_round["loop"] / one_round[how] for how in ("pipeline", "arrays")}
        rounds.append(one_round)
    return {"bytes": size, **{name: statistics.median(found[name] for found in rounds) for name in rounds[0]}}


def shown(row: Row, asked: argparse.Namespace) -> str:
    """Return the figures for people."""
    names = {"inserts": "an INSERT a row", "pipeline": "a pipeline of INSERTs", "arrays": "one statement"}
    bounds = {how: f"without a store: {row[f'loop_of_{how}']:.0%}" for how in ("pipeline", "arrays")} | {"inserts": "to reach: 60%"}
    alone, ready_ms = row["alone"], row["ready"]
    return "\n".join(
        [
            f"one commit of one row of {row['bytes']} bytes                 {row['row']:9.0f} us",
            f"one run alone, an iteration                        {alone:9.0f} us   {row['alone_of_row']:.2f} times (to reach: 3)",
            f"{asked.runs} runs at once, iterations                       {row['together']:9.0f} /s",
            *(
                f"  grouped, {text:<41}{row[how]:9.0f} /s   {row[f'of_{how}']:.0%} of it is reached ({bounds[how]})"
                for how, text in names.items()
            ),
            f"  the loop itself, without a store                 {row['loop']:9.0f} /s   {row['of_loop']:.0%} of it is reached",
            f"ready to step a run of {asked.resume} iterations             {ready_ms:9.0f} ms   (to reach: 300)",
        ]
    )


def main() -> int:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a database to use; its tables are added to")
    parser.add_argument("--n", type=int, default=1000, help="iterations of the run alone")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--resume", type=int, default=5000)
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that everything works")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.quick:
        asked.n, asked.rounds, asked.runs, asked.resume = 20, 1, 2, 20
    if asked.url:
        row = measure(asked.url, asked)
    else:
        sys.path = [path for path in sys.path if Path(path).resolve() != HERE.parent]  # this file has the name of that package
        from stores.postgres.cluster import MISSING, Cluster, programs

        found = programs()
        if found is None:
            raise SystemExit(MISSING)
        cluster = Cluster(found, place="/tmp")  # noqa: S108 - a folder of its own there
        try:
            cluster.create()
            row = measure(cluster.database(), asked)
        finally:
            cluster.remove()
    print(json.dumps(row) if asked.json else shown(row, asked))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(sys.argv[2], sys.argv[3:])))
    else:
        sys.exit(main())
