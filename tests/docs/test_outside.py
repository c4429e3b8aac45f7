"""What lies beside the pages: CONTRIBUTING, SECURITY, llms.txt and the drawings."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.pages import DOCS, ROOT, anchors, name_of, pages, prose
from source_code import PACKAGE

BESIDE = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "llms.txt"]
DRAWINGS = sorted((DOCS / "learn" / "drawings").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
WIDEST = 0.56
"""Of a letter on average, in sizes of its font; DejaVu Sans, one of the widest, has 0.5."""


@pytest.mark.parametrize("page", BESIDE, ids=name_of)
def test_links_beside_the_pages_lead_somewhere(page: Path) -> None:
    """A new contributor, or a model with the map, is not sent into the void."""
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, fragment = target.partition("#")
        place = page.parent / path
        if not target.startswith("https://") and (not place.exists() or (fragment and fragment not in anchors(place))):
            wrong.append(target)
    assert wrong == []


def test_the_map_for_models_is_current() -> None:
    """It is what `scripts/docs.py` makes of `docs/index.md`: a page that is added or moved is on it."""
    assert runpy.run_path(str(ROOT / "scripts" / "llms.py"))["text"]() == (ROOT / "llms.txt").read_text(encoding="utf-8"), "scripts/docs.py"


def test_the_map_for_models_has_every_page() -> None:
    """llms.txt lists what `docs/index.md` lists, and that is every page, in one step or as part of a list item."""
    listed = set(re.findall(r"\]\((docs/[^)\s]+\.md)\)", (ROOT / "llms.txt").read_text(encoding="utf-8")))
    assert sorted({name_of(page) for page in pages() if DOCS in page.parents} - listed - {"docs/index.md"}) == []


def test_the_map_of_contributors_has_every_room() -> None:
    """A folder that is not on the map is found by accident."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = [p.name for p in PACKAGE.iterdir() if p.is_dir() and (p / "__init__.py").exists()]
    assert [room for room in rooms if f"`{room}`" not in text] == []


def test_contributing_sets_up_what_the_tests_need() -> None:
    """One command, which installs the extra that CI installs."""
    (block,) = re.findall(r"^```sh\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(block.splitlines()) == 1
    assert "pip install -e '.[dev]'" in block
    assert "'.[dev]'" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.stem)
def test_a_drawing_can_be_read_light_and_dark_on_a_phone_and_by_a_screen_reader(drawing: Path) -> None:
    """It has its own paper in both schemes, fits into 390 px at its own size, and says in words what it shows; nothing is loaded."""
    text = drawing.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)  # noqa: S314 - our own file
    width = float(root.attrib["viewBox"].split()[2])
    assert width <= 390
    for part in ("title", "desc"):
        assert (root.findtext(f"{SVG}{part}") or "").strip()
    assert "prefers-color-scheme: dark" in text and 'class="paper"' in text
    assert not re.search(r"<(script|image|foreignObject|a)\b|https?://(?!www\.w3\.org)", text)
    light, dark = text.split("@media")
    colours = set(re.findall(r"\.(\w+) \{ fill: #", light))
    assert colours <= set(re.findall(r"\.(\w+) \{ fill: #", dark)) | {"head"}


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.stem)
def test_no_text_of_a_drawing_runs_out_of_it(drawing: Path) -> None:
    """The words are cut off on a machine with wider fonts, else."""
    root = ElementTree.fromstring(drawing.read_text(encoding="utf-8"))  # noqa: S314 - our own file
    width = float(root.attrib["viewBox"].split()[2])
    wrong = []
    for text in root.iter(f"{SVG}text"):
        if "transform" in text.attrib:
            continue
        long = len(text.text or "") * WIDEST * (12 if text.get("class") == "small" else 13)
        begin = float(text.attrib["x"]) - {"middle": long / 2, "end": long}.get(text.get("text-anchor", ""), 0)
        if begin < 0 or begin + long > width:
            wrong.append((text.text, round(begin), round(begin + long)))
    assert wrong == []


def test_every_drawing_is_shown_on_a_page() -> None:
    """With words for those who cannot see it."""
    shown = {target for page in pages() for target in re.findall(r"!\[[^\]]{20,}\]\((?:[^)\s]*/)?([\w-]+\.svg)\)", prose(page))}
    assert {drawing.name for drawing in DRAWINGS} <= shown
