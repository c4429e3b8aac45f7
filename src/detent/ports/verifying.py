"""Verifying: checks an answer before it ends the run (`Agent(verify=)`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, cast

from detent.core.budget import NOTHING, Usage
from detent.core.events import FAILED
from detent.ports.planning import View


class AnswerView(View, frozen=True, kw_only=True):
    """What a verifier sees besides the answer: the planner's view, with the `results` of all passes of the run, and the run's usage."""

    usage: Usage = NOTHING
    running_s: float = 0.0


Verifier = Callable[[Any, Any], Any]
"""Gets an answer and the view (`AnswerView`). Returns what is wrong with the answer as a text, or "" or None if it is right. May be a
coroutine function. If it raises, the answer could not be checked and the run fails."""


class Stated:
    """A verifier that an agent file can name. `entry` is its form in the log and in an agent file."""

    __slots__ = ("_check", "entry")

    def __init__(self, entry: dict[str, Any], check: Verifier) -> None:
        self.entry, self._check = entry, check

    def __call__(self, answer: Any, view: Any) -> Any:
        return self._check(answer, view)


async def verify(verifier: Verifier, answer: Any, view: Any) -> str:
    """Return the objection of `verifier`, or "". Raise `TypeError` if it returns anything but a text or None."""
    said: Any = verifier(answer, view)
    said = await said if inspect.isawaitable(said) else said
    if said is not None and not isinstance(said, str):
        said = type(said).__name__
        raise TypeError(f'it returned {said}; a verifier returns what is wrong with the answer as a text, "" or None when nothing is')
    return (said or "").strip()


class Answers(Protocol):
    """Decides whether answers count. `judge` calls the agent's verifiers and returns their objection, or "".

    `conclude` decides on a pass's answer at the end of a turn, and records the decision. `context` is the pass's `KernelContext`.
    """

    async def judge(self, answer: Any, context: Any) -> str: ...

    async def conclude(self, context: Any) -> None: ...


def verdict_label(number: int, entry: dict[str, Any], answer_digest: str) -> str:
    """Return the label of a recorded verdict: the number and name of the check, and the answer."""
    return f"verify {number} {verifier_name(entry)} {answer_digest[:8]}"


def verdict_told(label: str, value: Any) -> str | None:
    """Return a recorded verdict as a text; None for the value of another effect."""
    parts = label.split(" ")
    said: dict[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if parts[0] != "verify" or len(parts) < 4 or not {"accepted", FAILED} & said.keys():
        return None
    outcome = (
        "accepted" if said.get("accepted") else f"failed: {said[FAILED]}" if FAILED in said else f"objects: {said.get('objection', '')}"
    )
    return f"check {' '.join(parts[2:-1])}: {outcome}"


def verifier_name(entry: dict[str, Any]) -> str:
    """Return the name of an entry of `Agent(verify=)` in the log: its `name`, otherwise its kind with the function or program that it names."""
    if entry.get("name"):
        return str(entry["name"])
    kind = next(iter(entry))
    said: Any = entry[kind]
    if kind == "function":
        return f"function {str(said).rpartition(':')[2]}"
    return f"command {said[0]}" if kind == "command" else kind
