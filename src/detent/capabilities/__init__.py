"""Capabilities: what a host may use, described and resolved; and the secrets that tools ask for by name.

Rule: a credential reaches the tool that declared it and nobody else.
Start with `registry`. `secrets` are the places that credentials come from.
"""

from detent.capabilities.registry import Capability, CapabilityRegistry
from detent.capabilities.secrets import EnvironmentSecrets, FileSecrets, FunctionSecrets, SecretSources

__all__ = ["Capability", "CapabilityRegistry", "EnvironmentSecrets", "FileSecrets", "FunctionSecrets", "SecretSources"]
"""What a program gives to `Engine(capabilities=..., secrets=...)`."""
