"""The site: its reference has every public name, its navigation has every page, and what is broken in it is found. `scripts/docs check` builds it."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from amounts import in_check
from docs.pages import DOCS, ROOT, name_of, pages, rows

pytestmark = in_check

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
IMPORTED = re.compile(r"^from (detent[\w.]*) import (?:\(([^)]*)\)|(.+))$", re.MULTILINE)


@pytest.fixture(scope="module")
def site() -> ModuleType:
    """The script that builds the site."""
    pytest.importorskip("griffe", reason="the site needs what `pip install '.[docs]'` installs")
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        importlib.import_module("docs_snippets")
        return importlib.import_module("docs_site")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def api(site: ModuleType) -> dict[str, str]:
    """The pages of the reference by the module that they describe."""
    return {Path(file).stem: page for file, page in site.reference("reference/python").pages.items()}


def test_every_public_name_is_described_once(api: dict[str, str]) -> None:
    """What `__all__` of the doors has stands on a page, under a heading that others can link to."""
    for door in ("detent", "detent.extend", "detent.observers", "detent.policies", "detent.testing", "detent.tools"):
        assert [name for name in importlib.import_module(door).__all__ if f"| [`{name}`](" not in api[door]] == []
    headings = re.findall(r"\{ #([\w.]+) \}$", "\n".join(api.values()), re.MULTILINE)
    assert len(headings) == len(set(headings))


def test_whatever_the_pages_import_is_described(api: dict[str, str]) -> None:
    """A name that an example imports has its place in the reference: nobody is sent to the source."""
    described = "\n".join(api.values())
    sources = [*pages(), *(ROOT / "examples").rglob("*.py")]
    missing: set[str] = set()
    for text in (source.read_text(encoding="utf-8") for source in sources):
        for module, several, one in IMPORTED.findall(text):
            names = [name.split(" as ")[0].strip() for name in (several or one.split("#")[0]).split(",") if name.strip()]
            missing |= {f"{module}.{name}" for name in names if not re.search(rf"`{name}`\]\(|### {name} ", described)}
    assert missing == set()


def test_the_reference_has_types_fields_and_errors(api: dict[str, str]) -> None:
    """A method that opens to a function elsewhere has its signature and its errors; a field has its type, as a link, and what it means."""
    run = api["detent"].split("{ #detent.Engine.run }")[1].split("####")[0]
    assert (
        "async def run(" in run
        and "goal: str," in run
        and "runtime" not in run
        and "[`RunBusy`](detent.extend.md#detent.extend.RunBusy)" in run
    )
    agent = api["detent"].split("{ #detent.Agent }")[1].split("####")[0]
    budget = next(row for row in rows(agent) if row[0] == "`budget`")
    assert budget[1:] == ['<code class="type"><a href="#detent.Budget">Budget</a></code>', "`Budget()`", "The limits of a run."]


def test_what_the_engine_returns_is_described(site: ModuleType) -> None:
    """Every class that a method of the engine returns has an entry, and can be imported from a door to write its type down."""
    reference = importlib.import_module("docs_reference").Reference()
    missing: set[str] = set()
    for name, method in reference.methods(reference.at("detent.engine.Engine")):
        parts = method.returns.iterate(flat=True) if method.returns and not isinstance(method.returns, str) else []
        found = {reference.path_of(part) for part in parts if hasattr(part, "canonical_path")}
        missing |= {f"{name}: {path}" for path in found - set(reference.names) if path.startswith("detent.") and path[-1] != "T"}
    known = {"call_sync: detent.engine.R", "hand: detent.running.working.Hand", "plans: detent.history.replaying.Answer"}
    assert missing <= known


def test_what_a_docstring_says_of_parameters_is_a_table(api: dict[str, str]) -> None:
    """Every option of the engine has its row."""
    engine = api["detent"].split("{ #detent.Engine }")[1].split("####")[0]
    told = {row[0].strip("`"): row[-1] for row in rows(engine)}
    assert {name for name, said in told.items() if not said} <= {"tools", "observers", "clock", "ids", "redact", "hooks", "kernel"}
    assert told["store"].startswith("A URL")


def test_no_page_refers_to_what_readers_do_not_have(api: dict[str, str]) -> None:
    """Numbers of rows and chapters of the specification are in comments: a reader of the site cannot look them up."""
    numbered = re.compile(r"\b[Rr]ows? (?:[A-Z]+\d|S\d-\d|\d+\.\d)|\bDESIGN\b")
    texts = {**api, **{name_of(page): page.read_text(encoding="utf-8") for page in pages()}}
    assert [f"{name}: {line}" for name, text in texts.items() for line in text.splitlines() if numbered.search(line)] == []


def test_the_list_of_modules_is_that_of_the_reference(api: dict[str, str]) -> None:
    """The page of the Python API leads to every page of the reference."""
    assert [row[0].strip("`") for row in rows((DOCS / "reference/python.md").read_text(encoding="utf-8"))] == list(api)


def test_every_page_is_in_the_navigation_once(site: ModuleType) -> None:
    """The lists of docs/index.md are the navigation, so a page that they lack cannot be found."""

    def leaves(entries: list[object]) -> list[str]:
        inside = [value for entry in entries for value in (entry.values() if isinstance(entry, dict) else [entry])]
        return [leaf for value in inside for leaf in (leaves(value) if isinstance(value, list) else [str(value)])]

    found = leaves(site.navigation((DOCS / "index.md").read_text(encoding="utf-8"), site.Outside()))
    wanted = [name_of(page).removeprefix("docs/") for page in pages() if page.is_relative_to(DOCS)]
    assert sorted(leaf for leaf in found if not leaf.startswith("files/")) == sorted(wanted)


def test_every_table_has_a_line_below_its_header() -> None:
    """Without it the rows are shown as one paragraph."""
    for page in pages():
        lines = FENCED.sub("", page.read_text()).split("\n")
        heads = [n for n, line in enumerate(lines) if line.startswith("|") and not lines[n - 1].startswith("|")]
        assert not [lines[n] for n in heads if not re.fullmatch(r"[|: -]+", lines[n + 1])], page.name


def test_every_python_block_says_which_file_it_is(site: ModuleType) -> None:
    """A page's first block names its file; one without a name continues the file before it."""
    snippets = importlib.import_module("docs_snippets")
    assert snippets.unnamed(pages()) == []
    shown = "```python\n# a.py\nx = 1\n```\ntext\n```python\ny = x\n```\n```python\n# b.py\nz = 2\n```\n"
    assert snippets.files_of(shown) == {"a.py": "# a.py\nx = 1\n\n\ny = x\n", "b.py": "# b.py\nz = 2\n"}


