"""The doors: what pages and examples import comes from `detent`, `detent.extend` and `detent.testing`, by names that stay.

Extras have a door of their own: `detent.server`, `detent.evals`, `detent.evals.inspect_bridge` and `detent.observers.otel`.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys

import pytest

from amounts import in_check
from docs.pages import ROOT

PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "examples").rglob("*.py")]
DEEPER = r"\b(?:from (?!detent(?:\.extend|\.testing|\.server|\.evals(?:\.inspect_bridge)?|\.observers\.otel)? )|import )detent\.[\w.]+"

BEFORE = {
    "detent.core.errors": "ConfigError Conflict ModelCallFailure NotAllowedNow RunBusy RunNotFound StoreError",
    "detent.core.fold": "fold",
    "detent.core.records": "Record RunHead",
    "detent.core.state": "transition",
    "detent.clock": "RandomIds SystemClock",
    "detent.kernel.act": "act",
    "detent.kernel.guards": "default_guards",
    "detent.kernel.kernel": "make_kernel",
    "detent.kernel.meta_tools": "Answer MetaTool",
    "detent.kernel.think": "think",
    "detent.loading": "load_agent",
    "detent.model_limits": "ModelLimits ModelRetries",
    "detent.planners": "RulePlanner load_rules",
    "detent.planners.fallback": "Candidate FallbackPlanner",
    "detent.planners.generation": "Generation Request",
    "detent.planners.generators": "ChatCompletionsGenerator LlamaCppGenerator OllamaGenerator",
    "detent.planners.model": "ModelPlanner",
    "detent.planners.on_device": "OnDevicePlanner",
    "detent.planners.transcription": "transcribe",
    "detent.planners.verifiers": "all_verifiers answer_is_integer grounded require_tool_used",
    "detent.policies.provenance": "ProvenancePolicy",
    "detent.ports": "Block Branch Call KernelHooks ModelAnswer RunQuery Signal Skip Spent Together ToolSpec Verdict strategy",
    "detent.pricing": "ModelPrice",
    "detent.tools": "Bounded Happened NotHappened",
    "detent.tools.fetch": "HeaderSecret fetch_tool http_request_tool",
    "detent.tools.skills": "skill_tool",
}
"""What pages imported before the rooms were there."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_imports_from_the_doors(page) -> None:
    """Nobody who extends Detent has to know in which of its rooms something is, and no page leads into a file that may move."""
    assert re.findall(DEEPER, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("module", BEFORE)
def test_what_pages_imported_before_is_still_found(module: str) -> None:
    """A program that was written from an earlier page runs as it is, and what it imports is what the engine uses."""
    found = importlib.import_module(module)
    assert [name for name in BEFORE[module].split() if not hasattr(found, name)] == []


def test_what_moved_is_the_module_that_is_there_now() -> None:
    """An `isinstance` with the class of an earlier path holds for what the engine makes."""
    from detent.metering import pricing

    assert importlib.import_module("detent.pricing") is pricing


def test_extend_has_every_name_of_the_seams() -> None:
    """`detent.extend` is one door: all of the seams, nothing twice, and every name is there."""
    from detent import extend, ports

    assert set(ports.__all__) <= set(extend.__all__)
    assert len(set(extend.__all__)) == len(extend.__all__)
    assert [name for name in extend.__all__ if not hasattr(extend, name)] == []


@in_check
def test_the_doors_load_what_is_heavy_when_it_is_asked_for() -> None:
    """A tool file that imports `Block` waits for no planner, and nothing but tests needs pytest."""
    code = (
        "import sys, detent.extend, detent.testing\n"
        "print([m for m in ('pytest', 'detent.policies', 'detent.planners.verifiers', 'detent.workers') if m in sys.modules])\n"
        "from detent.extend import RulePolicy; from detent.testing import StoreContract; print(RulePolicy.__name__, StoreContract.__name__)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}
    )
    assert ran.stdout.split("\n")[:2] == ["[]", "RulePolicy StoreContract"]
