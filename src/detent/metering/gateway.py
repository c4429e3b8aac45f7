"""The gateway: every model call of a run passes through here and is recorded.

Theory of operation. A call waits for its turn at the provider, then reserves what it may use at most: the estimate of its prompt plus the requested
output. The output is clamped to what the bounds of run and pass leave after all open reservations. `ModelCallStarted` has the reservation.
`ModelCallFinished` or `ModelCallFailed` replaces it with the actual usage, so the sum of all calls is the run's usage. If a reservation does not
fit only because other calls are open, the call waits for them. If it cannot fit at all, `BoundReached` is raised and nothing is sent. If the
tenant has a budget, the call is also reserved in the tenant's account (`detent.metering.tenants`). While the provider's account is closed or paused
(`accounts`), nothing is sent: a short time is waited for, otherwise `AccountClosed` is raised. Retryable failures are tried again after a
random, growing pause; each attempt is recorded as its own model call. If the usage of a call is unknown (it was cancelled, or its adapter raised an
error), its reservation is charged, marked as estimated. Nothing here runs in a re-execution, which takes the records as they are.

No library does the retries. tenacity (13 ms to import, 272 kB) and stamina (24 ms, 440 kB with tenacity) repeat a function. Here each attempt is its
own reservation and record, and a pause ends with the run's time, its cancellation or a longer Retry-After. A library would replace only
the formula in `ModelRetries.pause`.
"""  # DESIGN 7

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, cast

import msgspec

from detent.core.budget import NOTHING, Usage
from detent.core.errors import AccountClosed, ModelCallFailure, ModelFailureKind, PlannerFailed
from detent.core.events import ModelCallFailed, ModelCallFinished, ModelCallStarted
from detent.kernel.context import KernelContext
from detent.metering.accounts import Accounts
from detent.metering.pricing import Prices
from detent.metering.provider_limits import Entry, ModelLimits, ModelRetries, ProviderLimits, limits_of
from detent.metering.reserving import Allowed, Asked, allowed, bounded
from detent.metering.shares import Shares
from detent.metering.tenants import Tenants
from detent.ports import Chunk, ModelAnswer
from detent.ports.holding import Hold
from detent.secrecy.redact import hiding, sensitive_fields

replace = msgspec.structs.replace

Send = Callable[[int | None], Awaitable[ModelAnswer]]


MOST_TOKENS = 10**12
"""No single call uses more tokens. A larger count from a provider is an error of the provider."""
LOOKS_S = (0.05, 1.0)
"""Seconds until the account is read again if other runs of the tenant have reserved what is left: the first pause and the longest."""
_COUNTS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")


class Traffic:
    """What the model calls of all runs of an engine share: prices, the retry rule, provider limits and the accounts that the store keeps."""

    __slots__ = ("accounts", "limits", "prices", "retries", "shares")

    def __init__(
        self,
        *,
        prices: Prices | None = None,
        limits: Mapping[str, ModelLimits] | ProviderLimits | None = None,
        retries: ModelRetries | None = None,
        accounts: Accounts | None = None,
        shares: Shares | None = None,
    ) -> None:
        self.prices, self.limits, self.retries = prices or Prices(), limits_of(limits), retries or ModelRetries()
        self.accounts = accounts
        self.shares = shares

    @property
    def shared(self) -> Shares | None:
        """This process's shares of limits that hold over all processes. None if no other process can use the store."""
        return None if self.accounts is None or self.accounts.alone else self.shares

    async def close(self) -> None:
        """Give back this process's shares."""
        if self.shares is not None:
            await self.shares.close()

    def closed(self, provider: str) -> Hold | None:
        """Return what holds the account of a provider now; None if nothing does."""
        return None if self.accounts is None else self.accounts.on("provider", provider)

    def refuse_closed(self, provider: str, time_left: float | None, failure: ModelCallFailure | None = None) -> None:
        """Raise `AccountClosed` if the account is closed for longer than a call waits, or because of this failure, which gets no retry."""
        accounts, hold = self.accounts, self.closed(provider)
        if accounts is None or hold is None:
            return
        left_s, bounds = accounts.left_s(hold), (self.retries.retry_after_s, self.retries.total_wait_s, time_left)
        if failure is not None or any(bound is not None and left_s > bound for bound in bounds):
            after_s = left_s if hold.until is not None else None
            raise AccountClosed(hold.said, until=accounts.again(hold), retry_after_s=after_s) from failure


