"""Attacks with modules: files in the working directory that are called like something that Detent imports."""

from __future__ import annotations

import importlib.metadata
import os
import py_compile
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from amounts import PROFILE, in_check, sampled
from cli.desk import Desk, Done
from detent.cli.main import GROUPS

COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("Go", "--run-id", "one"),
    "chat": (),
    "sessions": (),
    "memory": ("list",),
    "submit": ("Go", "--run-id", "two"),
    "worker": ("--until-idle",),
    "serve": ("--tokens", "none.json"),
    "eval": ("run", "none.toml"),
    "ui": ("--agent", "none.toml"),
    "tokens": ("list",),
    "resume": ("one",),
    "reopen": ("one",),
    "cancel": ("one",),
    "pause": (),
    "approvals": (),
    "approve": ("one", "main.1.0"),
    "deny": ("one", "main.1.0"),
    "reply": ("one", "yes"),
    "reconcile": ("one", "main.1.0", "--not"),
    "list": (),
    "show": ("last",),
    "tail": ("one",),
    "why": ("one",),
    "top": ("--once",),
    "operations": (),
    "schedule": ("list",),
    "versions": (),
    "verify": ("last",),
    "replay": ("one",),
    "export": ("last",),
    "tools": (),
    "explain": ("one", "main.1.0"),
    "backtest": ("--budget", "tool_calls=1"),
    "fork": ("one",),
    "diff": ("one", "two"),
    "bisect": ("one", "two"),
    "check-upgrade": (),
    "copy": ("one", "--to", "ram:"),
    "archive": ("one", "--to", "one.tar"),
    "import": ("one.tar",),
    "erase": ("two", "--yes"),
    "delete": ("two", "--yes"),
    "gc": ("--yes",),
    "init": ("new",),
    "demo": ("--dir", "new"),
    "doctor": (),
    "trust": (),
    "where": (),
    "mcp": ("pin",),
    "stats": (),
    "tree": ("two",),
    "cost": ("two",),
    "completion": ("bash",),
    "help": ("settings",),
}
"""Every command with little to do, in an order in which most of them find something."""
SCRIPT = "import sys\nfrom detent.__main__ import main\nsys.exit(main())\n"
ONE_AFTER_ANOTHER = """\
import sys
from detent.__main__ import main

for words in {lines!r}:
    sys.argv[1:] = words
    try:
        main()
    except SystemExit:
        pass
"""


@pytest.fixture
def trapped(tmp_path: Path) -> Desk:
    """A working directory with a module and a package for every name that anything installed is imported by; each tells when it is imported."""
    (tmp_path / "work").mkdir()
    desk = Desk(tmp_path / "work")
    for name in sorted({*sys.stdlib_module_names, *importlib.metadata.packages_distributions(), "detent", "sitecustomize"} - {"tools"}):
        if name.isidentifier():
            trap(desk, name)
            (desk.home / name).mkdir(exist_ok=True)
            trap(desk, f"{name}/__init__")
    return desk


def trap(desk: Desk, name: str) -> None:
    """Write a module that tells when it is imported."""
    told = desk.home.parent / "imported"
    desk.write(f"{name}.py", f"with open({str(told)!r}, 'a') as told:\n    told.write(__file__ + '\\n')\n")


def sprung(desk: Desk) -> str:
    """Return which traps were imported."""
    told = desk.home.parent / "imported"
    return told.read_text() if told.exists() else ""


def script(desk: Desk, source: str = SCRIPT) -> str:
    """Write the command `detent` as an installer writes it, outside of the working directory."""
    path = desk.home.parent / "bin" / "detent"
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    return str(path)


