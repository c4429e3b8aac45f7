"""A fleet of workers on a store as a queueing simulation: arrivals, workers with room for some runs, commits in groups, and workers that die.

Every service time is a measured cost (`Costs`). A processor is a queue with one line and as many servers as it has cores. A worker is one processor. A
commit waits for the group that is being committed, then takes the store's processor and a time on its disk. A worker that has room looks for work when
it is woken, takes a page, and tries to claim each run of it; a claim that another worker was faster with is paid too.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

PAGE = 100
"""How many due runs a look returns at most."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What a store and the kernel cost on one machine, as `scripts/capacity --measure` finds it.

    Processor times are in microseconds of one core: of a worker for a tick (one turn of a run) and for what every run has besides (claim, start, end);
    of the store's server for an append that commits alone and for each one more in its group. `commit_us` is the time that a commit alone takes,
    `one_more_us` the time that each further append of its group adds. Appends: how many a tick has, and
    how many a run has besides; its claim and the release of it are two more.
    """

    store: str
    tick_us: float
    run_us: float
    tick_appends: float
    run_appends: float
    commit_us: float
    one_more_us: float
    server_commit_us: float
    server_one_more_us: float
    due_us: float
    list_us: float
    takeover_us: float
    detect_s: float
    tick_bytes: float
    """Bytes on disk: of a tick, of a run besides, of its listing entry with all indexes; then those written to the write-ahead log."""
    run_bytes: float
    head_bytes: float
    wal_tick_bytes: float
    wal_run_bytes: float
    archive_us: float
    archive_ratio: float
    one_file: bool = False
    """Whether one writer at a time commits, for all processes: a lock, and one machine."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The runs: how many a second arrive, how many ticks each has, and how long a tick waits for its model (median and spread of a log-normal time)."""

    rate: Callable[[float], float]
    most: float
    seconds: float
    ticks: int
    model_s: float
    spread: float = 0.5
    backlog: int = 0
    """How many runs wait at the beginning."""


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The machines: workers with room for some runs each, the cores of the store, and how often a worker dies (times a day each).

    `shared_cores`: all of them are processes of one machine with so many cores; `other_us` is what each submission costs
    there, besides its two commits (of the run, and of the notification).
    """

    workers: int
    concurrency: int
    store_cores: int
    deaths_a_day: float = 0.0
    restart_s: float = 10.0
    shared_cores: int = 0
    other_us: float = 0.0


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulation found. Times in seconds: waiting until a worker begins, and a run as a whole. Uses: the share of time that it was busy."""

    arrived: int
    finished: int
    seconds: float
    wait_p50_s: float
    wait_p95_s: float
    run_p50_s: float
    run_p95_s: float
    worker_use: float
    store_use: float
    commit_p95_ms: float
    lost_claims: int
    interrupted: int
    takeover_p95_s: float


class Processor:
    """A queue with one line before `cores` servers."""

    def __init__(self, cores: int) -> None:
        self._free = [0.0] * cores
        self.cores, self.busy = cores, 0.0

    def serve(self, now: float, took: float) -> float:
        """Return when work that arrives now is done."""
        done = max(now, heapq.heappop(self._free)) + took
        heapq.heappush(self._free, done)
        self.busy += took
        return done


class Run:
    """A run in the simulation."""

    __slots__ = ("began", "born", "dead_at", "epoch", "left", "taken")

    def __init__(self, born: float, ticks: int) -> None:
        self.born, self.began, self.left, self.epoch, self.dead_at = born, -1.0, ticks, 0, -1.0
        self.taken: Worker | None = None


class Worker:
    """A worker: its processor, the runs that it advances, the page that it goes through, and the appends that gather while it commits."""

    __slots__ = ("alive", "committing", "cpu", "epoch", "gathering", "looking", "page", "runs")

    def __init__(self, cpu: Processor) -> None:
        self.cpu, self.runs, self.page = cpu, set[Run](), deque[Run]()
        self.gathering: list[tuple[float, Callable[[float], None]]] = []
        self.committing = self.looking = False
        self.alive, self.epoch = True, 0


