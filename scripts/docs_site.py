"""Builds the documentation as a site from `docs/`, and checks what was built. `scripts/docs` is the command.

The pages in `docs/` are portable Markdown, which reads well where a repository is browsed. `stage` copies them to `build/docs` in the form that
Zensical renders: headings get the anchors that links use, a block says which file it is, and a file outside of `docs` that a page links to becomes
a page. The navigation is the list of pages in `docs/index.md`. The reference of the Python API is added from the code (`docs_reference`).
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))
from docs_reference import reference

ROOT = Path(__file__).resolve().parent.parent
DOCS, STAGE, SITE = ROOT / "docs", ROOT / "build" / "docs", ROOT / "build" / "site"
API = "reference/python.md"
OUTSIDE = "files"
"""The folder of the site for files that pages link to and that are not in `docs`."""

FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (?P<name>[\w./-]+\.\w+)\n")
LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s]+)(?=\))")
HEADING = re.compile(r"^(?P<marks>#{1,6}) (?P<text>.+)$", re.MULTILINE)


# Pages ------------------------------------------------------------------------------------------------------------------------


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading).lower()).replace(" ", "-")


def prose(text: str, change: Any) -> str:
    """Return a page with what is outside of its fenced blocks changed."""
    parts, end = list[str](), 0
    for match in FENCE.finditer(text):
        parts += [change(text[end : match.start()]), fenced(match)]
        end = match.end()
    return "".join([*parts, change(text[end:])])


def fenced(match: re.Match[str]) -> str:
    """Return a fenced block as the site has it: its language, and the file that its first line names."""
    language, *_ = match["info"].split() or [""]
    named = NAMED.match(match["text"])
    title = f' title="{named["name"]}"' if named else ""
    text = match["text"][named.end() :].lstrip("\n") if named else match["text"]
    return f"```{language}{title}\n{text}```"


class Outside:
    """The files outside of `docs` that pages link to, and the pages that they become."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}

    def page_of(self, path: str) -> str:
        """Return the page for a file of the repository."""
        name = posixpath.join(OUTSIDE, path if path.endswith(".md") else f"{path}.md")
        if name not in self.pages:
            self.pages[name] = ""  # two files may link to each other
            there = ROOT / path
            text = self.listing(path) if there.is_dir() else there.read_text(encoding="utf-8")
            if path.endswith(".md") or there.is_dir():
                self.pages[name] = self.staged(text, f"{path}/index" if there.is_dir() else path, name)
            else:
                language = {".py": "python", ".toml": "toml", ".yaml": "yaml"}.get(Path(path).suffix, "text")
                self.pages[name] = f"# {path}\n\n````{language}\n{text}````\n"
        return name

    def listing(self, folder: str) -> str:
        """Return the page of a folder: what it says of itself, and links to its files."""
        files = sorted(file for file in (ROOT / folder).rglob("*") if file.is_file() and "__pycache__" not in file.parts)
        told = [file for file in files if file.suffix in (".md", ".py", ".toml", ".yaml", ".txt")]
        links = (f"- [{name}]({name})\n" for name in (file.relative_to(ROOT / folder).as_posix() for file in told))
        return f"# {folder}\n\n{''.join(links)}"

    def staged(self, text: str, source: str, page: str) -> str:
        """Return a page of the repository as the page of the site that it becomes."""

        def led(match: re.Match[str]) -> str:
            target = match["target"]
            if re.match(r"[a-z]+:|#", target):
                return target
            path, mark, fragment = target.partition("#")
            there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
            if there.startswith("docs/"):
                there = there.removeprefix("docs/")
            elif (ROOT / there).exists():
                there = self.page_of(there)
            else:
                return target
            return posixpath.relpath(there, posixpath.dirname(page) or ".") + mark + fragment

        seen: dict[str, int] = {}

        def changed(part: str) -> str:
            def headed(match: re.Match[str]) -> str:
                name = anchor(match["text"])
                seen[name] = seen.get(name, -1) + 1
                return f"{match['marks']} {match['text']} {{ #{name}{f'-{seen[name]}' if seen[name] else ''} }}"

            return LINK.sub(led, HEADING.sub(headed, part))

        return prose(re.sub(r"<!-- (?:generated: [\w. ]+|end) -->\n?", "", text), changed)


def navigation(index: str, outside: Outside) -> list[Any]:
    """Return the navigation: the lists of `docs/index.md` under its headings. An item with several links is its first page with the others below."""
    nav: list[Any] = [{"Home": "index.md"}]
    section: list[Any] = nav
    group: list[Any] = nav
    for line in re.sub(r"\n +(?=\S)", " ", index).splitlines():
        if heading := re.match(r"(#{2,3}) (.+)", line):
            entries: list[Any] = []
            (nav if heading[1] == "##" else section).append({heading[2]: entries})
            section = entries if heading[1] == "##" else section
            group = entries
        elif line.startswith("- "):
            links = [(title, target) for title, target in re.findall(r"\[([^\]]+)\]\(([^)#:]+)\)", line)]
            links = [(title, outside.page_of(to.removeprefix("../")) if to.startswith("../") else to) for title, to in links]
            (title, first), *others = links
            group.append({title: [first, *({name: target} for name, target in others)] if others else first})
    return [entry for entry in nav if next(iter(entry.values()))]


