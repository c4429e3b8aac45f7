"""The provenance policy: checks where a value came from before a call may use it.

Rule: a value reaches a sink only from a trusted source, with a grant, or with a person's approval.
Start with `policy`. `origins` and `matching` find where a value came from, `sinks` where it goes, `grants` what is allowed anyway.
"""

from detent.policies.provenance.policy import ProvenancePolicy

__all__ = ["ProvenancePolicy"]
