"""Detent's planners keep the contract of planners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from detent.ports import Planner
from detent.testing.conformance.planner import PlannerContract, PlannerMaker
from testing.conformance.planners_of_detent import Recordings, Rules, Scripts, Served, at_once, fallback, on_device, streamed


class TestRulePlanner(PlannerContract):
    @pytest.fixture
    def maker(self) -> PlannerMaker:
        return Rules()


class TestScriptedPlanner(PlannerContract):
    @pytest.fixture
    def maker(self) -> PlannerMaker:
        return Scripts()


class TestRecordedPlanner(PlannerContract):
    @pytest.fixture
    def maker(self) -> PlannerMaker:
        return Recordings()


def served(make: Callable[[str], Planner], **options: Any) -> Iterator[PlannerMaker]:
    maker = Served(make, **options)
    yield maker
    maker.end()


class TestModelPlannerStreaming(PlannerContract):
    @pytest.fixture
    def maker(self) -> Iterator[PlannerMaker]:
        yield from served(streamed)


class TestModelPlannerAtOnce(PlannerContract):
    @pytest.fixture
    def maker(self) -> Iterator[PlannerMaker]:
        yield from served(at_once)


class TestOnDevicePlanner(PlannerContract):
    @pytest.fixture
    def maker(self) -> Iterator[PlannerMaker]:
        yield from served(on_device, raw=True)


class TestFallbackPlanner(PlannerContract):
    @pytest.fixture
    def maker(self) -> Iterator[PlannerMaker]:
        yield from served(fallback)
