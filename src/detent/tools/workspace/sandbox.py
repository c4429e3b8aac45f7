"""A sandbox for programs: bubblewrap (`bwrap`) with its own namespaces, a writable workspace, a read-only system, and nothing else.

    new     user, mount, process, network (unless all of it is allowed; a `proxy` leads to some hosts), IPC, UTS and cgroup namespaces;
            no capabilities; no further user namespaces
    seen    /usr and its links, a few files of /etc, the Python that runs this program, `readable`: all read-only; an empty /tmp; a small
            /dev; a read-only /proc of the sandbox's own processes; the workspace, writable, at its own path. No /home, /sys, /run or /var
    refused calls that would set a set-user-id or set-group-id bit (see `sandbox_filter`)
    kept    the governing files of the workspace, read-only (see `shield`)
    given   the environment that the caller built, in a file that only bwrap reads; descriptors 0, 1, 2
    limited by the system, for each process: memory (data), CPU time, file size, open files, and the number of processes (not for root)
    limited by a control group, if one can be created (see `memory_group`): memory of all processes together, mapped or not
    limited by polling (every `LOOK_S`): memory and number of all processes together, for root too
    refused memory that polling does not see and /tmp does not limit: memfd_create, large System V segments (see `sandbox_filter`)

bwrap starts blocked. This process sets the limits on its child, then unblocks it. If this process or bwrap dies, all processes die. A read-only /proc
matters: to the files of /proc/sys, root without capabilities is still root, and could otherwise change the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import platform
import shutil
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Literal

import msgspec

from detent.core.errors import ConfigError, NotExecuted, ToolRaised
from detent.ports.options import check_fields
from detent.tools.failures import failed, shown
from detent.tools.workspace import sandbox_filter
from detent.tools.workspace.memory_group import MemoryGroup
from detent.tools.workspace.proxy import PORT, Hosts, Proxy
from detent.tools.workspace.shield import Shield

LOOK_S = 0.05
"""How often the limits on all processes together are checked, in seconds."""

PROBE_S = 10.0
NEEDED = ("--json-status-fd", "--block-fd", "--size", "--die-with-parent", "--remount-ro", "--args", "--bind-fd", "--ro-bind-fd")
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix/store")
ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version", "fonts", "group", "host.conf", "hosts",
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "localtime", "magic", "mime.types", "nsswitch.conf",
    "os-release", "passwd", "pki/ca-trust/extracted", "pki/tls/cert.pem", "pki/tls/certs", "protocols", "resolv.conf", "services",
    "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "timezone",
)  # fmt: skip

_AT = f"http://127.0.0.1:{PORT}"
PROXIED = {
    **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), _AT),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1"),
}
"""The environment variables that tell a program about its proxy."""

Mode = Literal["auto", "require", "off"]
MODES: tuple[Mode, ...] = ("off", "auto", "require")
"""From the least strict to the strictest."""


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one sandboxed program and all that it starts. Sizes in bytes, times in seconds.

    `memory_bytes` and `processes` apply to all processes together; `cpu_s`, `file_bytes` (one file) and `open_files` to each process;
    `tmp_bytes` to each of /tmp and /dev/shm, which are in memory.
    """

    memory_bytes: int = 1 << 30
    processes: int = 128
    cpu_s: int = 600
    file_bytes: int = 1 << 30
    open_files: int = 1024
    tmp_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ConfigError(f"sandbox limit {name} is {getattr(self, name)}; give a number above 0")


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """How programs are confined. `readable` are more absolute paths that they may read.

    `network` gives them this machine's network. A list of hosts (see `proxy`) gives them only these, through a proxy; their addresses must be public
    or in one of the ranges `allow_private`.
    """

    network: bool | tuple[str, ...] = False
    allow_private: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    limits: SandboxLimits = SandboxLimits()

    def __post_init__(self) -> None:
        check_fields(self)
        self.proxy()
        for path in self.readable:
            if not path.startswith("/") or not Path(path).exists():
                raise ConfigError(f"sandbox readable path {path!r} must be absolute and exist")

    def proxy(self) -> Proxy | None:
        """Return a proxy to the allowed hosts; None if there are none, or if all are allowed."""
        return Proxy(Hosts.of(self.network, self.allow_private)) if isinstance(self.network, tuple) and self.network else None


