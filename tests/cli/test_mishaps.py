"""What can go wrong around a run: broken files, a damaged log, a full disk. A clear line each, the right exit code, nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from amounts import in_check, sampled, thinned
from cli.desk import Desk, ended
from detent.cli import invocation, looking
from detent.cli.main import run
from detent.cli.options import Setup
from detent.core.codec import encode, read_log, seal
from detent.core.errors import StoreBusy
from detent.core.events import NoteWritten
from detent.core.records import Envelope
from detent.stores.sqlite.store import SqliteStore


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@thinned
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'name = "x"\ntools = []\n[budget]\nmax_iteration = 3\n',
            "agent.toml: budget.max_iteration: unknown key; did you mean 'max_iterations'?",
        ),
        ('name = "x"\ninstuctions = "hi"\n', "agent.toml: instuctions: unknown key; did you mean 'instructions'?"),
        (
            'name = "x"\n[budget]\nmax_iterations = "many"\n',
            "agent.toml: budget.max_iterations: expected a whole number, found the text 'many'",
        ),
        ('name = "x"\ntools = ["read_fil"]\nmodel = "m"\n', "agent.toml: tools: unknown tool 'read_fil'; did you mean 'read_file'?"),
        ('name = "x"\nrules = "nothing.yaml"\n', "rule file 'nothing.yaml' cannot be read"),
        ("name = \n", "failed to parse agent file 'agent.toml': not TOML"),
        ('name = "x"\nprofile = {tier = "lrge"}\n', "agent.toml: unknown context profile 'lrge'; did you mean 'large'?"),
        ('name = "x"\nprofile = {preview_items = 0}\n', "agent.toml: profile.preview_items: 0 does not fit: Expected `int` >= 1"),
        ('name = "x"\n', "agent 'x' has neither a model nor rules"),
        ('name = "x"\nmodel = "openai:gpt-5"\n', "model 'openai:gpt-5' needs a key: set OPENAI_API_KEY\n"),
        (
            'name = "x"\nmodel = "openai:gpt-5"\nmodel_settings = {api_key_env = "MINE"}\n',
            "set OPENAI_API_KEY (MINE is not read: api_key_env is for",
        ),
    ],
)
def test_a_wrong_agent_file_is_named_with_the_key_and_what_is_right(desk: Desk, text: str, said: str) -> None:
    """Exit 2, at most two lines, no traceback, and no run was begun."""
    desk.write("agent.toml", text)
    done = desk.detent("run", "Go")
    assert done.code == 2
    assert said in done.err
    assert len(done.err.splitlines()) <= 2
    assert desk.detent("list").out == ""


def test_a_policy_or_planner_that_cannot_be_had_is_in_the_way_only_of_what_decides(desk: Desk) -> None:
    """Looking and cancelling go on, and the log names no change of policy; running and resuming refuse, and `doctor` names the fault."""
    desk.steps("wipe", "answer")
    desk.detent("run", "--run-id", "mine", "Clean")
    faulty = 'planner = "no_such_package:Planner"\ntools = ["./gone.py:gone"]\n[[policy]]\nrule = "no"\n'
    desk.write("detent.toml", f"{faulty}[mcp.x]\nno = 1\n[http]\nno = 1\n")
    (desk.home / "tools.py").unlink()
    for words in (("run", "Go"), ("resume", "mine")):
        refused = desk.detent(*words)
        assert refused.code == 2 and "detent.toml:4: rules[0].rule: unknown key" in refused.err
    assert "unknown key" in desk.detent("doctor", "--json").json["files"][0]["problem"]
    for words in (("list",), ("show", "mine"), ("export", "mine"), ("deny", "mine", "main.1.0", "--no-resume")):
        assert desk.detent(*words).code == 0, words
    assert desk.detent("cancel", "mine").code == 4
    assert "changed since" not in desk.detent("show", "mine").out


def test_a_server_that_nobody_started_is_named_at_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where everything else about the store is waited for longer than this test may take; without the password."""
    pytest.importorskip("psycopg")
    monkeypatch.setattr(invocation, "REFUSED_S", 0.05)
    monkeypatch.setenv("DETENT_TRUST", str(desk.home))
    monkeypatch.chdir(desk.home)
    desk.write("detent.toml", "[store]\nbusy_timeout_s = 600\n")
    with socket.socket() as taken:  # and nobody listens there
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        code = run(["run", "Go", "--store", f"postgresql://ann:secret@127.0.0.1:{port}/db"])
    said = capsys.readouterr().err
    assert code == 5 and "no server listens" in said and f"127.0.0.1:{port}" in said and "secret" not in said


