"""The answers that a tool's `reconcile` may give about an earlier attempt with an unknown outcome.

    async def settled(key: str) -> Happened | NotHappened | None:
        payment = await bank.find(key)
        return Happened(payment.receipt) if payment else NotHappened("the bank has no such key")

`None` means: not known. The call then stays in doubt until it is settled in another way.
"""

from __future__ import annotations

from typing import Any

import msgspec

from detent.core.errors import Explained


class Happened(msgspec.Struct, metaclass=Explained, frozen=True):
    """The earlier attempt did its work; `result` is what it would have returned."""

    result: Any = None


class NotHappened(msgspec.Struct, frozen=True):
    """The earlier attempt did nothing, and will not: the call may be made again."""

    why: str = ""
