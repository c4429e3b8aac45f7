"""The messages of a trial: the user's messages and replies, the agent's questions and answers, as its log has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from detent.core.codec import encode
from detent.core.events import RunFinished, RunStarted, UserAsked, UserReplied
from detent.core.records import Record


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Something that one of them said."""

    who: Literal["user", "agent"]
    text: str


def talk_of(records: Sequence[Record]) -> list[Line]:
    """Return the messages of these runs, the oldest first."""
    found: list[Line] = []
    for record in records:
        match record.event:
            case RunStarted(goal=text):
                found.append(Line(who="user", text=text))
            case UserReplied(reply=reply):
                found.append(Line(who="user", text=reply if isinstance(reply, str) else encode(reply).decode()))
            case UserAsked(question=text, to="user"):
                found.append(Line(who="agent", text=text))
            case RunFinished(status="completed", output=output):
                found.append(Line(who="agent", text=output if isinstance(output, str) else encode(output).decode()))
            case _:
                pass
    return found
