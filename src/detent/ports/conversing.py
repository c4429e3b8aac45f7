"""The conversation of a session: what the runs before this one said, as data.

A run of a session has one artifact with it (`InSession.conversation`), written before its first record. So the run is complete by itself: what happens
to earlier runs later changes nothing in it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from detent.core.budget import NOTHING, Budget, Usage
from detent.core.events import Origin

Rule = Literal["reject", "enqueue", "steer", "interrupt", "rollback"]
"""What happens to a message that arrives while a run of the session is in progress."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of a conversation.

    `kind`: `user` (a message or a reply), `model` (an answer or a question), `tool` (a call and its result), `note` (how a run ended without an answer,
    or `context` that was put in). `number` is the message of the session that it belongs to, `run_id` the run of that message. `origin` says where its
    words came from; it has no seal, because the run's log names the whole conversation by digest.
    """

    kind: Literal["user", "model", "tool", "note"]
    text: str = ""
    number: int = 0
    run_id: str = ""
    message_id: str = ""
    tool: str = ""
    args: Any = None
    ok: bool | None = None
    content: Any = None
    attachments: tuple[Any, ...] = ()
    origin: Origin = Origin()

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the sources of its words, as the provenance policy names them."""
        return self.origin.labels

    @property
    def trusted(self) -> bool:
        """Whether none of its words came from an untrusted source."""
        return self.origin.trusted


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that arrived while a run was in progress and is the next run (`enqueue`, `interrupt`, `rollback`)."""

    text: str
    message_id: str
    rule: Rule = "enqueue"
    by: str = ""
    attachments: tuple[Any, ...] = ()
    variables: dict[str, Any] = {}


class Conversation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run of a session knows of the session when it begins.

    `size` is about how many bytes `messages` have, 0 if that is not known. `dropped` counts the messages that no longer fit the profile's budget.
    `summary` stands for them, None where they were only cut. The first `leaving` of `messages` do not fit: they are not shown, and the run's first plan
    has them in the summary. `sent` has the numbers of earlier messages by the digest of the id that their sender gave. `used`, `running_ms` and
    `total_ms` are what all earlier runs used. `waiting` are messages that come after this one.
    """

    messages: tuple[Message, ...] = ()
    size: int = 0
    dropped: int = 0
    summary: Message | None = None
    leaving: int = 0
    sent: dict[str, int] = {}
    used: Usage = NOTHING
    running_ms: float = 0.0
    total_ms: float = 0.0
    budget: Budget | None = None
    waiting: tuple[Waiting, ...] = ()


NO_CONVERSATION = Conversation()
