"""Exceptions of foreign code: one line for the log, and the traceback for the author of that code.

All code that catches an exception of foreign code reports it here. While a run is advanced, its world keeps the traceback with the run
(`running.tracebacks`); otherwise it only goes to `logging`. A planner may see the one line, but never a traceback.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType

from detent.core.errors import DetentError, EffectFailed, PlannerFailed

OWN = str(Path(__file__).resolve().parents[1])
"""The directory of this package. Frames in it are not the user's."""

log = logging.getLogger("detent")


def tell(who: str, error: str, at: str, text: str) -> None:
    """Log a traceback that no run keeps."""
    log.error("%s raised %s (%s)\n%s", who, error, at, text)


def unheard(who: str, error: str, at: str, text: str) -> None:
    """Keep and log nothing: a re-execution raises what the live run already raised and kept."""


KEEP: ContextVar[Callable[[str, str, str, str], None]] = ContextVar("detent_traceback", default=tell)
"""The function that keeps a traceback with the current task's run. It gets who raised, the one line, the place and the traceback."""


def raised_by(error: BaseException, who: str, *, scrubbed: Callable[[str], str] = str) -> str:
    """Return an exception of foreign code in one line and keep its traceback with the run. `who` is "the planner", "the tool 'pay'", ...

    `scrubbed` removes secrets that only the caller knows from the traceback. No traceback is kept for an error of Detent without user code
    in it, for `PlannerFailed`, or for `EffectFailed`.
    """
    if not isinstance(error, (PlannerFailed, EffectFailed)) and not (isinstance(error, DetentError) and all(map(_is_own, _frames(error)))):
        KEEP.get()(who, scrubbed(in_words(error)), place_of(error), scrubbed(trace_of(error)))
    return in_words(error)


def in_words(error: BaseException) -> str:
    """Return an exception in one line: our own messages unchanged, others with the exception's type."""
    try:
        said = str(error)
    except Exception as other:  # noqa: BLE001 - foreign code: how an exception shows itself
        said = f"(its __str__ raised {type(other).__name__})"
    return said if isinstance(error, DetentError) else f"{type(error).__name__}: {said}"


def trace_of(error: BaseException) -> str:
    """Return the traceback as Python shows it, starting at the first frame outside of Detent."""
    first = next((trace for trace in _frames(error) if not _is_own(trace)), error.__traceback__)
    shown = "".join(traceback.format_exception(type(error), error, first))
    return (
        re.sub(r"^(?:  )*[|+] ?", "", shown, flags=re.MULTILINE) if isinstance(error, BaseExceptionGroup) else shown
    )  # a secret may contain line breaks


def place_of(error: BaseException) -> str:
    """Return file, line and function of the last frame outside of Detent, such as `app.py:31 in plan`; "" if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    theirs = [trace for trace in _frames(error) if not _is_own(trace)]
    if not theirs:
        return ""
    code = theirs[-1].tb_frame.f_code
    return f"{code.co_filename}:{theirs[-1].tb_lineno} in {code.co_name}"


def _frames(error: BaseException) -> Iterator[TracebackType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_own(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(OWN)
