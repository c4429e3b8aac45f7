"""The line by which a file names its JSON Schema, so that an editor completes and checks what a person writes.

The schemas in `schemas/` come with the package and need no network. They are generated: scripts/docs.py makes them from the structs that
the files are read into.
"""

from __future__ import annotations

from pathlib import Path

SCHEMAS = Path(__file__).resolve().parent / "schemas"


def schema_line(file: str | Path) -> str:
    """Return the first line of `file`, which is named after its kind: `agent.toml`, `detent.toml`, `rules.yaml`.

    The schema is named relative to the file where this package is installed below it, as in a project's own `.venv`.
    """
    place, home = SCHEMAS / f"{Path(file).stem}.json", Path(file).resolve().parent
    where = f"./{place.relative_to(home).as_posix()}" if place.is_relative_to(home) else place.as_uri()
    return f"#:schema {where}\n" if Path(file).suffix == ".toml" else f"# yaml-language-server: $schema={where}\n"
