"""`detent demo`: kills an agent during a payment, lets it ask for an approval, and compares it with the same agent as a plain loop.

Everything is real: each command is a process of its own, and the kill is a SIGKILL from outside. The tool tells the demo through a pipe that the
payment was made, and then hangs. So the kill always hits the moment between the effect and its record. In the end the demo searches the log and
the ledger for anything that was done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from detent.cli.output import FAILED, WAITING, Output, room_of
from detent.cli.packaged import packaged, texts, written
from detent.config.demands import listing
from detent.config.state_directory import made_state_directory, store_url
from detent.config.trust import VARIABLE, remember
from detent.core.codec import read_log
from detent.core.errors import ConfigError, DetentError
from detent.core.events import ToolReconciled, ToolStarted
from detent.core.fold import fold
from detent.core.records import Record
from detent.core.state import RunState
from detent.expressions.display import counted
from detent.running.results import result_of
from detent.stores.urls import open_store

RUN = "pay"
"""The id of the run."""
GOAL = "Pay what is due"
KILL_AFTER = 2
"""How many payments are in the ledger when the process is killed."""
PATIENCE_S = 60.0
MOST_STEPS = 20
"""How many steps the demo makes after the kill; a model may need more than the rules."""
COLUMNS = 80

Payment = tuple[str, str, str]


class Failed(DetentError):
    """The demo failed; the message says where."""

    code = "demo_failed"


def demonstrate(output: Output, directory: Path | None, model: str | None = None) -> int:
    """Run, kill, resume, approve, compare. Return 0 if every check passes, otherwise 1. Raise `ConfigError`."""
    model = _chosen(model)
    home = _prepare(directory)
    output.show("An agent pays three invoices: A-17, A-18, and A-19, which is large.", "bold")
    output.show(f"{f'The model {model} decides.' if model else 'Rules decide, so it needs no model.'} It works in {home}")
    try:
        facts = _demonstrate(output, home, model)
    except Failed as error:
        output.document({"ok": False, "directory": str(home), "problem": str(error)})
        output.say(f"error: the demo failed: {error}", "red")
        output.say(f"everything is still there: {home}")
        return FAILED
    output.document({"ok": True, "directory": str(home), **facts})
    output.show()
    output.show("Killed, resumed, approved: every invoice was paid exactly once.", "bold green")
    output.show(f"look at it: cd {home} && detent show {RUN}")
    return 0


def _demonstrate(output: Output, home: Path, model: str | None) -> dict[str, Any]:
    demo = _Demo(output, home, model)
    demo.title("1. Killed inside a payment: is the invoice paid or not?")
    demo.killed()
    before = demo.records()
    demo.detent("resume", RUN, wanted=(0, WAITING))
    _, asked = demo.taken_further()
    demo.title("3. The same agent as a plain loop: its memory is a list in the process")
    loop = demo.plain_loop()
    demo.title("What the log and the ledgers say")
    after = demo.records()
    checks = [
        *proof(before, after, payments(home / "ledger.csv")),
        (f"{' and '.join(asked) or 'no payment'} ran only after an approval", bool(asked)),
        ("the plain loop paid two invoices twice, and asked nobody", len(loop) - len(set(loop)) == KILL_AFTER),
    ]
    for text, holds in checks:
        output.show(f"  {'ok  ' if holds else 'FAIL'}  {text}", "green" if holds else "red")
    if wrong := [text for text, holds in checks if not holds]:
        raise Failed(f"this does not hold: {'; '.join(wrong)}")
    demo.detent("verify", RUN)
    demo.detent("replay", RUN)
    return {
        "run_id": RUN,
        "killed_after_record": len(before),
        "records": len(after),
        "digest": after[-1].digest,
        "ledger": payments(home / "ledger.csv"),
        "plain_loop": loop,
        "checks": [text for text, _ in checks],
    }


class _Demo:
    """What the parts of the demo share: their output and their directory."""

    def __init__(self, output: Output, home: Path, model: str | None) -> None:
        self._output, self._home = output, home
        self._model = ("--model", model) if model else ()

    def title(self, text: str) -> None:
        """Print the title of a part."""
        self._output.show()
        self._output.show(text, "bold")

    def detent(self, *words: str, wanted: Sequence[int] = (0,)) -> int:
        """Run a detent command, show it and its output, and return its exit code. Raise `Failed` if the code is not in `wanted`."""
        self._output.show(f"$ detent {' '.join(words)}", "bold")
        done = subprocess.run(
            _command(*words),
            cwd=self._home,
            env=_environment(self._home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        self._quote(done.stderr + done.stdout)
        if done.returncode not in wanted:
            raise Failed(f"`detent {' '.join(words)}` ended with exit code {done.returncode}, not {' or '.join(map(str, wanted))}")
        return done.returncode

    def killed(self) -> None:
        """Start the run, and kill it during its second payment. Raise `Failed`."""
        words = ("run", *self._model, "--run-id", RUN)
        self._output.show(f'$ detent {" ".join(words)} "{GOAL}"', "bold")
        said = self._kill([*_command(*words), GOAL], {})
        self._quote(said)
        last = payments(self._home / "ledger.csv")[-1][0]
        self._output.show(f"  SIGKILL inside `pay`: {last} is in the ledger, its outcome is not in the log.", "red")

    def taken_further(self) -> tuple[RunState, list[str]]:
        """Settle calls in doubt and approve waiting calls until the run has ended; return its state and the approved invoices."""
        approved: list[str] = []
        for _ in range(MOST_STEPS):
            state = fold(self.records())
            paid = [invoice for invoice, *_ in payments(self._home / "ledger.csv")]
            if state.in_doubt:
                call = state.in_doubt[0]
                invoice = _invoice(state, call)
                there = invoice in paid
                self._output.show(f"  The ledger {'has' if there else 'does not have'} {invoice}: say so, and nothing is guessed.")
                self.detent("reconcile", RUN, call, *(("--happened", "paid") if there else ("--not",)), wanted=(0, WAITING))
            elif state.approvals:
                call = next(iter(state.approvals))
                if (invoice := _invoice(state, call)) in paid:
                    raise Failed(f"{invoice} was paid before anybody approved it")
                self.title("2. An approval: payments over 1,000 EUR wait for a person (policy.toml)")
                self._output.show(f"  The ledger does not have {invoice} yet. No process runs.")
                self.detent("approve", RUN, call, "--digest", state.approvals[call].digest, wanted=(0, WAITING))
                approved.append(invoice)
            elif state.status == "completed":
                return state, approved
            else:
                raise Failed(f"the run is {state.status} ({state.reason}) instead of completed")
        raise Failed(f"the run did not end within {MOST_STEPS} steps")

    def plain_loop(self) -> list[Payment]:
        """Run the plain loop, kill it at the same place, start it again, and return its payments."""
        ledger = self._home / "plain-ledger.csv"
        command = [sys.executable, "plain_loop.py"]
        for start in ("  (killed in the same place)", ""):
            self._output.show(f"$ python plain_loop.py{start}", "bold")
            if start:
                self._quote(self._kill(command, {"DEMO_LEDGER": str(ledger)}))
                continue
            environment = {**_environment(self._home), "DEMO_LEDGER": str(ledger)}
            done = subprocess.run(
                command,
                cwd=self._home,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            self._quote(done.stdout + done.stderr)
        found = payments(ledger)
        self._output.show(f"  its ledger: {', '.join(invoice for invoice, *_ in found)}", "red")
        return found

    def records(self) -> list[Record]:
        """Return the run's log."""
        return asyncio.run(records_of(self._home))

    def _kill(self, command: list[str], more: dict[str, str]) -> str:
        """Start a process, kill it once it reports that it is inside the payment, and return what it wrote. Raise `Failed`."""
        read, write = os.pipe()
        noise = made_state_directory(self._home) / "killed.log"
        environment = {**_environment(self._home), "DEMO_KILL_AFTER": str(KILL_AFTER), "DEMO_TELL": str(write), **more}
        with noise.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=self._home, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, pass_fds=[write]
            )
            os.close(write)
            try:
                ready, _, _ = select.select([read], [], [], PATIENCE_S)
                told = os.read(read, 1) if ready else b""  # empty if the process has ended
            finally:
                os.close(read)
                process.send_signal(signal.SIGKILL)
                process.wait()
        said = noise.read_text(encoding="utf-8", errors="replace")
        if not told or process.returncode != -signal.SIGKILL:
            raise Failed(f"the process ended with exit code {process.returncode} before it could be killed:\n{said.strip()}")
        return said

    def _quote(self, text: str) -> None:
        """Show what a command printed, wrapped at the width of the terminal."""
        width = room_of(sys.stdout) or COLUMNS
        for line in text.strip().splitlines():
            rows = textwrap.wrap(line, width - 2, subsequent_indent="      ", drop_whitespace=False, break_on_hyphens=False) or [""]
            for row in rows:
                self._output.show(f"  {row.rstrip()}", "dim")


