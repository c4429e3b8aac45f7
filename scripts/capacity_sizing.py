"""What a number of runs a day needs: shards, workers, partitions, bytes, and what is short first. Simulated where there are queues.

A shard is sized so that at the day's peak nothing is busier than `MOST` of its time. Then the peak of one shard is simulated, and workers are added
until runs wait no longer than they may. All shards of an even division are alike, so one of them is simulated.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import msgspec
from capacity_model import Costs, Fleet, Found, Load, Simulation

MOST = 0.7
DAY = 86_400


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: the runs, the day, the machines, and how long runs are kept."""

    ticks: int = 8
    model_s: float = 3.0
    peak: float = 3.0
    concurrency: int = 128
    store_cores: int = 8
    connections: int = 400
    disk_gb: float = 4000.0
    retention_days: int = 30
    archive_days: int = 365
    tenants: int = 10_000
    deaths_a_day: float = 2.0
    wait_s: float = 1.0
    runs_simulated: int = 3000


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a number of runs a day needs, per store."""

    runs_a_day: float
    store: str
    shards: int
    workers: int
    partitions: int
    bytes_a_day: float
    wal_a_day: float
    stored_bytes: float
    archived_bytes_a_day: float
    archived_bytes: float
    archive_cores: float
    bottleneck: str
    uses: dict[str, float]
    peak: Found
    quiet: Found
    deaths: Found
    """At the peak, with workers that die."""
    taken_over_a_day: float
    tenant_shards: int
    tenant_hottest: float
    tenant_most: float


def rate_of(question: Question, runs_a_day: float, hour: float) -> float:
    """Return the arrivals a second at an hour of the day: a wave whose top is `peak` times the mean, at 14 h, and whose night is quiet."""
    power = max(1, round((question.peak - 1) * 2))
    wave = ((1 + math.cos((hour - 14) / 24 * 2 * math.pi)) / 2) ** power
    mean = math.prod((2 * k - 1) / (2 * k) for k in range(1, power + 1))  # of that wave over a day
    low = (1 / mean - question.peak) / (1 / mean - 1) if question.peak < 1 / mean else 0.0
    return runs_a_day / DAY * (low + (1 - low) * wave / mean)


def uses(costs: Costs, question: Question, runs_a_day: float) -> dict[str, float]:
    """Return how much of each limit of one shard this load takes at its peak: 1 is all of it. What more workers solve is not among them."""
    rate = rate_of(question, runs_a_day, 14.0)
    appends = question.ticks * costs.tick_appends + costs.run_appends + 3  # its submission, its claim, the release
    workers = workers_for(costs, question, rate)
    late = workers - 1  # a submission wakes all that have room: one gets the run, the others looked and claimed for nothing
    if costs.one_file:
        cores = rate * (costs.run_us + question.ticks * costs.tick_us) / 1e6 / question.store_cores / MOST
        found = {
            "appends, in the lock of the file": rate * appends * costs.commit_us / 1e6 / MOST,
            "claims that came too late": rate * late * costs.commit_us / 1e6 / MOST,
            "the machine's processors": cores,
        }
    else:
        server = question.store_cores * MOST * 1e6
        found = {
            "connections": workers * 8 / question.connections,
            "appends, on the store's processors": rate * (appends * costs.server_commit_us + costs.due_us) / server,
            "claims that came too late": rate * late * (costs.server_commit_us + costs.due_us) / server,
        }
    found["disk"] = stored(costs, question, runs_a_day) / (question.disk_gb * 1e9)
    return found


def fullest(found: dict[str, float]) -> float:
    """Return how full a shard is: appends and claims use the same processors, or the same lock."""
    together = sum(value for name, value in found.items() if name.startswith(("appends", "claims")))
    return max(together, *found.values())


def workers_for(costs: Costs, question: Question, rate: float) -> int:
    """Return how many workers a rate needs, by their processors and by how many runs they advance at once."""
    cpu = rate * (costs.run_us + question.ticks * costs.tick_us) / 1e6 / MOST
    lasts = question.ticks * (question.model_s * math.exp(0.125) + costs.tick_appends * costs.commit_us / 1e6)
    return max(1, math.ceil(max(cpu, rate * lasts / question.concurrency / 0.85)))


def run_bytes(costs: Costs, question: Question) -> float:
    """Return the bytes on disk of one run."""
    return costs.run_bytes + question.ticks * costs.tick_bytes


def stored(costs: Costs, question: Question, runs_a_day: float) -> float:
    """Return the bytes in the store when runs are kept for the retention."""
    return runs_a_day * question.retention_days * run_bytes(costs, question)


def simulated(costs: Costs, question: Question, runs_a_day: float, workers: int, hour: float, *, dies: bool = False) -> Found:
    """Simulate one shard at an hour of the day: the whole hour, or as many runs as are asked for, but always twice a run's length."""
    rate = rate_of(question, runs_a_day, hour)
    long = question.ticks * question.model_s
    seconds = min(3600.0, max(2 * long, question.runs_simulated / max(rate, 1e-9)))
    load = Load(rate=lambda _: rate, most=rate, seconds=seconds, ticks=question.ticks, model_s=question.model_s)
    # A death is rare in so short a time: with `dies` they are made as frequent as needed to see two, and only the takeover counts.
    deaths = max(question.deaths_a_day, 2 * DAY / seconds / workers) if dies else 0.0
    fleet = Fleet(workers=workers, concurrency=question.concurrency, store_cores=question.store_cores, deaths_a_day=deaths)
    return Simulation(costs, fleet, load).run()


