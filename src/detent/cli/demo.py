"""`detent demo`: a real run is killed with SIGKILL in the middle, resumed by another process, and the files and the log are compared.

The run is held at a chosen record, so that the kill always hits the middle: `Hold` is an observer that blocks the event loop once the
second line of the timeline is written. The process is then killed from outside; nothing in it gets a chance to tidy up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from detent.cli.output import FAILED, Output
from detent.config.demands import listing
from detent.config.schema_lines import schema_line
from detent.config.state_directory import STORE_FILE, made_state_directory, state_directory, store_url
from detent.config.trust import VARIABLE, remember
from detent.core.codec import read_log
from detent.core.errors import ConfigError, DetentError
from detent.core.events import ToolFinished, ToolReconciled, ToolStarted
from detent.core.records import Record
from detent.core.state import RunState
from detent.ports import Chunk, RunQuery
from detent.stores.urls import open_store

GOAL = "Find the error burst and its cause"
HOLD_AFTER = 2
"""How many lines of the timeline are written when the run is killed."""
PATIENCE_S = 60.0
HOLD_CONFIG = 'observers = ["detent.cli.demo:Hold"]\n'


class Hold:
    """An observer that lets its process hang after `HOLD_AFTER` completed appends, until it is killed."""

    def __init__(self) -> None:
        self._appends: set[str] = set()
        self._done = 0

    def on_record(self, record: Record, state: RunState) -> None:
        """Count the appends that are in the log; after the last that is waited for, nothing runs in this process any more."""
        event = record.event
        if isinstance(event, ToolStarted) and event.tool == "append_file":
            self._appends.add(event.call)
        elif isinstance(event, ToolFinished) and event.call in self._appends:
            self._done += 1
            if self._done == HOLD_AFTER:
                asyncio.get_running_loop().call_soon(threading.Event().wait)

    def on_chunk(self, chunk: Chunk) -> None:
        """Nothing is streamed here."""


class Failed(DetentError):
    """The demonstration did not go as it must; the message says where."""

    code = "demo_failed"


def demonstrate(output: Output, directory: Path | None) -> int:
    """Run, kill, resume, compare; return 0 when every check holds, 1 otherwise."""
    home = _prepare(directory)
    say = output.show
    say("Detent demo: an agent reads a web server's log, finds the burst of errors and writes an incident report.")
    say(f"It works in {home}; its rules decide, no model is needed.")
    try:
        facts = _demonstrate(output, home)
    except Failed as error:
        output.document({"ok": False, "directory": str(home), "problem": str(error)})
        output.say(f"error: the demo failed: {error}", "red")
        output.say(f"everything is still there: {home}")
        return FAILED
    output.document({"ok": True, "directory": str(home), **facts})
    say()
    say("Killed in the middle, resumed by another process, nothing done twice.", "bold green")
    say(f"look at it: cd {home} && detent show last")
    return 0


def _demonstrate(output: Output, home: Path) -> dict[str, Any]:
    say = output.show
    say()
    say(f'$ detent run "{GOAL}"', "bold")
    before = _run_and_kill(output, home)
    run_id = before[0].envelope.run
    timeline = next(home.glob("reports/timeline-*.md"))
    lines = timeline.read_text(encoding="utf-8")
    started, ended = _count(before, ToolStarted), _count(before, ToolFinished)
    say(
        f"  SIGKILL after record {len(before)}; {started} calls with an effect were started, {ended} calls have their outcome in the log.",
        "red",
    )
    say(f"  {timeline.relative_to(home)} as it was left behind:")
    _quote(output, lines)
    say()
    say("$ detent resume last", "bold")
    _detent(output, home, "resume", "last", wanted=0)
    after = asyncio.run(_records(home, run_id))
    say()
    say("What the log and the files say:", "bold")
    checks = _checks(home, before, after, timeline, lines)
    for text, holds in checks:
        say(f"  {'ok  ' if holds else 'FAIL'}  {text}", "green" if holds else "red")
    wrong = [text for text, holds in checks if not holds]
    if wrong:
        raise Failed(f"this does not hold: {'; '.join(wrong)}")
    for command in ("verify", "replay"):
        say()
        say(f"$ detent {command} last", "bold")
        _detent(output, home, command, "last", wanted=0)
    report = next(home.glob("reports/incident-*.md"))
    say()
    say(f"The report, {report}, begins:", "bold")
    _quote(output, "\n".join(report.read_text(encoding="utf-8").splitlines()[:8]))
    return {
        "run_id": run_id,
        "killed_after_record": len(before),
        "records": len(after),
        "digest": after[-1].digest,
        "report": str(report),
        "checks": [text for text, _ in checks],
    }


# The example --------------------------------------------------------------------------------------------------------------------


def _prepare(directory: Path | None) -> Path:
    """Return a directory with a copy of the example; raise `ConfigError` when it is not empty."""
    if directory is not None and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} is not an empty directory; the demo writes into a new or an empty one")
    home = (directory or Path(tempfile.mkdtemp(prefix="detent-demo-"))).resolve()
    shutil.copytree(_example(), home, dirs_exist_ok=True, ignore=shutil.ignore_patterns("reports", "*.db*", "__pycache__"))
    for file in (home / "agent.toml", home / "rules.yaml"):
        _, text = file.read_text(encoding="utf-8").split("\n", 1)
        file.write_text(schema_line(file) + text, encoding="utf-8")
    (home / "hold.toml").write_text(HOLD_CONFIG, encoding="utf-8")
    with contextlib.suppress(ConfigError):  # no place to remember it: then its own processes alone are told (`_environment`)
        remember(listing(home), pin=True)
    return home


def _example() -> Path:
    """Return the example: inside the installed package, or beside the source in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for place in (package / "examples" / "log_triage", package.parent.parent / "examples" / "log-triage"):
        if (place / "agent.toml").is_file():
            return place
    raise ConfigError("the example is missing from this installation; install detent from its wheel, or run from a checkout")


