"""The examples that the package brings: in a wheel they are inside of it, in a checkout beside the source."""

from __future__ import annotations

from pathlib import Path

from detent.core.errors import ConfigError


def packaged(name: str) -> Path:
    """Return the directory of an example. Raise `ConfigError` where this installation has none."""
    package = Path(__file__).resolve().parent.parent
    for place in (package / "examples" / name, package.parent.parent / "examples" / name):
        if place.is_dir():
            return place
    raise ConfigError(f"this installation has no examples/{name}; install detent from its wheel, or run it from a checkout")
