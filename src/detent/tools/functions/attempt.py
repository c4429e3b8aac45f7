"""One attempt to run a tool, from its arguments to a `ToolOutcome`. No exception of the tool gets past this module.

    before → execute, within the deadline → is it JSON → result schema → after → size cap

Async functions are awaited directly: no task, no thread, one timer if they wait. Sync functions run in the pool. Hooks run on the event loop, so a
sync hook must not block. The meaning of a failure is decided only here:

    returned                            ok; `failed` if the result itself has `"success": false`
    NotExecuted                         not_executed: it did not happen
    ToolFailed, InvalidArguments        failed: it failed in a known way
    FatalToolError                      fatal: the run must end
    any other exception, or a timeout   failed if the tool only reads or is idempotent, else in_doubt: it may have happened
    cancelled from outside              `asyncio.CancelledError` propagates; the kernel decides
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from time import perf_counter
from typing import Any, Literal, Protocol

import msgspec

from detent.core.errors import FatalToolError, NotExecuted, ToolRaised
from detent.ports import ToolContext, ToolOutcome
from detent.ports.raised import raised_by
from detent.tools.functions import problems, results
from detent.tools.functions.options import Options
from detent.tools.functions.settlement import Happened, NotHappened
from detent.tools.functions.signature import Arguments
from detent.tools.functions.threads import Job, ThreadPool

log = logging.getLogger("detent.tools")

NO_ARGS: Mapping[str, Any] = types.MappingProxyType({})
SHORTEST_HIDDEN = 3
"""A shorter sensitive value occurs in any text by chance, so it is not searched for."""
LONGEST_MESSAGE = 4000
"""The maximum length of an error message in the log and for the model, in characters."""


class Attempted(Protocol):
    """The part of `Tool` that an attempt needs."""

    name: str
    function: Callable[..., Any]
    options: Options
    arguments: Arguments
    is_async: bool
    result_check: results.ResultCheck | None
    reconcile_takes_context: bool


class Watch:
    """The time limit of one attempt: the tool's own limit, counted from its start, or the run's deadline, whichever comes first.

    At the limit the context is marked `timeout` and then the task is cancelled, so a tool that cleans up can see why. A job that still waits
    for a thread has not started, so its own limit does not count yet.
    """

    __slots__ = ("_before", "_context", "_deadline", "_handle", "_loop", "_task", "began", "expired", "job", "timeout_s")

    def __init__(self, context: ToolContext, timeout_s: float | None) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._context, self._deadline, self.timeout_s = context, context.deadline, timeout_s
        self.job: Job | None = None
        self.expired = False
        self.began = began = loop.time()
        self._handle: asyncio.TimerHandle | None = None
        if timeout_s is not None and (self._deadline is None or began + timeout_s < self._deadline):
            context.deadline = began + timeout_s

    @property
    def too_late(self) -> bool:
        """Whether the run's deadline has passed already."""
        return self._deadline is not None and self._deadline <= self.began

    def arm(self) -> None:
        """Begin to watch the current task, because it now waits. A task that never waits cannot be interrupted."""
        due = self._due()
        if due is not None and self._handle is None:
            self._task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
            self._before = self._task.cancelling()
            self._handle = self._loop.call_at(due, self._look)

    def stop(self) -> bool:
        """End watching. Return whether somebody else cancelled the task too."""
        self._context.deadline = self._deadline
        if self._handle is not None:
            self._handle.cancel()
            if self.expired:
                return self._task.uncancel() > self._before
        return False

    def started(self) -> None:
        """Note that the waiting job begins now. Called in its thread."""
        self._context.deadline = self._due()

    def seconds(self) -> str:
        """Return the limit that was reached, in words."""
        due, begin = self._due(), self._begin()
        if self._deadline is None or due != self._deadline:
            return f"{self.timeout_s:g} s"
        return f"{round(max(0.0, self._deadline - begin), 3):g} s, the rest of the run's time"

    def _begin(self) -> float:
        if self.job is None:
            return self.began
        return self._loop.time() if self.job.started_at is None else self.job.started_at

    def _due(self) -> float | None:
        own = None if self.timeout_s is None else self._begin() + self.timeout_s
        if own is None or self._deadline is None:
            return self._deadline if own is None else own
        return min(own, self._deadline)

    def _look(self) -> None:
        due = self._due()
        if due is not None and self._loop.time() < due:
            self._handle = self._loop.call_at(due, self._look)
            return
        self.expired = True
        self._context.cancelled.set("timeout")
        self._task.cancel()


