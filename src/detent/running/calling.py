"""Calls of tools in the live world: running an attempt, asking about an earlier one, and what a tool gets for it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from detent.core.codec import digest_of
from detent.core.errors import ToolFailed
from detent.core.events import ToolReconciled
from detent.core.state import CallState, RunState
from detent.kernel.context import KernelContext
from detent.kernel.execution import finished, key_of
from detent.kernel.journal import Journal
from detent.ports import Cancellation, Chunk, Clock, EventStore, Models, SecretSource, Tool, ToolContext, ToolOutcome
from detent.ports.copies import copied
from detent.running.control import Control
from detent.running.hiding import Values
from detent.running.lineage import Recorded, recorded, stub
from detent.running.remembering import Remembering
from detent.secrecy.redact import hidden
from detent.secrecy.vault import Vault

SETTLE_S = 60.0
"""How long to wait for the `reconcile` of a tool without its own timeout."""
_CHANGED = "not run: the arguments in the run's state were changed after the call was decided; state is read-only"


class Calls(Values, ABC):
    """Executes the calls of one run."""

    __slots__ = ("_chunk", "_clock", "_recorded", "_source", "_vault", "control", "remembering")

    def __init__(
        self,
        journal: Journal,
        store: EventStore,
        redact: Sequence[str],
        *,
        clock: Clock,
        control: Control,
        chunk: Callable[[Chunk], None] | None,
        secrets: SecretSource | None,
    ) -> None:
        super().__init__(journal, store, redact)
        self._clock, self.control, self._chunk, self._source = clock, control, chunk, secrets
        self._vault: Vault | None = None
        self._recorded: Recorded | None = None
        self.remembering: Remembering | None = None

    async def attempt(self, tool: Tool, call: CallState, context: KernelContext) -> ToolOutcome:
        """Run a tool once. An interruption leaves an effect in doubt. Model calls that it leaves open are given up with it."""
        if self._journal.state.fork_effects and (answered := await self._not_executed(tool, call)) is not None:
            return answered
        if call.digest and digest_of([call.tool, call.args]) != call.digest:
            return ToolOutcome(kind="not_executed", error_code="arguments_changed", message=_CHANGED, final=True)
        gateways: list[Any] = []

        def models() -> Models:
            gateways[:] = gateways or [self.models(context)]
            return gateways[0]

        given = self._context(tool, call, context.time_left(), models)
        raw = msgspec.json.encode(call.args)
        try:
            args = msgspec.json.decode(raw) if b"<secret:" not in raw else await self._resolved(tool.spec, call.args)  # its own copy
        except ToolFailed as refused:
            return ToolOutcome(kind="not_executed", error_code=refused.error_code, message=str(refused), final=True)
        if self._chunk is not None:
            self._chunk(_piece("tool", call, self._run(), {"tool": call.tool, "args": copied(call.args), "attempt": given.attempt}))
        started = self._clock.monotonic()
        with self.control.during():
            try:
                outcome = await tool.run(args, given)
            except asyncio.CancelledError:
                if not self.control.interrupted():
                    raise
                known = tool.spec.read_only or tool.spec.idempotent
                outcome = ToolOutcome(
                    kind="failed" if known else "in_doubt", error_code="aborted", message="interrupted: the run was cancelled"
                )
            finally:
                for gateway in gateways:
                    gateway.close()
        outcome = self.vault.outcome(outcome)
        return msgspec.structs.replace(outcome, latency_ms=round((self._clock.monotonic() - started) * 1000, 3))

    async def _not_executed(self, tool: Tool, call: CallState) -> ToolOutcome | None:
        """Return how a call of a fork ends without being executed; None if it is to be executed."""
        state = self._run()
        if state.fork_effects not in ("dry_run", "reuse") or tool.spec.read_only:
            return None
        self._recorded = self._recorded or await recorded(self._store, state)
        return self._recorded.outcome(call) or (stub(call.tool) if state.fork_effects == "dry_run" else None)

    async def settle(self, tool: Tool, call: CallState) -> ToolReconciled | None:
        """Ask the tool about an earlier attempt. A cancellation ends that after the grace of a call, and so does the end of the run's time."""
        if await self._not_executed(tool, call) is not None:
            return ToolReconciled(call=call.call_id, outcome="again", source="reconcile")
        with self.control.during():
            try:
                known = await tool.settle(self._context(tool, call, self._settle_s(tool)))
            except asyncio.CancelledError:
                if not self.control.interrupted():
                    raise
                return None
        if known is None:
            return None
        if known.kind == "not_executed":
            return ToolReconciled(call=call.call_id, outcome="again", source="reconcile")
        done = finished(call.call_id, await self.keep(call.call_id, self.vault.outcome(known)))
        return ToolReconciled(call=call.call_id, outcome="happened", source="reconcile", result=done.result, error=done.error)

    def _settle_s(self, tool: Tool) -> float | None:
        """Return how long `reconcile` may take beside the tool's own limit: the run's remaining time, plus the grace in any case."""
        left = self.control.time_left()
        limits = [SETTLE_S] if tool.spec.timeout_s is None else []
        return min([*limits, *([] if left is None else [max(left, self.control.grace_s)])], default=None)

    @property
    def vault(self) -> Vault:
        """The run's secrets."""
        if self._vault is None:
            self._vault = Vault(self._source, self._run().host)
        return self._vault

    @abstractmethod
    def models(self, context: KernelContext) -> Any:
        """Return the access to models for the pass of `context`."""

    def _context(self, tool: Tool, call: CallState, deadline_s: float | None, models: Callable[[], Models] | None = None) -> ToolContext:
        state = self._journal.state
        return ToolContext(
            run_id=state.run_id,
            call_id=call.call_id,
            tool=tool.spec,
            host=state.host,
            idempotency_key=call.key or (lambda: key_of(state.run_id, call.call_id, digest_of([call.tool, call.args]))),
            attempt=max(1, call.attempt),
            deadline=None if deadline_s is None else asyncio.get_running_loop().time() + deadline_s,
            cancelled=Cancellation(self.control.cancelled),
            progress=self._progress(call, state) if self._chunk is not None else None,
            secrets=self.vault,
            results=self._result,
            models=models,
            attachments=lambda: tuple(copied(one) for one in state.attachments),
            memory=None if self.remembering is None else self.remembering.of_call,
            approved_by=call.approved_by,
            goal_id=state.goal_id,
        )

    async def _result(self, call_id: str) -> Any:
        """Return the whole result of an earlier call of the run; raise `ToolFailed`."""
        items = [item for state in self._run().passes.values() for item in state.results if item.ok and not item.meta]
        for item in items:
            if item.call_id == call_id:
                return await self.full(item)
        known = ", ".join(item.call_id for item in items[-10:]) or "none yet"
        raise ToolFailed(f"no result is stored under {call_id!r}; the latest: {known}", error_code="result_not_found")

    def _progress(self, call: CallState, state: RunState) -> Callable[[Any], None]:
        loop, emit = asyncio.get_running_loop(), self._chunk
        assert emit is not None  # noqa: S101 - only called where it is set

        def progress(event: Any) -> None:
            loop.call_soon_threadsafe(emit, _piece("progress", call, state, hidden(event, self._patterns) if self._patterns else event))

        return progress


def _piece(kind: Literal["tool", "progress"], call: CallState, state: RunState, content: Any) -> Chunk:
    """Return what observers see of a call while it runs."""
    scope, iteration, _ = call.call_id.rsplit(".", 2)
    return Chunk(
        kind=kind,
        run_id=state.run_id,
        goal_id=state.goal_id,
        agent=state.agent.name,
        scope=scope,
        iteration=int(iteration),
        content=content,
        call_id=call.call_id,
        parent=state.parent,
    )
