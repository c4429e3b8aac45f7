"""Durations as people write them, such as `"1m30s"`. Options, files and actions convert the text; the log contains seconds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, cast

import msgspec

from detent.core.errors import ConfigError

T = TypeVar("T")

UNITS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1, "ms": 0.001}
PATTERN = "^ *(?=[0-9])" + "".join(rf"(?:([0-9]{{1,9}}(?:\.[0-9]+)?) ?{unit} *)?" for unit in UNITS) + "$"
WRITTEN = "seconds, such as 90, or text such as '1m30s' (units: w, d, h, m, s, ms)"


def seconds(said: T | str, name: str, error: type[ConfigError] = ConfigError) -> T:
    """Return a duration given as text in seconds, and anything else unchanged. Raise `error`, starting with `name`, for other text."""
    if not isinstance(said, str):
        return said
    if (found := re.fullmatch(PATTERN, said)) is None:
        # msgspec reports a ValueError with its place in the data that it decodes
        raise type(error.__name__, (error, ValueError), {})(f"{name} is {said!r}; write {WRITTEN}")
    return cast("T", sum(float(count) * unit for count, unit in zip(found.groups("0"), UNITS.values(), strict=True)))


def in_seconds(struct: msgspec.Struct, where: str, error: type[ConfigError] = ConfigError) -> None:
    """Replace text by seconds in the fields of a new struct whose names end in `_s`; raise like `seconds`."""
    for name in struct.__struct_fields__:
        if name.endswith("_s") and isinstance(value := getattr(struct, name), str):
            msgspec.structs.force_setattr(struct, name, seconds(value, f"{where}{name}", error))


if TYPE_CHECKING:

    class Seconds(Generic[T]):
        """A field that accepts text and holds a number: `Seconds[float]`, or `Seconds[float | None]`."""

        def __get__(self, instance: Any, owner: Any) -> T: ...
        def __set__(self, instance: Any, value: T | str) -> None: ...
else:
    Seconds = T | Annotated[str, msgspec.Meta(extra_json_schema={"pattern": PATTERN})]


def usually(value: float | None) -> Any:
    """Return the default of a field of seconds."""
    return value