async def run(tool: Attempted, args: dict[str, Any], context: ToolContext, pool: ThreadPool | None) -> ToolOutcome:
    """Make one attempt to run `tool` with checked `args`. Raise only `asyncio.CancelledError`."""
    began = perf_counter()
    watch = Watch(context, tool.options.timeout_s)
    if watch.too_late:
        return ToolOutcome(kind="not_executed", error_code="timeout", message=f"{tool.name} was not started: the run's deadline had passed")
    cancelled_too = False
    try:
        try:
            value = await _execute(tool, args, context, pool, watch)
        finally:
            cancelled_too = watch.stop()
    except ToolRaised as error:
        return _raised(tool, error, began)
    except (Exception, asyncio.CancelledError, SystemExit) as error:  # foreign code: any exception becomes an outcome
        if isinstance(error, asyncio.CancelledError) and (cancelled_too or (not watch.expired and _cancelled_from_outside())):
            raise
        if watch.expired:
            return _timed_out(tool, watch, began)
        return await _unexpected(tool, error, args, context, began)
    if watch.expired:
        return _timed_out(tool, watch, began)
    if tool.options.after is None and tool.result_check is None:
        return _capped(tool, value, began)
    return await _checked(tool, value, args, context, began)


async def _execute(tool: Attempted, args: dict[str, Any], context: ToolContext, pool: ThreadPool | None, watch: Watch) -> Any:
    """Call the function with its arguments and return what it returns."""
    positional, keywords = tool.arguments.bind(args, context)
    if tool.options.before is not None:
        watch.arm()
        await _before(tool, tool.options.before, args, context)
    if tool.is_async:
        return await _watched(tool.function(*positional, **keywords), watch)
    watch.arm()
    return await _in_thread(lambda: tool.function(*positional, **keywords), pool, watch)


@types.coroutine
def _watched(work: Coroutine[Any, Any, Any], watch: Watch) -> Generator[Any, Any, Any]:
    """Await `work`. The watch starts when the work first waits, so a tool that answers at once costs no timer."""
    given: Any = None
    raised: BaseException | None = None
    while True:
        try:
            waits: Any = work.send(given) if raised is None else work.throw(raised)
        except StopIteration as done:
            return done.value
        watch.arm()
        try:
            given, raised = (yield waits), None
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001 - handed on to the tool, as `await` would
            given, raised = None, error


async def _before(tool: Attempted, hook: Callable[..., Any], args: dict[str, Any], context: ToolContext) -> None:
    """Call the hook with a copy of the arguments, so it cannot change the arguments that were approved."""
    try:
        await _hook(hook, msgspec.json.decode(msgspec.json.encode(args)), context)
    except ToolRaised:
        raise
    except Exception as error:  # a hook is user code
        _keep(tool, "the before hook of ", error, context, args)
        raise NotExecuted(f"not executed: the before hook raised {problems.of_exception(error)}") from error


async def _in_thread(call: Callable[[], Any], pool: ThreadPool | None, watch: Watch) -> Any:
    own = pool is None
    pool = pool or ThreadPool(1)

    def work() -> Any:
        watch.started()
        return call()

    job = watch.job = pool.submit(work)
    try:
        value, error = await job.future
    except asyncio.CancelledError:
        if job.abandon() and watch.expired:
            raise NotExecuted(
                f"not started in time: all {pool.size} threads for sync tools were busy, {pool.stuck} more are stuck; "
                "make the tool async, or use a larger pool",
                error_code="timeout",
            ) from None
        raise
    finally:
        if own:
            pool.close()
    if error is not None:
        raise error
    return await value if inspect.isawaitable(value) else value