def test_what_is_broken_in_the_site_is_named(site: ModuleType, tmp_path: Path) -> None:
    """A link that leads nowhere, an anchor that is not there, and whatever would be fetched from elsewhere."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.html").write_text(
        '<h1 id="top"><a href="sub/b.html#here">good</a><a href="sub/">good</a><a href="https://example.org">good</a></h1>'
        '<a href="gone.html">x</a><a href="sub/b.html#gone">x</a><a href="#nowhere">x</a><script src="https://cdn.example/x.js"></script>'
        '<pre class="mermaid"></pre><img src="gone.svg">',
        encoding="utf-8",
    )
    (tmp_path / "sub" / "b.html").write_text('<a id="here" href="../a.html#top">good</a>', encoding="utf-8")
    (tmp_path / "sub" / "index.html").write_text("", encoding="utf-8")
    (tmp_path / "site.css").write_text(
        "@font-face { src: url(https://fonts.example/x.woff2) } a { background: url(x.svg) }", encoding="utf-8"
    )
    assert list(site.problems(tmp_path)) == [
        "a.html: a Mermaid block: browsers would fetch its program; draw it as SVG",
        "a.html: gone.html does not exist",
        "a.html: sub/b.html#gone has no such anchor",
        "a.html: #nowhere has no such anchor",
        "a.html: loads https://cdn.example/x.js",
        "a.html: gone.svg does not exist",
        "site.css: loads https://fonts.example/x.woff2",
    ]


def test_a_page_becomes_what_the_site_renders(site: ModuleType) -> None:
    """Headings get the anchors of the repository's browser, twice the same one a number; files are named; links out of docs stay in the site."""
    before = ["# A, b", "[one](../examples/census.py#x)", "```console exit=3\n# x\n```", "## A, b", "```python\n# a.py\n\nx = 1\n```"]
    after = ["# A, b { #a-b }", "[one](files/examples/census.py.md#x)", "```console\n# x\n```", "## A, b { #a-b-1 }"]
    named = '```python title="a.py"\nx = 1\n```'
    assert site.Outside().staged("\n\n".join(before), "docs/x.md", "x.md").split("\n\n") == [*after, named]
