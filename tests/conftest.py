"""What every test stands on: the same search for examples each time, and an environment without settings of one's own."""

# ruff: noqa: E402 - what is set before the imports is how they are compiled

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent

# Where nothing compiled may be kept beside the sources, it is kept with pytest's cache: else every process that starts compiles it all.
if sys.dont_write_bytecode and sys.pycache_prefix is None:
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(ROOT / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False

# What is imported and collected stays to the end, so nothing is garbage until the tests run.
gc.disable()

from hypothesis import HealthCheck, settings

from amounts import PROFILE, combined, left_out, thin, times
from stores.postgres.cluster import own_postgres, pgvector, postgres, postgres_url
from workers.restate_server import own_restate, restate

__all__ = ["own_postgres", "own_restate", "pgvector", "postgres", "postgres_url", "restate"]  # fixtures

# Two runs of the suite try the same examples, so that what was green is green again; `many` draws more of them, and `soak` looks further,
# with new ones each time (`amounts`).
# No deadline: a slow machine is not a failure.
_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
_SAME: dict[str, Any] = {"deadline": None, "derandomize": True, "database": None, "print_blob": True, "suppress_health_check": _SLOW}
settings.register_profile("default", max_examples=times(100), **_SAME)
settings.register_profile("many", max_examples=100, **_SAME)
settings.register_profile("soak", deadline=None, max_examples=2_000, print_blob=True, suppress_health_check=_SLOW)
settings.load_profile(PROFILE)

for name in [name for name in os.environ if name.startswith("DETENT_")]:
    del os.environ[name]

# No test reads or writes the state of whoever runs it.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="detent-tests-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# Nothing but loopback is reached, so nobody's certificates are trusted: every client of a model would read those of all authorities.
os.environ["SSL_CERT_FILE"] = str(TESTS / "nobody.pem")

# Processes that tests start see the same code as the tests, whether or not it is installed.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))


def _interrupted(number: int, frame: FrameType | None) -> None:
    """End the tests at Ctrl-C."""
    raise KeyboardInterrupt


# What tests start hears Ctrl-C, also where they run in the background of a script, which has it ignored. The handler is not Python's own: each
# `asyncio.run` would replace that one, and `signal` writes out the task and its result then, only to find that they are no number.
signal.signal(signal.SIGINT, _interrupted)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes run the tests: two more than there are processors, because a third of the time a test waits; at most four."""
    return min(4, (os.cpu_count() or 1) + 2)


QUICK = ("contract", "core", "kernel", "laws", "config", "policies", "secrecy", "meta_tools", "capabilities", "strategies", "observers")
"""The folders whose tests give a first answer: what is true of a run, in memory, without another process or server."""


def _quick(path: Path) -> bool:
    return path.relative_to(TESTS).parts[0] in QUICK


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m quick`, import nothing else: collecting the other tests takes longer than running these."""
    wanted = config.getoption("markexpr") != "quick" or collection_path == TESTS or TESTS not in collection_path.parents
    return None if wanted or _quick(collection_path) else True


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker begin with other folders: in a fresh checkout, what one has compiled the others need not compile."""
    report = yield
    if collector.path == TESTS and isinstance(report.result, list):
        number, workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:], os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
        first = len(report.result) * int(number) // int(workers)
        report.result = [*report.result[first:], *report.result[:first]]
    return report


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of the quick folders, where marks are asked for."""
    if item.config.getoption("markexpr") and TESTS in item.path.parents and _quick(item.path):
        item.add_marker("quick")


def _subject(item: pytest.Item) -> str:
    """Return what tests share of which a part is tried: their function, or their class where all of that is `thinned`."""
    parent = item.parent
    whole = isinstance(parent, pytest.Class) and any(mark.name == "thinned" for mark in parent.own_markers)
    return parent.nodeid if whole and parent is not None else item.nodeid.partition("[")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not tried by default: tests that are `in_check`, and some of those that are `crossed` or `thinned`.

    Of the latter two, what is asked for by its whole name is all that there is of it, and runs. Where nothing but the former is asked for, it
    stays, to be skipped with its reason.
    """
    # Whatever was collected first, those that read the whole source come first: at the end they would be split, and each worker would read it.
    items.sort(key=lambda item: (item.path.parent != TESTS, item.path.parts))
    gone = {item for item in items if left_out(item)}
    if len(gone) == len(items):
        gone = set()
    for mark, chosen in (("crossed", combined), ("thinned", thin)):
        functions: dict[str, list[pytest.Item]] = {}
        for item in items:
            if item not in gone and item.get_closest_marker(mark) is not None:
                functions.setdefault(_subject(item), []).append(item)
        kept = {item for tests in functions.values() for item in chosen(tests)}
        gone |= {item for tests in functions.values() for item in tests if item not in kept}
    if gone:
        config.hook.pytest_deselected(items=[item for item in items if item in gone])
        items[:] = [item for item in items if item not in gone]


def pytest_collection_finish() -> None:
    """Spare the garbage collector what has been imported and collected: it stays to the end. Of the rest it finds enough when it looks seldom."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a parameter without its address, so that every worker collects the same tests."""
    return getattr(val, "__qualname__", type(val).__name__) if " at 0x" in repr(val) else None


def pytest_runtest_setup() -> None:
    """Forget of which models this process was told that they have no price: it is told once, and each test is to hear it."""
    if (pricing := sys.modules.get("detent.metering.pricing")) is not None:
        pricing.WARNED.clear()