async def _hook(hook: Callable[..., Any], *args: Any) -> Any:
    answer = hook(*args)
    return await answer if inspect.isawaitable(answer) else answer


def _cancelled_from_outside() -> bool:
    """Whether the task was asked to stop. A tool may also raise `CancelledError` because its own work was cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _unknown(tool: Attempted) -> Literal["failed", "in_doubt"]:
    """Return the status of an attempt with an unknown end: harmless if the call can be repeated."""
    return "failed" if tool.options.read_only or tool.options.idempotent else "in_doubt"


def _timed_out(tool: Attempted, watch: Watch, began: float) -> ToolOutcome:
    message = f"Tool timed out after {watch.seconds()}"
    return ToolOutcome(kind=_unknown(tool), error_code="timeout", message=message, latency_ms=_since(began))


def _raised(tool: Attempted, error: ToolRaised, began: float) -> ToolOutcome:
    """Return the outcome that the tool stated by the type of its exception."""
    kind: Literal["failed", "not_executed", "fatal"] = "failed"
    if isinstance(error, NotExecuted):
        kind = "not_executed"
    elif isinstance(error, FatalToolError):
        kind = "fatal"
    message = str(error)
    message = message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 1] + "…"
    return ToolOutcome(
        kind=kind,
        error_code=error.error_code,
        message=message,
        details=_details(tool, error.details),
        latency_ms=_since(began),
        final=kind != "not_executed",  # a known failure is not retried
    )


def _details(tool: Attempted, details: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the details as plain JSON within the tool's cap."""
    if details is None:
        return None
    try:
        raw = results.encoded(details)
    except results.NotJson as error:
        return {"unreadable": str(error)}
    limit = tool.options.max_result_bytes
    return msgspec.json.decode(raw if len(raw) <= limit else results.preview(raw, limit_bytes=limit), type=dict[str, Any])


async def _unexpected(tool: Attempted, error: BaseException, args: dict[str, Any], context: ToolContext, began: float) -> ToolOutcome:
    """Return the outcome of an exception that does not tell what happened, unless `on_error` decides."""
    if tool.options.on_error is not None:
        translated = await _translated(tool, tool.options.on_error, error, args, context)
        if translated is not None:
            return _raised(tool, translated, began)
    _keep(tool, "", error, context, args)
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    said = said if len(said) <= LONGEST_MESSAGE else said[: LONGEST_MESSAGE - 1] + "…"
    kind = _unknown(tool)
    message = said if kind == "failed" else f"{said}. Whether the effect happened is not known"
    return ToolOutcome(kind=kind, error_code="handler_error", message=message, latency_ms=_since(began))


async def _translated(
    tool: Attempted, hook: Callable[..., Any], error: BaseException, args: dict[str, Any], context: ToolContext
) -> ToolRaised | None:
    try:
        answer = await _hook(hook, error, context)
    except ToolRaised as raised:
        return raised
    except Exception as raised:  # noqa: BLE001 - a hook is user code; the tool's own error stays the one that counts
        if raised is not error:
            _keep(tool, "the on_error hook of ", raised, context, args)
        return None
    if answer is None or isinstance(answer, ToolRaised):
        return answer
    log.warning(
        "tool %s: its on_error hook returned %r; it may return or raise ToolFailed, NotExecuted or FatalToolError", tool.name, answer
    )
    return None


def _keep(tool: Attempted, part: str, error: BaseException, context: ToolContext, args: Mapping[str, Any] = NO_ARGS) -> None:
    """Keep the traceback of a tool or hook, without the run's secrets and the call's sensitive arguments."""
    given = [args[name] for name in tool.options.sensitive if name in args]
    words = [text for value in given for text in {str(value), repr(value)} if len(text) >= SHORTEST_HIDDEN]

    def scrubbed(text: str) -> str:
        text = context.scrubbed(text)
        for word in words:
            text = text.replace(word, "<secret>")
        return text

    raised_by(error, f"{part}the tool {tool.name!r}, call {context.call_id}", scrubbed=scrubbed)


