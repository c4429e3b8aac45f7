"""Capabilities: what a host may use, described and resolved; and the secrets that tools ask for by name."""

from detent.capabilities.registry import Capability, CapabilityRegistry
from detent.capabilities.secrets import EnvironmentSecrets, FileSecrets, FunctionSecrets, SecretSources

__all__ = ["Capability", "CapabilityRegistry", "EnvironmentSecrets", "FileSecrets", "FunctionSecrets", "SecretSources"]
"""What a program gives to `Engine(capabilities=..., secrets=...)`."""
