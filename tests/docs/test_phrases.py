"""The prose: phrases that read like a translation are found, none is added, and their number falls until there is none."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from amounts import in_check
from docs.pages import ROOT

LISTED = (
    "the worker takes the run on",
    "take up a run",
    "the run goes on",
    "it stands in the log",
    "it is on record",
    "this is no planner",
    "what came of it",
    "the tools at hand",
    "a model that there is, or none",
    "what there is to do",
    "a call of which nobody knows whether it happened",
    "it says that the run is busy",
    "it is said once",
    "the run that fared worst",
    "a clock that is put forth or back",
    "signals and the like.",
    "events as well.",
    "the store looks whether it is there",
    "settle the question",
    "hand over a run",
    "make a store",
    "then the planner is asked",
)
"""A use of each phrase that may not be written."""

BEFORE = (
    "Detent is a durable agent kernel for Python, for people who are answerable for what an agent did.",
    "Kill the process at any moment: another one goes on from the log, and no outcome in it is produced again.",
    "Iterations, calls, failures, stagnation, time, tokens and cost have bounds that no agent can lift.",
    "What cannot be promised: that a program on another machine, cut off from the store, stops before it finishes an effect.",
    "Without a program of your own, rules plan: an ordered list of conditions and actions.",
    "A run that waits for somebody is rows in the store; `resume` takes it on, and workers take on whatever is there.",
    "there is no store yet, and looking makes none",
    "no price is known for model 'qwen3': its calls are counted in tokens, and cost nothing that is known",
    "How much chance there is in answers.",
    "Settle a call of which nobody knows whether it happened, and take the run on.",
    "Take a run on from where its log ends: after a crash, a suspension, or an answer that was only recorded.",
    "Begin a run that goes on from some record of another, with what is to be different, and take it on.",
    "Calls that do not only read: answered from the record, else by a stub; from the record, else executed; executed.",
    "options about the model go before what it says.",
    "all of it stands in the log, so that `resume` needs none of it again",
    "A signal that whoever started the command has ignored stays so.",
    "what a model says of it in the words of a step is not known as such",
    "a wall clock that is put forth or back ends no run and prolongs none",
    "From nothing to an agent that is killed in the worst moment, taken on, asked for a decision.",
    "'foo' is no status of a run",
    "A call alone waits like one of a batch, and before its intent is on record.",
    "Who opens a store at the same moment opens it once.",
    "Whether an answer may end the run, what it must have rested on, and that nothing internal leaves with it.",
    "How often a run was taken up in vain: what its log says of that, whoever took it up.",
    "Taking one run on in this process: claim, load, journal, world, loop, release.",
    "There is nothing to be had from it.",
)
AFTER = (
    "Detent runs LLM agents durably and keeps a complete, verifiable record of what they did.",
    "Kill the process at any moment. Another one resumes from the log, and nothing that is already recorded runs twice.",
    "Turns, calls, failures, stalls, time, tokens and cost have hard limits that the agent cannot raise.",
    "One thing nobody can promise: a worker that loses contact with the store may still finish a side effect after we gave up on it.",
    "You do not need to write a planner: a list of rules can decide the next step.",
    "`resume` continues it from any process; workers pick up everything that is due. There is no store yet.",
    "no price for 'qwen3': counting tokens, not cost",
    "Say whether an in-doubt call really happened, then continue the run.",
    "Continue a run from the end of its log: after a crash, a suspension, or an answer given with --no-resume.",
    "What to do with side effects: dry-run = recorded result or a stub; reuse = recorded result or run it; redo = run it again.",
    "all of it is recorded, so `resume` does not need it again. It looks like the other one, and nothing looks alike.",
    "changing the system clock neither ends nor extends a run",
    "'foo' is not a run status; it is no longer used. The call in doubt is settled by a person.",
    "Concurrent opens of the same store are safe: it is initialised once.",
    "Decides whether an answer may end the run: evidence, required tools, no internal markup.",
    "Counts attempts that made no progress, from the log. It makes the run wait for you. Rules stand in for a model.",
)


@pytest.fixture(scope="module")
def phrases() -> ModuleType:
    """The script that finds them."""
    spec = importlib.util.spec_from_file_location("detent_phrases", ROOT / "scripts" / "phrases.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def now(phrases: ModuleType) -> dict[str, int]:
    """How many each file has."""
    return phrases.counts()


@in_check
def test_no_file_gets_a_phrase_that_reads_like_a_translation(phrases: ModuleType, now: dict[str, int]) -> None:
    """Documentation, docstrings, help, errors and log lines have no more of them than before: else they come back one by one."""
    allowed = phrases.allowed()
    more = {name: count for name, count in now.items() if count > allowed.get(name, 0)}
    places = [f"{name}:{f.line}: {f.words!r} -> {f.instead}" for name in more for f in phrases.in_file(ROOT / name)]
    assert not more, "\n".join(["these files may have less (moved a file? scripts/phrases.py --write):", *places])


@in_check
def test_a_phrase_that_was_rewritten_cannot_come_back(phrases: ModuleType, now: dict[str, int]) -> None:
    """The counts are lowered with the text: a count that is too high lets the next one in unseen."""
    assert {name: count for name, count in phrases.allowed().items() if now.get(name, 0) < count} == {}, "scripts/phrases.py --write"


@pytest.mark.parametrize("text", [*LISTED, *BEFORE])
def test_every_listed_phrase_is_found(text: str, phrases: ModuleType) -> None:
    """The check knows each of them, however the line is broken."""
    assert phrases.in_text(text)
    assert phrases.in_text(text.replace(" ", "\n    "))


@pytest.mark.parametrize("text", AFTER)
def test_plain_english_is_left_alone(text: str, phrases: ModuleType) -> None:
    """What a phrase should be rewritten to, and what only resembles one, is not reported."""
    assert phrases.in_text(text) == []


def test_texts_of_the_source_are_searched_and_its_code_is_not(phrases: ModuleType, tmp_path: Path) -> None:
    """A docstring, a message and the text of an f-string count, with their lines; names, backticks and comments do not."""
    source = '"""A run\nthat goes on."""\n# it goes on\ngoes_on = f"{x} stands in {y}, `goes on`"\nraise Oops("is no " "store")\n'
    (tmp_path / "one.py").write_text(source, encoding="utf-8")
    assert [(f.line, f.instead) for f in phrases.in_file(tmp_path / "one.py")] == [
        (2, "continue"),
        (4, "is recorded, the log has"),
        (5, "is not a"),
    ]


def test_the_counts_can_only_fall(phrases: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--write` takes fewer, or as many in a file that moved, and refuses more; of two lines that a merge left for a file the smaller counts."""
    left = tmp_path / "left.txt"
    left.write_text("2 a.md\n3 b.md\n1 b.md\n", encoding="utf-8")
    monkeypatch.setattr(phrases, "LEFT", left)
    assert sum(phrases.allowed().values()) == 3
    for found, code in [({"a.md": 2, "c.md": 1}, 0), ({"a.md": 2}, 0), ({"a.md": 3}, 1), ({}, 0)]:
        monkeypatch.setattr(phrases, "counts", lambda found=found: found)
        assert phrases.main(["--write"]) == code
    assert phrases.allowed() == {}
