"""A memory control group for one sandbox, if the system lets this process create one. The kernel then limits all memory of all its processes.

That includes memory that no process maps: pipes, sockets, files in memory. With version 2 of control groups (cgroups(7)), the group is next to or below
this process's own group, if the controller is delegated and the directory is writable, as under `systemd-run --user --scope`. With version 1 it is
below its own group.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from pathlib import Path

from detent.core.errors import ConfigError

MOUNTS = Path("/proc/self/mounts")
OWN = Path("/proc/self/cgroup")


class MemoryGroup:
    """A group with a memory limit. Raise `ConfigError` with the reason if none can be created."""

    def __init__(self, most_bytes: int) -> None:
        why: list[str] = []
        for parent, version in _parents():
            if version == 2 and "memory" not in _read(parent / "cgroup.subtree_control").split():
                why.append(f"{parent} does not hand the memory controller down")
                continue
            try:
                self.path, self.version = Path(tempfile.mkdtemp(prefix="detent-", dir=parent)), version
            except OSError as error:
                why.append(f"{parent}: {error.strerror}")
                continue
            try:
                self._bound(most_bytes)
            except OSError as error:
                why.append(f"{self.path}: {error.strerror}")
                self.close()
                continue
            return
        raise ConfigError("; ".join(why) or "the system has no memory control groups")

    def _bound(self, most_bytes: int) -> None:
        names = ("memory.max", "memory.swap.max") if self.version == 2 else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        (self.path / names[0]).write_text(str(most_bytes))
        with contextlib.suppress(OSError):  # missing if the system does not account for swap
            (self.path / names[1]).write_text("0" if self.version == 2 else str(most_bytes))
        with contextlib.suppress(OSError):
            if self.version == 2:
                (self.path / "memory.oom.group").write_text("1")

    def add(self, process: int) -> None:
        """Put a process, and all that it will start, into the group. Raise `OSError` if that is not allowed."""
        (self.path / "cgroup.procs").write_text(str(process))

    def killed(self) -> bool:
        """Whether the kernel has killed a process of the group because of its limit."""
        said = _read(self.path / ("memory.events" if self.version == 2 else "memory.oom_control"))
        return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in said.splitlines())

    def close(self) -> None:
        """Remove the group; its processes are dead."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


def why_none() -> str:
    """Return why no usable group can be created here, or "". It really tries this, with a process of its own."""
    try:
        group = MemoryGroup(1 << 30)
    except ConfigError as error:
        return str(error)
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        group.add(child.pid)
    except OSError as error:
        return f"{group.path}: {error.strerror}"
    finally:
        child.communicate()
        group.close()
    return ""


def _parents() -> list[tuple[Path, int]]:
    """Return the directories in which a group might be created, and their version."""
    own: dict[str, str] = {}
    for line in _read(OWN).splitlines():
        number, names, path = line.split(":", 2)
        own["" if number == "0" else names] = path
    found: list[tuple[Path, int]] = []
    for line in _read(MOUNTS).splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2" and "" in own:
            mine = Path(place, own[""].lstrip("/"))
            found += [(mine, 2), (mine.parent, 2)] if own[""] != "/" else [(mine, 2)]
        elif kind == "cgroup" and "memory" in options.split(","):
            names = next((names for names in own if "memory" in names.split(",")), None)
            if names is not None:
                found.append((Path(place, own[names].lstrip("/")), 1))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
