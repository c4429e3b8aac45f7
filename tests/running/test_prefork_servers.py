"""Real servers that load a program, use its engine, and fork their workers: gunicorn with `--preload`, and Celery's prefork pool."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from amounts import in_check
from detent import Engine
from detent.stores import open_store

RUNS = ("a", "b", "c")
PROGRAM = '''
import asyncio
import os

from detent import Agent, Engine, FinalAnswer, ToolCall, tool
from detent.testing import ScriptedPlanner


@tool(side_effect="write")
def work() -> int:
    """Work, in a thread."""
    return os.getpid()


engine = Engine(store={url!r}, planner=ScriptedPlanner([ToolCall(tool="work"), FinalAnswer(content="done")]))
agent = Agent(name="worker", tools=[work])
loop = asyncio.new_event_loop()
if os.environ.get("USED"):
    assert loop.run_until_complete(engine.run(agent, "Work", run_id="of-the-parent")).status == "completed"


async def use(run_id):
    await engine.run(agent, "Work", run_id=run_id)
    return (await engine.load("of-the-parent")).status
'''
SERVED = """

def app(environ, start_response):
    said = asyncio.run(use(environ["PATH_INFO"].strip("/")))
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(said)))])
    return [said.encode()]
"""
HOOKS = """
import asyncio


def worker_exit(server, worker):
    import program

    asyncio.run(program.engine.close())
"""
TASKS = """
from celery import Celery
from celery.signals import worker_process_shutdown

queue = Celery("program", broker="filesystem://")
queue.conf.broker_transport_options = {{"data_folder_in": {folder!r}, "data_folder_out": {folder!r}}}


@queue.task(name="work")
def task(run_id):
    return asyncio.run(use(run_id))


@worker_process_shutdown.connect
def close(**_):
    asyncio.run(engine.close())
"""


@contextlib.contextmanager
def running(directory: Path, *arguments: str) -> Iterator[IO[str]]:
    """Run a server, and give what it says; it is told to stop, and must end well."""
    path = os.pathsep.join([str(directory), *sys.path])
    server = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path, "USED": "yes"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert server.stdout is not None
    try:
        yield server.stdout
        server.send_signal(signal.SIGTERM)
        said = server.stdout.read()
        assert (server.wait(30), "Traceback" in said) == (0, False), said
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def until(said: IO[str], word: str, times: int = 1) -> str:
    """Read what a server says until it has said a word so often; return all of it."""
    lines = list[str]()
    while times:
        line = said.readline()
        assert line, "".join(lines)
        lines.append(line)
        times -= word in line
    return "".join(lines)


def check(url: str) -> None:
    """All runs are done, each by a process of its own kind, and nobody holds one."""

    async def main() -> None:
        store = open_store(url)
        async with Engine(store=store) as engine:
            workers = {name: (await engine.load(name)).passes["main"].results[0].content for name in (*RUNS, "of-the-parent")}
            assert workers["of-the-parent"] not in [workers[name] for name in RUNS]
            for name in RUNS:
                await store.claim(name)
                assert (await engine.verify(name)).ok

    asyncio.run(main())


@in_check
def test_an_engine_works_in_the_workers_of_gunicorn_that_has_preloaded_it(tmp_path: Path) -> None:
    """Each request is answered by an engine that the parent had used; nothing hangs, and no claim is left."""
    pytest.importorskip("gunicorn")
    url, place = f"file:{tmp_path}/runs", tmp_path / "socket"
    (tmp_path / "program.py").write_text(PROGRAM.format(url=url) + SERVED)
    (tmp_path / "hooks.py").write_text(HOOKS)
    options = ("--preload", "--workers", "2", "--bind", f"unix:{place}", "--config", "hooks.py", "--log-level", "info")
    with running(tmp_path, "gunicorn", *options, "program:app") as said:
        until(said, "Listening at")
        for name in RUNS:
            with contextlib.closing(http.client.HTTPConnection("localhost", timeout=30)) as asked:
                asked.sock = socket.socket(socket.AF_UNIX)
                asked.sock.settimeout(30)
                asked.sock.connect(str(place))
                asked.request("GET", f"/{name}")
                assert asked.getresponse().read() == b"completed"
    check(url)


@in_check
def test_an_engine_works_in_the_pool_of_celery_that_has_forked_it(tmp_path: Path) -> None:
    """The module of the tasks is loaded, and its engine used, before the pool forks; the tasks are done, and no claim is left."""
    celery = pytest.importorskip("celery")
    url, folder = f"sqlite:///{tmp_path}/runs.db", tmp_path / "queue"
    folder.mkdir()
    (tmp_path / "program.py").write_text(PROGRAM.format(url=url) + TASKS.format(folder=str(folder)))
    queue = celery.Celery("asking", broker="filesystem://")
    queue.conf.broker_transport_options = {"data_folder_in": str(folder), "data_folder_out": str(folder)}
    for name in RUNS:
        queue.send_task("work", args=[name])
    options = ("--pool", "prefork", "--concurrency", "2", "--loglevel", "info", "--without-gossip", "--without-mingle")
    with running(tmp_path, "celery", "-A", "program", "worker", *options) as said:
        told = until(said, "succeeded in", len(RUNS))
        assert told.count("'completed'") == len(RUNS) and "Traceback" not in told
    check(url)
