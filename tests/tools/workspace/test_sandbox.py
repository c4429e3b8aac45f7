"""exec in a sandbox: what a program sees, what it cannot do, and what is said about it. Real programs in real namespaces; no fakes."""

from __future__ import annotations

import ast
import asyncio
import errno
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detent.core.errors import NotExecuted, ToolFailed
from detent.ports import Cancellation
from detent.tools.workspace import sandbox as boxes
from detent.tools.workspace import sandbox_filter
from detent.tools.workspace.confine import Limits, Workspace
from detent.tools.workspace.process import Executed, execute
from detent.tools.workspace.sandbox import Sandbox, SandboxLimits

WHY_NOT = boxes.probe().why
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"the sandbox is NOT TESTED here: {WHY_NOT}")

MIB = 1 << 20


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "work"
    (root / "sub").mkdir(parents=True)
    return Workspace(root, limits=Limits(stdout_bytes=20_000, stderr_bytes=5_000))


def run(workspace: Workspace, code: str, *args: str, box: Sandbox | None = None, **options: Any) -> Executed:
    """Run Python code in the sandbox."""
    return asyncio.run(execute(workspace, sys.executable, ["-c", code, *args], sandbox=box or Sandbox(), **options))


def tried(workspace: Workspace, code: str, *args: str, box: Sandbox | None = None, **options: Any) -> str:
    """Run one expression in the sandbox; return what it gave, or the name of what it raised."""
    done = run(
        workspace, f"import os, socket, sys\ntry:\n    print({code})\nexcept OSError as e:\n    print(type(e).__name__, e.strerror)", *args
    )
    assert done.sandboxed and done.success, done.stderr
    return done.stdout.strip()


def descriptors() -> int:
    """Return how many files this process holds open."""
    return len(list(Path("/proc/self/fd").iterdir()))


# What it is for --------------------------------------------------------------------------------------------------------------


def test_a_program_works_in_the_workspace_and_says_that_it_was_confined(workspace: Workspace) -> None:
    """Input, output, codes and directories are as without a sandbox; what it writes is there afterwards."""
    code = "import sys, os; open('made', 'w').write(sys.stdin.read()); print(os.getcwd()); print('e', file=sys.stderr); sys.exit(3)"
    done = run(workspace, code, cwd="sub", stdin="héllo")
    assert (done.sandboxed, done.code, done.success, done.timed_out, done.killed_for) == (True, 3, False, False, "")
    assert (done.stdout, done.stderr) == (f"{workspace.root}/sub\n", "e\n")
    assert Path(workspace.root, "sub", "made").read_text() == "héllo"
    assert run(workspace, "import os; os.kill(os.getpid(), 15)").code == 128 + 15


def test_a_program_that_is_not_there_or_cannot_be_started_is_a_typed_failure(workspace: Workspace) -> None:
    """The exit code of bwrap itself is never taken for the program's, not even when the program says what bwrap would say."""
    Path(workspace.root, "plain").write_text("x")
    for command, code in (("no-such-program", "command_not_found"), ("./plain", "permission_denied")):
        with pytest.raises(ToolFailed) as refused:
            asyncio.run(execute(workspace, command, sandbox=Sandbox()))
        assert refused.value.error_code == code
    done = run(workspace, "import sys; print('bwrap: execvp x: No such file or directory', file=sys.stderr); sys.exit(1)")
    assert (done.code, done.sandboxed) == (1, True)


def test_a_sandbox_that_cannot_be_made_runs_nothing(workspace: Workspace, tmp_path: Path) -> None:
    """A path that vanished meanwhile: nothing runs, and the call may be made again."""
    gone = tmp_path / "gone"
    gone.mkdir()
    box = Sandbox(readable=(str(gone),))
    gone.rmdir()
    with pytest.raises(NotExecuted) as refused:
        run(workspace, "open('made', 'w')", box=box)
    assert refused.value.error_code == "sandbox_failed" and "gone" in str(refused.value)
    assert not Path(workspace.root, "made").exists()


# What it sees -----------------------------------------------------------------------------------------------------------------