class Room:
    """Wakes the calls of one run that wait for reservations of other calls."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def changed(self) -> None:
        """Wait until a reservation is released."""
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        await place

    def free(self) -> None:
        """Wake all waiting calls: a reservation was released."""
        for place in self._waiting:
            if not place.done():
                place.set_result(None)
        self._waiting.clear()


class Gateway:
    """Model access for one pass of a run (`ports.Models`). Its planner gets it as `view.models`, a new one for each plan."""

    __slots__ = ("_chunk", "_closed", "_context", "_kind", "_open", "_room", "_run", "_scope", "_streamed", "_tenants", "_traffic")

    def __init__(
        self,
        context: KernelContext,
        traffic: Traffic,
        room: Room,
        chunk: Callable[[Chunk], None] | None = None,
        *,
        tenants: Tenants | None = None,
        patterns: Sequence[str] = (),
    ) -> None:
        self._tenants = tenants
        self._streamed = hiding(patterns, sensitive_fields(context.known.values())) if chunk is not None else ()
        self._kind: Literal["text", "thinking"] = "text"
        self._context, self._run, self._scope = context, context.run, context.scope
        self._traffic, self._room, self._chunk = traffic, room, chunk
        self._open: dict[str, Usage] = {}
        self._closed = False

    async def call(
        self,
        model: str,
        send: Send,
        *,
        provider: str = "",
        purpose: str = "plan",
        input_tokens: int = 0,
        max_output_tokens: int | None = None,
    ) -> ModelAnswer:
        """See `ports.Models.call`."""
        asked = Asked(
            model=model,
            provider=provider or (model.partition(":")[0] if ":" in model else ""),
            purpose=purpose,
            input_tokens=max(0, input_tokens),
            max_output_tokens=None if max_output_tokens is None else max(1, max_output_tokens),
        )
        call, attempt, waited = "", 0, 0.0
        while True:
            attempt += 1
            entry, fits = await self._admitted(asked)
            call = call or self._name()
            started = ModelCallStarted(model=model, call=call, attempt=attempt, purpose=purpose, reserved=fits.reserved, held=fits.held)
            try:
                return await self._attempt(started, asked, send, entry, fits)
            except ModelCallFailure as failure:
                pause = self._pause(failure, attempt, waited)
                if pause is None and attempt <= self._traffic.retries.retries and failure.retry_after_s:
                    self._traffic.refuse_closed(asked.provider, None, failure)
                if pause is None and attempt == 1:
                    raise
                if pause is None:
                    raise _given_up(failure, attempt) from failure
            finally:
                self._emitted()
                entry.leave()
            waited += pause
            most = self._traffic.retries.retries + 1
            self._tell("retry", {"call": call, "attempt": attempt + 1, "of": most, "in_s": pause})
            await self._rested(pause)

    def emit(self, kind: Literal["text", "thinking"], content: str) -> None:
        """See `ports.Models.emit`. Pattern matches and sensitive fields are hidden, even if they are split over several chunks."""
        if self._streamed and kind != self._kind:
            self._emitted()
        self._kind = kind
        for streamed in self._streamed:
            content = streamed.add(content)
        if content:
            self._tell(kind, content)

    def _emitted(self) -> None:
        """Emit the text that was held back: the stream has ended."""
        rest = ""
        for streamed in self._streamed:
            rest = streamed.add(rest) + streamed.rest()
        if rest:
            self._tell(self._kind, rest)

    def _tell(self, kind: Literal["text", "thinking", "model", "retry"], content: Any) -> None:
        """Send a chunk to the listeners."""
        if self._chunk is None:
            return
        state = self._run.state
        self._chunk(
            Chunk(
                kind=kind,
                run_id=state.run_id,
                goal_id=state.goal_id,
                agent=state.agent.name,
                scope=self._scope,
                iteration=self._iteration(),
                content=content,
                parent=state.parent,
            )
        )

    def close(self) -> None:
        """Accept no further calls. Calls that their caller did not wait for are cancelled and charged at their reservations."""
        self._closed = True
        self._emitted()
        for call in list(self._open):
            self._failed(call, "nobody waited for its answer", "abandoned", self._unknown(call))

    async def flush(self) -> None:
        """Commit the records: whoever suspends the run needs its model calls to be recorded."""
        await self._context.commit()

    # One attempt ----------------------------------------------------------------------------------------------------------------

    async def _admitted(self, asked: Asked) -> tuple[Entry, Allowed]:
        """Wait for room in the bounds, at the provider and in the tenant's account. Return the place there and what the call may use."""
        look, tenants, waiting = LOOKS_S[0], self._tenants, None
        if tenants and not tenants.reserves(self._run.state.host.tenant):
            tenants = None
        while True:
            await self._opened(asked.provider)
            await self._run.world.weigh(self._context)
            fits = self._fits(asked)
            if fits is None:
                await self._room.changed()
                continue
            seq = self._run.state.seq
            entry = await self._traffic.limits.enter(asked.provider, fits.reserved.total_tokens, self._traffic.shared)
            if self._traffic.closed(asked.provider) is not None:
                entry.leave(0)
                continue
            try:
                if self._closed or self._run.state.seq != seq:
                    fits = self._fits(asked)
                if tenants:
                    fits = await self._reserved(asked, fits, tenants)
                if fits is not None:
                    return entry, fits
            except BaseException:
                entry.leave(0)
                raise
            entry.leave(0)
            if tenants:
                waiting = waiting or tenants.waiting(self._run.state.host.tenant)
                waiting.goes_on()
                await self._rested(look)
                look = min(look * 2, LOOKS_S[1])

    async def _opened(self, provider: str) -> None:
        """Wait while the account of the provider is closed, if that is not for long. Raise `AccountClosed` if it is."""
        while self._traffic.closed(provider) is not None:
            self._traffic.refuse_closed(provider, self._context.time_left())
            await self._rested(LOOKS_S[1])

    async def _reserved(self, asked: Asked, fits: Allowed | None, tenants: Tenants) -> Allowed | None:
        """Reserve the call's use in the tenant's account. Return None if reservations of other runs are in the way."""
        while fits is not None:
            taken, others = await tenants.reserve(self._context, fits.reserved)
            try:
                now = self._fits(asked, others)
            except BaseException:
                if taken is not None:
                    taken.over()
                raise
            if taken is not None and now is not None and (now.limit or math.inf) >= (fits.limit or math.inf):
                return replace(fits, held=others, taken=taken)
            if taken is not None:  # calls of this run began meanwhile
                taken.over()
            elif now == fits:
                return None
            fits = now
        return None

    async def _rested(self, seconds: float) -> None:
        """Wait. Raise `CancelledError` if the run is cancelled meanwhile."""
        await self._run.world.pause(seconds)
        if self._run.world.cancelled:
            raise asyncio.CancelledError

    def _fits(self, asked: Asked, others: Usage = NOTHING) -> Allowed | None:
        self._run.world.proceed()
        if self._closed:
            raise PlannerFailed("the plan of this view was given already: its models take no further calls")
        return allowed(asked, self._run.state, self._scope, self._traffic.prices, others)

    async def _attempt(self, started: ModelCallStarted, asked: Asked, send: Send, entry: Entry, fits: Allowed) -> ModelAnswer:
        """Make one request and record it. Raise whatever the request raises."""
        call, began, sent = started.call, self._run.world.running_ms(), False
        try:
            self._run.record(self._scope, started)
            self._tell("model", {"model": started.model, "attempt": started.attempt, "purpose": started.purpose})
            self._open[call] = started.reserved
            if fits.taken is not None or self._bounded():
                await self._context.commit()  # found here after a crash
            if fits.taken is not None:
                await fits.taken.recorded()  # the append has reserved it for the run
            sent = True
            answer = await send(fits.limit)
            usage = self._used(answer.usage, asked, answer.model, started.reserved, audio_s=answer.audio_s)
        except ModelCallFailure as failure:
            used = NOTHING if failure.usage is None else self._used(failure.usage, asked, "", None)
            entry.leave(used.total_tokens)
            accounts = self._traffic.accounts
            until = None if accounts is None else await accounts.close(asked.provider, failure, by=f"run {self._run.state.run_id}")
            await self._told_failure(call, failure, failure.kind, used, began, closed_until=until)
            raise
        except asyncio.CancelledError:
            self._failed(call, "cancelled", "cancelled", self._unknown(call) if sent else NOTHING, began)
            raise
        except Exception as error:  # foreign code: an adapter may raise anything
            if sent:
                await self._told_failure(call, error, "error", self._unknown(call), began)
            raise
        finally:
            if fits.taken is not None:  # if the commit failed, these records may be committed with what another pass records
                self._run.journal.then(fits.taken.over)
        entry.leave(usage.total_tokens)
        if self._open.pop(call, None) is None:
            raise asyncio.CancelledError  # it was cancelled in the meantime
        self._finished(call, asked, answer, usage, began)
        if usage != NOTHING or fits.taken is not None:
            await self._context.commit()
        return replace(answer, usage=usage)

    def _finished(self, call: str, asked: Asked, answer: ModelAnswer, usage: Usage, began: float) -> None:
        event = ModelCallFinished(
            call=call,
            model=answer.model or asked.model,
            usage=usage,
            request_id=answer.request_id,
            finish=answer.finish,
            latency_ms=round(self._run.world.running_ms() - began, 3),
        )
        self._run.record(self._scope, event)
        self._room.free()

    async def _told_failure(
        self, call: str, error: Exception, kind: str, usage: Usage, began: float, *, closed_until: datetime | None = None
    ) -> None:
        """Commit the record of a failed attempt: a long pause or the end of the pass may follow."""
        said = str(error) if isinstance(error, ModelCallFailure) else f"{type(error).__name__}: {error}"
        safe = await self._run.world.scrub(said, known=self._context.known)
        code = error.provider_code if isinstance(error, ModelCallFailure) else ""
        self._failed(call, safe[:2000], kind, usage, began, provider_code=code, closed_until=closed_until)
        await self._context.commit()

    def _failed(self, call: str, error: str, kind: str, usage: Usage, began: float | None = None, **more: Any) -> None:
        if self._open.pop(call, None) is None:
            return
        latency = 0.0 if began is None else round(self._run.world.running_ms() - began, 3)
        event = ModelCallFailed(call=call, error=error, kind=kind, usage=usage, latency_ms=latency, **more)
        self._run.record(self._scope, event)
        self._room.free()

    def _pause(self, failure: ModelCallFailure, attempt: int, waited: float) -> float | None:
        """Return the pause before the next attempt. None if there is no next attempt, for example because the run's or the request's time would be
        over.
        """
        pause = self._traffic.retries.pause(failure, attempt, waited, random.random)
        bounds = [left for left in (self._context.time_left(), failure.left_s) if left is not None]
        return None if pause is None or any(pause >= left for left in bounds) else pause

    # What it used --------------------------------------------------------------------------------------------------------------

    def _used(self, usage: Usage, asked: Asked, model: str, reserved: Usage | None, *, audio_s: float = 0.0) -> Usage:
        """Return the usage of a call with its cost. If the provider reports none and there is a bound, return the reservation."""
        used = replace(_plausible(usage).charged(), model_calls=0)
        if not (used.total_tokens or audio_s) and reserved is not None and self._bounded():
            used = replace(reserved, estimated=True)
        if used.cost_usd is None and (used.total_tokens or audio_s):
            prices = self._traffic.prices
            cost = prices.cost(model, asked.provider, used, audio_s=audio_s, quiet=True) if model else None
            used = replace(used, cost_usd=prices.cost(asked.model, asked.provider, used, audio_s=audio_s) if cost is None else cost)
        return used

    def _unknown(self, call: str) -> Usage:
        """Return the charge for a call whose usage is unknown."""
        reserved = self._open.get(call, NOTHING)
        return replace(reserved, estimated=True) if reserved != NOTHING else NOTHING

    def _bounded(self) -> bool:
        return bounded(self._run.state, self._scope)

    def _name(self) -> str:
        """Return a new call id for this run: pass, turn, and the number of the model call."""
        return f"{self._scope}.{self._iteration()}.m{self._run.state.usage.model_calls + 1}"

    def _iteration(self) -> int:
        known = self._run.state.passes.get(self._scope)
        return known.iteration if known is not None else 0