def test_an_address_that_no_server_can_have_is_refused_at_once(desk: Desk) -> None:
    """Waiting would not make it one; the driver finds it out before it connects."""
    pytest.importorskip("psycopg")
    desk.write("detent.toml", "[store]\nbusy_timeout_s = 600\n")
    for wrong, why in (
        (":99999/db", "invalid port number"),
        (":one/db", "invalid integer value"),
        (":1/db?sslmode=no", "invalid sslmode value"),
    ):
        refused = desk.detent("list", "--store", f"postgresql://ann:secret@127.0.0.1{wrong}")
        assert refused.code in (1, 2) and why in refused.err and "correct the URL" in refused.err and "secret" not in refused.err


def test_a_server_that_is_waited_for_is_named_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by a worker, which may be started before it: nobody has to guess why nothing happens."""
    pytest.importorskip("psycopg")
    monkeypatch.setattr(invocation, "SLOW_S", 0.05)
    config = tmp_path / "detent.toml"
    config.write_text("[store]\nbusy_timeout_s = 0.5\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        worker = invocation.Invocation(
            Setup(store=f"postgresql://ann:secret@127.0.0.1:{taken.getsockname()[1]}/db", config=config), patient=True
        )
        worker.creates = True
        with pytest.raises(StoreBusy):
            worker.drive(lambda engine: engine.list_runs())
    said = capsys.readouterr().err
    assert said.count("has not answered for 0.05 s; waiting for it, Ctrl-C stops") == 1 and "secret" not in said


def test_a_policy_file_of_another_kind_is_refused_as_what_it_is(desk: Desk) -> None:
    """Not as the name of a policy that some package would have."""
    desk.write("detent.toml", 'policy = "policy.yaml"\n')
    assert "policy 'policy.yaml': the name of a policy file ends in .toml" in desk.detent("run", "Go").err


def test_an_agent_file_that_cannot_be_read_is_said(desk: Desk) -> None:
    """Missing, or a directory without one: exit 2."""
    assert "there is no agent file 'nope.toml'" in desk.detent("run", "--agent", "nope.toml", "Go").err
    (desk.home / "agent.toml").write_bytes(b"\xff\xfe")
    done = desk.detent("run", "Go")
    assert done.code == 2
    assert "is not UTF-8 text" in done.err


@pytest.mark.parametrize("words", [("run",), ("run", "  ")])
def test_an_empty_goal_is_a_usage_error(desk: Desk, words: tuple[str, ...]) -> None:
    """Two lines: what is missing and how it is given."""
    done = desk.detent(*words)
    assert done.code == 2
    assert len(done.err.splitlines()) == 2


@pytest.mark.parametrize("command", ["show", "resume", "replay", "verify", "tail", "cancel", "export", "erase", "delete"])
def test_an_unknown_run_is_a_usage_error(desk: Desk, command: str) -> None:
    """Exit 2; the command that lists what there is stands in the message; no store is created."""
    done = desk.detent(command, "20200101-000000-nothing-abc123")
    assert done.code == 2
    assert "detent list" in done.err
    assert not desk.store.parent.exists()


@pytest.mark.parametrize("store", ["sqlite:///runs.db", "file:runs"])
def test_bytes_that_are_no_text_are_a_usage_error(desk: Desk, store: str) -> None:
    """As the id of a run, and as what the user replies, which is not posted."""
    desk.steps("ask", "answer")
    assert desk.detent("run", "ask me", "--run-id", "asks", "--store", store).code == 3
    unknown = desk.detent("show", "bad\udcff", "--store", store)
    assert (unknown.code, "should not happen" in unknown.err) == (2, False), unknown.err
    refused = desk.detent("reply", "asks", "bad\udcff", "--store", store)
    assert (refused.code, "reply must be JSON data" in refused.err) == (2, True), refused.err
    assert desk.detent("reply", "asks", "good", "--store", store).code == 0


def test_a_traceback_is_shown_with_debug_only(desk: Desk) -> None:
    """The exit code stays the same."""
    assert "Traceback" not in desk.detent("show", "nothing").err
    debugged = desk.detent("show", "nothing", "--debug")
    assert "Traceback" in debugged.err
    assert debugged.code == 2


def test_a_flipped_byte_is_found_and_nothing_is_resumed(desk: Desk) -> None:
    """Verify names the sequence and exits 1, so do show and resume; export saves the lines; the tool does not run."""
    desk.steps("note", "ask", "second", "answer")
    desk.detent("run", "Go")
    with contextlib.closing(sqlite3.connect(desk.store)) as database, database:
        rows = database.execute("SELECT key, data FROM records ORDER BY key").fetchall()
        key, line = rows[4]
        place = line.index(b"main.1.0")
        database.execute("UPDATE records SET data=? WHERE key=?", (line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :], key))
    database.close()
    verified = desk.detent("verify", "last")
    assert verified.code == 1
    assert verified.out.count("record 5") == 1 and verified.out.startswith("not sound at record 5: ")
    assert "detent export" in verified.err
    for command in (("resume", "last"), ("show", "last"), ("reply", "last", "yes"), ("replay", "last")):
        done = desk.detent(*command)
        assert done.code == 1, command
        assert "record 5" in done.err
    assert desk.notes == ["one"]
    assert len(desk.detent("export", "last").out.splitlines()) == len(rows)


def test_a_log_of_a_newer_format_is_refused(desk: Desk) -> None:
    """Exit 1 and the advice to upgrade; the log stays as it is."""
    desk.steps("ask", "answer")
    desk.detent("run", "Go")
    run_id = desk.only_run()

    async def append_record_of_the_future() -> None:
        store = SqliteStore(desk.store)
        await store.open()
        *_, last = read_log(run_id, await store.read(run_id))
        envelope = Envelope(run=run_id, seq=last.envelope.seq + 1, at=datetime.now(UTC), v=99)
        line, _ = seal(envelope, encode(NoteWritten(text="from the future")), previous=last.digest, salt="x" * 16)
        head = await store.head(run_id)
        assert head is not None
        await store.append(run_id, last.envelope.seq, [line], head=msgspec.structs.replace(head, records=envelope.seq))
        await store.close()

    asyncio.run(append_record_of_the_future())
    for command in (("resume", "last"), ("show", "last"), ("reply", "last", "yes")):
        done = desk.detent(*command)
        assert done.code == 1, command
        assert "newer Detent" in done.err
    assert desk.detent("verify", "last").code == 1


@pytest.fixture
def small_disk(desk: Desk) -> Iterator[Path]:
    """A file system of 2 MB below the desk."""
    place = desk.home / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("a file system of its own needs root")
    if subprocess.run([mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(path: Path) -> None:
    """Write until there is not room for one byte more."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass


