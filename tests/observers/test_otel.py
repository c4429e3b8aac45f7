"""Spans and metrics of runs, as OpenTelemetry's own SDK gets them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.metrics import NoOpMeter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from detent import Agent, Budget, Engine, FinalAnswer, ToolCall, tool
from detent.cli.logs import JsonLines
from detent.core.agent import Host
from detent.extend import ConfigError, ToolContext
from detent.observers import otel_names
from detent.observers.otel import OtelObserver, span_ids, traceparent_of, watched
from detent.observers.otel_names import named
from detent.testing import ScriptedPlanner
from source_code import ROOT

LINE = logging.LogRecord("detent", logging.WARNING, __file__, 1, "said", None, None)


class Told:
    """What an SDK of its own was told."""

    def __init__(self, **options: Any) -> None:
        self.spans, self.metrics = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider(id_generator=span_ids())
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.meters = MeterProvider(metric_readers=[self.metrics])
        self.observer = OtelObserver(tracer_provider=provider, meter_provider=self.meters, **options)

    def points(self) -> dict[str, Any]:
        """Return the points of each metric."""
        data: Any = self.metrics.get_metrics_data()
        return {m.name: m.data.data_points for r in data.resource_metrics for scope in r.scope_metrics for m in scope.metrics}

    def one(self, name: str) -> Any:
        """Return the only span of a name."""
        (found,) = [span for span in self.spans.get_finished_spans() if span.name == name]
        return found

    def ids(self) -> list[int]:
        """Return the ids of all spans."""
        done: Any = self.spans.get_finished_spans()
        return [span.context.span_id for span in done]

    def named(self) -> list[tuple[str, str]]:
        """Return each span with the one around it."""
        done: Any = self.spans.get_finished_spans()
        names = {span.context.span_id: span.name for span in done}
        return sorted((span.name, names.get(span.parent.span_id, "?") if span.parent else "") for span in done)


@tool(side_effect="destructive")
def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


PAYER = Agent(name="payer", tools=[pay])
PLANS = [ToolCall(tool="pay", args={"amount": 7}), FinalAnswer(content="done")]


def test_a_run_is_a_trace_and_each_stretch_a_span_of_it(tmp_path: Path) -> None:
    """The stretch before an approval and the one after it, in another engine, have one trace and ids that follow from the log."""

    async def once(told: Told) -> str:
        url = f"sqlite:///{tmp_path}/{len(list(tmp_path.iterdir()))}.db"
        async with Engine(store=url, planner=ScriptedPlanner(PLANS), observers=[told.observer], approver="caller") as engine:
            waiting = await engine.run(PAYER, "Pay 7", run_id="r", host=Host(trace_id=f"00-{7:032x}-{8:016x}-01"))
            assert waiting.status == "waiting_for_approval"
        async with Engine(store=url, planner=ScriptedPlanner(PLANS[1:]), tools=[pay], observers=[told.observer]) as engine:
            assert (await engine.approve("r", "main.1.0", by="ann")).status == "completed"
            return traceparent_of((await engine.load("r")).state)

    first, second = Told(), Told()
    assert asyncio.run(once(first)).startswith(f"00-{7:032x}-")
    around = "invoke_agent payer"
    assert first.named() == [("detent.approval", around), ("execute_tool pay", around), (around, "?"), (around, "?")]
    done: Any = first.spans.get_finished_spans()
    assert {span.context.trace_id for span in done} == {7}
    stretches: Any = sorted((span for span in done if span.name.startswith("invoke")), key=lambda span: span.start_time or 0)
    assert [span.attributes["detent.status"] for span in stretches if span.attributes] == ["waiting_for_approval", "completed"]
    assert [link.context.span_id for link in stretches[1].links] == [stretches[0].context.span_id]
    asyncio.run(once(second))
    ids = [sorted(told.ids()) for told in (first, second)]
    assert ids[0] == ids[1], "the same log gave other span ids"


def test_what_is_said_is_exported_only_when_asked_for() -> None:
    """Neither goals, arguments, results nor answers, unless `content`."""

    async def run(told: Told) -> str:
        async with Engine(planner=ScriptedPlanner(PLANS), observers=[told.observer], approver=lambda _: True) as engine:
            await engine.run(PAYER, "A goal that is private", run_id="r")
        return " ".join(str(dict(span.attributes or {})) for span in told.spans.get_finished_spans())

    assert not any(word in asyncio.run(run(Told())) for word in ("private", "paid 7", "amount", "done"))
    said = asyncio.run(run(Told(content=True)))
    assert all(word in said for word in ("private", "paid 7", "amount", "done"))


def test_a_failure_is_a_status_and_metrics_count() -> None:
    """A tool that fails marks its span; runs that are in progress, and how they ended, are counted."""

    @tool(side_effect="read")
    def broken() -> str:
        """Fail."""
        raise ValueError("no")

    async def run(told: Told) -> None:
        planner = ScriptedPlanner([ToolCall(tool="broken", args={}), FinalAnswer(content="done")])
        async with Engine(planner=planner, observers=[told.observer]) as engine:
            await engine.run(Agent(name="reader", tools=[broken]), "x")

    told = Told()
    asyncio.run(run(told))
    failed = told.one("execute_tool broken")
    assert (failed.status.is_ok, failed.status.description) == (False, None), "what an error says is content"
    assert failed.attributes["error.type"]
    points = told.points()
    assert [point.value for point in points["detent.runs.active"]] == [0]
    assert [(point.value, point.attributes["detent.reason"]) for point in points["detent.runs.ended"]] == [(1, "final_answer")]
    assert {point.attributes["gen_ai.operation.name"] for point in points["gen_ai.client.operation.duration"]} == {
        "execute_tool",
        "invoke_agent",
    }


def test_a_tool_knows_its_trace_and_what_it_starts_is_below_it() -> None:
    """Its `traceparent` names its own span; spans and log lines that others make meanwhile are in the trace of the run, and not after it."""
    seen: list[Any] = []

    @tool(side_effect="read")
    async def ask(context: ToolContext) -> str:
        """Call a service."""
        seen.append((context.traceparent, trace.get_current_span().get_span_context().trace_id, json.loads(JsonLines().format(LINE))))
        return "asked"

    async def run(told: Told, flags: str) -> None:
        planner = ScriptedPlanner([ToolCall(tool="ask", args={}), FinalAnswer(content="done")])
        async with Engine(planner=planner, observers=[told.observer]) as engine:
            await engine.run(Agent(name="asker", tools=[ask]), "x", host=Host(trace_id=f"00-{7:032x}-{8:016x}-{flags}"))
            assert not trace.get_current_span().get_span_context().is_valid

    told = Told()
    asyncio.run(run(told, "01"))
    traceparent, current, line = seen.pop()
    assert traceparent == f"00-{7:032x}-{told.one('execute_tool ask').context.span_id:016x}-01"
    assert (current, line["trace_id"]) == (7, f"{7:032x}")
    quiet = Told()
    asyncio.run(run(quiet, "00"))
    assert seen.pop()[0].endswith("-00")
    assert quiet.ids() == [], "a trace that its caller does not sample was sampled here"


def test_a_child_is_in_the_trace_of_its_parent_below_the_call() -> None:
    """Over agents: the child's span is below the span of the call that started it."""
    seen: list[str] = []

    @tool(side_effect="read")
    async def note(context: ToolContext) -> str:
        """Note the trace."""
        seen.append(context.traceparent)
        return "noted"

    class Planner:
        async def plan(self, view: Any) -> Any:
            if view.agent.name == "worker":
                entry: Any = FinalAnswer(content="worked") if view.results else ToolCall(tool="note", args={})
                return await ScriptedPlanner([entry]).plan(view)
            entry = FinalAnswer(content="done") if view.results else ToolCall(tool="agent_worker", args={"goal": "work"})
            return await ScriptedPlanner([entry]).plan(view)

    async def run(told: Told) -> None:
        worker = Agent(name="worker", tools=[note])
        async with Engine(planner=Planner(), observers=[told.observer]) as engine:
            result = await engine.run(Agent(name="boss", subagents={"worker": worker}), "x")
            assert result.status == "completed", result.error

    told = Told()
    asyncio.run(run(told))
    assert ("invoke_agent worker", "execute_tool agent_worker") in told.named()
    (trace_id,) = {span.context.trace_id for span in told.spans.get_finished_spans() if span.context}
    assert [one.split("-")[1] for one in seen] == [f"{trace_id:032x}"], "the child's tool was told another trace"


