"""The examples of the package: inside it in a wheel, next to the source in a checkout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from detent.config.schema_lines import schema_line
from detent.core.errors import ConfigError

SCHEMED = ("detent.toml", "agent.toml", "rules.yaml")
"""Files whose first line names their schema. The line is replaced when they are copied, because its path changes."""


def packaged(name: str) -> Path:
    """Return the directory of an example. Raise `ConfigError` if this installation does not have it."""
    package = Path(__file__).resolve().parent.parent
    for place in (package / "examples" / name, package.parent.parent / "examples" / name):
        if place.is_dir():
            return place
    raise ConfigError(f"this installation has no examples/{name}; install detent from its wheel, or run it from a checkout")


def texts(example: Path) -> Iterator[tuple[str, str]]:
    """Yield the files of an example as (path within it, text)."""
    for path in sorted(example.rglob("*")):
        if path.is_file() and not any(part.startswith(("__", ".")) for part in path.relative_to(example).parts):
            yield path.relative_to(example).as_posix(), path.read_text(encoding="utf-8")


def written(place: Path, text: str) -> None:
    """Write a file of an example to the new path `place`, with the schema of this installation. Raise `OSError`."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("x", encoding="utf-8") as file:
        file.write(schema_line(place) + text.split("\n", 1)[1] if place.name in SCHEMED else text)
