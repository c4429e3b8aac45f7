"""Traces: what is read of turns and calls without the state is what the state has."""

from __future__ import annotations

import pytest

from core.golden_logs import GOLDEN
from detent.core import events as e
from detent.core.codec import read_log
from detent.history.traces import Tracer, Turns


@pytest.mark.parametrize("name", GOLDEN)
def test_the_calls_of_a_plan_are_those_that_the_fold_makes_of_it(name: str) -> None:
    """Whether they are a batch, dropped beside a control action, or found in the text of an answer."""
    log = GOLDEN[name]()
    alone, tracer = Turns(), Tracer(log.state.run_id, None)
    for record in read_log(log.state.run_id, log.lines):
        alone.read(record)
        tracer.read(record)
        if isinstance(record.event, e.Planned):
            shown = [(call.call_id, call.tool, call.args) for call in alone.iterations[-1].calls]
            assert shown == [(c.call_id, c.tool, c.args) for c in tracer.state.passes[record.envelope.scope].calls.values()]
    assert alone.calls == tracer.calls and alone.before == tracer.before and alone.approvals == tracer.approvals