def _plausible(usage: Usage) -> Usage:
    """Return usage that can be added up and stored: whole counts from 0 to `MOST_TOKENS`, and no cost that is not an amount of money."""
    told: dict[str, Any] = {field: getattr(usage, field) for field in _COUNTS}
    wrong = {field: _whole(said) for field, said in told.items() if type(said) is not int or not 0 <= said <= MOST_TOKENS}
    cost: Any = usage.cost_usd
    if cost is not None and not (isinstance(cost, (int, float)) and 0 <= cost < float("inf")):
        return replace(usage, **wrong, cost_usd=None, estimated=True)
    return replace(usage, **wrong, estimated=True) if wrong else usage


def _whole(said: Any) -> int:
    """Return the count that a provider probably meant: a fraction of a token counts as one, anything that is not a number as none."""
    return math.ceil(min(MOST_TOKENS, max(0, said))) if isinstance(said, (int, float)) else 0


def _given_up(failure: ModelCallFailure, attempts: int) -> ModelCallFailure:
    """Return the failure that ends a call, with the number of attempts in its message."""
    return ModelCallFailure(
        f"{failure} (given up after {attempts} attempts)",
        kind=cast("ModelFailureKind", failure.kind),
        retry_after_s=failure.retry_after_s,
        usage=failure.usage,
        provider_code=failure.provider_code,
    )
