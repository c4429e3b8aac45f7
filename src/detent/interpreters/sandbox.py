"""The process in which a model's programs run: it holds Monty, answers what a program must not have, and asks the parent for each call of a tool.

A program of its own, which imports nothing of Detent: `python -I sandbox.py FOLDER`, where FOLDER has the library. Frames of JSON go over its standard
input and output, each after its length in four bytes. The library's native threads can abort an interpreter that ends, so they end with this process
and never with the parent's.

Nothing inside may differ next time. There is no clock, no randomness and no file here: whoever asks for one gets an exception. A set has no order that
leaves the sandbox, because it cannot leave it.
"""

from __future__ import annotations

import base64
import json
import math
import os
import queue
import signal
import sys
import threading
from typing import Any, NoReturn, cast

sys.path += sys.argv[1:]  # last: it hides no module of Python

import pydantic_monty

monty: Any = pydantic_monty

LONGEST = 2_000
"""The most characters that an error is told in."""
NO_CLOCK = "there is no clock here: {0} would give another result next time"
NO_CHANCE = "there is no randomness here: {0} would give another result next time. `random.seed(...)` with a fixed number works"
REFUSED = {
    "time.time": NO_CLOCK,
    "time.sleep": NO_CLOCK,
    "asyncio.sleep": NO_CLOCK,
    "datetime.now": NO_CLOCK,
    "date.today": NO_CLOCK,
    "os.urandom": NO_CHANCE,
}
UNCAUGHT = {"TimeoutError": "time", "MemoryError": "memory"}
"""Limits that no program can catch, and that may strike elsewhere next time."""

_inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()


class Ended(Exception):
    """The program ended; `how` says what is told of it."""

    def __init__(self, **how: Any) -> None:
        self.how = how


def _read() -> None:
    """Pass the parent's frames on. When the parent is gone, end at once, with the worker of the library."""
    stream = sys.stdin.buffer
    while len(size := stream.read(4)) == 4:
        frame = stream.read(int.from_bytes(size, "big"))
        try:
            _inbox.put(json.loads(frame))
        except ValueError:
            break
    leave()


def leave() -> NoReturn:
    """End this process and its group, without the interpreter's finalisation."""
    if os.name == "posix" and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def tell(frame: dict[str, Any]) -> None:
    """Send a frame to the parent."""
    data = json.dumps(frame, allow_nan=False).encode()
    sys.stdout.buffer.write(len(data).to_bytes(4, "big") + data)
    sys.stdout.buffer.flush()


