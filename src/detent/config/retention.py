"""How long runs are kept, as data: ages by status."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from detent.core.durations import seconds
from detent.core.errors import ConfigError, Explained
from detent.core.state import TERMINAL, WAITING
from detent.ports.options import check_fields


class Retention(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """How long runs are kept. Workers and `detent gc` enforce it. The age of a run counts from its last record."""

    archive_after: str | dict[str, str] | None = None
    """The age at which a finished run is archived: `"90d"`, or by status: `{ completed = "30d", failed = "1w" }`."""
    archive_to: str | None = None
    """The directory for archives."""
    erase_after: str | dict[str, str] | None = None
    """The age at which a run is erased from the store and its archive: `"365d"` for finished runs, or by status. Waiting runs need their status."""

    def __post_init__(self) -> None:
        check_fields(self)
        for ages in (self.archived, self.erased):
            ages()
        if self.archive_after is not None and not self.archive_to:
            raise ConfigError("retention.archive_after needs a directory: set archive_to to the directory for archived runs")

    def archived(self) -> dict[str, timedelta]:
        """Return the age at which a run is archived, by status. Raise `ConfigError` for an invalid age or status."""
        return _ages("archive_after", self.archive_after, TERMINAL)

    def erased(self) -> dict[str, timedelta]:
        """Return the age at which a run is erased, by status. Raise `ConfigError` for an invalid age or status."""
        return _ages("erase_after", self.erase_after, (*TERMINAL, *WAITING))


def _ages(name: str, said: str | dict[str, str] | None, statuses: Sequence[str]) -> dict[str, timedelta]:
    ages: dict[str, timedelta] = {}
    for status, text in ({} if said is None else dict.fromkeys(TERMINAL, said) if isinstance(said, str) else said).items():
        if status not in statuses:
            raise ConfigError(f"retention.{name}.{status}: runs of this status are not removed; known: {', '.join(statuses)}")
        try:
            ages[status] = timedelta(seconds=seconds(text.strip(), "the age"))
        except (ConfigError, OverflowError):
            raise ConfigError(f"retention.{name}: {text!r} is not an age; write a number and a unit, such as 12h, 30d or 8w") from None
    return ages