def told(sandbox: Sandbox | None, why_not: str) -> str:
    """Return where programs run, in words for the people who approve a call. `why_not`: why there is no sandbox."""
    if sandbox is None:
        return f"no sandbox: {why_not}"
    hosts = ", ".join(sandbox.network) if isinstance(sandbox.network, tuple) else ""
    return "in a sandbox, " + (
        f"which reaches {hosts}" if hosts else "with this machine's network" if sandbox.network else "without a network"
    )


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Whether sandboxes work here: `program` is bwrap's path, or "" if not; `why` is the reason then."""

    program: str = ""
    why: str = ""
    options: tuple[str, ...] = ()


def stricter(one: Mode, other: Mode) -> Mode:
    """Return the stricter of two modes."""
    return one if MODES.index(one) >= MODES.index(other) else other


def probe() -> Probe:
    """Return whether bwrap works here. It is really tried, once per process and PATH."""
    return _probe(os.environ.get("PATH", os.defpath))


@functools.cache
def _probe(path: str) -> Probe:
    if sys.platform != "linux":
        return Probe(why=f"bubblewrap needs Linux, this is {sys.platform}")
    program = shutil.which("bwrap", path=path)
    if program is None:
        return Probe(why="bubblewrap (bwrap) is not installed; install the package bubblewrap")
    program = str(Path(program).resolve())
    try:
        known = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=PROBE_S, check=False)
        missing = [option for option in NEEDED if option not in known.stdout]
        if missing:
            return Probe(
                why=f"{program} is too old: it has no {', '.join(missing)}; version 0.10 or newer is needed, or an older one with the fix of CVE-2024-42472"
            )
        options = tuple(option for option in ("--disable-userns",) if option in known.stdout)
        held, filtered = _filtered()
        made = [*_namespaces(options, network=False), *_view(Sandbox()), *filtered, "--remount-ro", "/", "--", "true"]
        try:
            tried = subprocess.run(
                [program, *made], capture_output=True, text=True, timeout=PROBE_S, check=False, env={"PATH": path}, pass_fds=held
            )
        finally:
            for descriptor in held:
                os.close(descriptor)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Probe(why=f"{program} cannot be used: {error}")
    if tried.returncode != 0:
        said = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
        return Probe(why=f"{program} cannot make a sandbox here: {said}")
    return Probe(program=program, options=options)


def choose(mode: Mode, root: str, sandbox: Sandbox | None) -> tuple[Sandbox | None, str]:
    """Return the sandbox for programs of the workspace `root`, or None and why there is none. Raise `ConfigError` if one is required."""
    if mode not in MODES:
        raise ConfigError(f"sandbox is {mode!r}; choose one of {', '.join(MODES)}")
    if mode == "off":
        return None, "the sandbox is switched off"
    found = probe()
    why = found.why
    if not why and root == "/":
        why = "the workspace is the whole file system"
    if not why and Path(found.program).is_relative_to(root):
        why = f"{found.program} is in the workspace, where a program could replace it"
    if not why:
        return sandbox or Sandbox(), ""
    if mode == "require":
        raise ConfigError(f'sandbox = "require", but {why}. Nothing was run; fix that, or choose sandbox = "auto" to run without one')
    return None, why


def _namespaces(options: Sequence[str], *, network: bool) -> list[str]:
    own = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", *options]
    own += [] if network else ["--unshare-net"]
    return [*own, "--hostname", "sandbox", "--die-with-parent", "--cap-drop", "ALL"]


def _view(sandbox: Sandbox) -> list[str]:
    """Return the options that mount all visible paths except the workspace."""
    view: list[str] = []
    for name in SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            view += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            view += ["--ro-bind", str(path), str(path)]
    for name in ETC:
        real = Path("/etc", name).resolve()
        if real.exists():
            view += ["--ro-bind", str(real), f"/etc/{name}"]
    size = str(sandbox.limits.tmp_bytes)
    view += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108
    view += ["--perms", "1777", "--size", size, "--tmpfs", "/tmp"]  # noqa: S108 - the sandbox's own
    for path in sorted({*sandbox.readable, *_python()}):
        view += ["--ro-bind", path, path]
    return view


