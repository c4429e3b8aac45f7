"""`[worker] host = "restate"` at the command line: trust, submit, worker, doctor; and what is said where something is missing."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from amounts import in_check
from commands import in_process
from detent.config.assembly import engine_options
from detent.config.demands import config_demands
from detent.config.engines import Config, LimitsConfig, RestateConfig, StoreConfig, WorkerConfig
from detent.core.errors import ConfigError, UnknownName
from detent.workers import InProcessHost
from detent.workers.restate import RestateHost
from detent.workers.restate import host as host_module
from workers.restate_server import RestateServer, free_ports
from workers.waiting import soon

AGENT = """name = "a"
[[rules]]
name = "end"
answer = "done"
"""


def config_of(worker: WorkerConfig, *, max_concurrent_runs: int | None = None) -> Config:
    """Return a configuration with this worker."""
    return Config(store=StoreConfig(url="ram:"), worker=worker, limits=LimitsConfig(max_concurrent_runs=max_concurrent_runs))


def test_a_file_names_the_host_and_its_options() -> None:
    """Those of every host are in `[worker]`, those of Restate in a table of their own."""
    restate = RestateConfig(ingress="http://127.0.0.1:1", service="mine", tick_s=5.0, identity_keys=("publickeyv1_x",))
    host = engine_options(config_of(WorkerConfig(host="restate", concurrency=9, poll_s=1.0, restate=restate), max_concurrent_runs=3), {})
    made = host["worker_host"]
    assert isinstance(made, RestateHost)
    assert (made.concurrency, made.service, made.tick_s, made.identity_keys) == (3, "mine", 5.0, ("publickeyv1_x",))
    assert made.served.ingress == "http://127.0.0.1:1"
    assert isinstance(engine_options(config_of(WorkerConfig(host="in_process")), {})["worker_host"], InProcessHost)
    with pytest.raises(ConfigError, match=r"failed to create worker_host: .*'restat'.*restate") as refused:
        engine_options(config_of(WorkerConfig(host="restat")), {})
    assert isinstance(refused.value.__cause__, UnknownName)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a run is started that nobody would get."""
    monkeypatch.setattr(host_module, "NEEDED", ("no_such_module",))
    with pytest.raises(ConfigError, match=r"needs no_such_module, not installed here; run: pip install 'detent\[restate\]'"):
        RestateHost()


def test_a_file_that_names_another_host_needs_trust(tmp_path: Path) -> None:
    """Ids of runs leave the process, who answers says when runs continue, and workers listen."""
    file = tmp_path / "detent.toml"
    file.write_text('[worker]\nhost = "restate"\n[worker.restate]\ningress = "http://10.0.0.1:8080"\nbind = "0.0.0.0:9080"\n')
    lines = [demand.line() for demand in config_demands(file)]
    assert [line.split()[0] for line in lines] == ["send", "open"]
    assert "http://10.0.0.1:8080" in lines[0]
    assert "0.0.0.0:9080" in lines[1]
    file.write_text('[worker]\nhost = "their_plugin"\n')
    assert [demand.does for demand in config_demands(file)] == ["import"]
    file.write_text('[worker]\nhost = "in_process"\nconcurrency = 2\n')
    assert config_demands(file) == ()


@in_check
def test_a_worker_registers_itself_and_the_doctor_looks(restate: RestateServer, tmp_path: Path) -> None:
    """`detent submit` passes the run on, `detent worker --host restate` ends it, and SIGTERM ends the worker with 0."""
    here = tmp_path / "here"
    here.mkdir()
    table = "".join(
        f"{name} = {json.dumps(value)}\n"
        for name, value in {
            "ingress": restate.ingress,
            "admin": restate.admin,
            "bind": f"127.0.0.1:{free_ports(1)[0]}",
            "service": f"t{secrets.token_hex(6)}",
        }.items()
    )
    (here / "detent.toml").write_text(
        f'agent = "agent.toml"\n[store]\nurl = "sqlite:///{tmp_path}/runs.db"\n[worker.restate]\n{table}[worker]\nhost = "restate"\n'
    )
    (here / "agent.toml").write_text(AGENT)
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}

    def detent(*words: str) -> tuple[int, str]:
        code, out, _ = in_process(words, cwd=here, env=env, together=True)
        return code, out

    assert detent("trust", ".", "--yes")[0] == 0
    assert "no worker has registered yet" in detent("doctor")[1]
    worker = [sys.executable, "-m", "detent", "worker", "--host", "restate"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(worker, cwd=here, env=env, stdout=log, stderr=log)
    try:
        code, out = detent("submit", "go")
        assert code == 0, out
        soon(lambda: "completed" in detent("list")[1], 90)
        assert "workers have registered" in detent("doctor")[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()
    (here / "detent.toml").write_text((here / "detent.toml").read_text().replace(restate.admin, f"http://127.0.0.1:{free_ports(1)[0]}"))
    assert detent("trust", ".", "--yes")[0] == 0
    code, out = detent("doctor")
    assert (code, "no Restate server answers at" in out) == (1, True)
