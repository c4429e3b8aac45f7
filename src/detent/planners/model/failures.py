"""Failures of a model call by class: exceptions of pydantic-ai, of vendors and of HTTP clients become `ModelCallFailure`.

The class decides what happens next (see `core.errors`). The gateway retries retryable ones. The others end the run with a message that names
the variable or the model, and the run can be reopened later. No message contains a key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from detent.core.budget import Usage
from detent.core.errors import ConfigError, ModelCallFailure, ModelFailureKind
from detent.expressions.spellings import without_keys
from detent.planners.providers import key_hint, near_misses
from detent.ports.http_failures import kind_of_status, says_overflow

_FILTER_CODES = (
    "content_filter",
    "content_policy_violation",
    "responsibleaipolicyviolation",
    "sensitive_words_detected",
    "data_inspection_failed",
)
_KEY = re.compile(r"\b(sk|pk|gsk|key|xai|AIza|AKIA|Bearer)[-_ ]?[A-Za-z0-9_\-*]{8,}")


def failure_of(
    error: BaseException, *, model: str, usage: Usage | None = None, key: str = "", keys: Sequence[str] = (), address: str = ""
) -> ModelCallFailure:
    """Return the failure for an exception of a model call; `model` is the full name, such as "openai:gpt-5".

    `key` says what to do about a refused key, if it is not the key of the named provider. `keys` are the keys that requests carry, in any form: they
    are removed from the provider's message. `address` says what to check if the answer does not come from an API, which only a base URL can cause.
    """
    if isinstance(error, ModelCallFailure):
        return error
    inner: Any = getattr(error, "exceptions", ())  # the causes in a group
    if len(inner) == 1:
        return failure_of(inner[0], model=model, usage=usage, key=key, keys=keys, address=address)
    kind = kind_of(error)
    message = _message(error, kind, model, key or key_hint(model), keys)
    if address and (kind in ("unknown_model", "connection") or (kind == "server" and _no_answer(error))):
        message = f"{message}; check {address}"
    return ModelCallFailure(message, kind=kind, retry_after_s=_retry_after(error), usage=usage)


def _no_answer(error: BaseException) -> bool:
    """Whether the answer does not come from an API: a redirection, or a body that is not JSON or has the wrong structure."""
    from pydantic_ai.exceptions import ModelAPIError

    redirected = 300 <= getattr(error.__cause__, "status_code", 0) < 400
    return redirected or not isinstance(error, ModelAPIError) or isinstance(error.__cause__, ValueError)


def kind_of(error: BaseException) -> ModelFailureKind:
    """Return the class of a failed model call."""
    from pydantic_ai import exceptions as x

    classes: tuple[tuple[tuple[type[BaseException], ...], ModelFailureKind], ...] = (
        ((x.ModelContextWindowExceededError,), "context_overflow"),
        ((x.ModelQuotaExceededError,), "quota"),
        ((x.ModelRateLimitError,), "rate_limited"),
        ((x.ModelTimeoutError, x.ModelRequestTimeout), "timeout"),
        ((x.ModelConnectionError,), "connection"),
        ((x.ContentFilterError,), "content_filter"),
    )
    for kinds, kind in classes:
        if isinstance(error, kinds):
            return kind
    if isinstance(error, x.ModelHTTPError):
        return _kind_of_status(error)
    if isinstance(error, x.ModelAuthenticationError):
        return "auth"
    if isinstance(error, x.ModelNotFoundError):
        return "unknown_model"
    if isinstance(error, x.ModelRequestRejectedError | x.UserError | ConfigError):
        return "bad_request"
    if isinstance(error, x.ModelAPIError) and says_overflow(str(error)):
        return "context_overflow"  # reported in a stream, without a status
    if isinstance(error, x.ModelAPIError | x.UnexpectedModelBehavior):
        return "server"  # an invalid answer: a body that is not JSON, a stream without its end
    return _kind_of_transport(error)


def _kind_of_status(error: Any) -> ModelFailureKind:
    from pydantic_ai import exceptions as x

    status, said = int(error.status_code), str(error.body or "")
    code = f"{error.provider_error_code or ''} {error.provider_error_type or ''} {said[:2000]}".lower()
    if status in (400, 403) and any(word in code for word in _FILTER_CODES):
        return "content_filter"
    kind = kind_of_status(status, said)
    if kind in ("context_overflow", "timeout"):
        return kind
    if isinstance(error, x.ModelAuthenticationError):
        return "auth"
    return "unknown_model" if isinstance(error, x.ModelNotFoundError) else kind


def _kind_of_transport(error: BaseException) -> ModelFailureKind:
    """Return the class of a transport error, by its class name in httpx, httpx2, aiohttp, botocore or ssl."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"TimeoutError", "TimeoutException", "APITimeoutError", "ReadTimeoutError", "ConnectTimeoutError", "ServerTimeoutError"}:
        return "timeout"
    if names & {"TransportError", "APIConnectionError", "HTTPClientError", "ClientConnectionError", "StreamError", "OSError"}:
        return "connection"
    if isinstance(error, LookupError | AttributeError | TypeError | RecursionError) or "ValidationError" in names:
        return "server"  # the client's parser found less than every answer has, or something else
    return "bad_request"


