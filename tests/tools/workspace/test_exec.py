"""exec: row R34. Real programs in real process groups."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from detent.core.errors import NotExecuted, ToolFailed
from detent.ports import Cancellation
from detent.tools.workspace.confine import Limits, Workspace
from detent.tools.workspace.process import Executed, execute

FORKING = """
import os, sys, time
pipe = sys.argv[1]
children = []
for _ in range(2):
    if os.fork() == 0:
        if os.fork() == 0:
            pass
        with open(pipe, "a") as file:
            print(os.getpid(), file=file, flush=True)
        time.sleep(600)
print("started", flush=True)
time.sleep(600 if sys.argv[2] == "stay" else 0)
"""


@contextmanager
def refused(code: str) -> Iterator[Any]:
    with pytest.raises(ToolFailed) as caught:
        yield caught
    assert caught.value.error_code == code, str(caught.value)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "sub").mkdir()
    return Workspace(tmp_path, limits=Limits(stdout_bytes=100, stderr_bytes=50))


def run(workspace: Workspace, code: str, *args: str, **options: Any) -> Executed:
    return asyncio.run(execute(workspace, sys.executable, ["-c", code, *args], **options))


def await_death(pids: list[int]) -> None:
    """Return when all are dead: a killed process runs no more of its program, but takes a moment to vanish. Alive for ever: the test's time is up."""
    while not all(is_gone(pid) for pid in pids):
        os.sched_yield()


def is_gone(pid: int) -> bool:
    """Whether a process is dead (perhaps not yet reaped by the system's first process)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_program_gives_output_code_and_time(workspace: Workspace) -> None:
    """R34: a code other than 0 is a normal result."""
    done = run(workspace, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (done.stdout, done.stderr, done.code, done.success, done.timed_out) == ("out\n", "err\n", 3, False, False)
    assert (done.stdout_truncated, done.stderr_truncated) == (False, False)
    assert done.duration_ms >= 0
    assert run(workspace, "").success is True
    assert run(workspace, "import os; os.kill(os.getpid(), 15)").code == -15


def test_there_is_no_shell(workspace: Workspace) -> None:
    """Arguments arrive as they are."""
    done = run(workspace, "import sys; print(sys.argv[1:])", "$HOME; *", "a b", "")
    assert done.stdout == "['$HOME; *', 'a b', '']\n"


@pytest.mark.parametrize("over", [-1, 0, 1, 100_000])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_caps_are_exact(workspace: Workspace, stream: str, over: int) -> None:
    """R34: false at the cap, true one over; a program that writes far more is not held up."""
    cap = 100 if stream == "stdout" else 50
    done = run(workspace, f"import sys; sys.{stream}.write('x' * {cap + over})")
    assert getattr(done, stream) == "x" * min(cap, cap + over)
    assert getattr(done, f"{stream}_truncated") is (over > 0)
    assert done.success


def test_default_caps_are_32_and_16_kib() -> None:
    """R34."""
    assert (Limits().stdout_bytes, Limits().stderr_bytes) == (32 * 1024, 16 * 1024)


def test_a_cut_does_not_split_a_character_and_bytes_are_replaced(workspace: Workspace) -> None:
    """Output is always valid text."""
    assert run(workspace, "import sys; sys.stdout.buffer.write(b'x' * 99 + 'é'.encode())").stdout == "x" * 99
    assert run(workspace, "import sys; sys.stdout.buffer.write(b'a\\xffb')").stdout == "a\ufffdb"


def test_input_is_passed_and_ends(workspace: Workspace) -> None:
    """With text, with none (end of file at once), and more than a program reads."""
    assert run(workspace, "import sys; print(sys.stdin.read())", stdin="é").stdout == "é\n"
    assert run(workspace, "import sys; print(repr(sys.stdin.read()))").stdout == "''\n"
    assert run(workspace, "print(1)", stdin="x" * 10_000_000).stdout == "1\n"


def test_the_working_directory_is_inside(workspace: Workspace, tmp_path: Path) -> None:
    """The root by default; a directory of it; never outside, also through a link."""
    where = "import os; print(os.getcwd()[-3:])"
    assert run(workspace, where, cwd="sub").stdout == "sub\n"
    assert run(workspace, "import os; print(os.getcwd())").stdout.strip()[-20:] == workspace.root[-20:]
    (tmp_path / "out").symlink_to("/")
    for cwd in ("..", "/", "out", "sub/../.."):
        with refused("outside_workspace"):
            run(workspace, where, cwd=cwd)
    with refused("not_found"):
        run(workspace, where, cwd="none")


def test_the_environment_is_minimal_unless_told(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets of this process are not handed on; `env` adds; `inherit=None` passes everything."""
    monkeypatch.setenv("SECRET_KEY", "s3cret")
    names = "import os; print('SECRET_KEY' in os.environ, 'PATH' in os.environ, os.environ.get('MORE'))"
    assert run(workspace, names).stdout == "False True None\n"
    assert run(workspace, names, env={"MORE": "1"}).stdout == "False True 1\n"
    assert run(workspace, names, inherit=None).stdout == "True True None\n"