def shards_by_tenant(question: Question, room: float, *, seed: int = 1) -> tuple[int, float, float]:
    """Return how many shards tenants need, the load of the fullest in shares of the mean, and the share of the largest tenant.

    A shard has `room` for this share of all runs.

    Tenants are as unequal as towns (the n-th has 1/n of the first) and are spread by a hash. A tenant is not divided, so one that is larger than a shard
    bounds everything.
    """
    weights = [1 / n for n in range(1, question.tenants + 1)]
    total = sum(weights)
    largest = weights[0] / total
    needed = fewest = max(1, math.ceil(1 / room))
    while True:
        drawn, loads = random.Random(seed), [0.0] * needed
        for weight in weights:
            loads[drawn.randrange(needed)] += weight / total
        if max(loads) <= room or largest > room or needed > 4 * fewest:
            return needed, max(loads) * needed, largest
        needed += max(1, needed // 10)


def sized(costs: Costs, question: Question, runs_a_day: float) -> Answer:
    """Return what a number of runs a day needs."""
    shards = max(1, math.floor(runs_a_day / most_of_one(costs, question)))
    while fullest(uses(costs, question, runs_a_day / shards)) > 1:
        shards += 1
    while True:
        each = runs_a_day / shards
        one = uses(costs, question, each)
        workers = workers_for(costs, question, rate_of(question, each, 14.0))
        peak = simulated(costs, question, each, workers, 14.0)
        if (peak.wait_p95_s <= question.wait_s and peak.finished == peak.arrived) or each < 1000:
            break
        shards = math.ceil(shards * 1.2)
    in_shards, hottest, largest = shards_by_tenant(question, most_of_one(costs, question) / runs_a_day)
    bytes_a_day = runs_a_day * run_bytes(costs, question)
    gone = runs_a_day * (costs.run_bytes + question.ticks * costs.tick_bytes - costs.head_bytes) * costs.archive_ratio
    return Answer(
        runs_a_day=runs_a_day,
        store=costs.store,
        shards=shards,
        workers=workers * shards,
        partitions=0 if costs.one_file else shards * (math.ceil(question.retention_days / 30) + 1 + 2),
        bytes_a_day=bytes_a_day,
        wal_a_day=runs_a_day * (costs.wal_run_bytes + question.ticks * costs.wal_tick_bytes),
        stored_bytes=stored(costs, question, runs_a_day),
        archived_bytes_a_day=gone,
        archived_bytes=gone * question.archive_days,
        archive_cores=runs_a_day * costs.archive_us * (question.ticks / 12) / 1e6 / DAY,
        bottleneck=max(one, key=one.__getitem__),
        uses={name: round(value, 4) for name, value in one.items()},
        peak=peak,
        quiet=simulated(costs, question, each, workers, 2.0),
        deaths=simulated(costs, question, each, workers, 14.0, dies=True),
        taken_over_a_day=question.deaths_a_day * runs_a_day / DAY * question.ticks * question.model_s,
        tenant_shards=in_shards,
        tenant_hottest=hottest,
        tenant_most=largest,
    )


def limits(costs: Costs, question: Question) -> dict[str, float]:
    """Return at how many runs a day each limit of one shard would be reached by itself."""
    return {name: most_of_one(costs, question, lambda found, name=name: found[name]) for name in uses(costs, question, 1e4)}


def most_of_one(costs: Costs, question: Question, full: Callable[[dict[str, float]], float] = fullest) -> float:
    """Return how many runs a day one shard carries until it is full."""
    low, high = 1.0, 1e12
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if full(uses(costs, question, middle)) > 1 else (middle, high)
    return low