# Its directory ------------------------------------------------------------------------------------------------------------------


def _chosen(model: str | None) -> str | None:
    """Return the model to use; `auto` means the first provider whose key is set. Raise `ConfigError` if there is none."""
    if model != "auto":
        return model
    from detent.planners.providers import SUGGESTED, providers_with_key

    ready = providers_with_key()
    if not ready:
        raise ConfigError(
            "no provider key is set, so no model is available; `detent doctor` lists the variables. Without --model rules decide"
        )
    return SUGGESTED[ready[0]]


def _prepare(directory: Path | None) -> Path:
    """Return a directory with a copy of the example. Raise `ConfigError` if it is not empty."""
    if directory is not None and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} is not an empty directory; the demo writes into a new or an empty one")
    files = [*texts(packaged("demo"))]
    home = (directory or Path(tempfile.mkdtemp(prefix="detent-demo-"))).resolve()
    for name, text in files:
        written(home / name, text)
    with contextlib.suppress(ConfigError):  # trust cannot be remembered: then only the demo's own processes get it (`_environment`)
        remember(listing(home), pin=True)
    return home


def _environment(home: Path) -> dict[str, str]:
    """Return the environment of the processes: without settings that would change the run, with trust in the written files, and with this package."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DETENT_", "DEMO_", "PYTHONSAFEPATH"))}
    source = str(Path(__file__).resolve().parent.parent.parent)
    kept[VARIABLE] = f"{home}={listing(home).digest}"
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, [source, kept.get("PYTHONPATH", "")])), "PYTHONUNBUFFERED": "1"}


def _command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "detent", *words]


async def records_of(home: Path) -> list[Record]:
    """Return the log of the run in a directory of the demo."""
    store = open_store(store_url(home))
    await store.open()
    try:
        return list(read_log(RUN, await store.read(RUN)))
    finally:
        await store.close()


# The proof ----------------------------------------------------------------------------------------------------------------------


def payments(ledger: Path) -> list[Payment]:
    """Return the lines of a ledger: invoice, to, amount."""
    with ledger.open(encoding="utf-8", newline="") as file:
        return [(row[0], row[1], row[2]) for row in csv.reader(file)]


def proof(before: Sequence[Record], after: Sequence[Record], ledger: Iterable[Payment]) -> list[tuple[str, bool]]:
    """Return each statement with whether it is true, from the log before and after the kill and from the ledger, which has what really happened."""
    paid = list(ledger)
    starts = [record.event for record in after if isinstance(record.event, ToolStarted) and record.event.tool == "pay"]
    settled = {record.event.call for record in after if isinstance(record.event, ToolReconciled)}
    again = [start.call for start in starts if start.attempt > 1 and start.call not in settled]
    done = [call.args["invoice"] for call in result_of(fold(after)).tool_calls if call.tool == "pay" and call.ok]
    return [
        (
            f"the {len(before)} records from before the kill are unchanged, {len(after) - len(before)} follow",
            [record.digest for record in after[: len(before)]] == [record.digest for record in before],
        ),
        (
            f"the log has {counted(len(done), 'payment')}: none started again, no invoice twice",
            bool(done) and not again and len(set(done)) == len(done),
        ),
        (
            f"the ledger has {counted(len(paid), 'payment')}: no invoice is paid twice",
            bool(paid) and len({invoice for invoice, *_ in paid}) == len(paid),
        ),
        ("the log and the ledger name the same invoices", sorted(done) == sorted(invoice for invoice, *_ in paid)),
    ]


def _invoice(state: RunState, call_id: str) -> str:
    call = state.call(call_id)
    return str(call.args.get("invoice", "")) if call is not None and isinstance(call.args, dict) else ""  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