def plain(value: Any) -> Any:
    """Return JSON data for a value of a program; raise `TypeError` for anything else. A tuple becomes a list."""
    if value is None or isinstance(value, bool | int | float | str):
        if isinstance(value, float) and not math.isfinite(value):
            raise TypeError(f"{value} is not JSON data")
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise TypeError("a whole number beyond 64 bits is not JSON data here; make a text of it")
        return value
    if isinstance(value, list | tuple):
        return [plain(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value)
        for name in items:
            if not isinstance(name, str):
                raise TypeError(f"a key is {kind_of(name)}; the keys of a dict must be text")
        return {name: plain(one) for name, one in items.items()}
    hint = "; sorted(...) makes a list of it" if isinstance(value, set | frozenset) else ""
    raise TypeError(f"{kind_of(value)} is not JSON data{hint}")


def kind_of(value: Any) -> str:
    """Return the name of a value's type, without its content."""
    return str(getattr(value, "name", "")) if isinstance(value, monty.MontyClassProxy) else type(value).__name__


class Course:
    """One program on its way: it moves until it asks for a tool or ends."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.text: str = given["program"]
        self.source = self.text.encode()
        self.functions, self.most, self.room = frozenset(given["functions"]), given["steps"], given["output"]
        self.printed, self.cut, self.asked = given.get("printed", ""), given.get("cut", 0), given.get("asked", 0)
        self.line = given.get("line", 0)
        self.at: Any = None
        limits = {
            "max_feed_duration_secs": given["seconds"],
            "max_memory": given["memory"],
            "max_suspensions": 4 * self.most + 100,  # what the parent answers counts there and here; the lower bound is this class's own
        }
        policy = {"datetime": "call_host", "sleep": "call_host", "random_start": "call_host", "process_time": "zero", "timezone": "utc"}
        self.pool = monty.Monty(min_processes=1, max_processes=1)
        self.pool.__enter__()
        self.session = self.pool.checkout(limits=limits, os_policy=policy, script_name="program.py")
        self.session.__enter__()

    def close(self) -> None:
        """Give the worker up."""
        self.session.__exit__(None, None, None)
        self.pool.__exit__(None, None, None)

    def begin(self, dump: str) -> None:
        """Run to the first call of a tool, or restore what was dumped at one. Raise `Ended`."""
        if dump:
            self.at = self.session.load_snapshot(base64.b64decode(dump), print_callback=self.out)
            return
        self._move(lambda: self.session.feed_start(self.text, print_callback=self.out))

    def out(self, stream: str, text: str) -> None:
        """Keep what is printed, up to the limit; count the rest."""
        kept = text[: max(0, self.room - len(self.printed))]
        self.printed += kept
        self.cut += len(text) - len(kept)

    def answer(self, given: dict[str, Any]) -> None:
        """Give the call its result, or the error it ends with, and run to the next one. Raise `Ended`."""
        if given["error"]:
            settled: Any = {"exc_type": "RuntimeError", "message": given["error"]}
        else:
            settled = {"return_value": given["value"]}
        self._move(lambda: self._answered(settled))

    def _answered(self, settled: Any) -> Any:
        at = self.at
        if not at.allow_eager_await:
            return at.resume(settled)
        call_id = at.call_id
        return at.resume({"future": ...}).resume({call_id: settled})  # `await tool(...)`

    def _move(self, move: Any) -> None:
        try:
            self.at = move()
            while not self._rests():
                self.at = self._refused()
        except monty.MontyCrashedError as error:
            raise Ended(stopped="time" if error.timed_out else "crash", error=cut(str(error)), line=self.line) from None
        except monty.MontyError as error:
            raise self._failed(error) from None

    def _rests(self) -> bool:
        """Whether the program asks for a tool now; raise `Ended` at its end."""
        at = self.at
        if isinstance(at, monty.MontyComplete):
            try:
                raise Ended(value=plain(at.output))
            except (TypeError, ValueError, RecursionError) as error:
                raise Ended(error=f"TypeError: the value of the last line: {cut(str(error))}", line=self.last_line()) from None
        self.line = self.line_at(at)
        self.asked += 1
        if self.asked > self.most:
            raise Ended(error=f"RuntimeError: the program asked more than {self.most} times for something outside", line=self.line)
        return isinstance(at, monty.FunctionSnapshot) and not at.is_os_function and at.function_name in self.functions

    def _refused(self) -> Any:
        """Answer whatever is not a call of a tool."""
        at = self.at
        if isinstance(at, monty.NameLookupSnapshot):
            return at.resume(value=_named(at.variable_name)) if at.variable_name in self.functions else at.resume()
        if isinstance(at, monty.FutureSnapshot):
            refusal = {"exc_type": "RuntimeError", "message": "nothing here takes time: call the functions directly"}
            return at.resume(dict.fromkeys(at.pending_call_ids, refusal))
        name = str(at.function_name)
        if not at.is_os_function:
            known = ", ".join(sorted(self.functions)) or "none"
            return at.resume({"exc_type": "NameError", "message": f"name {name!r} is not defined; the functions are: {known}"})
        if name == "import":
            return at.resume({"exc_type": "ModuleNotFoundError", "message": f"No module named {str(at.args[0])!r} here"})
        said = REFUSED.get(name, "{0} is not available here: a program reaches the outside through its functions alone")
        return at.resume({"exc_type": "RuntimeError", "message": said.format(name)})

    def _failed(self, error: Any) -> Ended:
        kind = type(error.exception()).__name__
        frames: list[Any] = error.traceback() if hasattr(error, "traceback") else []
        line = frames[-1].line if frames else 0
        source = (frames[-1].source_line or "").strip() if frames else ""
        text = str(error) if str(error).startswith(kind) else f"{kind}: {error}"
        how: dict[str, Any] = {"error": cut(text), "line": line or self.line}
        if source:
            how["source"] = cut(source)
        if kind in UNCAUGHT and self._own(error):
            how["stopped"] = UNCAUGHT[kind]
        return Ended(**how)

    @staticmethod
    def _own(error: Any) -> bool:
        """Whether the sandbox raised this itself: a program may raise errors of the same types, and does so on a line."""
        return "limit exceeded" in str(error)

    def line_at(self, at: Any) -> int:
        """Return the line of what the program asks for, 0 if it is not a line of the program (as in `eval`)."""
        where = at.position
        return self.source.count(b"\n", 0, where.start) + 1 if where.end and not where.filename.startswith("<string") else 0

    def last_line(self) -> int:
        """Return the number of the last line with something on it."""
        return self.text.rstrip().count("\n") + 1

    def said(self) -> dict[str, Any]:
        """Return what the parent is told of the call that the program waits at."""
        at = self.at
        try:
            asked: dict[str, Any] = {"args": plain(list(at.args)), "kwargs": plain(dict(at.kwargs))}
        except Exception as error:  # noqa: BLE001 - whatever cannot be told is refused
            asked = {"refused": cut(f"{at.function_name}: {error}")}
        return {"call": at.function_name, "line": self.line, "source": self.source_of(self.line), **asked, **self.kept()}

    def source_of(self, line: int) -> str:
        """Return a line of the program, "" if there is none."""
        lines = self.text.split("\n")
        return cut(lines[line - 1].strip()) if 0 < line <= len(lines) else ""

    def kept(self) -> dict[str, Any]:
        """Return what a snapshot must bring back."""
        return {"printed": self.printed, "cut": self.cut, "asked": self.asked}


def _named(name: str) -> Any:
    """Return a host function for a name that a program uses as a value."""

    def function(*_: Any, **__: Any) -> None: ...

    function.__name__ = function.__qualname__ = name
    return function


def cut(text: str) -> str:
    """Return a text that is short enough to tell."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def serve() -> NoReturn:
    """Answer the parent until it is gone."""
    course: Course | None = None
    while True:
        given = _inbox.get()
        try:
            if given["do"] == "start":
                if course is not None:
                    course.close()
                course = Course(given)
                course.begin(given.get("dump", ""))
            elif given["do"] == "dump":
                tell({"dump": base64.b64encode(course.at.dump()).decode() if course is not None else ""})
                continue
            elif course is not None:
                course.answer(given)
            if course is not None:
                tell(course.said())
        except Ended as end:
            line = end.how.get("line", 0)
            told = {"line": 0, "source": course.source_of(line), **course.kept()} if course is not None else {}
            tell({**told, **end.how})


if __name__ == "__main__":
    threading.Thread(target=_read, daemon=True).start()
    try:
        tell({"version": monty.__version__})
        serve()
    except BrokenPipeError:
        pass
    finally:
        leave()