def _retry_after(error: BaseException) -> float | None:
    after = getattr(error, "retry_after", None)
    return float(after) if isinstance(after, int | float) else None


def _message(error: BaseException, kind: ModelFailureKind, model: str, key: str, keys: Sequence[str]) -> str:
    status = getattr(error, "status_code", None)
    with_status = f" (HTTP {status})" if status is not None else ""
    said = _said(error, keys)
    match kind:
        case "auth":
            return f"model {model!r}: the provider refused the key{with_status}; {key}, then reopen the run"
        case "unknown_model":
            near = near_misses(model)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "check the name with the provider"
            return f"model {model!r} is not known to the provider{with_status}; {hint} ({said})"
        case "quota":
            return f"model {model!r}: the account's quota or credit is used up{with_status}: {said}; top it up or use another model, then reopen the run"
        case "rate_limited":
            return f"model {model!r}: rate limit reached{with_status}: {said}"
        case "context_overflow":
            return f"model {model!r}: the prompt is longer than its context{with_status}: {said}"
        case "content_filter":
            return f"model {model!r}: the provider's content filter refused{with_status}: {said}"
        case "timeout":
            return f"model {model!r}: no answer in time{with_status}: {said}"
        case "connection":
            return f"model {model!r}: {'connection refused' if _refused(error) else 'the connection failed'}: {said}"
        case "server":
            return f"model {model!r}: the provider failed{with_status}: {said}"
        case _:
            return f"model {model!r}: the request was refused{with_status}: {said}"


def _said(error: BaseException, keys: Sequence[str]) -> str:
    """Return the provider's message, shortened, without `keys` and without texts that look like a key."""
    body: Any = getattr(error, "body", None)
    text = _of_body(body) or str(error) or type(error).__name__
    if not hasattr(error, "body"):
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if cause := _cause(error):
        text = f"{text.rstrip('.')} ({cause})"
    text = _KEY.sub("[key]", without_keys(" ".join(text.split()), keys))
    return text if len(text) <= 400 else text[:397] + "..."


def _cause(error: BaseException) -> str:
    """Return the network's message if a client reports only that the call failed; never a client's message about the request's content."""
    for _ in range(10):
        if error.__cause__ is None:
            break
        error = error.__cause__
        if {kind.__name__ for kind in type(error).__mro__} & {"NetworkError", "RemoteProtocolError", "OSError"} and str(error):
            return f"{type(error).__name__}: {error}"
    return ""


def _refused(error: BaseException) -> bool:
    """Whether nothing listens at the address: follows the causes, a few levels deep."""
    for _ in range(10):
        if isinstance(error, ConnectionRefusedError):
            return True
        inner: Any = getattr(error, "exceptions", ())
        below = inner[0] if inner else error.__cause__ or error.__context__
        if below is None:
            break
        error = below
    return False


def _of_body(body: Any) -> str:
    """Return the message in an error body, in the forms of OpenAI, Anthropic, Google and others."""
    if isinstance(body, dict):
        inner: Any = body.get("error", body)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if isinstance(inner, dict):
            found: Any = inner.get("message") or inner.get("detail")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            return found if isinstance(found, str) else ""
        return inner if isinstance(inner, str) else ""
    return body if isinstance(body, str) else ""
