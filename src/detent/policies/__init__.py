"""Policies: allow, deny, stop, or ask a person. Guards: decide whether a call makes sense now.

Rule: `decide(call, state)` is a pure function of the call and the recorded state; a policy that fails denies.
Start with `tiers`, the default, and `rules`, policies as data. `documents` reads policy files, `combining` combines the engine's and the agent's
policy, `guards` has the checks by name, `provenance` decides by the origin of values. `kernel.deciding` tells the model about a denial.
"""

from __future__ import annotations

from detent.policies.basic import BasicPolicy, PermissionPolicy
from detent.policies.delegation import DelegationLimits, DelegationPolicy
from detent.policies.documents import load_policy
from detent.policies.pipeline import PolicyPipeline
from detent.policies.rules import Rule, RulePolicy
from detent.policies.tiers import TieredPolicy

__all__ = [
    "BasicPolicy",
    "DelegationLimits",
    "DelegationPolicy",
    "PermissionPolicy",
    "PolicyPipeline",
    "Rule",
    "RulePolicy",
    "TieredPolicy",
    "load_policy",
]