def test_nothing_but_the_system_and_the_workspace_is_there(workspace: Workspace, tmp_path: Path) -> None:
    """Neither home directories, nor /sys, /run and /var, nor the workspace's neighbours, nor the password hashes."""
    (tmp_path / "neighbour").write_text("secret")
    seen = tried(workspace, "sorted(os.listdir('/'))")
    assert {"home", "sys", "run", "var", "boot", "mnt", "srv", "media"}.isdisjoint(eval(seen)), seen  # noqa: S307
    for path in (tmp_path / "neighbour", "/etc/shadow", "/etc/sudoers", "/etc/ssh", "/etc/ssl/private", Path.home() / ".ssh"):
        assert tried(workspace, "open(sys.argv[1]).read()", str(path)).startswith("FileNotFoundError"), path
    seen = set(ast.literal_eval(tried(workspace, "os.listdir('/tmp')")))
    assert seen <= {Path(place).parts[2] for place in (workspace.root, sys.prefix, sys.base_prefix) if Path(place).parts[1] == "tmp"}


def test_nothing_but_the_workspace_and_tmp_can_be_written(workspace: Workspace, tmp_path: Path) -> None:
    """The system, the root, /dev, /proc and what is lent to be read refuse; /tmp is the sandbox's own and is gone afterwards."""
    lent = tmp_path / "lent"
    lent.mkdir()
    (lent / "book").write_text("read me")
    box = Sandbox(readable=(str(lent),))
    code = """
import os, sys
print(open(sys.argv[1] + '/book').read())
for path in ('/usr/x', '/x', '/etc/x', '/dev/x', '/proc/x', '/proc/self/oom_score_adj', sys.argv[1] + '/x', sys.argv[1] + '/book', sys.prefix + '/x'):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
        print('WRITABLE', path)
    except OSError:
        pass
for path in ('/tmp/x', '/dev/shm/x', 'x'):
    open(path, 'w').write('x')
"""
    done = run(workspace, code, str(lent), box=box)
    assert (done.stdout, done.code) == ("read me\n", 0), done.stdout + done.stderr
    assert sorted(path.name for path in Path(workspace.root).iterdir()) == ["sub", "x"]
    assert tried(workspace, "os.path.exists('/tmp/x')") == "False"


def test_the_settings_of_the_machine_cannot_be_changed_not_even_by_root(workspace: Workspace) -> None:
    """Root without capabilities still owns the files of /proc/sys. They are opened, never written: a hole here would change this machine."""
    code = """
import os
for folder, _, names in os.walk('/proc/sys'):
    for name in names:
        try:
            os.close(os.open(folder + '/' + name, os.O_WRONLY))
            print('WRITABLE', folder, name)
        except OSError:
            pass
for path in ('/proc/sysrq-trigger', '/proc/1/mem', '/proc/irq/0/smp_affinity'):
    try:
        os.close(os.open(path, os.O_WRONLY))
        print('WRITABLE', path)
    except OSError:
        pass
"""
    done = run(workspace, code)
    assert (done.stdout, done.stderr, done.code) == ("", "", 0)


