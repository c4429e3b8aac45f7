"""What `detent run` asks and shows: questions, goals from a pipe, Markdown, diffs of writes, and model calls that are tried again."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.desk import Desk, Done, ended
from cli.terminals import Sat, at_a_terminal, typed
from cli.test_models import NO_KEYS
from forked import asking, fork
from planners.model.chat_server import ChatServer, fails, says

QUESTIONS = """\
- {name: sure, as: sure, ask: {question: "Delete it?\\napprove this call? [y]es", expected: {type: boolean}}}
- {name: city, as: city, ask: {question: "Which city?", expected: {enum: [Paris, Lyon, null]}}}
- {name: size, as: size, ask: {question: "Which size?", expected: {enum: ["03", "01"]}}}
- name: form
  as: form
  ask:
    question: How?
    expected: {type: object, required: [n], properties: {n: {type: integer, description: "how many"}, why: {type: string}}}
- {name: which, as: which, ask: {question: "Which ones?", expected: {type: array, items: {type: integer}}}}
- {name: free, as: free, ask: "What else?"}
- name: answer
  answer: "${json([results.sure.value, results.city.value, results.size.value, results.form.value, results.which.value, results.free.value])}"
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def in_turn(*answers: tuple[str, str]) -> Callable[[str], str]:
    """Return somebody who types each answer once its prompt is shown after the answer before."""
    left, read = list(answers), 0

    def types(shown: str) -> str:
        nonlocal read
        if left and left[0][0] in shown[read:]:
            read = len(shown)
            return left.pop(0)[1] + "\n"
        return ""

    return types


def sitting(desk: Desk, *words: str, types: Callable[[str], str | None], **options: Any) -> Sat:
    """Run a command at a terminal of 80 columns with colours."""
    environment = {**desk.environment, **NO_KEYS, "TERM": "xterm-256color"}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        environment.pop(name, None)
    return at_a_terminal(*words, types=types, env=environment, cwd=desk.home, **options)


def test_the_questions_of_a_run_are_asked_in_words_and_the_run_continues(desk: Desk) -> None:
    """A boolean is asked as yes or no, a choice as a list, a form field by field. A wrong reply is asked again, and none is guessed."""
    desk.write("rules.yaml", QUESTIONS)
    answers = in_turn(
        ("yes/no", "maybe"),
        ("yes/no", "yes"),
        ("number or the words", "4"),
        ("number or the words", "lyon"),
        ("one of these", "01"),
        ("a whole number", "many"),
        ("a whole number", "7"),
        ("leave it out", ""),
        ("JSON (", '["x"]'),
        ("JSON (", "[1, 2]"),
        ("reply (", "007 is text"),
    )
    sat = sitting(desk, "run", "Go", types=answers, piped=True)
    assert (sat.code, sat.out) == (0, '[true,"Lyon","01",{"n":7},[1,2],"007 is text"]\n'), sat.shown
    assert "  | approve this call? [y]es" in sat.shown, "a question draws a prompt of its own"
    assert re.search(r"\n\s+2  Lyon", sat.shown) and "n: how many" in sat.shown


def test_a_question_that_is_put_off_leaves_the_run_waiting(desk: Desk) -> None:
    """Enter alone, or Ctrl-D: no reply is made up, and another command can give it."""
    desk.write("rules.yaml", QUESTIONS)
    assert sitting(desk, "run", "Go", "--run-id", "mine", types=typed("yes/no", "\n")).code == 3
    sat = sitting(desk, "resume", "mine", types=in_turn(("yes/no", "no"), ("number or the words", "\x04")))
    assert sat.code == 3
    assert desk.detent("show", "mine", "--json").json["audit"]["status"] == "waiting_for_user"


