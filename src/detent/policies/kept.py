"""Policies as data, kept with a run so that a replay can rebuild them.

Each of Detent's policies returns with `data` what it is made of, or `{}` if it contains a function (`ports.governance.data_of`). Your own class is
not data, even if it derives from one of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from detent.core.errors import ConfigError
from detent.policies.basic import BasicPolicy, PermissionPolicy
from detent.policies.delegation import DelegationLimits, DelegationPolicy
from detent.policies.documents import DocumentPolicy, policy_document
from detent.policies.pipeline import PolicyPipeline
from detent.policies.rules import Rule, RulePolicy
from detent.policies.tiers import TieredPolicy
from detent.ports import Policy


def made_of(data: Mapping[str, Any]) -> Policy:
    """Return the policy for this `data`. Raise `ConfigError` if this version of Detent cannot build it."""
    said = {name: value for name, value in data.items() if name != "kind"}
    try:
        return _made(data.get("kind"), said)
    except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f"a policy of kind {data.get('kind')!r} that was kept with a run cannot be rebuilt: {error}") from error


def _made(kind: Any, said: dict[str, Any]) -> Policy:
    if said.get("delegation") is not None:
        said["delegation"] = msgspec.convert(said["delegation"], DelegationLimits)
    match kind:
        case "document":
            return DocumentPolicy(policy_document(said["document"], where="the policy that was kept with the run")).compile()
        case "rules":
            return RulePolicy(msgspec.convert(said["rules"], tuple[Rule, ...]), name=said["name"]).compile()
        case "tiers":
            return TieredPolicy(**said)
        case "basic":
            return BasicPolicy(**said)
        case "permission":
            return PermissionPolicy(**said)
        case "delegation":
            return DelegationPolicy(said["delegation"])
        case "pipeline":
            default = made_of(said["default"]) if said["default"] else None
            return PolicyPipeline([made_of(stage) for stage in said["stages"]], default=default)
        case _:
            raise ConfigError(f"this version of Detent does not know the policy kind {kind!r}; a later version may know it")