class Simulation:
    """One shard of a fleet under a load."""

    def __init__(self, costs: Costs, fleet: Fleet, load: Load, *, seed: int = 1) -> None:
        self._costs, self._fleet, self._load, self._random = costs, fleet, load, random.Random(seed)
        shared = Processor(fleet.shared_cores) if fleet.shared_cores else None
        self._store = shared or Processor(fleet.store_cores)
        self._lock = Processor(1)
        self._others = shared
        self._workers = [Worker(shared or Processor(1)) for _ in range(fleet.workers)]
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._n = self._lost = self._interrupted = 0
        self._due: deque[Run] = deque()
        self._waits: list[float] = []
        self._lasted: list[float] = []
        self._commits: list[float] = []
        self._takeovers: list[float] = []
        self._arrived, self._worker_busy = 0, 0.0

    def _at(self, when: float, what: Callable[[float], None]) -> None:
        self._n += 1
        heapq.heappush(self._events, (when, self._n, what))

    def run(self) -> Found:
        """Simulate until all runs that arrived have ended, and return what was found."""
        for _ in range(self._load.backlog):
            self._arrive(0.0)
        self._at(0.0, self._next_arrival)
        if self._fleet.deaths_a_day:
            for worker in self._workers:
                self._at(self._random.expovariate(self._fleet.deaths_a_day / 86_400), lambda now, w=worker: self._die(now, w))
        now = 0.0
        while self._events:
            now, _, what = heapq.heappop(self._events)
            if now > self._load.seconds and (
                len(self._lasted) == self._arrived or (now > 3 * self._load.seconds and not self._load.backlog)
            ):
                break  # all runs have ended, or they never will: more arrives than can be done
            what(now)
        span = max(self._load.seconds, now)
        return Found(
            arrived=self._arrived,
            finished=len(self._lasted),
            seconds=span,
            wait_p50_s=part(self._waits, 0.5),
            wait_p95_s=part(self._waits, 0.95),
            run_p50_s=part(self._lasted, 0.5),
            run_p95_s=part(self._lasted, 0.95),
            worker_use=self._worker_busy / span / len(self._workers),
            store_use=self._store.busy / span / self._store.cores,
            commit_p95_ms=part(self._commits, 0.95) * 1e3,
            lost_claims=self._lost,
            interrupted=self._interrupted,
            takeover_p95_s=part(self._takeovers, 0.95),
        )

    # Arrivals and looking for work ----------------------------------------------------------------------------------------------------

    def _next_arrival(self, now: float) -> None:
        """A Poisson process whose rate changes: candidates at the highest rate, each kept with the chance that it has at its time."""
        if now > self._load.seconds or not self._load.most:
            return
        if now and self._random.random() * self._load.most < self._load.rate(now):
            self._arrive(now)
        self._at(now + self._random.expovariate(self._load.most), self._next_arrival)

    def _arrive(self, now: float) -> None:
        self._arrived += 1
        run, costs = Run(now, self._load.ticks), self._costs
        if self._others is None or not self._fleet.other_us:
            self._queue(now, run)
            return
        asked = self._others.serve(now, (self._fleet.other_us + 2 * costs.server_commit_us) / 1e6)
        at = asked + max(0.0, 2 * (costs.commit_us - costs.server_commit_us)) / 1e6
        self._at(at, lambda then: self._queue(then, run))

    def _queue(self, now: float, run: Run) -> None:
        run.taken = None
        self._due.append(run)
        for worker in self._workers:
            self._look(now, worker)

    def _look(self, now: float, worker: Worker) -> None:
        """Ask the store what is due, if there is room and nothing was found before."""
        if worker.alive and not worker.looking and not worker.page and len(worker.runs) < self._fleet.concurrency:
            worker.looking, epoch = True, worker.epoch
            self._at(self._store.serve(now, self._costs.due_us / 1e6), lambda at: self._seen(at, worker, epoch))

    def _seen(self, now: float, worker: Worker, epoch: int) -> None:
        worker.looking = False
        if epoch != worker.epoch or not worker.alive:
            return
        while self._due and self._due[0].taken is not None:
            self._due.popleft()
        worker.page.extend(run for run, _ in zip(self._due, range(PAGE), strict=False) if run.taken is None and run not in worker.runs)
        self._fill(now, worker)

    def _fill(self, now: float, worker: Worker) -> None:
        """Claim runs of the page while there is room."""
        while worker.page and len(worker.runs) < self._fleet.concurrency:
            run = worker.page.popleft()
            worker.runs.add(run)
            at = self._think(now, worker, self._costs.run_us * 0.1)
            self._commit(at, worker, lambda then, run=run: self._claimed(then, worker, run))

    def _claimed(self, now: float, worker: Worker, run: Run) -> None:
        if run.taken is not None:  # another worker was faster
            self._lost += 1
            worker.runs.discard(run)
            self._after(now, worker)
            return
        run.taken, run.epoch = worker, run.epoch + 1
        load_us = self._costs.run_us * 0.9 if run.began < 0 else self._costs.takeover_us
        at = self._think(now, worker, load_us)
        self._appends(at, worker, run, self._costs.run_appends, self._begin)

    def _after(self, now: float, worker: Worker) -> None:
        """There is room again."""
        self._fill(now, worker)
        if self._due:
            self._look(now, worker)

    # Ticks and commits ----------------------------------------------------------------------------------------------------------------

    def _think(self, now: float, worker: Worker, us: float) -> float:
        self._worker_busy += us / 1e6
        return worker.cpu.serve(now, us / 1e6)

    def _begin(self, now: float, worker: Worker, run: Run) -> None:
        """The first record of this worker is there."""
        if run.began < 0:
            run.began = now
            self._waits.append(now - run.born)
        if run.dead_at >= 0:
            self._takeovers.append(now - run.dead_at)
            run.dead_at = -1.0
        self._tick(now, worker, run)

    def _tick(self, now: float, worker: Worker, run: Run) -> None:
        if run.left == 0:
            worker.runs.discard(run)
            self._lasted.append(now - run.born)
            self._commit(now, worker, lambda _: None)  # the claim is released, and nobody waits for that
            self._after(now, worker)
            return
        epoch = run.epoch
        model_s = self._load.model_s * math.exp(self._random.gauss(0.0, self._load.spread)) if self._load.spread else self._load.model_s

        def answered(then: float) -> None:
            if run.epoch != epoch:
                return
            at = self._think(then, worker, self._costs.tick_us)
            self._appends(at, worker, run, self._costs.tick_appends, ticked)

        def ticked(then: float, worker: Worker, run: Run) -> None:
            run.left -= 1
            self._tick(then, worker, run)

        self._at(now + model_s, answered)

    def _appends(self, now: float, worker: Worker, run: Run, count: float, then: Callable[[float, Worker, Run], None]) -> None:
        """Commit so many appends one after another; a fraction is one more with that chance."""
        epoch = run.epoch
        left = int(count) + (self._random.random() < count % 1)

        def committed(at: float) -> None:
            nonlocal left
            if run.epoch != epoch:
                return
            left -= 1
            if left > 0:
                self._commit(at, worker, committed)
            else:
                then(at, worker, run)

        if left:
            self._commit(now, worker, committed)
        else:
            self._at(now, lambda at: then(at, worker, run) if run.epoch == epoch else None)

    def _commit(self, now: float, worker: Worker, then: Callable[[float], None]) -> None:
        """Commit with whatever else of this worker is waiting when its turn comes."""
        epoch = worker.epoch

        def ask(at: float) -> None:
            if worker.epoch != epoch:
                return
            worker.gathering.append((at, then))
            if not worker.committing:
                self._flush(at, worker)

        self._at(now, ask)

    def _flush(self, now: float, worker: Worker) -> None:
        group, worker.gathering = worker.gathering, []
        worker.committing = bool(group)
        if not group:
            return
        costs, more, epoch = self._costs, len(group) - 1, worker.epoch
        server = (costs.server_commit_us + more * costs.server_one_more_us) / 1e6
        whole = (costs.commit_us + more * costs.one_more_us) / 1e6
        if costs.one_file:
            done = self._lock.serve(now, whole)
        else:
            done = self._store.serve(now, server) + max(0.0, whole - server)

        def committed(at: float) -> None:
            if worker.epoch != epoch:
                return
            for asked, then in group:
                self._commits.append(at - asked)
                then(at)
            self._flush(at, worker)

        self._at(done, committed)

    # Deaths ---------------------------------------------------------------------------------------------------------------------------

    def _die(self, now: float, worker: Worker) -> None:
        """A worker dies: its runs are due when that is noticed; another worker starts in its place."""
        runs, worker.runs = worker.runs, set()
        worker.alive, worker.looking, worker.committing, worker.gathering = False, False, False, []
        worker.page.clear()
        worker.epoch += 1
        for run in runs:
            if run.taken is not worker:
                continue
            run.epoch += 1
            run.dead_at = now
            self._interrupted += 1
            self._at(now + self._costs.detect_s, lambda at, run=run: self._queue(at, run))
        self._at(now + self._fleet.restart_s, lambda at: self._revive(at, worker))

    def _revive(self, now: float, worker: Worker) -> None:
        worker.alive = True
        self._look(now, worker)
        self._at(now + self._random.expovariate(self._fleet.deaths_a_day / 86_400), lambda at: self._die(at, worker))


def part(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values is; 0 if there are none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0
