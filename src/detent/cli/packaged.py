"""The examples that the package brings: in a wheel they are inside of it, in a checkout beside the source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from detent.config.schema_lines import schema_line
from detent.core.errors import ConfigError

SCHEMED = ("detent.toml", "agent.toml", "rules.yaml")
"""Files that name the schema of their kind on the first line, which leads elsewhere once they are copied."""


def packaged(name: str) -> Path:
    """Return the directory of an example. Raise `ConfigError` where this installation has none."""
    package = Path(__file__).resolve().parent.parent
    for place in (package / "examples" / name, package.parent.parent / "examples" / name):
        if place.is_dir():
            return place
    raise ConfigError(f"this installation has no examples/{name}; install detent from its wheel, or run it from a checkout")


def texts(example: Path) -> Iterator[tuple[str, str]]:
    """Yield the files of an example: path within it, text."""
    for path in sorted(example.rglob("*")):
        if path.is_file() and not any(part.startswith(("__", ".")) for part in path.relative_to(example).parts):
            yield path.relative_to(example).as_posix(), path.read_text(encoding="utf-8")


def written(place: Path, text: str) -> None:
    """Write a file of an example to `place`, which is new; it names the schema of this installation. Raise `OSError`."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("x", encoding="utf-8") as file:
        file.write(schema_line(place) + text.split("\n", 1)[1] if place.name in SCHEMED else text)
