"""Whether the arguments of an engine are what they must be: said at its construction, with what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detent.config.engines import WorkspaceConfig
from detent.config.groups import Bounds, Models
from detent.config.names import SEAMS, check_kind, check_parts
from detent.config.remembering import MemorySettings, settings_of
from detent.expressions.grants import check_grants
from detent.kernel.kernel import Kernel
from detent.metering.pricing import ModelPrice
from detent.metering.tenants import TenantBudget
from detent.ports import KernelHooks
from detent.ports.options import check_functions, check_is, check_table
from detent.secrecy.redact import Redactor
from detent.tools.mcp.settings import McpServer

ALSO: dict[str, Any] = {"store": str, "policy": (str, Path), "memory": (str, Mapping, MemorySettings)}
"""The seams that an engine also takes by the name of their place."""
KINDS: dict[str, Any] = {"hooks": KernelHooks, "models": Models, "bounds": Bounds, "kernel": Kernel}
TABLES: dict[str, Any] = {"mcp": McpServer, "model_prices": ModelPrice, "tenant_budgets": TenantBudget}
FUNCTION_TABLES = {"kernels": "kernel", "strategies": "strategy", "guards": "guard", "verifiers": "verifier"}


def check_engine(given: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for an argument of `Engine` that cannot be what its parameter asks for."""
    seams = {name: None if isinstance(given[name], ALSO.get(name, ())) else given[name] for name in SEAMS if name in given}
    check_parts(approver=given["approver"], ceiling=given["ceiling"], **seams)
    for name, kind in KINDS.items():
        check_is(kind, **{name: given[name]})
    for name, kind in FUNCTION_TABLES.items():
        check_functions(kind, **{name: given[name]})
    if given["kernel"] is not None:
        check_kind("kernel", "the kernel", given["kernel"])
    if given["compactors"] is not None:
        check_is(Mapping, compactors=given["compactors"])
    check_is(str | Path | WorkspaceConfig, workspace=given["workspace"])
    for name, kind in TABLES.items():
        check_table(kind, **{name: given[name]})
    for memory in settings_of(given["memory"]).memories().values():
        check_parts(approver=None, ceiling=1, memory=None if isinstance(memory, str) else memory)
    Redactor(given["redact"], b"")
    check_grants(given["grants"], "grants")
