"""What you need to extend Detent: the protocols, and the parts for a tool, store, planner, policy, phase or strategy of your own.

A program that only runs agents needs `detent` alone. Contract suites for what you write are in `detent.testing`. Adapters that you build on or
combine with yours (`BUILDING_BLOCKS`) are loaded when you ask for them, so importing this module stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from detent import ports
from detent.core import events
from detent.core.errors import (
    CancelWaits,
    ClaimLost,
    ConfigError,
    Conflict,
    CorruptLog,
    DetentError,
    EffectFailed,
    FatalToolError,
    InvalidArguments,
    ItemConflict,
    ItemNotFound,
    ItemRefused,
    MalformedPlan,
    ModelCallFailure,
    NotAllowedNow,
    NotExecuted,
    PassFailed,
    PlannerFailed,
    RunBusy,
    RunErased,
    RunNotFound,
    StoreBusy,
    StoreError,
    StoreFull,
    ToolFailed,
)
from detent.core.events import AnyEvent, Planned, SideEffect, ToolError
from detent.core.fold import fold
from detent.core.records import Record, RunHead
from detent.core.state import CallState, Item, KernelState, RunState, transition
from detent.kernel.act import act
from detent.kernel.guards import default_guards
from detent.kernel.kernel import Kernel, Phase, make_kernel
from detent.kernel.think import think
from detent.ports import *  # noqa: F403 - every seam, and the data that crosses it
from detent.ports.phases import KernelInput

if TYPE_CHECKING:
    from detent.capabilities import Capability, CapabilityRegistry, FunctionSecrets
    from detent.clock import RandomIds, SystemClock
    from detent.config.assembly import open_memory
    from detent.config.loading import load_agent, load_config
    from detent.config.schema_lines import SCHEMAS
    from detent.embedders import HashingEmbedder, OpenAICompatibleEmbedder
    from detent.metering.pricing import ModelPrice
    from detent.metering.provider_limits import ModelLimits, ModelRetries
    from detent.planners import RulePlanner, load_rules
    from detent.planners.fallback import Candidate, FallbackPlanner
    from detent.planners.model import ModelPlanner
    from detent.planners.raw_text.generation import Generation, Request
    from detent.planners.raw_text.generators import ChatCompletionsGenerator, LlamaCppGenerator, OllamaGenerator
    from detent.planners.raw_text.planner import OnDevicePlanner
    from detent.planners.verifiers import all_verifiers, answer_is_integer, grounded, require_tool_used
    from detent.policies import PolicyPipeline, Rule, RulePolicy, TieredPolicy
    from detent.policies.provenance import ProvenancePolicy
    from detent.stores import open_store
    from detent.stores.due import due_among
    from detent.stores.heartbeat import Leased
    from detent.tools import Bounded, Happened, NotHappened
    from detent.tools.web.fetch import HeaderSecret, fetch_tool, http_request_tool
    from detent.tools.workspace.skills import skill_tool
    from detent.workers import InProcessHost
    from detent.workers.restate import RestateHost

BUILDING_BLOCKS = {
    "capabilities": "Capability CapabilityRegistry FunctionSecrets",
    "clock": "RandomIds SystemClock",
    "config.assembly": "open_memory",
    "config.loading": "load_agent load_config",
    "config.schema_lines": "SCHEMAS",
    "embedders": "HashingEmbedder OpenAICompatibleEmbedder",
    "metering.pricing": "ModelPrice",
    "metering.provider_limits": "ModelLimits ModelRetries",
    "planners": "RulePlanner load_rules",
    "planners.fallback": "Candidate FallbackPlanner",
    "planners.model": "ModelPlanner",
    "planners.raw_text.generation": "Generation Request",
    "planners.raw_text.generators": "ChatCompletionsGenerator LlamaCppGenerator OllamaGenerator",
    "planners.raw_text.planner": "OnDevicePlanner",
    "planners.verifiers": "all_verifiers answer_is_integer grounded require_tool_used",
    "policies": "PolicyPipeline Rule RulePolicy TieredPolicy",
    "policies.provenance": "ProvenancePolicy",
    "stores": "open_store",
    "stores.due": "due_among",
    "stores.heartbeat": "Leased",
    "tools": "Bounded Happened NotHappened",
    "tools.web.fetch": "HeaderSecret fetch_tool http_request_tool",
    "tools.workspace.skills": "skill_tool",
    "workers": "InProcessHost",
    "workers.restate": "RestateHost",
}
"""The modules of the adapters."""
_MODULES = {name: module for module, names in BUILDING_BLOCKS.items() for name in names.split()}

__all__ = [
    "SCHEMAS",
    "AnyEvent",
    "Bounded",
    "CallState",
    "CancelWaits",
    "Candidate",
    "Capability",
    "CapabilityRegistry",
    "ChatCompletionsGenerator",
    "ClaimLost",
    "ConfigError",
    "Conflict",
    "CorruptLog",
    "DetentError",
    "EffectFailed",
    "FallbackPlanner",
    "FatalToolError",
    "FunctionSecrets",
    "Generation",
    "Happened",
    "HashingEmbedder",
    "HeaderSecret",
    "InProcessHost",
    "InvalidArguments",
    "Item",
    "ItemConflict",
    "ItemNotFound",
    "ItemRefused",
    "Kernel",
    "KernelInput",
    "KernelState",
    "Leased",
    "LlamaCppGenerator",
    "MalformedPlan",
    "ModelCallFailure",
    "ModelLimits",
    "ModelPlanner",
    "ModelPrice",
    "ModelRetries",
    "NotAllowedNow",
    "NotExecuted",
    "NotHappened",
    "OllamaGenerator",
    "OnDevicePlanner",
    "OpenAICompatibleEmbedder",
    "PassFailed",
    "Phase",
    "Planned",
    "PlannerFailed",
    "PolicyPipeline",
    "ProvenancePolicy",
    "RandomIds",
    "Record",
    "Request",
    "RestateHost",
    "Rule",
    "RulePlanner",
    "RulePolicy",
    "RunBusy",
    "RunErased",
    "RunHead",
    "RunNotFound",
    "RunState",
    "SideEffect",
    "StoreBusy",
    "StoreError",
    "StoreFull",
    "SystemClock",
    "TieredPolicy",
    "ToolError",
    "ToolFailed",
    "act",
    "all_verifiers",
    "answer_is_integer",
    "default_guards",
    "due_among",
    "events",
    "fetch_tool",
    "fold",
    "grounded",
    "http_request_tool",
    "load_agent",
    "load_config",
    "load_rules",
    "make_kernel",
    "open_memory",
    "open_store",
    "require_tool_used",
    "skill_tool",
    "think",
    "transition",
]
__all__ += ports.__all__


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'detent.extend' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"detent.{_MODULES[name]}"), name)
        return value
