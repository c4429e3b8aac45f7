"""People as graders: `detent eval label`, the file of labels, and judges measured by it, at the command line."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from amounts import in_check
from cli.desk import Desk, Done, ended
from detent.core.errors import ConfigError
from detent.evals import Evaluation, Grader, Label, add_label, read_labels
from detent.evals.labels import said_by_people
from forked import fork

PERSON = """
name = "tone"
trials = 2
[[graders]]
kind = "person"
name = "tone"
expected = "Is it polite?"
[[cases]]
id = "one"
goal = "Note \\u001b[31m it"
[[cases]]
id = "two"
goal = "Note that"
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def typed(desk: Desk, lines: str, *words: str) -> Done:
    """Run a command whose person types these lines."""
    process = fork(["-m", "detent", *words], cwd=desk.home, env=desk.environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(lines)
    process.stdin.close()
    process.stdin = None
    return ended(process)


def test_a_person_labels_trials_and_goes_on_where_they_stopped(desk: Desk) -> None:
    desk.write("suite.toml", PERSON)
    first = desk.detent("eval", "run", "suite.toml", "--out", "a.json")
    assert first.code == 0 and {t.standing for t in Evaluation.read(desk.home / "a.json").trials} == {"unknown"}
    done = typed(desk, "perhaps\npass well said\n\nf: too curt\nq\n", "eval", "label", "a.json", "--by", "ann")
    assert done.code == 0 and "2 trials labelled for tone, 2 left" in done.out, done
    assert "perhaps is not an answer" in done.err and "| Is it polite?" in done.err and "\x1b" not in done.err and "\\u001b[31m" in done.err
    assert "note" in done.err and "| all done" in done.err, "what was done, and the answer"
    found = Evaluation.read(desk.home / "a.json")
    assert sorted(t.standing for t in found.trials) == ["failed", "passed", "unknown", "unknown"]
    assert [t.grades[0].reason for t in found.trials if t.standing == "failed"] == ["ann: too curt"] and found.figures[""].graded == 2
    labels = read_labels(desk.home / "evals/labels.jsonl")
    assert [(one.by, one.verdict, one.grader) for one in labels] == [("ann", "passed", "tone"), ("ann", "failed", "tone")] and labels[0].at

    rest = typed(desk, "u\nyes\n", "eval", "label", "a.json", "--by", "bob")
    assert rest.code == 0 and "2 trials labelled for tone, 0 left" in rest.out and rest.err.count("Is it polite?") == 2, rest
    assert Evaluation.read(desk.home / "a.json").figures[""].unknown == 1, "one is unsure"
    again = typed(desk, "pass\n" * 9, "eval", "label", "a.json")
    assert "0 trials labelled for tone, 0 left" in again.out and "Is it polite?" not in again.err
    wrong = desk.detent("eval", "label", "a.json", "--grader", "tome")
    assert wrong.code == 2 and "no such grader" in wrong.err and "it has tone" in wrong.err
    graded = desk.detent("eval", "grade", "suite.toml", "--runs", "eval-", "--out", "b.json")
    assert graded.code == 0 and Evaluation.read(desk.home / "b.json").figures["tester"].graded == 3, "stored runs have their labels too"


def test_stored_runs_are_labelled_and_the_labels_can_be_elsewhere(desk: Desk) -> None:
    assert desk.detent("run", "Note it").code == 0
    done = typed(desk, "pass\n", "eval", "label", "--runs", "status=completed", "--grader", "tone", "--out", "mine.jsonl", "--json")
    assert done.json == {"labelled": 1, "left": 0, "grader": "tone", "labels": "mine.jsonl"}, done
    (one,) = read_labels(desk.home / "mine.jsonl")
    assert (one.run, one.goal, one.answer) == (desk.only_run(), "Note it", "all done")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name the result, or runs"), (("a.json", "--runs", "x"), "name the result, or runs"), (("none.json",), "none.json is not a result"),
        (("--runs", "x=y"), "unknown part"),
    ],
)  # fmt: skip
def test_wrong_words_of_label_are_named(desk: Desk, words: tuple[str, ...], said: str) -> None:
    done = desk.detent("eval", "label", *words)
    assert done.code == 2 and said in done.err, done


