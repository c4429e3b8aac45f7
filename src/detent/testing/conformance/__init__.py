"""Contract suites: what every adapter of a seam has to keep, as tests that any pytest project can run against its own."""

from pathlib import Path

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{path.stem}" for path in Path(__file__).parent.glob("[!_]*.py")))