def python(desk: Desk, words: Sequence[str], **environment: str) -> Done:
    """Run a Python process to its end in the working directory."""
    process = subprocess.run(
        [sys.executable, *words],
        cwd=desk.home,
        env={**desk.environment, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Done(process.returncode, process.stdout, process.stderr)


@in_check
def test_every_command_among_files_that_are_called_like_modules(trapped: Desk) -> None:
    """A file for each standard and each installed module lies in the working directory, and every command is run there."""
    assert set(COMMANDS) >= {name for commands in GROUPS.values() for name in commands}
    wrong = [[name, "--nonsense"] for name in sampled(COMMANDS, few=5)]
    lines = [["--help"], ["--version"], *([name, *words] for name, words in COMMANDS.items()), *wrong]
    done = python(trapped, [script(trapped, ONE_AFTER_ANOTHER.format(lines=lines))])
    assert "completed" in done.err, done.err
    assert sprung(trapped) == ""


@pytest.mark.parametrize(
    "words", [("run", "Go"), *(pytest.param((name,), marks=in_check) for name in ("list", "doctor", "frobnicate"))], ids=" ".join
)
def test_the_command_alone_among_files_that_are_called_like_modules(words: tuple[str, ...], trapped: Desk) -> None:
    """A file sqlite3.py in the working directory, and one for every other module, is imported by `python -P -m detent`, or by `detent`."""
    python(trapped, ["-P", "-m", "detent", *words])
    if PROFILE != "default":  # every command is tried above as `detent`
        python(trapped, [script(trapped), *words])
    assert sprung(trapped) == ""


def test_python_m_detent_beside_modules_that_it_needs(tmp_path: Path) -> None:
    """Modules in the working directory are imported by `python -m detent`, which has it in its path at first."""
    (tmp_path / "work").mkdir()
    desk = Desk(tmp_path / "work")
    for name in ("signal", "sqlite3", "asyncio", "json", "msgspec", "typer", "yaml", "tomllib", "sitecustomize"):
        trap(desk, name)
    done = python(desk, ["-m", "detent", "run", "Go"])
    assert done.code == 0, done.err
    assert sprung(desk) == ""


@pytest.mark.parametrize("entries", [":.:{src}::", *(pytest.param(entries, marks=in_check) for entries in (":", ".:{src}", "{src}:"))])
def test_an_empty_entry_of_pythonpath(entries: str, tmp_path: Path) -> None:
    """PYTHONPATH has an empty entry or a dot, which means whatever directory one is in, and there lies sqlite3.py."""
    (tmp_path / "work").mkdir()
    desk = Desk(tmp_path / "work")
    for name in ("sqlite3", "msgspec", "typer", "yaml"):
        trap(desk, name)
    src = os.environ["PYTHONPATH"].split(os.pathsep)[0]
    told = python(desk, [script(desk), "list"], PYTHONPATH=entries.format(src=src) if "src" in entries else f"{src}{entries}")
    assert (told.code, sprung(desk)) == (0, ""), told.err


def test_the_command_is_started_where_it_is_installed(tmp_path: Path) -> None:
    """The working directory is the one that the command lies in, which the interpreter puts first."""
    desk = Desk(tmp_path)
    (desk.home / "detent").write_text(SCRIPT)
    desk.write("sqlite3.py", "raise SystemExit('imported')\n")
    done = python(desk, ["detent", "list"])
    assert done.code == 0, done.err


def test_a_distribution_in_the_working_directory(tmp_path: Path) -> None:
    """A folder evil.dist-info in the working directory, or in an import root, registers a tool and a store."""
    desk = Desk(tmp_path)
    for place in (".", "lib"):
        desk.write(f"{place}/evil-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
        desk.write(f"{place}/evil-1.dist-info/entry_points.txt", "[detent.tools]\nevil = tools:note\n[detent.stores]\nevil = tools:note\n")
    desk.write("detent.toml", 'import_roots = ["lib"]\n')
    desk.write("agent.toml", (desk.home / "agent.toml").read_text().replace('"./tools.py:note"', '"./tools.py:note", "evil"'))
    for words, said in ((("run", "Go"), "evil"), (("list", "--store", "evil:x"), "unknown scheme")):
        done = desk.process(*words)
        assert done.code == 2 and said in done.err, done.err


def test_a_module_of_the_working_directory_by_its_name(tmp_path: Path) -> None:
    """An agent file names `tools:note`, and a tools.py lies in the working directory."""
    desk = Desk(tmp_path)
    desk.write("agent.toml", (desk.home / "agent.toml").read_text().replace("./tools.py:note", "tools:note"))
    done = desk.process("run", "Go")
    assert done.code == 2 and "import_roots" in done.err and desk.notes == []


def test_a_compiled_file_beside_a_tool_file(tmp_path: Path) -> None:
    """A sandboxed program leaves a compiled tools.py of its own in __pycache__, with the time and size of the real one."""
    (tmp_path / "work").mkdir()
    desk = Desk(tmp_path / "work")
    source, real = desk.home / "tools.py", (desk.home / "tools.py").read_text()
    stat = source.stat()
    source.write_text(real.replace("written", "IN TURN"))
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    py_compile.compile(str(source), cfile=str(desk.home / "__pycache__" / f"tools.{sys.implementation.cache_tag}.pyc"), doraise=True)
    source.write_text(real)
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert python(desk, [script(desk), "run", "Go", "--run-id", "one"], PYTHONPYCACHEPREFIX="").code == 0
    assert '"written"' in (said := desk.process("export", "one").out) and "IN TURN" not in said


def test_import_roots_are_behind_what_is_installed(tmp_path: Path) -> None:
    """An import root holds modules named json, sqlite3 and msgspec beside the one that a tool file needs."""
    (tmp_path / "work").mkdir()
    desk = Desk(tmp_path / "work")
    for name in ("json", "sqlite3", "msgspec", "colorsys", "yaml"):
        trap(desk, f"src/{name}")
    desk.write("src/sibling.py", "WORD = 'from the sibling'\n")
    desk.write(
        "tools.py", "import colorsys\nfrom sibling import WORD\n" + (desk.home / "tools.py").read_text().replace('"written"', "WORD")
    )
    assert desk.process("run", "Go").code == 2, "no root, no sibling"
    desk.write("detent.toml", 'import_roots = ["src"]\n')
    assert desk.process("run", "Go", "--run-id", "one").code == 0
    assert "from the sibling" in desk.process("export", "one").out
    assert sprung(desk) == ""


@pytest.mark.parametrize("path", ["lib/helper.py", "lib/fresh.py", "lib/__pycache__/helper.cpython-311.pyc", "lib/x/__init__.py"])
def test_an_agent_writes_what_is_imported_from_a_root(path: str, tmp_path: Path) -> None:
    """An agent writes a module, or a compiled one, into a directory of `import_roots`, for the next command to import."""
    desk = Desk(tmp_path)
    desk.write("lib/helper.py", "WORD = 1\n")
    desk.write("detent.toml", 'import_roots = ["lib"]\n')
    rules = f"""rules = [
        {{ name = "plant", call = {{ tool = "write_file", args = {{ path = "{path}", content = "raise SystemExit" }} }} }},
        {{ name = "answer", answer = "done" }},
    ]"""
    desk.write("agent.toml", f'name = "planter"\ntools = ["write_file"]\n{rules}\n')
    desk.process("run", "Go", "--run-id", "one")
    assert "protected_path" in desk.process("export", "one").out
    assert [str(file.relative_to(desk.home)) for file in (desk.home / "lib").rglob("*")] == ["lib/helper.py"]


def test_the_workspace_is_an_import_root(tmp_path: Path) -> None:
    """An import root is, or holds, the directory that an agent writes, so that all that it writes can be imported."""
    desk = Desk(tmp_path)
    (desk.home / "inner").mkdir()
    desk.write("agent.toml", 'name = "planter"\ntools = ["write_file"]\nrules = [{ name = "answer", answer = "done" }]\n')
    desk.write("detent.toml", 'import_roots = ["."]\n')
    for words in ((), ("--workspace", "inner")):
        done = desk.process("run", *words, "Go")
        assert done.code == 2 and "import_roots" in done.err, done.err
