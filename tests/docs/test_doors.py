"""The doors: what the pages import comes from `detent`, `detent.extend`, `detent.testing` and the rooms of adapters, by names that stay."""

from __future__ import annotations

import importlib
import re

import pytest

from docs.pages import ROOT

PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "examples").rglob("*.py")]
BEHIND = r"detent\.(core|kernel|ports|running|history|secrecy|expressions)\b"

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
    """No page leads anybody into a room whose files may move."""
    assert re.findall(rf"(?m)^\s*(?:from|import) {BEHIND}.*", page.read_text(encoding="utf-8")) == []


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
