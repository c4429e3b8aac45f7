"""Policies: allow, deny, stop, or ask a person. Guards: whether a call makes sense now.

A policy is an object with `version`, `decide(call, state)` and `may_ask(tool)` (`detent.ports.Policy`).
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
