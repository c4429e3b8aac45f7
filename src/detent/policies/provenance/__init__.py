"""The policy that asks where a value came from before it lets it go somewhere.

Rule: a value that no trusted source gave does not reach a sink without a grant or a person.
Start with `policy`. `origins` and `matching` find where a value came from, `sinks` where it goes, `grants` what is allowed anyway.
"""

from detent.policies.provenance.policy import ProvenancePolicy

__all__ = ["ProvenancePolicy"]