def test_several_people_write_at_once_and_a_torn_end_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "labels.jsonl"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: add_label(path, Label(verdict="passed", answer="x" * 5_000, run=str(n), by=str(n % 8))), range(200)))
    assert len(read_labels(path)) == 200
    with path.open("ab") as file:
        file.write(b'{"verdict": "pas')
    assert len(read_labels(path)) == 200
    add_label(path, Label(verdict="failed", answer="y"))
    with pytest.raises(ConfigError, match=r"labels.jsonl, line 201: not a label"):
        read_labels(path)


@pytest.mark.parametrize(
    ("labels", "verdict", "why"),
    [
        ([], "unknown", "nobody has labelled it"),
        ([("ann", "passed", "a")], "passed", "ann: passed"),
        ([("ann", "passed", "a"), ("bob", "failed", "a")], "unknown", "people disagree"),
        ([("ann", "passed", "a"), ("bob", "unknown", "a")], "passed", "ann: passed"),
        ([("ann", "unknown", "a")], "unknown", "unsure"),
        ([("ann", "passed", "another answer")], "unknown", "the answer has changed"),
    ],
)
def test_what_people_say_is_the_grade(labels: Any, verdict: str, why: str) -> None:
    said = [Label(by=by, verdict=one, answer=answer, run="r", grader="person") for by, one, answer in labels]
    said.append(Label(verdict="failed", answer="a", run="another"))
    grade = said_by_people(Grader(kind="person"), said, "r", "a")
    assert (grade.verdict, grade.rater) == (verdict, "person") and why in grade.reason


def test_of_one_person_the_last_label_counts(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    for verdict in ("passed", "failed"):
        add_label(path, Label(verdict=verdict, answer="a", by="ann", run="r"))
    assert [one.verdict for one in read_labels(path)] == ["failed"]


JUDGE = """
name = "notes"
[[graders]]
kind = "judge"
name = "done"
expected = "It says that all is done."
model = "ollama:judge"
labels = "labels.jsonl"
[[cases]]
id = "one"
goal = "Note it"
"""


class _Model(BaseHTTPRequestHandler):
    """A model server that passes what says "all done"."""

    asked: list[dict[str, Any]]

    def do_POST(self) -> None:
        """Answer."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        passed = "all done" in json.dumps(body["messages"]).partition("<answer-")[2]
        content = json.dumps({"passed": passed, "reason": "it says so" if passed else "it does not"})
        delta = {"choices": [{"index": 0, "finish_reason": "stop", "delta": {"role": "assistant", "content": content}}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}
        frame = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "judge"}
        data = "".join(f"data: {json.dumps({**frame, **one})}\n\n" for one in (delta, usage)) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(data.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the library calls it
        """Say nothing."""


@pytest.fixture
def model() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A model server on loopback, and what it was asked."""
    handler = type("Model", (_Model,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", handler.asked
    finally:
        server.shutdown()
        server.server_close()


@in_check
def test_a_judge_in_a_suite_goes_through_the_gateway_and_counts_once_people_have_labelled(desk: Desk, model: Any) -> None:
    """It refuses first; a person labels; then it is measured by these labels, and its verdict counts."""
    url, asked = model
    desk.write("suite.toml", JUDGE)
    run = ("eval", "run", "suite.toml", "--out", "a.json")
    refused = desk.detent(*run, OLLAMA_BASE_URL=url)
    assert refused.code == 0 and "was never compared with people" in refused.err and not asked, refused
    labelled = typed(desk, "pass it is\n", "eval", "label", "a.json", "--out", "labels.jsonl")
    assert labelled.code == 0 and "| It says that all is done." in labelled.err, labelled
    add_label(desk.home / "labels.jsonl", Label(verdict="failed", answer="no", grader="done"))
    counted = desk.detent(*run, OLLAMA_BASE_URL=url)
    (trial,) = Evaluation.read(desk.home / "a.json").trials
    assert trial.standing == "passed" and trial.grades[0].measured[0].people, (counted, trial)
    judging = Evaluation.read(desk.home / "a.json").figures[""].judges["done"]
    assert judging.measured[0].people and judging.measured[0].people.kappa == 1.0 and trial.grades[0].votes[0].tokens == 12
    assert len(asked) == 4, "two labelled answers, twice each; that of the trial is one of them"
    assert desk.detent("eval", "from-runs").out.count('"goal"') == 2, "verdicts are no cases"
    heads = desk.detent("list", "--json").json
    assert sum(head["run_id"].startswith("judge-") for head in heads) == 4, "each verdict is a run"