# Processes ----------------------------------------------------------------------------------------------------------------------


def _environment(home: Path) -> dict[str, str]:
    """Return the environment of the processes: without settings that would change the run, with trust in what was written, and this package."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DETENT_")}
    source = str(Path(__file__).resolve().parent.parent.parent)
    kept[VARIABLE] = f"{home}={listing(home).digest}"
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, [source, kept.get("PYTHONPATH", "")])), "PYTHONUNBUFFERED": "1"}


def _command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "detent", *words]


def _run_and_kill(output: Output, home: Path) -> list[Record]:
    """Start the run, kill it where it is held, and return the records that it left; raise `Failed`."""
    noise = made_state_directory(home) / "killed-run.log"
    with noise.open("wb") as file:
        process = subprocess.Popen(
            _command("run", "--config", "hold.toml", GOAL),
            cwd=home,
            env=_environment(home),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
        try:
            run_id = _wait_until_held(home, process, noise)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    _quote(output, noise.read_text(encoding="utf-8", errors="replace"), mark="  ")
    records = asyncio.run(_records(home, run_id))
    if process.returncode != -signal.SIGKILL or _appended(records) != HOLD_AFTER:
        raise Failed(f"the process was not killed in the middle (exit code {process.returncode}, {_appended(records)} lines written)")
    return records


def _wait_until_held(home: Path, process: subprocess.Popen[bytes], noise: Path) -> str:
    """Look into the log, which another process writes, until the run is where it is held; return its id."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = noise.read_text(encoding="utf-8", errors="replace").strip()
            raise Failed(f"the run ended with exit code {process.returncode} before it could be killed:\n{said}")
        run_id = asyncio.run(_held(home)) if (state_directory(home) / STORE_FILE).exists() else ""
        if run_id:
            return run_id
        time.sleep(0.02)  # polls the log of the other process
    raise Failed(f"the run did not come to its middle within {PATIENCE_S:.0f} s")