def test_only_the_listed_variables_arrive(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """No secret of this process is inherited; what is given stands in no command line that others can read."""
    monkeypatch.setenv("API_TOKEN", "s3cret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    done = run(workspace, "import os; print(sorted(os.environ.items()))", env={"GIVEN": "yes"}, inherit=("LANG", "HOME"))
    seen = dict(eval(done.stdout))  # noqa: S307
    for name in ("LC_CTYPE", "PWD"):
        seen.pop(name, None)
    assert seen == {"GIVEN": "yes", "LANG": "C.UTF-8", "HOME": "/tmp", "TMPDIR": "/tmp"}
    tree = run(workspace, "import glob; print([open(p, 'rb').read() for p in glob.glob('/proc/[0-9]*/environ')])", inherit=("LANG",))
    assert "s3cret" not in tree.stdout and tree.success


def test_a_library_named_in_the_environment_is_not_loaded_outside(workspace: Workspace, tmp_path: Path) -> None:
    """LD_PRELOAD reaches the program, and never bwrap, which is outside: its loader would complain about a library that is not there."""
    done = run(workspace, "import os; print(os.environ['LD_PRELOAD'])", env={"LD_PRELOAD": "./no-such-library.so"})
    assert done.stdout == "./no-such-library.so\n"
    assert done.stderr.count("cannot be preloaded") == 1


def test_open_files_of_this_process_are_not_inherited(workspace: Workspace, tmp_path: Path) -> None:
    """Not even those that are marked inheritable, nor the lines to bwrap."""
    (tmp_path / "secret").write_text("s3cret")
    held = os.open(tmp_path / "secret", os.O_RDONLY)
    os.set_inheritable(held, True)
    try:
        listed = tried(
            workspace,
            "[os.readlink('/proc/self/fd/' + n) for n in os.listdir('/proc/self/fd') if int(n) > 2 and os.path.exists('/proc/self/fd/' + n)]",
        )
    finally:
        os.close(held)
    assert listed == "[]"


# Ways out ---------------------------------------------------------------------------------------------------------------------


def test_links_in_the_workspace_lead_nowhere(workspace: Workspace, tmp_path: Path) -> None:
    """A symbolic link to a file outside dangles, for reading and for writing."""
    (tmp_path / "outside").write_text("secret")
    Path(workspace.root, "link").symlink_to(tmp_path / "outside")
    Path(workspace.root, "up").symlink_to("..")
    for path in ("link", "up/outside", "../outside", f"/proc/self/root{tmp_path}/outside", f"/proc/1/root{tmp_path}/outside"):
        assert tried(workspace, "open(sys.argv[1]).read()", path).startswith("FileNotFoundError"), path
    run(workspace, "open('up/outside', 'w').write('overwritten')")
    assert (tmp_path / "outside").read_text() == "secret"


def test_other_processes_can_be_neither_seen_nor_killed_nor_traced(workspace: Workspace) -> None:
    """The sandbox has process ids of its own; signals to everybody reach nobody outside."""
    other = subprocess.Popen(["sleep", "600"])
    try:
        assert set(eval(tried(workspace, "[n for n in os.listdir('/proc') if n.isdigit() and int(n) > 20]"))) == set()  # noqa: S307
        assert tried(workspace, "os.kill(int(sys.argv[1]), 9)", str(other.pid)).startswith("ProcessLookupError")
        done = run(
            workspace,
            "import os, signal; signal.signal(15, signal.SIG_IGN); os.kill(-1, 15)\ntry:\n    os.kill(-1, 9)\nexcept OSError: pass",
        )
        assert done.sandboxed
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_no_privilege_can_be_gained(workspace: Workspace) -> None:
    """No capabilities, no new ones through set-uid programs, and no namespace of its own to mount or map in."""
    status = run(workspace, "print(open('/proc/self/status').read())").stdout
    told = dict(line.split(":\t") for line in status.splitlines() if line.startswith(("Cap", "NoNewPrivs")))
    assert told["NoNewPrivs"] == "1"
    assert {int(value, 16) for name, value in told.items() if name.startswith("Cap")} == {0}
    code = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); print(libc.unshare(0x10000000), libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))"
    assert run(workspace, code).stdout == "-1 -1\n"


def test_the_network_is_out_of_reach_unless_allowed(workspace: Workspace) -> None:
    """A server on this machine's loopback, by TCP and by an abstract socket: refused; with `network`, TCP is reached."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0detent-sandbox-test")
        abstract.listen()
        port = server.getsockname()[1]
        code = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5); print('reached')"
        assert "reached" not in run(workspace, code, str(port)).stdout
        assert tried(workspace, "socket.socket(socket.AF_UNIX).connect('\\0detent-sandbox-test')").startswith("ConnectionRefused")
        assert run(workspace, code, str(port), box=Sandbox(network=True)).stdout == "reached\n"
    assert tried(workspace, "[name for _, name in socket.if_nameindex()]") == "['lo']"


# Bounds -----------------------------------------------------------------------------------------------------------------------


def test_a_fork_bomb_is_stopped(workspace: Workspace) -> None:
    """By the system where this is an ordinary user, by looking where it is root; either way nothing is left of it."""
    code = """
import os, time
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(600)
        made += 1
except OSError:
    print('refused after', made, flush=True)
    os._exit(7)