@pytest.mark.parametrize("store", ["sqlite:///disk/runs.db", pytest.param("file:disk/runs", marks=in_check)])
def test_a_full_disk_suspends_before_the_effect(desk: Desk, small_disk: Path, store: str) -> None:
    """Exit 5 and no further effect; what was recorded is kept, and with room again the run goes on where it was."""
    desk.steps("note", "pause", "second", "answer")
    long = "two" * 2000  # more than what is left of a page that the log has begun
    rules = desk.home / "rules.yaml"
    rules.write_text(rules.read_text().replace("text: two", f"text: {long}"))
    process = desk.start_and_wait_for_the_tool("run", "Go", "--store", store)
    filler = small_disk / "filler"
    fill(filler)
    desk.write("go", "")
    done = ended(process)
    assert done.code == 5, done
    assert "Traceback" not in done.err
    assert desk.notes == ["one"]
    filler.unlink()
    (desk.home / "begun").unlink()
    again = desk.detent("resume", "last", "--store", store)
    assert (again.code, desk.notes) == (0, ["one", long]), again
    assert desk.detent("verify", "last", "--store", store).code == 0


def test_a_reader_that_goes_away_is_no_error(desk: Desk) -> None:
    """`detent export last | head -1` ends quietly."""
    desk.detent("run", "Go")
    process = desk.start("show", "last")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.wait()
    process.stderr.close()