def test_budgets_and_waits_for_people_are_measured() -> None:
    """How long people took, which part of each bound was used, and that nothing stays reserved."""

    async def run(told: Told) -> None:
        async with Engine(planner=ScriptedPlanner(PLANS), observers=[told.observer], approver=lambda _: True) as engine:
            await engine.run(PAYER, "x", budget=Budget(max_tool_calls=4, max_iterations=10))

    told = Told()
    asyncio.run(run(told))
    points = told.points()
    assert [(point.count, point.attributes["detent.policy.decision"]) for point in points["detent.approval.wait"]] == [(1, "approved")]
    used = {point.attributes["detent.budget.dimension"]: point.sum for point in points["detent.budget.used"]}
    assert used["tool_calls"] == 0.25
    last: Any = told.spans.get_finished_spans()[-1]
    assert (last.name, last.attributes["detent.budget.dimension"], last.attributes["detent.budget.used"]) == (
        "invoke_agent payer",
        "tool_calls",
        0.25,
    )


def test_an_answer_that_is_refused_is_an_evaluation() -> None:
    """An event of the run's span, with who judged; why is content."""

    def no(answer: Any, view: Any) -> str | None:
        return None if answer == "second" else "it is not the second"

    async def run(told: Told) -> Any:
        planner = ScriptedPlanner([FinalAnswer(content="first"), FinalAnswer(content="second")])
        async with Engine(planner=planner, observers=[told.observer]) as engine:
            await engine.run(Agent(name="judged", tools=(), verify=[no]), "x")
        (event,) = [one for one in told.one("invoke_agent judged").events if one.name == "gen_ai.evaluation.result"]
        return dict(event.attributes)

    bare = asyncio.run(run(Told()))
    assert (bare["gen_ai.evaluation.score.label"], "gen_ai.evaluation.explanation" in bare) == ("refused", False)
    assert "not the second" in asyncio.run(run(Told(content=True)))["gen_ai.evaluation.explanation"]