async def _checked(tool: Attempted, value: Any, args: dict[str, Any], context: ToolContext, began: float) -> ToolOutcome:
    """Return the outcome of a result after its schema check and the `after` hook."""
    check, after = tool.result_check, tool.options.after
    try:
        raw = results.encoded(value)
    except results.NotJson as error:
        return _unfit(tool, "result_not_serializable", f"its result is not JSON: {error}", began)
    if results.reported_failure(raw) is not None:
        return _capped(tool, value, began)
    problem = check.problem(raw) if check is not None else ""
    if problem:
        return _unfit(tool, "output_schema_failed", f"its result does not fit the declared schema: {problem}", began)
    if after is not None:
        try:
            changed = await _hook(after, msgspec.json.decode(raw), context)
        except ToolRaised as error:
            return _raised(tool, error, began)
        except Exception as error:  # noqa: BLE001 - a hook is user code
            _keep(tool, "the after hook of ", error, context, args)
            return _unfit(tool, "handler_error", f"its after hook raised {problems.of_exception(error)}", began)
        value = value if changed is None else changed
    return _capped(tool, value, began)


def _unfit(tool: Attempted, code: str, why: str, began: float) -> ToolOutcome:
    """Return the outcome of a call that ran but whose result cannot be used."""
    ran = "ran" if tool.options.read_only else "ran, and its effects happened"
    return ToolOutcome(kind="failed", error_code=code, message=f"{tool.name} {ran}, but {why}", latency_ms=_since(began))


def _capped(tool: Attempted, value: Any, began: float) -> ToolOutcome:
    """Return the outcome of a result. A result over the cap becomes a preview."""
    try:
        raw = results.encoded(value)
    except results.NotJson as error:
        return _unfit(tool, "result_not_serializable", f"its result is not JSON: {error}", began)
    limit = tool.options.max_result_bytes
    shown, full = (raw, None) if len(raw) <= limit else (results.preview(raw, limit_bytes=limit), raw)
    failure = results.reported_failure(raw)
    if failure is None:
        return ToolOutcome(kind="ok", result=shown, full=full, latency_ms=_since(began))
    said, message = failure.get("error"), failure.get("message")
    code = said if isinstance(said, str) and said else "handler_error"
    return ToolOutcome(
        kind="failed",
        error_code=code,
        message=message if isinstance(message, str) and message else code,
        details=msgspec.json.decode(shown, type=dict[str, Any]),
        full=full,
        latency_ms=_since(began),
    )


def _since(began: float) -> float:
    return (perf_counter() - began) * 1000.0


async def settle(tool: Attempted, context: ToolContext, pool: ThreadPool | None) -> ToolOutcome | None:
    """Return what `reconcile` knows about an earlier attempt. None if it does not know, fails or takes too long."""
    reconcile = tool.options.reconcile
    if reconcile is None:
        return None
    began = perf_counter()
    watch = Watch(context, tool.options.timeout_s)
    args = (context.idempotency_key, context) if tool.reconcile_takes_context else (context.idempotency_key,)
    watch.arm()
    cancelled_too = False
    try:
        try:
            if inspect.iscoroutinefunction(reconcile):
                answer = await reconcile(*args)
            else:
                answer = await _in_thread(lambda: reconcile(*args), pool, watch)
        finally:
            cancelled_too = watch.stop()
    except ToolRaised as error:
        outcome = _raised(tool, error, began)
        return msgspec.structs.replace(outcome, kind="failed") if outcome.kind == "fatal" else outcome
    except (Exception, asyncio.CancelledError, SystemExit) as error:  # foreign code: "not known" is a valid answer
        if isinstance(error, asyncio.CancelledError) and (cancelled_too or (not watch.expired and _cancelled_from_outside())):
            raise
        _keep(tool, "reconcile of ", error, context)
        return None
    match answer:
        case None:
            return None
        case Happened(result=result):
            return _capped(tool, result, began)
        case NotHappened(why=why):
            return ToolOutcome(
                kind="not_executed",
                error_code="not_executed",
                message=why or "reconcile reports that it did not happen",
                latency_ms=_since(began),
            )
        case _:
            log.warning("tool %s: reconcile returned %r; return Happened(result), NotHappened() or None", tool.name, answer)
            return None