"""
    done = run(workspace, code, box=Sandbox(limits=SandboxLimits(processes=20)), timeout_s=60.0)
    assert done.code == 7 or done.killed_for == "more than 20 processes"
    assert not done.success and not done.timed_out
    assert not left_of(workspace)


@pytest.mark.parametrize("flags", ["mmap.MAP_PRIVATE", "mmap.MAP_SHARED"])
def test_a_memory_bomb_is_stopped(workspace: Workspace, flags: str) -> None:
    """Memory of its own is refused by the system; memory that it shares with children is found by looking."""
    code = f"""
import mmap, time
kept = []
try:
    while True:
        kept.append(mmap.mmap(-1, 8 << 20, flags={flags} | mmap.MAP_ANONYMOUS))
        kept[-1].write(b'x' * (8 << 20))
        time.sleep(0.005)
except (OSError, MemoryError):
    print('refused')
    raise SystemExit(7)
"""
    done = run(workspace, code, box=Sandbox(limits=SandboxLimits(memory_bytes=200 * MIB)), timeout_s=60.0)
    assert done.stdout == "refused\n" if "PRIVATE" in flags else done.killed_for == f"more than {200 * MIB} bytes of memory"
    assert not done.success and not done.timed_out


def test_many_small_processes_share_one_bound_of_memory(workspace: Workspace) -> None:
    """Each is below the bound, together they are not; what a fork shares with its parent counts once."""
    code = """
import os, sys, time
block = bytearray(b'x' * (60 << 20))
for _ in range(8):
    if os.fork() == 0:
        if sys.argv[1] == 'own':
            block[:] = b'y' * len(block)
        time.sleep(1 if sys.argv[1] == 'shared' else 600)
        os._exit(0)
for _ in range(8):
    os.wait()
"""
    box = Sandbox(limits=SandboxLimits(memory_bytes=300 * MIB))
    assert run(workspace, code, "own", box=box, timeout_s=60.0).killed_for == f"more than {300 * MIB} bytes of memory"
    assert run(workspace, code, "shared", box=box, timeout_s=60.0).killed_for == ""


def test_time_on_the_processor_files_and_tmp_are_bounded(workspace: Workspace) -> None:
    """Each by the system: a signal, or an error that the program sees."""
    limits = SandboxLimits(cpu_s=1, file_bytes=MIB, tmp_bytes=MIB, open_files=20)
    box = Sandbox(limits=limits)
    assert run(workspace, "while True: pass", box=box, timeout_s=60.0).code in (128 + signal.SIGXCPU, 128 + signal.SIGKILL)
    filling = "import sys\ntry:\n    with open(sys.argv[1], 'wb') as f: f.write(b'x' * (2 << 20))\nexcept OSError as e: print(e.strerror)"
    for path in ("big", "/tmp/big", "/dev/shm/big"):
        assert run(workspace, filling, path, box=box).stdout in ("File too large\n", "No space left on device\n"), path
    assert Path(workspace.root, "big").stat().st_size <= MIB
    assert "Too many open files" in run(workspace, "kept = [open('/dev/null') for _ in range(40)]", box=box).stderr


def test_a_flood_of_output_is_cut_and_the_program_goes_on(workspace: Workspace) -> None:
    """What is over the cap is read and dropped, so that neither side waits."""
    done = run(workspace, "import sys; [sys.stdout.write('x' * 100_000) for _ in range(100)]; sys.stderr.write('done')")
    assert (len(done.stdout), done.stdout_truncated, done.stderr, done.code) == (20_000, True, "done", 0)


# Ends -------------------------------------------------------------------------------------------------------------------------

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp('sleep', ['sleep', sys.argv[1]])
    os._exit(0)
os.wait()
print('left', flush=True)
time.sleep(float(sys.argv[2]))
"""


def mark(number: int) -> str:
    """Return seconds to sleep for that no other process sleeps for."""
    return f"{86_400 + os.getpid()}.{number}"


def left_of(workspace: Workspace, sign: str = "") -> list[str]:
    """Return the command lines of living processes that work in the workspace, or hold `sign`."""
    found: list[str] = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                inside = str((process / "cwd").readlink()).startswith(workspace.root)
            except OSError:
                continue
            if inside or (sign and sign in line):
                found.append(line)
    return found