def stage() -> None:
    """Write the sources of the site, with its configuration, to `build/docs`. Only what changed is written."""
    outside = Outside()
    files: dict[str, str | bytes] = {}
    for source in sorted(path for path in DOCS.rglob("*") if path.is_file()):
        name = source.relative_to(DOCS).as_posix()
        files[name] = (
            outside.staged(source.read_text(encoding="utf-8"), f"docs/{name}", name) if source.suffix == ".md" else source.read_bytes()
        )
    api = reference(posixpath.splitext(API)[0])
    files |= api.pages
    files[API] = re.sub(r"^\| `(detent[\w.]*)` \|", r"| [`\1`](python/\1.md) |", str(files[API]), flags=re.MULTILINE)
    nav = navigation((DOCS / "index.md").read_text(encoding="utf-8"), outside)
    files |= outside.pages
    below(nav, API, [{title: page} for page, title in api.titles.items()])
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    written = yaml.safe_dump({**config, "docs_dir": "docs", "site_dir": "site", "nav": nav}, sort_keys=False)
    for name, content in files.items():
        write(STAGE / name, content)
    for old in [path for path in STAGE.rglob("*") if path.is_file() and path.relative_to(STAGE).as_posix() not in files]:
        old.unlink()
    write(STAGE.parent / "mkdocs.yml", written)


def below(nav: list[Any], page: str, children: list[Any]) -> None:
    """Put pages below one of the navigation."""
    for entry in nav:
        for title, inside in entry.items() if isinstance(entry, dict) else ():
            if inside == page:
                entry[title] = [page, *children]
            elif isinstance(inside, list):
                below(inside, page, children)


def write(path: Path, content: str | bytes) -> None:
    """Write a file, unless it is as it should be."""
    data = content.encode() if isinstance(content, str) else content
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


# Commands ---------------------------------------------------------------------------------------------------------------------


def zensical(*arguments: str) -> list[str]:
    """Return the command line of Zensical for the staged pages."""
    return [sys.executable, "-m", "zensical", *arguments, "--config-file", str(STAGE.parent / "mkdocs.yml")]


def build() -> int:
    """Build the site in `build/site`; return the exit code of the builder, for which a warning is a failure."""
    shutil.rmtree(SITE, ignore_errors=True)
    stage()
    return subprocess.run(zensical("build", "--clean", "--strict"), check=False).returncode


def serve(address: str = "127.0.0.1:8000") -> int:
    """Show the site, and build again what changes, until Ctrl-C."""
    stage()
    with subprocess.Popen(zensical("serve", "--dev-addr", address)) as server:
        seen = changed_at()
        try:
            while server.poll() is None:
                try:
                    server.wait(timeout=1)
                except subprocess.TimeoutExpired:
                    if (now := changed_at()) != seen:
                        seen = now
                        stage()
        except KeyboardInterrupt:
            server.terminate()
        return 0


def changed_at() -> float:
    """Return when a source of the site was changed last."""
    return max(path.stat().st_mtime for room in (DOCS, ROOT / "src", ROOT / "examples") for path in room.rglob("*.*"))


# What was built ---------------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a page of the site links to, what it loads, and the anchors that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.diagrams = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take from a tag what leads somewhere."""
        said = dict(attrs)
        self.anchors.update(value for name in ("id", "name") if (value := said.get(name)))
        self.diagrams += "mermaid" in (said.get("class") or "").split()
        if tag == "a" and said.get("href"):
            self.links.append(str(said["href"]))
        elif tag == "link" and said.get("rel") in ("canonical", "prev", "next", "alternate"):
            return
        else:
            self.loads += [value for name in ("src", "href", "data") if (value := said.get(name))]


def problems(site: Path = SITE) -> Iterator[str]:
    """Yield a line for each link of the built site that leads nowhere, and for everything that a page would load from elsewhere."""
    pages: dict[Path, Page] = {}
    for file in sorted(site.rglob("*.html")):
        pages[file] = Page()
        pages[file].feed(file.read_text(encoding="utf-8"))
    for file, page in pages.items():
        if file.name == "404.html":
            continue
        name = file.relative_to(site).as_posix()
        if page.diagrams:
            yield f"{name}: a Mermaid block: browsers would fetch its program; draw it as SVG"
        for target in dict.fromkeys([*page.links, *page.loads]):
            there = urlsplit(target)
            if there.scheme or there.netloc:
                if target in page.loads and there.scheme != "data":
                    yield f"{name}: loads {target}"
                continue
            place = Path(os.path.normpath(file.parent / unquote(there.path))) if there.path else file
            place = place / "index.html" if place.is_dir() else place
            if not place.is_file():
                yield f"{name}: {target} does not exist"
            elif there.fragment and place in pages and unquote(there.fragment) not in pages[place].anchors:
                yield f"{name}: {target} has no such anchor"
    for style in site.rglob("*.css"):
        for target in re.findall(r"url\(['\"]?((?:https?:)?//[^)'\"]+)", style.read_text(encoding="utf-8")):
            yield f"{style.relative_to(site)}: loads {target}"


def check() -> int:
    """Build the site and report what is wrong with it; return 1 if anything is."""
    if failed := build():
        return failed
    found = list(problems())
    print(
        "\n".join(found)
        or f"{len(list(SITE.rglob('*.html')))} pages: every link and anchor leads somewhere, nothing is loaded from elsewhere"
    )
    return 1 if found else 0
