"""What the documentation shows is what happens: its Python runs, its commands give what stands below them, its links lead somewhere.

A page is gone through from top to bottom in one temporary directory. A block whose first line names a file (`# rules.yaml`) is written
there; `python` blocks are executed in one namespace; the commands of `console` blocks are run by bash. What is shown below a command is
compared line by line and in order: `...` alone stands for any lines, inside a line for any text; run ids, digests, times and durations
may differ.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amounts import in_check, sampled
from commands import in_process
from docs.pages import DOCS, ROOT, Block, Command, anchors, blocks, commands, name_of, pages, prose
from docs.providers import answering, speaking
from forked import asking, fork

RUN_ID = re.compile(r"\b\d{8}-\d{6}(?:-[a-z0-9]+)*\b")
VOLATILE = (
    (RUN_ID, "RUN"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "DIGEST"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?"), "TIME"),
    (re.compile(r"\b\d\d:\d\d:\d\d(\.\d+)?\b"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? ?(ms|s)\b"), "DURATION"),
)
OWN_SDK = ("anthropic", "bedrock", "google", "groq", "mistral", "openrouter")
"""Providers whose models are asked through a module of their own in pydantic-ai; all others are asked as OpenAI is."""
RUNNING = [page for page in pages() if any(b.language in ("python", "console") for b in blocks(page))]
TRIED = [ROOT / "README.md", *sampled(RUNNING, few=9)]
"""The pages that are gone through by default."""
BY_DEFAULT = ("models-openai", "models-ollama")
"""Pages about models that are gone through by default. Each of the others needs the SDK of its vendor, which takes seconds to import."""
WITH_MODELS = ("README.md", "quickstart-model.md")
"""Other pages that ask a model."""
EXAMPLES = sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "examples" / "extending").glob("*.py")])


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the examples, in which `detent` is this version and nothing is configured."""
    work, tools = tmp_path / "work", tmp_path / "bin"
    work.mkdir()
    tools.mkdir()
    shutil.copytree(ROOT / "examples", work / "examples", ignore=shutil.ignore_patterns("__pycache__", "reports"))
    for name, command in {"detent": f'{sys.executable} -m detent "$@"', "python": f'{sys.executable} "$@"'}.items():
        (tools / name).write_text(f"#!/bin/sh\nexec {command}\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    for name in [n for n in os.environ if n.startswith("DETENT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("USER", "ann")
    monkeypatch.setenv("LOGNAME", "ann")
    monkeypatch.chdir(work)
    monkeypatch.syspath_prepend(work)
    before = dict(sys.modules)
    yield work
    for name in [n for n, m in sys.modules.items() if str(getattr(m, "__file__", None) or "").startswith(str(work))]:
        del sys.modules[name]
    sys.modules.update({name: module for name, module in before.items() if name not in sys.modules})


def execute(block: Block, page: Path, namespace: dict[str, Any]) -> None:
    """Execute a Python block; a traceback shows page and line."""
    source = "\n" * (block.line - 1) + block.text
    exec(compile(source, name_of(page), "exec", dont_inherit=True), namespace)  # noqa: S102 - our own documentation


def stable(line: str) -> str:
    """Return a line of output without what differs from run to run."""
    for pattern, name in VOLATILE:
        line = pattern.sub(name, line)
    return re.sub(r"\s+", " ", line).strip()


def missing(shown: list[str], said: list[str]) -> str:
    """Return the first shown line that the output does not have where it should be, or ""."""
    left = [stable(line) for line in said if line.strip()]
    anywhere = True
    for line in shown:
        wanted = stable(line)
        if wanted in ("...", ""):
            anywhere = anywhere or bool(wanted)
            continue
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in re.split(r"\.\.\.|…", wanted)))
        place = next((i for i, text in enumerate(left) if pattern.fullmatch(text)), None)
        if place is None or (place > 0 and not anywhere):
            return line
        left, anywhere = left[place + 1 :], False
    return ""


def alone(line: str) -> list[str]:
    """Return the arguments of Python for a call of `detent` or `python` in which there is nothing for a shell to do, else none."""
    words = shlex.split(line)
    if words[0] not in ("detent", "python") or re.search(r"[][|&;<>()$`\\*?!~{}#]", re.sub(r"""'[^']*'|"[^"$`\\]*\"""", "", line)):
        return []
    return ["-m", *words] if words[0] == "detent" else words[1:]


def run_command(command: Command, desk: Path, known: dict[str, str]) -> None:
    """Run a command, with the ids of earlier runs in place of the shown ones, and compare its output."""
    line = RUN_ID.sub(lambda m: known.get(m[0], m[0]), command.line)
    out, ended = _ran(line, alone(line), desk, dies=command.code > 128)
    lost = missing(command.shown, out.splitlines())
    told = f"$ {line}\n{out}(exit code {ended})"
    assert not lost, f"the page shows {lost!r}, but:\n{told}"
    assert ended == command.code, told
    shown = [run_id for run_id in dict.fromkeys(RUN_ID.findall("\n".join(command.shown))) if run_id not in known]
    real = [run_id for run_id in dict.fromkeys(RUN_ID.findall(out)) if run_id not in known.values()]
    known.update(zip(shown, real, strict=False))


