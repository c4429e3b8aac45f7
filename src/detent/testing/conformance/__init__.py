"""Contract suites: the promises of every adapter of a seam, as tests that any pytest project can run against its own adapter.

Rule: every check states a promise and where it is documented, and a deliberately broken adapter in `tests/testing/conformance` fails it.
Start with the file named after the seam: `store`, `planner`, `tool`, `policy`, ... Files with a longer name are parts of those suites.
"""

import sys
from pathlib import Path

if "pytest" in sys.modules:  # processes that a check starts need its helpers, and not the half of a second that importing pytest takes
    import pytest

    pytest.register_assert_rewrite(*(f"{__name__}.{path.stem}" for path in Path(__file__).parent.glob("[!_]*.py")))