def test_a_daemon_does_not_outlive_the_program(workspace: Workspace) -> None:
    """A session of its own, which escapes a process group, does not escape the sandbox: it is dead when the call has returned."""
    assert run(workspace, DAEMON, mark(1), "0").stdout == "left\n"
    assert not left_of(workspace, mark(1))


def test_the_time_limit_and_a_cancellation_end_everything(workspace: Workspace) -> None:
    """Both kill the whole sandbox; a cancellation is a typed failure with the output so far."""
    for limit in (0.3, 2.0, 30.0):  # on a slow machine it takes longer until the daemon is there
        done = run(workspace, DAEMON, mark(2), "600", timeout_s=limit)
        assert (done.timed_out, done.success, done.sandboxed) == (True, False, True)
        if done.stdout:
            break
    assert done.stdout == "left\n"
    assert not left_of(workspace, mark(2))

    async def cancelled() -> None:
        flag = Cancellation()
        running = asyncio.create_task(
            execute(workspace, sys.executable, ["-c", "open('up', 'w'); import time; time.sleep(600)"], sandbox=Sandbox(), cancelled=flag)
        )
        while not Path(workspace.root, "up").exists():
            await asyncio.sleep(0)
        flag.set("by a test")
        await running

    with pytest.raises(ToolFailed, match="by a test"):
        asyncio.run(cancelled())
    assert not left_of(workspace)


def test_an_interrupted_call_leaves_nothing_running(workspace: Workspace) -> None:
    """A task that is cancelled at any moment, also while the sandbox is being made."""

    async def interrupted(turns: int) -> None:
        task = asyncio.create_task(execute(workspace, "sleep", [mark(3)], sandbox=Sandbox()))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = descriptors()
    for turns in (1, 2, 3, 5, 8, 20, 200):
        asyncio.run(interrupted(turns))
    assert not left_of(workspace, mark(3))
    assert descriptors() == before


def test_the_sandbox_dies_with_this_process(workspace: Workspace) -> None:
    """SIGKILL of the process that started it: nothing can be cleaned up by anybody, and nothing is left."""
    script = f"""
import asyncio, sys
from detent.tools.workspace.confine import Workspace
from detent.tools.workspace.process import execute
from detent.tools.workspace.sandbox import Sandbox
asyncio.run(execute(Workspace({workspace.root!r}), sys.executable, ["-c", {DAEMON!r}, {mark(4)!r}, "600"], sandbox=Sandbox()))
"""
    parent = subprocess.Popen([sys.executable, "-c", script])
    try:
        while not left_of(workspace, f"sleep {mark(4)}"):
            assert parent.poll() is None
    finally:
        parent.kill()
        parent.wait()
    while left_of(workspace, mark(4)):
        os.sched_yield()


def test_the_machines_processes_are_not_the_sandboxs() -> None:
    """On a slow machine the limits are looked at before the sandbox has a /proc of its own; programs were killed for what ran beside them."""

    async def looked() -> str:
        process = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
        boxed = boxes.Boxed(
            process, limits=SandboxLimits(processes=1), status=FileIO(os.devnull), first=process.pid, group=None, proxy=None
        )
        try:
            return boxed.over()
        finally:
            process.kill()
            await process.wait()
            boxed.close()

    assert asyncio.run(looked()) == ""


def test_descriptors_are_given_back(workspace: Workspace) -> None:
    """However a call ends, this process holds no more files than before."""
    run(workspace, "")
    before = descriptors()
    for _ in range(3):
        run(workspace, "raise SystemExit(1)")
        with pytest.raises(ToolFailed):
            asyncio.run(execute(workspace, "no-such-program", sandbox=Sandbox()))
    assert descriptors() == before


def test_what_a_sandboxed_result_says_is_plain_data(workspace: Workspace) -> None:
    """The model and the log see it as JSON."""
    done = msgspec.to_builtins(run(workspace, "print(1)"))
    assert (done["sandboxed"], done["not_sandboxed"], done["killed_for"]) == (True, "", "")


# Files that outlive the sandbox ------------------------------------------------------------------------------------------------

