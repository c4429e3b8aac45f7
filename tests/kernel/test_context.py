"""The context of a pass: built once, frozen, the same object at every step; its profile; views that share nothing. Rows S0-8, S0-10, S1-5, section 9."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from detent import Agent
from detent.config.profile import PROFILES, ContextProfile, compression_for, make_profile
from detent.core.agent import AgentSpec
from detent.core.state import KernelState
from detent.kernel.act import act
from detent.kernel.context import KernelContext
from detent.kernel.guards import default_guards
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.ports import Block
from detent.running.branching import checked_edits
from kernel.runs import END, Allow, Desk, Script, call, ran

replace = msgspec.structs.replace


def test_the_context_is_built_once_and_is_the_same_object_at_every_step() -> None:
    """S0-8, S0-10: assembled once, frozen, passed unchanged."""
    seen: list[KernelContext] = []

    async def keep(state: KernelState, context: KernelContext) -> KernelState:
        seen.append(context)
        with pytest.raises(AttributeError):
            context.scope = "other"  # type: ignore[misc]
        return state

    done = ran(
        [call(n=1), call(n=2), END], *Desk().all, kernel=make_kernel(phases=(keep, think, keep, act)), replays=False,
        agent={"instructions": "Be brief."}, run={"variables": {"limit": 3}},
    )  # fmt: skip
    assert len(seen) == 5 and len({id(c) for c in seen}) == 1
    context = seen[0]
    assert (context.input.task, context.input.instructions, context.input.variables) == ("go", "Be brief.", {"limit": 3})
    assert set(context.tools) == {"look", "put", "wipe", "slip", "end"} and context.guards == default_guards
    assert context.profile == PROFILES["mid"] and context.compression.budget_chars == 1200 and context.state == done.main


def test_a_partial_profile_is_merged_over_mid() -> None:
    """3.1.6: the override is kept, the other fields of mid are there; a tier is a base of its own."""
    seen: list[Any] = []

    async def keep(state: KernelState, context: KernelContext) -> KernelState:
        seen.append((context.profile, context.compression))
        return state

    ran(
        [END],
        kernel=make_kernel(phases=(keep, think, act)),
        agent={"profile": {"temperature": 0.1, "tool_result_max_chars": 99}},
        replays=False,
    )
    ((profile, compression),) = seen
    assert profile == replace(PROFILES["mid"], temperature=0.1, tool_result_max_chars=99)
    assert (compression.budget_chars, compression.preview_items) == (99, 5)
    assert make_profile({"tier": "local", "preview_items": 2}) == replace(PROFILES["local"], preview_items=2)
    assert make_profile({"temperature": 0}).temperature == 0


def test_the_four_tiers_have_the_values_of_the_catalogue() -> None:
    """Section 9, without iterations."""
    rows = {t: (p.tool_result_max_chars, p.preview_items, p.schema_detail, p.temperature, p.window_tokens) for t, p in PROFILES.items()}
    assert rows == {
        "local": (4000, 8, "names-and-types", 0.3, 32768), "mid": (1200, 5, "full", 0.5, 32768), "large": (800, 5, "full", 0.5, 32768),
        "frontier": (600, 3, "full", 0.6, 128000),
    }  # fmt: skip
    assert all(p.tier == t for t, p in PROFILES.items()) and ContextProfile() == PROFILES["mid"]
    assert compression_for(PROFILES["frontier"]).budget_chars == 600


@pytest.mark.parametrize(
    ("model", "tier"),
    [
        ("ollama:qwen3:8b", "local"), ("lmstudio:anything", "local"), ("groq:llama-3.1-8b-instant", "local"), ("x:qwen3-30b-a3b", "mid"),
        ("ollama:llama3.3:70b", "large"), ("openai:gpt-5-mini", "mid"), ("openai:gpt-5", "frontier"), ("openai:gpt-4o", "large"),
        ("google:gemini-2.5-flash", "mid"), ("anthropic:claude-opus-4-1", "frontier"), ("own:unheard-of", "mid"), ("", "mid"),
        ("groq:mixtral-8x22b", "large"), ("own:prometheus", "mid"), ("own:thing-pro", "large"),
    ],
)  # fmt: skip
def test_a_profile_may_be_left_to_the_name_of_the_model(model: str, tier: str) -> None:
    """`auto`: billions of parameters, a server of one's own, words of its makers, else mid; it stands in the log as what it came to."""
    spec = Agent(name="a", model=model, profile={"tier": "auto", "preview_items": 2}).spec()
    assert spec.profile == {"tier": tier, "preview_items": 2} and make_profile(spec.profile) == replace(PROFILES[tier], preview_items=2)
    assert checked_edits({"profile": {"tier": "auto"}, "model": model}, AgentSpec(name="a"))["profile"] == {"tier": tier}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tier": "lrge"}, "did you mean 'large'"),
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"tier": ["mid"]}, "unknown context profile"),
        ({"preview_items": 0}, "preview_items"),
        ({"window_tokens": "many"}, "window_tokens"),
    ],
)
def test_a_misspelt_profile_is_refused_and_the_nearest_name_is_given(given: Any, says: str) -> None:
    """Before a run starts."""
    from detent.core.errors import ConfigError

    with pytest.raises(ConfigError, match=says):
        make_profile(given)
    with pytest.raises(ConfigError, match=says):
        Agent(name="a", profile=given).spec()


def test_a_kernels_guards_are_its_own() -> None:
    """S1-5: a guard added to one kernel does not affect another."""

    def never(call: Any, state: Any, run: Any) -> Block:
        return Block("never")

    strict = make_kernel(guards=(*default_guards, never))
    assert ran([call(n=1), END], *Desk().all, kernel=strict).codes == ["guard_blocked"]
    assert ran([call(n=1), END], *Desk().all, kernel=make_kernel()).codes == [""] and default_guards == make_kernel().guards


def test_one_shot_kernels_and_any_planner_go_together() -> None:
    """S0-17: one plan, then done; whatever the tools."""

    async def one_shot(state: KernelState, context: KernelContext) -> KernelState:
        await think(state, context)
        return await act(context.state, context)

    done = ran(Script([END]), *Desk().all, kernel=make_kernel(phases=(one_shot,), name="one-shot"), policy=Allow())
    assert (done.why, done.main.kernel_type, len(done.views)) == (("completed", "final_answer"), "one-shot", 1)


def test_views_share_nothing_with_the_run() -> None:
    """A planner that changes what it was given changes nothing (S0-3, DESIGN 7)."""

    def vandal(view: Any) -> Any:
        view.variables["limit"].append(9)
        view.scratchpad["x"] = "y"
        for item in view.transcript:
            if item.kind == "tool":
                item.args["n"] = item.content["n"] = 99
        for spec in view.tools:
            spec.input_schema["properties"] = {}
        return call(n=view.iteration) if view.iteration < 3 else END

    done = ran([vandal] * 3, *Desk().all, run={"variables": {"limit": [1]}})
    assert done.state.variables == {"limit": [1]} and [i.args for i in done.items] == [{"n": 1}, {"n": 2}] and done.main.scratchpad == {}
    assert done.why == ("completed", "final_answer") and [len(v.tools[0].input_schema["properties"]) for v in done.views[1:]] != [0]
