"""The ranking of items: it beats plain BM25, its weight was not chosen for the questions that it is tested with, and the reader of LoCoMo's format."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amounts import in_check
from detent.memories import ranking
from detent.memories.sqlite.memory import SqliteMemory
from source_code import ROOT

SCRIPT = ROOT / "benchmarks" / "memory.py"
SPEC = importlib.util.spec_from_file_location("benchmark_of_memory", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
benchmark: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(benchmark)
WEIGHTS = (0.0, 0.5, 1.0, 1.5)


def turn(name: str, who: str, text: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a turn as the public file has it."""
    return {"speaker": who, "dia_id": name, **({} if text is None else {"text": text}), **more}


PUBLIC: list[dict[str, Any]] = [
    {
        "sample_id": "conv-1",
        "conversation": {
            "speaker_a": "Caro",
            "speaker_b": "Mel",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                turn("D1:1", "Caro", "Hey Mel!"),
                turn("D1:2", "Mel", img_url=["https://x.invalid/a.jpg"], blip_caption="a photo of a dog on a beach", query="dog"),
                turn("D1:3", "Caro", "I went to a support group yesterday."),
                turn("D1:3", "Caro", "I went to a support group, yes."),
                turn("D1:4", "Mel", None),
            ],
            "session_10": [turn("D10:1", "Mel", "I ran a charity race on Saturday.", img_url=[], blip_caption=None)],
            "session_11_date_time": "a session that is not there",
        },
        "qa": [
            {"question": "When did Caro go to the support group?", "answer": "7 May 2023", "evidence": ["D1:3"], "category": 2},
            {"question": "What animal did Mel photograph?", "answer": 1, "evidence": ["D1:2; D9:17", "D10:01"], "category": 1},
            {"question": "Which race?", "answer": "x", "evidence": "D10:1", "category": 4},
            {"question": "Nothing is there", "answer": "x", "evidence": ["D77:1", "D"], "category": 3},
            {"question": "Nothing is said", "answer": "x", "evidence": [], "category": 3},
            {"question": "What is not there?", "adversarial_answer": "no", "evidence": ["D1:1"], "category": 5},
        ],
        "event_summary": {"events_session_1": {"Caro": ["x"], "Mel": [], "date": "8 May, 2023"}},
        "observation": {"session_1_observation": {"Caro": [["Caro attended", "D1:3"]]}},
        "session_summary": {"session_1_summary": "They talk."},
    }
]


def test_the_public_format_is_read_with_its_flaws(tmp_path: Path) -> None:
    """Pictures without words, turns that are there twice, evidence that does not exist, and ids in one text: the real file has all of them."""
    (tmp_path / "locomo10.json").write_text(json.dumps(PUBLIC))
    ((items, questions),) = benchmark.conversations(tmp_path / "locomo10.json")
    assert [item.id for item in items] == ["D1:1", "D1:2", "D1:3", "D1:4", "D10:1"]
    assert "dog on a beach" in items[1].content
    assert "8 May" in items[2].context
    assert questions == [
        ("When did Caro go to the support group?", {"D1:3"}),
        ("What animal did Mel photograph?", {"D1:2", "D10:1"}),
        ("Which race?", {"D10:1"}),
    ]
    assert asyncio.run(benchmark.recall(tmp_path / "locomo10.json", lambda: SqliteMemory(tmp_path / "m.db")))[5] == 1.0


def test_a_file_in_another_format_is_refused_in_one_line(tmp_path: Path) -> None:
    """A person who downloaded the wrong file is told so, without a traceback."""
    (tmp_path / "a.json").write_text('{"qa": []}')
    done = subprocess.run([sys.executable, str(SCRIPT), "--locomo", str(tmp_path / "a.json")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "is not a file of conversations in the format of LoCoMo" in done.stderr
    assert "Traceback" not in done.stderr


def halves(directory: Path) -> list[Path]:
    """Return a file for each conversation of our own set."""
    samples = json.loads(benchmark.OWN_SET.read_text(encoding="utf-8"))
    files = [directory / f"{n}.json" for n in range(len(samples))]
    for file, sample in zip(files, samples, strict=True):
        file.write_text(json.dumps([sample]))
    return files


@in_check
def test_the_weight_that_is_chosen_on_half_of_the_questions_is_good_for_the_other_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the ranking would be one for the questions that it was tuned with. Each half alone is above plain BM25 at every cut."""
    number = iter(range(100))

    def found(file: Path, weight: float) -> list[float]:
        monkeypatch.setattr(ranking, "FULL", weight)
        return list(asyncio.run(benchmark.recall(file, lambda: SqliteMemory(tmp_path / f"{next(number)}.db"))).values())

    ours = ranking.FULL
    assert ours in WEIGHTS
    one, other = halves(tmp_path)
    for chosen_on, tried_on in ((one, other), (other, one)):
        best = max(WEIGHTS, key=lambda weight: sum(found(chosen_on, weight)))
        plain = list(asyncio.run(benchmark.recall(tried_on, None)).values())
        without = found(tried_on, 0.0)
        for weight in (best, ours):
            assert sum(found(tried_on, weight)) > sum(without) + 0.05
        assert all(mine > floor for mine, floor in zip(found(tried_on, ours), plain, strict=True))