def _python() -> list[str]:
    """Return where the Python that runs this program is installed, as far as that is outside /usr."""
    found = {os.path.realpath(sys.base_prefix), os.path.abspath(sys.prefix), os.path.realpath(sys.prefix)}  # noqa: PTH100 - links stay
    return [path for path in found if path != "/" and not path.startswith("/usr/") and path != "/usr" and Path(path).is_dir()]


class Boxed:
    """A program in its sandbox. `process` is bwrap itself, which ends with the program's code (128 + number for a signal)."""

    __slots__ = ("_first", "_group", "_limits", "_status", "process", "proxy")

    def __init__(
        self, process: Process, *, limits: SandboxLimits, status: FileIO, first: int, group: MemoryGroup | None, proxy: Proxy | None
    ) -> None:
        self.process, self.proxy = process, proxy
        self._limits, self._status, self._first, self._group = limits, status, first, group

    def killed(self) -> str:
        """Return in words the limit for which the system has killed a process, or ""."""
        return f"more than {self._limits.memory_bytes} bytes of memory" if self._group is not None and self._group.killed() else ""

    def over(self) -> str:
        """Return in words the limit that all processes together have exceeded, or ""."""
        if killed := self.killed():
            return killed
        root = Path(f"/proc/{self._first}/root")
        own = root / "proc"
        try:
            if root.samefile("/"):
                return ""  # still being set up: these are the processes of the whole machine
            pids = [name for name in os.listdir(own) if name.isdigit()]  # noqa: PTH208 - names, not paths
        except OSError:
            return ""  # it has ended
        limits = self._limits
        if len(pids) - 1 > limits.processes:  # the first is the sandbox's own
            return f"more than {limits.processes} processes"
        places = [own / pid for pid in pids]
        if sum(map(_resident, places)) > limits.memory_bytes and sum(map(_share, places)) > limits.memory_bytes:
            return f"more than {limits.memory_bytes} bytes of memory"
        return ""

    def ran(self) -> bool:
        """Return whether the program itself started and ended. Called once, when bwrap is dead."""
        try:
            return b'"exit-code"' in self._status.read()
        finally:
            self.close()

    def close(self) -> None:
        """Close the channel to bwrap and remove the group. bwrap is dead by then."""
        self._status.close()
        if self._group is not None:
            self._group.close()


def _resident(process: Path) -> int:
    """Return the memory of a process in bytes, counting shared pages in full; 0 if it is gone."""
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def _share(process: Path) -> int:
    """Return the same with shared pages divided among their processes; in full if the system does not report that."""
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return _resident(process)
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


async def start(
    sandbox: Sandbox,
    command: Sequence[str],
    *,
    root: str,
    cwd: str,
    environment: Mapping[str, str],
    wants_input: bool,
    shield: Shield | None = None,
) -> Boxed:
    """Start `command` (the program and its arguments) in a sandbox over the workspace `root`, in its directory `cwd`, with only these variables.

    The files that the `shield` protects are read-only.

    Raise `NotExecuted` (`sandbox_failed`) if the sandbox cannot be created; then nothing has run.
    """
    found = probe()
    if not found.program:
        raise NotExecuted(f"{shown(command[0])} was not started: {found.why}", error_code="sandbox_failed")
    private = {"HOME": "/tmp", "TMPDIR": "/tmp"}  # noqa: S108 - the sandbox's own
    options = [*_namespaces(found.options, network=sandbox.network is True), *_view(sandbox), "--bind", root, root]
    options += [*(shield.options if shield else ()), "--remount-ro", "/"]
    options += ["--chdir", f"{root}/{cwd}" if cwd else root, "--clearenv"]
    proxy = sandbox.proxy()
    for name, value in {**environment, **private, **(PROXIED if proxy else {})}.items():
        options += ["--setenv", name, value]
    rules, filtered = _filtered()
    options += filtered
    status, told = os.pipe()
    held, release = os.pipe()
    said = _in_memory(b"".join(os.fsencode(option) + b"\0" for option in options))
    line = FileIO(status, "rb")
    try:
        process = await asyncio.create_subprocess_exec(
            found.program,
            *("--args", str(said), "--json-status-fd", str(told), "--block-fd", str(held), "--", *command),
            stdin=PIPE if wants_input else DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            cwd="/",
            env={},
            start_new_session=True,
            pass_fds=(said, told, held, *rules, *(shield.descriptors if shield else ())),
        )
    except BaseException:
        line.close()
        os.close(release)
        raise
    finally:
        for descriptor in (said, told, held, *rules):
            os.close(descriptor)
        if shield:
            shield.release()
    try:
        group = MemoryGroup(sandbox.limits.memory_bytes)
    except ConfigError:
        group = None
    try:
        first = await _released(line, release, sandbox.limits, group, proxy)
        return Boxed(process, limits=sandbox.limits, status=line, first=first, group=group, proxy=proxy)
    except BaseException:
        line.close()
        if proxy is not None:
            await proxy.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if group is not None:
            group.close()
        raise
    finally:
        os.close(release)


