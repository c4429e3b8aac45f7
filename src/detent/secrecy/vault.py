"""The secrets of one run: given to tools that may have them, and removed from everything that tools return.

A run's host has names (`Host.credential_refs`). A tool declares the names that it needs (`credentials=("github",)`) and asks its
context (`context.secret("github")`). Only then is the value read from its source. From then on the vault replaces it, in all its usual
forms, in everything that any tool of the run returns, raises or streams in this process, before that is recorded.
"""

from __future__ import annotations

import threading
from typing import Any, cast

import msgspec

from detent.core.agent import Host
from detent.core.errors import ToolFailed
from detent.expressions.spellings import SHORTEST, forms_of
from detent.ports import SecretSource, ToolOutcome, ToolSpec

_CUT = 6
"""The shortest beginning of a secret that is recognised where a text was cut."""


class Vault:
    """The secrets of one run in this process: gives them to tools that may have them, and removes them from everything else.

    Usable from any thread.
    """

    __slots__ = ("_forms", "_host", "_lock", "_source")

    def __init__(self, source: SecretSource | None, host: Host) -> None:
        self._source, self._host = source, host
        self._forms: tuple[tuple[str, str], ...] = ()
        self._lock = threading.Lock()

    def get(self, name: str, tool: ToolSpec) -> str:
        """Return the secret `name` for `tool`. Raise `ToolFailed` if the tool did not declare it, the host was not given it, or it does not exist."""
        if name not in tool.credentials:
            raise _refused(
                "credential_not_declared", f"tool {tool.name!r} did not declare the secret {name!r}; give it credentials=({name!r},)"
            )
        if name not in self._host.credential_refs:
            raise _refused("credential_not_granted", f"the secret {name!r} was not given to this run; name it in Host(credential_refs=...)")
        try:
            value = None if self._source is None else self._source.get(name, self._host)
        except Exception as error:  # noqa: BLE001 - a source is foreign code, and its message may hold what it read
            raise _refused("credential_missing", f"the secret {name!r} could not be read: {type(error).__name__}") from None
        if not value:
            raise _refused("credential_missing", f"the secret {name!r} was not found; Engine(secrets=...) sets where secrets are kept")
        if len(value) < SHORTEST:
            raise _refused(
                "credential_unusable", f"the secret {name!r} has fewer than {SHORTEST} characters, too few to keep it out of the log"
            )
        self._remember(name, value)
        return value

    def _remember(self, name: str, value: str) -> None:
        shown = f"<credential:{name}>"
        with self._lock:
            forms = {**dict(self._forms), **dict.fromkeys(forms_of(value), shown)}
            self._forms = tuple(sorted(forms.items(), key=lambda form: -len(form[0])))

    def text(self, text: str) -> str:
        """Return `text` with every used secret replaced by its name, and at its end also the beginning of a secret that was cut."""
        for form, shown in self._forms:
            if form in text:
                text = text.replace(form, shown)
        for form, shown in self._forms:
            text = _without_cut(text, form, shown)
        return text

    def data(self, value: Any) -> Any:
        """Return JSON data with every string in it, including keys, treated as by `text`."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.data(part) for key, part in cast("dict[Any, Any]", value).items()}
        if isinstance(value, (list, tuple)):
            return [self.data(part) for part in cast("list[Any]", value)]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and self.text(str(value)) != str(value):
            return self.text(str(value))
        return value

    def outcome(self, outcome: ToolOutcome) -> ToolOutcome:
        """Return a tool's outcome without secrets: result, full result, message, code and details."""
        if not self._forms:
            return outcome
        return msgspec.structs.replace(
            outcome,
            result=self._json(outcome.result),
            full=None if outcome.full is None else self._json(outcome.full),
            message=self.text(outcome.message),
            error_code=self.text(outcome.error_code),
            details=self.data(outcome.details),
        )

    def _json(self, raw: bytes) -> bytes:
        return msgspec.json.encode(self.data(msgspec.json.decode(raw)))


def _refused(code: str, message: str) -> ToolFailed:
    return ToolFailed(message, error_code=code)


def _without_cut(text: str, form: str, shown: str) -> str:
    """Return `text` without a cut beginning of `form` at its end (also before an ellipsis)."""
    body = text.rstrip("….")
    for length in range(min(len(form) - 1, len(body)), _CUT - 1, -1):
        if body.endswith(form[:length]):
            return body[:-length] + shown + text[len(body) :]
    return text