def test_names_of_earlier_conventions_can_be_asked_for() -> None:
    """For back ends that do not know the newer ones; a version without a table is refused."""
    with pytest.raises(ConfigError, match=r"1\.0\.0"):
        OtelObserver(conventions="1.0.0")  # type: ignore[arg-type]
    assert named({"gen_ai.provider.name": "openai", "error.type": "x"}, "1.36.0") == {"gen_ai.system": "openai", "error.type": "x"}
    assert named({"gen_ai.provider.name": "openai"}, "1.41.0") == {"gen_ai.provider.name": "openai"}


def test_the_work_in_a_store_is_measured(tmp_path: Path) -> None:
    """Runs by status, the queue, the oldest approval, and how long the store takes; a status that nobody has any more is 0."""

    async def run(told: Told) -> None:
        async with (
            Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=[PAYER], planner=ScriptedPlanner(PLANS), approver="caller") as engine,
            watched(engine, meter_provider=told.meters, every_s=0.01),
        ):
            await engine.submit("payer", "x")
            await until(told, lambda points: points["detent.queue.depth"][0].value == 1)
            run = await engine.run("payer", "y")
            await until(told, lambda points: status(points, "waiting_for_approval") == 1)
            assert told.points()["detent.approval.age"][0].value > 0
            assert told.points()["detent.store.latency"][0].count > 0
            await engine.cancel(run.run_id, by="ann")
            await until(told, lambda points: status(points, "waiting_for_approval") == 0)

    def status(points: dict[str, Any], name: str) -> int | None:
        return {point.attributes["detent.status"]: point.value for point in points["detent.runs"]}.get(name)

    async def until(told: Told, holds: Any) -> None:
        while True:
            with contextlib.suppress(KeyError, AttributeError):
                if holds(told.points()):
                    return
            await asyncio.sleep(0)

    asyncio.run(run(Told()))


def test_traces_change_nothing_that_is_compared(tmp_path: Path) -> None:
    """Two runs that differ in their traces alone do not differ, and both replay."""

    async def run() -> None:
        url = f"sqlite:///{tmp_path}/runs.db"
        async with Engine(
            store=url, planner=ScriptedPlanner([*PLANS, *PLANS]), observers=[Told().observer], approver=lambda _: True
        ) as engine:
            ids = [(await engine.run(PAYER, "x", host=Host(trace_id=f"00-{n:032x}-{n:016x}-01"))).run_id for n in (1, 2)]
            assert (await engine.diff(*ids)).identical
            assert [(await engine.replay(run_id)).identical for run_id in ids] == [True, True]

    asyncio.run(run())


class Listed(NoOpMeter):
    """Notes which instruments are made, as Prometheus spells their series."""

    def __init__(self) -> None:
        super().__init__("detent")
        self.series: set[str] = set()

    def get_meter(self, *_: Any, **__: Any) -> NoOpMeter:
        """Be the provider too."""
        return self

    def _note(self, name: str, unit: str, *ends: str) -> None:
        base = name.replace(".", "_") + {"s": "_seconds", "USD": "_USD"}.get(unit, "")
        self.series |= {base + end for end in ends}

    def create_histogram(self, name: str, unit: str = "", *args: Any, **options: Any) -> Any:
        """Note it."""
        self._note(name, unit, "_bucket", "_sum", "_count")
        return super().create_histogram(name, unit)

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Any:
        """Note it."""
        self._note(name, unit, "_total")
        return super().create_counter(name, unit)

    def create_up_down_counter(self, name: str, unit: str = "", description: str = "") -> Any:
        """Note it."""
        self._note(name, unit, "")
        return super().create_up_down_counter(name, unit)

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> Any:
        """Note it."""
        self._note(name, unit, "")
        return super().create_gauge(name, unit)


def test_the_dashboard_asks_for_metrics_that_are_there() -> None:
    """Each name in its queries is one of ours as Prometheus spells it, each label an attribute, and no panel lies on another one."""
    listed: Any = Listed()

    async def run() -> None:
        observer = OtelObserver(meter_provider=listed)
        async with Engine(observers=[observer]) as engine, watched(engine, meter_provider=listed):
            await asyncio.sleep(0)

    asyncio.run(run())
    board = json.loads((ROOT / "examples/telemetry/grafana.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"\b(?:detent|gen_ai)_\w+", re.sub(r"by \([^)]*\)", "", query))}
    assert (len(asked) > 12, asked - listed.series) == (True, set())
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in board["panels"]})
    labels = {one.replace(".", "_") for one in vars(otel_names).values() if isinstance(one, str)}
    used = {label for query in queries for by in re.findall(r"by \(([^)]*)\)", query) for label in by.split(", ")}
    assert used - {"le"} <= labels