SET_ID_WAYS = {
    "chmod": "os.chmod('a', 0o4755)",
    "group": "os.chmod('a', 0o2755)",
    "fchmod": "os.fchmod(os.open('a', os.O_RDONLY), 0o4755)",
    "at": "os.chmod('a', 0o4755, dir_fd=os.open('.', os.O_RDONLY))",
    "open": "os.open('b', os.O_CREAT | os.O_WRONLY, 0o4755)",
    "unnamed": "os.open('.', os.O_TMPFILE | os.O_RDWR, 0o4755)",
    "mknod": "os.mknod('c', 0o104755)",
    "fchmodat2": "system(452, -100, b'a', 0o4755, 0)",
}
GONE = {"openat2": "system(437, -100, b'a', 0, 0)", "io_uring": "system(425, 1, 0)"}
SYSTEM_CALL = """
import ctypes, os
def system(*given):
    if ctypes.CDLL(None, use_errno=True).syscall(*given) < 0:
        raise OSError(ctypes.get_errno(), "refused")
def tried(way):
    try:
        eval(way)
    except OSError as error:
        return error.errno
open("a", "w").close()
print({name: tried(way) for name, way in WAYS.items()})
"""


@pytest.mark.skipif(not sandbox_filter.program(), reason="no filter is known for this processor")
def test_no_program_leaves_a_file_behind_that_runs_with_its_owners_rights(workspace: Workspace) -> None:
    """Whatever call would set such a bit is refused, also where Detent runs as root; other modes and plain opens work."""
    done = run(workspace, f"WAYS = {SET_ID_WAYS | GONE}\n{SYSTEM_CALL}")
    assert done.success, done.stderr
    said = ast.literal_eval(done.stdout)
    assert said == dict.fromkeys(SET_ID_WAYS, errno.EPERM) | dict.fromkeys(GONE, errno.ENOSYS)
    for path in Path(workspace.root).rglob("*"):
        assert not path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID) or path.is_dir(), path
    plain = {
        "chmod": "os.chmod('a', 0o1777)",
        "open": "os.open('b', os.O_CREAT | os.O_WRONLY, 0o777)",
        "read": "os.open('a', os.O_RDONLY, 0o4755)",
        "fifo": "os.mkfifo('f', 0o666)",
        "mkdir": "os.mkdir('d', 0o755)",
    }
    assert ast.literal_eval(run(workspace, f"WAYS = {plain}\n{SYSTEM_CALL}").stdout) == dict.fromkeys(plain)


def decided(rules: bytes, processor: int, number: int, *arguments: int) -> int:
    """Return what a filter says of a call: a reading of the few instructions that it is made of."""
    data = struct.pack("=IIQ6Q", number, processor, 0, *arguments, *[0] * (6 - len(arguments)))
    at, held = 0, 0
    while True:
        code, yes, no, value = struct.unpack_from("=HBBI", rules, 8 * at)
        at += 1
        if code == 0x06:
            return value
        if code == 0x20:
            held = struct.unpack_from("=I", data, value)[0]
        else:
            held_so = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
            at += yes if held_so else no


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_knows_both_kinds_of_programs_of_a_processor(machine: str) -> None:
    """Each call in its table is refused with such a bit and passes without; unknown processors and second numbers are not there."""
    rules = sandbox_filter.program(machine)
    passes, not_there, refused = 0x7FFF0000, 0x00050000 | errno.ENOSYS, 0x00050000 | errno.EPERM
    for processor, table in sandbox_filter.SYSCALLS[machine].items():
        for number, places in table.items():
            if not places:
                assert decided(rules, processor, number) == not_there
                continue
            mode, *flags = places
            for bits, creates, expected in (
                (0o4755, 0o101, refused),
                (0o2755, 0o101, refused),
                (0o1777, 0o101, passes),
                (0o4755, 0, passes),
            ):
                arguments = [0] * 6
                arguments[mode] = bits
                if flags:
                    arguments[flags[0]] = creates
                elif not creates:
                    continue
                assert decided(rules, processor, number, *arguments) == expected, (hex(processor), number, oct(bits))
        assert decided(rules, processor, 1_000, 0o4755, 0o4755, 0o4755) == passes
    assert decided(rules, 0x1234, 90, 0, 0o755) == not_there
    if machine == "x86_64":
        assert decided(rules, 0xC000003E, 0x40000000 | 90, 0, 0o755) == not_there
    assert sandbox_filter.program("pdp11") == b""
