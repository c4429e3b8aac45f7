"""Hooks before and after the phases of a kernel (`ports.KernelHooks.before`, `after`): they wrap a phase, and the loop stays unchanged.

A hook's decision is an `EffectRecorded` of the pass: the hook is called once a turn, and a resume or replay of the turn uses the recorded decision.
Without hooks a kernel is returned as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from detent.core.errors import UnknownName
from detent.core.events import EffectRecorded, PassFinished, ToolFinished, ToolStarted, TurnStarted
from detent.core.records import Record
from detent.core.state import CLOSED, KernelState, RunState
from detent.kernel.context import KernelContext
from detent.kernel.execution import give_up
from detent.kernel.journal import Sink
from detent.kernel.kernel import OWNED, Kernel, Phase
from detent.ports import Abort, KernelHooks, PhaseHook, Skip
from detent.ports.copies import Copier, copied
from detent.ports.options import check_functions
from detent.ports.raised import raised_by
from detent.ports.telling import answer_of

log = logging.getLogger("detent")

HOOK = -1
"""Recorded as the phase of a hook's decision: it belongs to no phase."""


ANSWER = "answer"
"""A step beside the phases that a hook may precede: an answer is about to count. Every kernel has that step."""
CLOSING = ("before act", f"before {ANSWER}")
"""The hooks whose failure blocks the step."""


def phase_name(phase: Phase) -> str:
    """Return the name of a phase: its function's name."""
    return getattr(phase, "__name__", type(phase).__name__)


def hooked(kernel: Kernel, hooks: KernelHooks) -> Kernel:
    """Return the kernel with its phases wrapped in the hooks that name them."""
    if not (hooks.before or hooks.after):
        return kernel
    phases = tuple(_wrapped(phase, hooks.before.get(phase_name(phase)), hooks.after.get(phase_name(phase))) for phase in kernel.phases)
    return msgspec.structs.replace(kernel, phases=phases)


def check_hooks(hooks: KernelHooks, kernels: Mapping[str, Kernel]) -> None:
    """Raise `ConfigError` for an invalid hook, or a hook of a phase that no kernel has."""
    for when in ("before", "after"):
        check_functions("hook", **{f"hooks.{when}": getattr(hooks, when)})
    if not (hooks.before or hooks.after):
        return
    names = sorted({phase_name(phase) for kernel in kernels.values() for phase in getattr(kernel, "phases", ())})
    for name in (*hooks.before, *hooks.after):
        if name not in names and not (name == ANSWER and name in hooks.before and name not in hooks.after):
            raise UnknownName("phase", name, names)


def missing_hooks(records: Sequence[Record], hooks: KernelHooks) -> list[str]:
    """Return the phase hooks with decisions in these records that are not among `hooks`, such as "before act"."""
    here = {f"before {name}" for name in hooks.before} | {f"after {name}" for name in hooks.after}
    said = (record.event for record in records if record.envelope.scope and isinstance(record.event, EffectRecorded))
    labels = {event.label for event in said if event.phase == HOOK}
    return sorted(label for label in labels - here if label.startswith(("before ", "after ")))


def _wrapped(phase: Phase, before: PhaseHook | None, after: PhaseHook | None) -> Phase:
    name = phase_name(phase)

    async def wrapped(state: KernelState, context: KernelContext) -> KernelState:
        if before is not None:
            kind, reason = await decided(before, f"before {name}", context)
            if kind and name == "act":
                give_up(context, reason, "hook_refused")
            if kind:
                return _stopped(reason, context) if kind == "abort" else context.state
        returned = await phase(context.state, context)
        if after is None or context.state.ended or not isinstance(returned, KernelState):  # pyright: ignore[reportUnnecessaryIsInstance]
            return returned
        kind, reason = await decided(after, f"after {name}", context)
        if kind == "abort":
            return _stopped(reason, context)
        return msgspec.structs.replace(context.state, **{field: getattr(returned, field) for field in OWNED})

    wrapped.__name__ = name
    return wrapped


async def decided(hook: PhaseHook, label: str, context: KernelContext) -> tuple[str, str]:
    """Return the hook's decision in this turn: ("", ""), ("skip", reason) or ("abort", reason); a failing one of `CLOSING` skips."""

    async def ask() -> list[str]:
        answer: Any = None
        try:
            answer = await answer_of(hook, copied(context.state))
        except Exception as error:  # noqa: BLE001 - foreign code: a hook that fails is reported, and fails no run
            raised_by(error, f"the hook {label}")
            return ["skip", f"the hook {label} failed: {type(error).__name__}"] if label in CLOSING else ["", ""]
        kind = "skip" if isinstance(answer, Skip) and label.startswith("before") else "abort" if isinstance(answer, Abort) else ""
        return [kind, await context.run.world.scrub(answer.reason) if kind else ""]

    kind, reason = await context.effect(HOOK, label, ask)
    return kind, reason


def apart(sink: Sink) -> Sink:
    """Return a sink that gets copies: an observer's changes to arguments, plans and variables reach neither the run nor its tools."""
    copier = Copier()

    def told(record: Record, state: RunState) -> Any:
        event = record.event
        plain = isinstance(event, (ToolStarted, TurnStarted)) or (isinstance(event, ToolFinished) and event.error is None)
        if event is not None and not plain:
            record = Record(record.envelope, copied(event), record.digest)
        return sink(record, copier.copied(state))

    return told


def _stopped(reason: str, context: KernelContext) -> KernelState:
    if context.state.status not in CLOSED and not context.state.ended:
        context.run.record(context.scope, PassFinished(status="failed", reason="policy_stopped", error=reason))
    return context.state
