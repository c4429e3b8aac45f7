"""`scripts/capacity`: the simulation keeps the laws of queues, and the sizes follow from the costs."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
sys.path.append(str(SCRIPTS))

from capacity_model import Costs, Fleet, Found, Load, Processor, Simulation  # noqa: E402 - a program for developers, not installed
from capacity_sizing import Question, fullest, most_of_one, rate_of, shards_by_tenant, sized, uses  # noqa: E402

sys.path.remove(str(SCRIPTS))  # its `docs.py` is not the folder of tests

KNOWN = msgspec.json.decode((SCRIPTS / "capacity_costs.json").read_bytes(), type=list[Costs])
POSTGRES = next(costs for costs in KNOWN if costs.store == "postgres")


def simulate(
    costs: Costs = POSTGRES, *, rate: float = 2.0, seconds: float = 200.0, workers: int = 2, deaths: float = 0.0, backlog: int = 0
) -> Found:
    """Simulate a small fleet."""
    load = Load(rate=lambda _: rate, most=rate, seconds=seconds, ticks=4, model_s=1.0, backlog=backlog)
    return Simulation(costs, Fleet(workers=workers, concurrency=8, store_cores=2, deaths_a_day=deaths), load).run()


def test_a_processor_serves_in_order_and_as_many_at_once_as_it_has_cores() -> None:
    """Three pieces of work of a second on two cores: two end after one second, the third after two."""
    cpu = Processor(2)
    assert [cpu.serve(0.0, 1.0) for _ in range(3)] == [1.0, 1.0, 2.0]
    assert cpu.busy == 3.0


def test_every_run_that_arrives_ends() -> None:
    """With workers that die, too; each of their runs is taken over after it was noticed, and not before."""
    found = simulate(deaths=2000.0)
    assert found.finished == found.arrived > 100
    assert found.interrupted > 0
    assert found.takeover_p95_s >= POSTGRES.detect_s


def test_as_many_runs_are_in_progress_as_the_law_of_little_says() -> None:
    """The workers' processors are busy for the rate times what a run costs."""
    found = simulate(seconds=400.0)
    costs = (POSTGRES.run_us + 4 * POSTGRES.tick_us) / 1e6
    assert found.worker_use * 2 * found.seconds == pytest.approx(found.arrived * costs, rel=0.2)


def test_more_than_a_fleet_can_do_waits() -> None:
    """Eight times two runs of four seconds are four runs a second; of twice as many, the wait grows."""
    assert simulate(rate=2.0).wait_p95_s < 1.0
    assert simulate(rate=8.0).wait_p95_s > 10.0


def test_a_submission_that_wakes_many_workers_is_claimed_in_vain_by_all_but_one() -> None:
    """What a run costs the store grows with the workers that have room."""
    few, many = simulate(workers=2), simulate(workers=20)
    assert few.lost_claims / few.arrived < 1.5
    assert many.lost_claims / many.arrived > 10


def test_the_mean_of_the_day_is_what_arrives_in_a_day() -> None:
    """The peak is the asked number of times the mean, and no hour has less than nothing."""
    question = Question(peak=3.0)
    rates = [rate_of(question, 86_400, hour / 10) for hour in range(240)]
    assert sum(rates) / 240 == pytest.approx(1.0, rel=0.01)
    assert max(rates) == pytest.approx(3.0, rel=0.01)
    assert min(rates) >= 0.0


def test_a_shard_is_full_where_its_first_limit_is_reached() -> None:
    """What one shard carries is where the fullest of its limits is 1, and more shards are needed above that."""
    question = Question(runs_simulated=50, model_s=1.0)
    most = most_of_one(POSTGRES, question)
    assert fullest(uses(POSTGRES, question, most)) == pytest.approx(1.0, rel=0.03)
    assert sized(POSTGRES, question, most * 0.01).shards == 1
    assert fullest(uses(POSTGRES, question, most * 2.5 / 2)) > 1.0 > fullest(uses(POSTGRES, question, most * 2.5 / 3))


def test_tenants_fill_shards_unevenly_and_the_largest_is_a_bound() -> None:
    """Equal shards carry less when tenants are not divided; the largest tenant's share says how many shards are of any use."""
    shards, hottest, largest = shards_by_tenant(Question(tenants=1000), 0.25)
    assert shards > 4
    assert hottest > 1.0
    assert 0.1 < largest < 0.2
    assert shards_by_tenant(Question(tenants=1000), 10.0)[0] == 1