def test_what_cannot_be_started_is_an_error(workspace: Workspace, tmp_path: Path) -> None:
    """R34: spawn failures are errors, with what to do."""
    (tmp_path / "plain").write_text("no program")
    (tmp_path / "empty").write_text("")
    (tmp_path / "empty").chmod(0o755)
    for command, code in (
        ("no-such-program", "command_not_found"),
        ("./plain", "permission_denied"),
        ("./sub", "permission_denied"),
        ("./empty", "not_executable"),
    ):
        with refused(code) as caught:
            asyncio.run(execute(workspace, command))
        assert command in str(caught.value)
    with refused("command_not_found") as caught:
        asyncio.run(execute(workspace, "ls -la"))
    assert "one element each" in str(caught.value)
    with refused("too_large"):
        asyncio.run(execute(workspace, sys.executable, ["x" * 10_000_000]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"command": ""},
        {"args": ["a\0"]},
        {"args": ["\ud800"]},
        {"timeout_s": 0},
        {"timeout_s": 601},
        {"env": {"": "x"}},
        {"env": {"a=b": "x"}},
        {"env": {"a": "\0"}},
    ],
)
def test_arguments_that_cannot_be_passed_are_refused(workspace: Workspace, wrong: dict[str, Any]) -> None:
    """Before anything is started."""
    with refused("invalid_arguments"):
        asyncio.run(execute(workspace, **{"command": sys.executable, **wrong}))


def test_a_timeout_kills_the_whole_group_and_keeps_the_output(workspace: Workspace, tmp_path: Path) -> None:
    """R34: children and grandchildren die with the program; what it had written is there."""
    pids: list[int] = []
    for limit in (0.2, 1.0, 5.0, 30.0):  # on a slow machine it takes longer until all have begun
        (tmp_path / "pids").unlink(missing_ok=True)
        done = run(workspace, FORKING, "pids", "stay", timeout_s=limit)
        assert (done.timed_out, done.success, done.code) == (True, False, -9)
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()] if (tmp_path / "pids").exists() else []
        if len(pids) == 4 and done.stdout:
            break
    assert (len(pids), done.stdout) == (4, "started\n")
    await_death(pids)


def test_what_a_program_leaves_running_is_killed_when_it_ends(workspace: Workspace, tmp_path: Path) -> None:
    """Children that hold the output open do not hold up the result, and do not stay."""
    done = run(
        workspace,
        FORKING.replace(
            "time.sleep(600 if",
            "while len(open(pipe).read().split() if os.path.exists(pipe) else []) < 4: time.sleep(0.01)\ntime.sleep(600 if",
        ),
        "pids",
        "go",
        timeout_s=60,
    )
    assert (done.timed_out, done.code, done.stdout) == (False, 0, "started\n")
    await_death([int(pid) for pid in (tmp_path / "pids").read_text().split()])


def test_cancelling_the_task_kills_the_group(workspace: Workspace, tmp_path: Path) -> None:
    """The cancellation goes on only when everything is dead."""

    async def scenario() -> None:
        os.mkfifo(tmp_path / "ready")
        code = "import os, time\nif os.fork() == 0: time.sleep(600)\nopen('ready', 'w').write(str(os.getpid()))\ntime.sleep(600)"
        task = asyncio.create_task(execute(workspace, sys.executable, ["-c", code]))
        pid = int(await asyncio.to_thread((tmp_path / "ready").read_text))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await_death(group(pid))

    asyncio.run(scenario())


def group(pgid: int) -> list[int]:
    """The processes of a group."""
    members: list[int] = []
    for entry in [path.name for path in Path("/proc").iterdir()]:
        if entry.isdigit():
            try:
                if os.getpgid(int(entry)) == pgid:
                    members.append(int(entry))
            except ProcessLookupError:
                continue
    return members


def test_the_cancellation_flag_kills_too(workspace: Workspace, tmp_path: Path) -> None:
    """Set from anywhere, it ends the program with an error that has the output so far; set before, nothing is started."""

    async def scenario() -> None:
        os.mkfifo(tmp_path / "ready")
        cancelled = Cancellation()
        code = "import time\nprint('so far', flush=True)\nopen('ready', 'w').write('x')\ntime.sleep(600)"
        task = asyncio.create_task(execute(workspace, sys.executable, ["-c", code], cancelled=cancelled))
        await asyncio.to_thread((tmp_path / "ready").read_text)
        cancelled.set("the run was cancelled")
        with refused("cancelled") as caught:
            await task
        assert caught.value.details["stdout"] == "so far\n"
        with pytest.raises(NotExecuted):
            await execute(workspace, sys.executable, ["-c", "open('never', 'w')"], cancelled=cancelled)
        assert not (tmp_path / "never").exists()

    asyncio.run(scenario())


def test_no_descriptor_and_no_task_is_left(workspace: Workspace) -> None:
    """After success, failure to start and timeout, this process has what it had before."""

    async def scenario() -> None:
        async def all_ways() -> None:
            await execute(workspace, sys.executable, ["-c", "print(1)"], stdin="x")
            await execute(workspace, sys.executable, ["-c", "import time; time.sleep(60)"], timeout_s=0.05)
            with pytest.raises(ToolFailed):
                await execute(workspace, "no-such-program")

        await all_ways()
        before = len(list(Path("/proc/self/fd").iterdir()))
        await all_ways()
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())
