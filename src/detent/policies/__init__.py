"""Policies: allow, deny, stop, or ask a person. Guards: whether a call makes sense now.

Rule: `decide(call, state)` is a pure function of the call and the recorded state; what fails denies.
Start with `tiers`, the default, and `rules`, policies as data. `documents` reads policy files, `combining` puts the house's and the agent's together,
`guards` are the checks by name, `provenance` asks where a value came from. What the model is told of a denial: `kernel.deciding`.
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
