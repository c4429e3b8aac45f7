"""Interpreters run programs that a model wrote, where those can reach nothing but the functions that they are given.

Rule: the same program with the same answers moves the same way, on every machine; limits that cannot promise that are named (`ProgramMove.stopped`).
Start with `monty`, the parent's side. `sandbox` is the process in which programs run; nothing of Detent is imported there.
"""

from detent.interpreters.monty import MontyInterpreter

__all__ = ["MontyInterpreter"]
