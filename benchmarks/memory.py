"""Memory: how long a search and a write take beside bare SQLite, and how much of the evidence for an answer a search finds.

    python benchmarks/memory.py                     speed, and recall on the small set of our own (benchmarks/memory_set.json)
    python benchmarks/memory.py --locomo FILE       recall on conversations in the format of LoCoMo, if you have the file

Search: the median over queries of a search among 100,000 items, beside the same FTS5 query on a table with the same texts and nothing else. Write:
beside a transaction that inserts one row of the same size and is committed to the disk, and beside the same in a thread: a memory waits for no disk on
the thread of the event loop. The floors are measured in turn with ours. Where other programs work too, the lower quarter says more than the median.

Recall: each turn of a conversation becomes an item, with the two turns before it and the date as its context; each question is a query. Evidence
recall at k is the share of a question's evidence turns among the first k found, averaged over the questions. Category 5 (questions without an
answer) is left out. The rankings: term overlap (`RamMemory`), BM25 (`SqliteMemory`), hybrid (`SqliteMemory` with the hashing embedder, which needs no
model), and as the floor a plain BM25 over the words of the turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import re
import sqlite3
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from detent.embedders import HashingEmbedder
from detent.memories.ram import RamMemory
from detent.memories.sqlite.memory import SqliteMemory
from detent.ports import Memory, MemoryItem

OWN_SET = Path(__file__).parent / "memory_set.json"
CUTS = (1, 5, 10, 20)
ITEMS = 100_000
START = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE = 2
"""How many turns before a turn are its context."""


# Recall -----------------------------------------------------------------------------------------------------------------------------


def conversations(path: Path) -> list[tuple[list[MemoryItem], list[tuple[str, set[str]]]]]:
    """Return, for each conversation of a file, the items of its turns, and its questions with the ids of their evidence."""
    read: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    found = [(items_of(number, sample["conversation"]), sample) for number, sample in enumerate(read)]
    return [(items, _questions(sample, {item.id for item in items})) for items, sample in found]


def items_of(number: int, conversation: dict[str, Any]) -> list[MemoryItem]:
    """Return an item for each turn. The text that stands for a picture counts as said; of turns with one id the first counts."""
    items: dict[str, MemoryItem] = {}
    sessions = sorted(int(m[1]) for key in conversation if (m := re.fullmatch(r"session_(\d+)", key)))
    for session in sessions:
        date = conversation.get(f"session_{session}_date_time", "")
        said: list[str] = []
        for turn in conversation[f"session_{session}"]:
            caption = turn.get("blip_caption") or ""
            text = f"{turn['speaker']}: {turn.get('text') or ''}{f' [{caption}]' if caption else ''}"
            context = "\n".join((*said[-BEFORE:], date))
            item = MemoryItem(id=turn["dia_id"], scope=f"locomo/{number}", content=text[:8_000], context=context[:8_000], created_at=START)
            if item.id not in items:
                items[item.id] = item
                said.append(text)
    return list(items.values())


def _questions(sample: dict[str, Any], known: set[str]) -> list[tuple[str, set[str]]]:
    """Return the questions with evidence among the `known` turns. The file has lists of ids, several ids in one text, and ids of no turn."""
    questions: list[tuple[str, set[str]]] = []
    for one in sample["qa"]:
        named = re.findall(r"D:?(\d+):(\d+)", str(one.get("evidence") or ""))
        evidence = {f"D{int(session)}:{int(turn)}" for session, turn in named} & known
        if one.get("category") != 5 and evidence:
            questions.append((one["question"], evidence))
    return questions


def _plain(items: Sequence[MemoryItem]) -> Callable[[str], list[str]]:
    """Return a search by BM25 over the words of turns: no stems, no stop words, no context."""
    texts = [Counter(re.findall(r"\w+", item.content.lower())) for item in items]
    lengths = [sum(text.values()) for text in texts]
    mean, among = sum(lengths) / len(lengths), Counter(word for text in texts for word in text)

    def search(query: str) -> list[str]:
        words = re.findall(r"\w+", query.lower())
        scores = []
        for item, text, length in zip(items, texts, lengths, strict=True):
            score = 0.0
            for word in words:
                if count := text[word]:
                    rarity = math.log(1 + (len(items) - among[word] + 0.5) / (among[word] + 0.5))
                    score += rarity * count * 2.5 / (count + 1.5 * (0.25 + 0.75 * length / mean))
            scores.append((score, item.id))
        return [name for _, name in sorted(scores, key=lambda pair: -pair[0])[: CUTS[-1]]]

    return search


async def recall(path: Path, make: Callable[[], Memory] | None) -> dict[int, float]:
    """Return the evidence recall at each cut, of the memory that `make` makes for a conversation; None: of plain BM25."""
    hits: dict[int, float] = dict.fromkeys(CUTS, 0.0)
    asked = 0
    for items, questions in conversations(path):
        memory = None if make is None else make()
        plain = _plain(items)
        if memory is not None:
            await memory.import_(items, host="locomo")
        for question, evidence in questions:
            if memory is None:
                found = plain(question)
            else:
                found = [one.item.id for one in await memory.search(question, host=items[0].scope, limit=CUTS[-1])]
            asked += 1
            for cut in CUTS:
                hits[cut] += len(evidence & set(found[:cut])) / len(evidence)
        if memory is not None:
            await memory.close()
    return {cut: hits[cut] / max(asked, 1) for cut in CUTS}


async def show_recall(path: Path, place: Path) -> None:
    """Print the recall of every ranking."""
    number = iter(range(10_000))

    def fresh(**options: Any) -> Memory:
        return SqliteMemory(place / f"recall-{next(number)}.db", **options)

    ways: dict[str, Callable[[], Memory] | None] = {
        "plain BM25 (the floor)": None,
        "term overlap": RamMemory,
        "BM25": fresh,
        "hybrid": lambda: fresh(embedder=HashingEmbedder(1024)),
    }
    asked = sum(len(questions) for _, questions in conversations(path))
    print(f"\nevidence recall, {path.name}, {asked:,} questions\n{'':<24}" + "".join(f"{f'@{cut}':>8}" for cut in CUTS))
    for name, make in ways.items():
        found = await recall(path, make)
        print(f"{name:<24}" + "".join(f"{found[cut]:>8.3f}" for cut in CUTS), flush=True)


# Speed ------------------------------------------------------------------------------------------------------------------------------


def _texts(count: int) -> list[str]:
    """Return sentences of words whose frequencies fall off as in language."""
    chance = random.Random(17)
    vocabulary = [f"w{''.join(chance.choices('abcdefghijklmnopqrstuvwxyz', k=6))}" for _ in range(20_000)]
    weights = [1 / (rank + 10) for rank in range(len(vocabulary))]
    drawn = chance.choices(vocabulary, weights, k=count * 15)
    return [" ".join(drawn[n * 15 : n * 15 + 15]) for n in range(count)]


def _median_ms(times: Sequence[float]) -> float:
    return statistics.median(times) * 1000


async def show_speed(place: Path, count: int) -> None:
    """Print the times of search and write beside their floors."""
    texts = _texts(count)
    memory = SqliteMemory(place / "memory.db")
    for begin in range(0, count, 20_000):
        items = [
            MemoryItem(id=f"i{n}", scope="acme/shop", content=texts[n], created_at=START) for n in range(begin, min(begin + 20_000, count))
        ]
        await memory.import_(items, host="acme")
    bare = sqlite3.connect(place / "bare.db", isolation_level=None, check_same_thread=False)
    bare.execute("PRAGMA journal_mode=WAL")
    bare.execute("PRAGMA synchronous=FULL")
    bare.execute("CREATE VIRTUAL TABLE f USING fts5(content, tokenize='porter unicode61 remove_diacritics 2')")
    bare.execute("BEGIN")
    bare.executemany("INSERT INTO f (content) VALUES (?)", [(text,) for text in texts])
    bare.execute("COMMIT")
    chance = random.Random(4)
    floors: list[float] = []
    ours: list[float] = []
    for _ in range(60):
        words = chance.choice(texts).split()[:5]
        query = " OR ".join(f'"{word}"' for word in words)
        begun = time.perf_counter()
        bare.execute("SELECT rowid, content, rank FROM f WHERE f MATCH ? ORDER BY rank LIMIT 10", (query,)).fetchall()
        floors.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        await memory.search(" ".join(words), host="acme")
        ours.append(time.perf_counter() - begun)
    floor, mine = _median_ms(floors), _median_ms(ours)
    print(f"search among {count:,} items: {mine:.2f} ms; bare FTS5 query {floor:.2f} ms; {mine / floor:.2f} times (to reach: at most 3)")

    bare.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, data BLOB)")

    def commit(data: bytes) -> None:
        bare.execute("BEGIN IMMEDIATE")
        bare.execute("INSERT INTO t (data) VALUES (?)", (data,))
        bare.execute("COMMIT")

    floors, ours, threads = [], [], list[float]()
    for n in range(300):
        item = MemoryItem(id=f"new{n}", scope="acme/shop", content=texts[n], created_at=START)
        data = msgspec.json.encode(item)
        begun = time.perf_counter()
        commit(data)
        floors.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        await memory.write(item, host="acme")
        ours.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        await asyncio.to_thread(commit, data)
        threads.append(time.perf_counter() - begun)
    for what, at in (("median", 1), ("lower quarter", 0)):
        floor, mine, thread = (statistics.quantiles(times, n=4)[at] * 1000 for times in (floors, ours, threads))
        print(
            f"write, {what}: {mine:.2f} ms; bare commit {floor:.2f} ms, in a thread {thread:.2f} ms; {mine / floor:.2f} times (to reach: at most 2)"
        )
    await memory.close()
    bare.close()


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--locomo", type=Path, help="a file of conversations in the format of LoCoMo; only recall is measured then")
    parser.add_argument("--quick", action="store_true", help="few items: to see that it works")
    parser.add_argument("--items", type=int, default=ITEMS, help="how many items a search is among")
    said = parser.parse_args()
    try:
        conversations(said.locomo or OWN_SET)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        parser.error(f"{said.locomo} is not a file of conversations in the format of LoCoMo: {type(error).__name__}: {error}")
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        if said.locomo is None:
            asyncio.run(show_speed(place, 2_000 if said.quick else said.items))
        asyncio.run(show_recall(said.locomo or OWN_SET, place))


if __name__ == "__main__":
    main()
