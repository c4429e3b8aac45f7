"""Names of people: what is one name, what nobody writes, and what a process says about itself."""

from __future__ import annotations

import socket
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.running.people import mixed_scripts, person, poster


@given(st.text(max_size=30))
def test_the_normal_form_of_a_normal_form_is_itself(name: str) -> None:
    """So it does not matter how often a name went through it before it is compared."""
    assert person(person(name)) == person(name)


@pytest.mark.parametrize(
    "name", ["ann smith", "  Ann\tSMITH ", "ann\u00a0smith", "an\u200bn smith", "a\u034fnn smith", "ann smith\u3164", "ann s\u00admith"]
)
def test_white_space_case_and_what_cannot_be_seen_make_nobody_another(name: str) -> None:
    """Also letters and marks that show nothing and are no format characters."""
    assert person(name) == "ann smith"


@pytest.mark.parametrize("name", ["", " \n", "\u200b\u2060", "\u3164\u115f", "\U000e0041", "\x00\x1b"])
def test_a_name_of_nothing_that_can_be_seen_is_none(name: str) -> None:
    """Whatever it is made of."""
    assert person(name) == ""


@pytest.mark.parametrize(
    "name",
    ["Ann O'Neil-Müller 2", "Łukasz", "Иванова", "Ελένη", "山田たろう", "山田タロー", "田中 ken", "김철수 金", "王ㄨㄤˊ", "佐々木", "אן", "ann@example.com"],
)  # fmt: skip
def test_what_people_write_together_is_no_mixture(name: str) -> None:
    """One script with digits and signs; Latin with what is written in Japan, Korea and China."""
    assert mixed_scripts(name) == mixed_scripts(person(name)) == ()


@pytest.mark.parametrize(
    ("name", "scripts"),
    [
        ("\u0430nn", ("Cyrillic", "Latin")),
        ("bo\u03bf", ("Latin", "Greek")),
        ("\u13aann", ("Cherokee", "Latin")),
        ("Иван ann", ("Cyrillic", "Latin")),
        ("たろう김", ("Hiragana", "Hangul")),
        ("a\u2df6nn", ()),
    ],
)
def test_letters_of_scripts_that_nobody_mixes_are_found(name: str, scripts: tuple[str, ...]) -> None:
    """Each script is named, in the order in which it appears; combining marks are of any."""
    assert mixed_scripts(name) == scripts


def test_a_process_says_who_runs_it_where_and_as_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, and short, whatever the program is called; `LOGNAME` and `USER` are not asked."""
    monkeypatch.setenv("LOGNAME", "boss")
    monkeypatch.setattr(sys, "argv", ["/usr/lib/detent/__main__.py", "approve"])
    said = poster()
    assert said.endswith(f"@{socket.gethostname()} detent") and not said.startswith("boss@")
    monkeypatch.setattr(sys, "argv", ["/srv/pay\x1b[1mroll\n.py" + "x" * 500])
    assert len(poster()) == 200 and poster().isprintable()
    monkeypatch.setattr(sys, "argv", [])
    assert poster().endswith(" python")
