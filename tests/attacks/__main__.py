"""Try every attack that is known on Detent, and say of each whether it is `held` or `BROKEN`.

    python tests/attacks                 # all
    python tests/attacks -k imports      # pytest's choice of them

Each attack is a test of this folder, and its docstring says in one line what is tried. The default suite leaves a few out that are costly and
like others; here and in `scripts/check` all are tried.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HYPOTHESIS_PROFILE", "many")

import pytest


class Lines:
    """Prints one line for each attack."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note what each attack tries."""
        for item in items:
            tried = (getattr(getattr(item, "function", None), "__doc__", "") or item.name).strip().splitlines()[0]
            case = f" [{item.name.partition('[')[2]}" if "[" in item.name else ""
            self.said[item.nodeid] = f"{Path(item.path).stem.removeprefix('test_')}: {tried}{case}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Say how an attack ended."""
        if report.when == "call" or report.outcome != "passed":
            ended = {"passed": "held", "failed": "BROKEN", "skipped": "not tried"}[report.outcome]
            if report.when != "teardown" or report.failed:
                print(f"{ended:9} {self.said.get(report.nodeid, report.nodeid)}", flush=True)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.exit(pytest.main([str(here), "-p", "no:terminal", "-o", "addopts=--import-mode=importlib", *sys.argv[1:]], plugins=[Lines()]))