def piped(desk: Desk, *words: str, goal: bytes) -> Done:
    """Run a command with something on its stdin."""
    process = fork(["-m", "detent", *words], cwd=desk.home, env=desk.environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.buffer.write(goal)
    return ended(process)


@pytest.mark.parametrize("words", [("run",), ("run", "-"), ("submit", "-")])
def test_a_goal_is_read_from_a_pipe(desk: Desk, words: tuple[str, ...]) -> None:
    """The whole of it is the goal; bytes that are no text are refused, and nothing runs."""
    assert piped(desk, *words, "--run-id", "mine", goal="Räum auf\nund geh\n".encode()).code == 0
    assert desk.detent("show", "mine", "--json").json["goal"] == "Räum auf\nund geh"
    wrong = piped(desk, *words, "--run-id", "other", goal=b"\xff\xfe")
    assert (wrong.code, "not UTF-8" in wrong.err) == (2, True), wrong
    assert desk.detent("show", "other").code == 2


MARKED = """\
# Findings

See [the docs](https://evil.example/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/end).
**Line two** <b>tag</b> <!-- note --> &#x202e; ![shot](http://track.example/p.png)
<http://auto.example/%E2%80%AE>

```python
def f(): return "x\x1b]0;evil\x07"
```

| a | b |
|---|---|
| https://long.example/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb/tail | 1 |

[ref]: http://hidden.example
"""


def test_a_models_answer_is_rendered_at_a_terminal_and_failed_calls_are_one_line(desk: Desk) -> None:
    """Markdown and code are drawn; nothing that the model wrote is hidden, every address is whole, and nothing of it steers the terminal.

    A call that is tried again is one line that counts down and goes; its reason stays once.
    """
    (desk.home / "agent.toml").unlink()
    with ChatServer([fails(503, "overloaded today", retry_after="1"), says(MARKED)]) as server:
        sat = sitting(desk, "run", "-m", "served", "--base-url", server.url, "tell", types=lambda _: "", forks=asking("openai"))
    assert re.search(r"served: the provider failed, try 2 of 5 in 1 s", sat.shown), sat.shown
    assert (sat.code, sat.shown.count("overloaded today")) == (0, 1), sat.shown
    final = sat.shown[sat.shown.rindex("Findings") :]
    text = re.sub(r"\x1b\[[0-9;]*m|\s", "", final)
    assert "```" not in final and "**" not in final
    assert re.search(r"\x1b\[[0-9;]+mdef", final), "code is not highlighted"
    for whole in (
        "thedocs(https://evil.example/" + "a" * 76 + "/end).",
        "<b>tag</b><!--note-->&#x202e;![shot](http://track.example/p.png)",
        '"x\\u001b]0;evil\\u0007"',
        "b" * 82 + "/tail",
        "[ref]:http://hidden.example",
        "http://auto.example/\\u202e(http://auto.example/%E2%80%AE)",
    ):
        assert whole in re.sub(r"(?<=b)1(?=b)", "", text), (whole, text)
    assert not re.search(r"\x1b(?!\[[0-9;?]*[A-Za-z])", sat.shown) and "\x07" not in sat.shown and "\u202e" not in sat.shown


def test_in_a_pipe_an_answer_is_as_it_was_written_and_a_reason_is_shown_once(desk: Desk) -> None:
    """A program reads it: no Markdown is drawn. A line says that a call is tried again, and the line that the run ends with says why."""
    (desk.home / "agent.toml").unlink()
    desk.imports = asking("openai")
    desk.write("detent.toml", "[models.retries]\nretries = 1\nbase_s = 0.01\n")
    busy = fails(503, "overloaded today")
    with ChatServer([says(MARKED), busy, busy]) as server:
        ask = ["run", "-m", "served", "--base-url", server.url, "tell"]
        answered, failed = desk.detent(*ask, **NO_KEYS), desk.detent(*ask, **NO_KEYS)
    assert answered.out.startswith("# Findings") and "\x1b" not in answered.out
    assert (failed.code, failed.err.count("overloaded today")) == (1, 1), failed.err
    assert re.search(r"^   1  served: failed, try 2 of 2 in 0 s$", failed.err, re.MULTILINE)


def test_a_write_shows_its_diff(desk: Desk) -> None:
    """At a terminal: what was there goes, what is new comes; before an approval too. A pipe has the lines that it had."""
    desk.write("agent.toml", 'name = "writer"\ntools = ["write_file"]\nrules = "rules.yaml"\nworkspace = "."\n')
    content = 'content: "one\\ntwo \\u001b[31m\\n"'
    desk.write(
        "rules.yaml",
        f"- {{name: w, call: {{tool: write_file, args: {{path: a.txt, force: true, {content}}}}}}}\n- {{name: a, answer: ok}}\n",
    )
    desk.operator_says('redact = ["key-[0-9]+"]\n')
    desk.write("a.txt", "one\n2 key-777\n")
    shown = sitting(desk, "run", "Write", types=lambda _: "").shown
    assert "key-777" not in shown
    assert "\x1b[31m      | -2" in shown and "\x1b[32m      | +two \\u001b[31m" in shown
    desk.write("a.txt", "one\n2\n")
    done = desk.detent("run", "Write")
    assert (done.code, "| -2" in done.err) == (0, False), done
    desk.write("a.txt", "one\n2\n")
    desk.write("policy.toml", 'default = "tiers"\n[[rules]]\nid = "ask"\ntool = "write_file"\ndecision = "require_approval"\n')
    desk.write("detent.toml", 'policy = "policy.toml"\n')
    sat = sitting(desk, "run", "Write", types=typed("ater: ", "n\n"))
    assert "  | -2" in sat.shown and "  | +two \\u001b[31m" in sat.shown.split("approve this call?")[0]
    assert (desk.home / "a.txt").read_text() == "one\n2\n"