def _ran(line: str, words: list[str], desk: Path, *, dies: bool) -> tuple[str, int]:
    """Return what a command writes, and its exit code as a shell says it: in this process, unless it is more than `detent` or `dies`."""
    if words[:2] == ["-m", "detent"] and not dies:
        code, out, _ = in_process(words[2:], cwd=desk, env=os.environ, together=True)
        return out, code
    vendor = words[words.index("--model") + 1].partition(":")[0] if "--model" in words else ""
    imports = asking(vendor if vendor in OWN_SDK else "openai") if vendor else ("pytest",) if "pytest" in words else ()
    started = (
        fork(words, cwd=desk, stderr=subprocess.STDOUT, imports=imports)
        if words
        else subprocess.Popen(["bash", "-c", line], cwd=desk, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    )
    out, _ = started.communicate(timeout=90)
    return out, started.returncode if started.returncode >= 0 else 128 - started.returncode


@pytest.fixture
def _providers(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a page about the models of a provider, a server on loopback that answers in their place."""
    page: Path = request.node.callspec.params["page"]
    serving: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if page.name in WITH_MODELS or page.name.startswith("models-"):
        serving = answering(tmp_path, monkeypatch)
    elif page.name == "files-and-speech.md":
        serving = speaking(monkeypatch)
    with serving:
        yield


def marks_of(page: Path) -> tuple[pytest.MarkDecorator, ...]:
    """Return what marks the test of a page."""
    left = page not in TRIED or (page.name.startswith("models-") and page.stem not in BY_DEFAULT)
    return (in_check,) if left else ()


@pytest.mark.usefixtures("_providers")
@pytest.mark.filterwarnings("ignore:FUNCTION_CALL is not a valid FinishReason")
@pytest.mark.parametrize("page", [pytest.param(page, marks=marks_of(page)) for page in RUNNING], ids=[name_of(page) for page in RUNNING])
def test_what_a_page_shows_is_what_happens(page: Path, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block runs, every command gives what stands below it, in one directory from top to bottom."""
    if page.name not in (
        "tutorial.md",
        "quickstart-rules.md",
    ):  # which show how a directory is trusted; on the other pages that has been done
        monkeypatch.setenv("DETENT_TRUST", str(desk))
    namespace: dict[str, Any] = {"__name__": "docs_page"}
    known: dict[str, str] = {}
    for name in [Path(b.file).stem for b in blocks(page) if b.file.endswith(".py")]:
        monkeypatch.delitem(sys.modules, name, raising=False)  # the page's own, whatever else is called so
    for block in blocks(page):
        if block.file:
            place = desk / block.file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(block.text, encoding="utf-8")
        if block.language == "python":
            execute(block, page, namespace)
        elif block.language == "console":
            for command in commands(block):
                run_command(command, desk, known)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_runs_and_says_what_it_promises(example: Path, desk: Path) -> None:
    """An example is a program of its own; the end of its docstring, after `It prints:`, is what it prints."""
    promised = (ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or "").partition("It prints:")[2].strip()
    assert promised, f"{example.name} does not say what it prints"
    started = fork(["-W", "error", str(example)], cwd=desk, stderr=subprocess.PIPE)
    out, err = started.communicate(timeout=90)
    assert (started.returncode, err) == (0, "")
    assert not missing([line.strip() for line in promised.splitlines()], out.splitlines()), out


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    """A relative link names an existing file, and its fragment a heading of it."""
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        if not place.exists() or (fragment and fragment not in anchors(place)):
            wrong.append(target)
    assert wrong == []


def test_every_page_can_be_reached_from_the_index() -> None:
    """docs/index.md leads to every page, in one step or through another page; README leads to the index."""
    reached, todo = set[Path](), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        todo += [(page.parent / t.partition("#")[0]).resolve() for t in re.findall(r"\]\(([^)\s:]+)\)", prose(page))]
    assert [name_of(p) for p in pages() if p not in reached] == []
    assert DOCS / "index.md" in reached


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_fence_has_a_language_that_is_known_here(page: Path) -> None:
    """A block that should run is never left out because of how its language is spelt."""
    known = {"python", "console", "toml", "yaml", "json", "text", "sh"}
    assert {b.language for b in blocks(page)} <= known


@pytest.mark.parametrize(
    ("shown", "said", "lost"),
    [
        (["a", "c"], ["a", "b", "c"], "c"),
        (["a", "...", "c"], ["a", "b", "c"], ""),
        (["c", "a"], ["a", "c"], "a"),
        (["run ... is sound"], ["run 7 is sound"], ""),
        (["run ... is sound"], ["run 7 is broken"], "run ... is sound"),
        (["run 20260301-120000-a-b-7k3f9q took 5 ms"], ["run 20270301-120000-c-d-abcdef took 1.2 s"], ""),
        (["3 calls"], ["4 calls"], "3 calls"),
    ],
)
def test_the_comparison_finds_what_is_missing(shown: list[str], said: list[str], lost: str) -> None:
    """Order, gaps and placeholders work, and figures count."""
    assert missing(shown, said) == lost
