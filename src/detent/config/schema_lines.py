"""The line that names a file's JSON Schema, so that an editor can complete and check the file.

The schemas in `schemas/` come with the package and need no network. scripts/docs.py generates them from the structs that the files are read into.
"""

from __future__ import annotations

from pathlib import Path

SCHEMAS = Path(__file__).resolve().parent / "schemas"


def schema_line(file: str | Path) -> str:
    """Return the first line for `file`. Its name tells its kind: `agent.toml`, `detent.toml`, `rules.yaml`.

    The schema path is relative if this package is installed below the file's directory, as in a project's own `.venv`.
    """
    place, home = SCHEMAS / f"{Path(file).stem}.json", Path(file).resolve().parent
    where = f"./{place.relative_to(home).as_posix()}" if place.is_relative_to(home) else place.as_uri()
    return f"#:schema {where}\n" if Path(file).suffix == ".toml" else f"# yaml-language-server: $schema={where}\n"