def _filtered() -> tuple[tuple[int, ...], list[str]]:
    """Return a descriptor of the system call filter, to pass on and close, and the options that name it; neither if there is no filter."""
    rules = sandbox_filter.program()
    if not rules:
        return (), []
    descriptor = _in_memory(rules)
    return (descriptor,), ["--seccomp", str(descriptor)]


def _in_memory(data: bytes) -> int:
    """Return a descriptor of an in-memory file with `data`, positioned at its beginning."""
    descriptor = os.memfd_create("options")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def _released(status: FileIO, release: int, limits: SandboxLimits, group: MemoryGroup | None, proxy: Proxy | None) -> int:
    """Set the limits on bwrap's blocked child, start the proxy and unblock the child. Return its process id, or 0 if bwrap has given up."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    os.set_blocking(status.fileno(), False)
    loop.add_reader(status.fileno(), ready.set)
    said = b""
    try:
        while not said.endswith(b"\n"):
            await ready.wait()
            ready.clear()
            more = status.read(4096)
            if more == b"":
                return 0
            said += more or b""
    finally:
        loop.remove_reader(status.fileno())
        os.set_blocking(status.fileno(), True)
    first: int = msgspec.json.decode(said.splitlines()[0])["child-pid"]
    try:
        _limit(first, limits)
        if group is not None:
            with contextlib.suppress(PermissionError):  # the group exists, but the process may not be put into it
                group.add(first)
    except ProcessLookupError:
        return 0  # bwrap could not create the sandbox and prints why
    except OSError as error:
        raise NotExecuted(f"nothing was started: the sandbox could not be limited ({error})", error_code="sandbox_failed") from error
    if proxy is not None:
        await proxy.open(first)
    try:
        os.write(release, b"1")
    except BrokenPipeError:
        return 0
    return first


def _limit(process: int, limits: SandboxLimits) -> None:
    """Set the limits that the system itself enforces, on `process` and all that it will start."""
    import resource  # not on every system

    wanted = {
        resource.RLIMIT_DATA: limits.memory_bytes,
        resource.RLIMIT_CPU: limits.cpu_s,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_CORE: 0,
    }
    if tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2]) >= (5, 14):
        wanted[resource.RLIMIT_NPROC] = limits.processes + 1  # counted only in the sandbox; older systems count all processes of the user
    for kind, most in wanted.items():
        _, hard = resource.prlimit(process, kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)  # noqa: PLW2901
        resource.prlimit(process, kind, (most, most))


def unstarted(command: str, stderr: str) -> ToolRaised:
    """Return the error for a program that bwrap could not start, from bwrap's output."""
    said = (stderr.strip().splitlines() or ["bwrap ended without a word"])[-1]
    if said.startswith("bwrap: execvp") and said.endswith("No such file or directory"):
        return failed(
            "command_not_found",
            f"program {shown(command)} was not found in the sandbox, which sees /usr, the workspace and what the option sandbox_readable adds; "
            "args takes its arguments, one element each",
            command=command[:200],
        )
    if said.startswith("bwrap: execvp"):
        return failed("permission_denied", f"{shown(command)} could not be started in the sandbox: {said[7:]}", command=command[:200])
    return NotExecuted(f"{shown(command)} was not started: the sandbox could not be made ({said})", error_code="sandbox_failed")
