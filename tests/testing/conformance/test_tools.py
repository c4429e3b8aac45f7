"""Detent's tools keep the contract of tools, whatever they are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from detent.testing.conformance.tool import ToolboxContract, ToolboxMaker, ToolContract, ToolMaker
from testing.conformance.tools_of_detent import Boxes, Exec, Files, Functions, Mcp


class TestAsyncFunctions(ToolContract):
    @pytest.fixture
    def maker(self) -> ToolMaker:
        return Functions("async")


class TestSyncFunctions(ToolContract):
    @pytest.fixture
    def maker(self) -> ToolMaker:
        return Functions("sync")


class TestToolsWithASchema(ToolContract):
    @pytest.fixture
    def maker(self) -> ToolMaker:
        return Functions("schema")


class TestPooledTools(ToolContract):
    @pytest.fixture
    def maker(self) -> ToolMaker:
        return Functions("pooled")


class TestToolsOfMcpServers(ToolContract):
    @pytest.fixture
    def maker(self, tmp_path: Path) -> ToolMaker:
        return Mcp(tmp_path)


class TestExec(ToolContract):
    @pytest.fixture
    def maker(self, tmp_path: Path) -> ToolMaker:
        return Exec(tmp_path)


class TestReadingFiles(ToolContract):
    @pytest.fixture
    def maker(self, tmp_path: Path) -> ToolMaker:
        return Files(tmp_path)


class TestRegistry(ToolboxContract):
    @pytest.fixture
    def maker(self) -> ToolboxMaker:
        return Boxes()
