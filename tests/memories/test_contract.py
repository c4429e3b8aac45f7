"""The memories keep the contract."""

from __future__ import annotations

import pytest

from detent.memories.ram import RamMemory
from detent.ports.remembering import Memory
from detent.testing.conformance.memory import MemoryContract, MemoryMaker


class RamMaker(MemoryMaker):
    """One memory in memory: what it keeps is in the object."""

    persistent = False

    def __init__(self) -> None:
        self._memory = RamMemory()

    def memory(self) -> Memory:
        return self._memory


class TestRamMemory(MemoryContract):
    @pytest.fixture
    def maker(self) -> MemoryMaker:
        return RamMaker()