async def _held(home: Path) -> str:
    store = open_store(store_url(home))
    await store.open()
    try:
        heads = await store.list_runs(RunQuery(limit=1))
        if not heads:
            return ""
        run_id = heads[0].run_id
        return run_id if _appended(list(read_log(run_id, await store.read(run_id)))) >= HOLD_AFTER else ""
    finally:
        await store.close()


async def _records(home: Path, run_id: str) -> list[Record]:
    store = open_store(store_url(home))
    await store.open()
    try:
        return list(read_log(run_id, await store.read(run_id)))
    finally:
        await store.close()


def _detent(output: Output, home: Path, *words: str, wanted: int) -> None:
    """Run a command of ours, show what it says, and raise `Failed` when it does not end as it should."""
    done = subprocess.run(
        _command(*words),
        cwd=home,
        env=_environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    _quote(output, done.stderr + done.stdout, mark="  ")
    if done.returncode != wanted:
        raise Failed(f"`detent {' '.join(words)}` ended with exit code {done.returncode}, not {wanted}")


def _quote(output: Output, text: str, mark: str = "  | ") -> None:
    for line in text.strip().splitlines():
        output.show(f"{mark}{line}", "dim")


# The proof ----------------------------------------------------------------------------------------------------------------------


def _checks(home: Path, before: list[Record], after: list[Record], timeline: Path, left: str) -> list[tuple[str, bool]]:
    """Return each claim with whether it holds, from the records before and after the kill and the file that the effects left."""
    prefix = [r.digest for r in after[: len(before)]] == [r.digest for r in before]
    starts = [r.event for r in after if isinstance(r.event, ToolStarted)]
    effects = [s for s in starts if s.side_effect not in ("none", "read")]
    settled = {r.event.call for r in after if isinstance(r.event, ToolReconciled)}
    again = [s.call for s in effects if s.attempt > 1 and s.call not in settled]
    done_before = {r.event.call for r in before if isinstance(r.event, ToolFinished)}
    repeated = [
        r.event.call for r in after[len(before) :] if isinstance(r.event, ToolStarted | ToolFinished) and r.event.call in done_before
    ]
    text = timeline.read_text(encoding="utf-8")
    written = _texts(after)
    once = [line for line in written if text.count(line) != 1]
    return [
        (f"the {len(before)} records from before the kill are unchanged; {len(after) - len(before)} came after it", prefix),
        (f"none of the {len(done_before)} calls that had an outcome was started again", not repeated),
        (f"each of the {len(effects)} calls that write was started once", not again and len({s.call for s in effects}) == len(effects)),
        (
            f"each of the {len(written)} lines of append_file stands in {timeline.relative_to(home)} exactly once",
            bool(written) and not once,
        ),
        ("what was written before the kill is still there, and the rest follows it", text.startswith(left) and len(text) > len(left)),
    ]


def _texts(records: list[Record]) -> list[str]:
    """Return the text of each append that the log says has happened."""
    done = {r.event.call for r in records if isinstance(r.event, (ToolFinished, ToolReconciled))}
    texts: dict[str, str] = {}
    for record in records:
        for index, action in enumerate(getattr(record.event, "actions", ())):
            if getattr(action, "tool", "") == "append_file":
                call = f"{record.envelope.scope}.{record.envelope.iteration}.{index}"
                if call in done:
                    args: dict[str, Any] = msgspec.to_builtins(action.args)
                    texts[call] = args["content"]
    return list(texts.values())


def _appended(records: list[Record]) -> int:
    appends = {r.event.call for r in records if isinstance(r.event, ToolStarted) and r.event.tool == "append_file"}
    return sum(isinstance(r.event, ToolFinished) and r.event.call in appends for r in records)


def _count(records: list[Record], kind: type[Any]) -> int:
    return sum(isinstance(record.event, kind) for record in records)