def test_a_second_kill_changes_nothing(desk: Desk) -> None:
    """Killed, resumed, killed again: each effect is in the file once."""
    desk.steps("note", "pause", "second", "answer")
    for command in (("run", "Go"), ("resume", "last")):
        process = desk.start_and_wait_for_the_tool(*command)
        process.send_signal(signal.SIGKILL)
        ended(process)
    desk.write("go", "")
    (desk.home / "begun").unlink()
    assert desk.detent("resume", "last").code == 0
    assert desk.notes == ["one", "two"]


def test_ctrl_c_in_a_command_is_said_and_is_no_silent_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where no run catches it, as while a store is listed."""

    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(looking, "list_runs", interrupted)
    assert run(["list"]) == 5
    assert capsys.readouterr().err.startswith("interrupted; everything recorded is kept")


INTERRUPTING = """
import os, signal, sys
MODULE = sys.argv[1]

class Interrupting:
    def find_spec(self, fullname, path, target=None):
        if fullname == MODULE:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
{start}
"""
STARTS = {
    "the script": "from detent.__main__ import main; sys.argv[1:] = ['--version']; sys.exit(main())",
    "the module": "import runpy; sys.argv[1:] = ['--version']; runpy.run_module('detent', run_name='__main__')",
}


@pytest.mark.parametrize("start", sampled(STARTS, few=1))
def test_ctrl_c_while_the_command_line_is_loaded_is_said(start: str) -> None:
    """Loading takes a moment, and somebody may have thought better of it: one line from its first module on, unless Ctrl-C is to be ignored."""
    code = INTERRUPTING.format(start=STARTS[start])
    for module in sampled(("detent.cli", "typer", "msgspec", "detent.cli.output"), few=2):
        done = subprocess.run([sys.executable, "-c", code, module], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (5, "", "interrupted; nothing was begun\n"), module
    ignoring = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    words = [sys.executable, "-c", ignoring, sys.executable, "-c", code, "msgspec"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout[:7], done.stderr) == (0, "detent ", "")


def test_the_traceback_of_a_users_tool_is_a_line_by_default_and_whole_where_it_is_asked_for(desk: Desk) -> None:
    """File and line at once; all of it in `show`, in `--json` and with `--debug`. A program would search its own code for `KeyError: 'colour'`."""
    desk.write("paint.py", 'from detent import tool\n\n\n@tool(side_effect="read")\ndef note(text: str) -> str:\n    return {}["colour"]\n')
    desk.write("agent.toml", 'name = "painter"\ntools = ["note"]\nrules = "rules.yaml"\n')
    desk.steps("note", "answer")
    done = desk.detent("run", "go", "--tools", "./paint.py:note", "--run-id", "r")
    place = f"{desk.home / 'paint.py'}:6 in note"
    assert f"raised KeyError: 'colour' ({place})" in done.err and "Traceback" not in done.err + done.out
    shown = desk.detent("show", "r").out
    assert place in shown and 'return {}["colour"]' in shown
    assert desk.detent("show", "r", "--json").json["audit"]["tracebacks"][0]["at"] == place
    assert 'return {}["colour"]' in desk.detent("run", "go", "--tools", "./paint.py:note", "--debug").err
    again = desk.detent("run", "go", "--tools", "./paint.py:note", "--json").json
    assert again["traceback"].startswith("Traceback") and "KeyError: 'colour'" in again["traceback"]
