"""Checks the types of the examples, and of every Python block that a page shows, as strictly as those of the source.

A block whose first line names a file (`# tools.py`) is that file; one without continues the file before it. The files of a page are written to
`build/snippets`, beside each other, and pyright reads all of them at once. A block that repeats the skeleton of another (`...`) is checked too.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TO = ROOT / "build" / "snippets"
BLOCK = re.compile(r"^```python\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (?P<name>[\w./-]+\.py)\n")


def files_of(page: str) -> dict[str, str]:
    """Return the Python files that a page shows, by name; "" is what stands before the first name."""
    files: dict[str, str] = {}
    name = ""
    for match in BLOCK.finditer(page):
        named = NAMED.match(match["text"])
        name = named["name"] if named else name
        files[name] = f"{files[name]}\n\n{match['text']}" if name in files else match["text"]
    return files


def unnamed(pages: Sequence[Path]) -> list[str]:
    """Return the pages that begin with a Python block of which nobody knows which file it is."""
    return [page.relative_to(ROOT).as_posix() for page in pages if "" in files_of(page.read_text(encoding="utf-8"))]


def check() -> int:
    """Write the files of all pages and check their types; return the exit code."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    shutil.rmtree(TO, ignore_errors=True)
    for page in pages:
        for name, text in files_of(page.read_text(encoding="utf-8")).items():
            file = TO / page.relative_to(ROOT).with_suffix("") / (name or "unnamed.py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    roots = [
        {"root": str(folder), "extraPaths": [str(ROOT / "src"), str(folder), str(ROOT / "examples" / "extending")]} for folder in folders()
    ]
    options = {"pythonVersion": "3.11", "reportMissingTypeStubs": False, "reportMissingImports": "error"}
    both = [str(TO), str(ROOT / "examples")]
    config = {"include": both, "strict": both, "executionEnvironments": roots, **options}
    (TO / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pyright", "--project", str(TO / "pyrightconfig.json"), "--pythonpath", sys.executable], check=False
    ).returncode


def folders() -> list[Path]:
    """Return the folders of the pages, those of the examples and of the source."""
    return [*sorted({file.parent for file in TO.rglob("*.py")}, key=lambda folder: -len(folder.parts)), ROOT / "examples", ROOT / "src"]
